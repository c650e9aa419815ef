"""Claim: without replay samples are correlated, without a target network values diverge; DQN overestimates.

Eight variants on CartPole-v1, 5 seeds each, with all else equal: with and without replay (a buffer of one batch); with
a target network with hard updates, with soft updates, and without one (a copy after every gradient step); and with
replay, a target network and double Q-learning. Parameters of the target network are on average 32
gradient steps old with a copy every 64 and with τ = 0.03, 200 with a copy every 400 and with τ = 0.005. Every 2500
steps each greedy policy plays 20 episodes, and the value that its network gives to their first states is compared
with the discounted return that follows: `(1 - γ^L) / (1 - γ)` for an episode of L steps, at most 100. Whether Double
DQN overestimates less is reported; with two actions there is little to gain.

Consecutive samples of a minibatch are correlated without replay: their lag-1 autocorrelation is the mean of
`(x_i - μ)(x_{i+1} - μ) / σ²` over minibatches, samples and the four observed numbers, with the mean and variance of all
samples of the run.

    python experiments/replay.py            # what is there already is kept
    python experiments/replay.py --afresh
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checks import COLORS, conclude, panels, save
from torch import Tensor

from operant import streams
from operant.control.dqn import DQN, DQNConfig
from operant.envs import make
from operant.runtime.evaluation import evaluate_policy

TASK, SEEDS, BUDGET, EVERY, EPISODES = "CartPole-v1", tuple(range(5)), 50_000, 2_500, 20
COMMON: dict[str, Any] = {
    "train_freq": 32,
    "gradient_steps": 16,
    "batch_size": 32,
    "buffer_size": 50_000,
    "learning_starts": 512,
    "target_update_interval": 64,
    "learning_rate": 1e-3,
    "huber_delta": float("inf"),
    "max_grad_norm": 10.0,
    "exploration_final_eps": 0.05,
    "exploration_fraction": 0.2,
    "hidden_sizes": (64, 64),
}
WAYS: dict[str, dict[str, Any]] = {
    "replay and target": {},
    "soft target": {"target_update_interval": 1, "tau": 0.005},
    "soft, faster": {"target_update_interval": 1, "tau": 0.03},
    "hard, slower": {"target_update_interval": 400},
    "no target": {"target_update_interval": 1},
    "no replay": {"buffer_size": COMMON["batch_size"]},
    "neither": {"buffer_size": COMMON["batch_size"], "target_update_interval": 1},
    "both, double": {"double": True},
}


@torch.no_grad()
def look(learner: DQN) -> dict[str, Any]:
    """Return the scores, first values and discounted returns of each seed, over the same episodes at every call."""
    env = make(TASK, EPISODES, SEEDS, purpose="evaluation")
    first = env.reset().view(len(SEEDS), EPISODES, -1)  # pyright: ignore[reportAttributeAccessIssue]
    evaluation = evaluate_policy(learner, env, seeds=len(SEEDS), episodes=EPISODES)
    lengths, gamma = np.array(evaluation.episode_scores), learner.config.gamma
    return {
        "scores": list(evaluation.scores),
        "values": learner.online(first).amax(-1).mean(1).tolist(),
        "returns": ((1 - gamma**lengths) / (1 - gamma)).mean(1).tolist(),
    }


def autocorrelation(samples: Tensor) -> list[float]:
    """Return the lag-1 autocorrelation within the minibatches `[K, S, M, D]` of each seed."""
    centered = samples - samples.mean((0, 2), keepdim=True)
    variance = centered.square().mean((0, 2))
    products = (centered[:, :, 1:] * centered[:, :, :-1]).mean((0, 2))
    return (products / variance).mean(-1).tolist()


def learn(way: dict[str, Any]) -> dict[str, Any]:
    """Train all seeds with one variant."""
    config = DQNConfig(**{**COMMON, **way})
    learner = DQN(config, make(TASK, 1, SEEDS), seeds=SEEDS, budget=BUDGET)
    own = [streams.torch_generator(seed, "what is drawn") for seed in SEEDS]
    points, drawn = [], []
    while learner.consumed < BUDGET:
        learner.iterate()
        if learner.consumed > config.learning_starts and learner.consumed % 256 == 0:
            replay = learner.experience.replay
            drawn.append(replay.take(replay.draw(config.batch_size, own), gamma=config.gamma).obs)
        if learner.consumed // EVERY > len(points):
            points.append({"steps": learner.consumed, **look(learner)})
    return {"curve": points, "autocorrelation": autocorrelation(torch.stack(drawn))}


def table(results: dict[str, Any], way: str, column: str) -> np.ndarray:
    """Return one column `[points, seeds]` of a variant."""
    return np.array([point[column] for point in results[way]["curve"]])


def picture(results: dict[str, Any]) -> None:
    """Draw scores, with and without replay and by the kind of target network, biases and autocorrelations."""
    figure, axes = panels(2, 2)
    colors = dict(zip(WAYS, COLORS, strict=True))
    kinds = ("replay and target", "soft target", "soft, faster", "hard, slower", "no target")
    rest = ("replay and target", "no target", "no replay", "neither", "both, double")
    for axis, ways, title in ((axes[0], rest, "without one or the other"), (axes[1], kinds, "kinds of target network")):
        for way in ways:
            steps = [point["steps"] for point in results[way]["curve"]]
            scores = table(results, way, "scores")
            axis.plot(steps, scores.mean(1), color=colors[way], label=way)
            axis.fill_between(steps, scores.min(1), scores.max(1), color=colors[way], alpha=0.06, linewidth=0)
        axis.set(title=f"{title}: mean, least and most", xlabel="environment steps", ylim=(0, 690))
        axis.set_yticks(range(0, 501, 100))
        axis.set_ylabel("greedy return, 20 episodes")
    for way, color in colors.items():
        steps = [point["steps"] for point in results[way]["curve"]]
        bias = table(results, way, "values") - table(results, way, "returns")
        axes[2].plot(steps, np.median(bias, axis=1), color=color, label=way)
        axes[2].fill_between(steps, bias.min(1), bias.max(1), color=color, alpha=0.06, linewidth=0)
    axes[2].set(title="overestimation: median, least and most", xlabel="environment steps")
    axes[2].set_ylabel("max Q less the discounted return")
    axes[2].set_yscale("symlog", linthresh=100)
    axes[2].axhline(0, color="black", linewidth=0.8)
    for place, (way, color) in enumerate(colors.items()):
        values = results[way]["autocorrelation"]
        axes[3].plot([place] * len(values), values, "o", color=color, alpha=0.7)
    axes[3].set(title="within minibatches, each seed", ylabel="lag-1 autocorrelation", ylim=(-0.1, 1.0))
    axes[3].set_xticks(range(len(WAYS)), [way.replace(" ", "\n") for way in WAYS], fontsize=8)
    axes[3].axhline(0, color="black", linewidth=0.8)
    for axis in axes[:2]:
        axis.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    save(figure, __file__)


def kept(afresh: bool) -> dict[str, Any]:
    """Return the results of earlier runs."""
    file = Path(__file__).with_suffix(".json")
    return {} if afresh or not file.exists() else json.loads(file.read_text())["results"]


def claims(results: dict[str, Any]) -> dict[str, bool]:
    """Return the claims about the results."""
    late, mixed = results["late score"], results["mean autocorrelation"]
    full, soft = "replay and target", "soft target"
    return {
        "replay with a target network that is copied scores higher than without either or both": late[full]
        == max(late[way] for way in (full, "no target", "no replay", "neither")),
        "samples are nearly uncorrelated with replay (below 0.1) and correlated without (above 0.3)": mixed[full] < 0.1
        and mixed["no replay"] > 0.3,
        "values diverge without a target network (above ten times what can be earned), "
        "and with neither a copy every 64 steps nor τ = 0.005 (below twice)": table(results, "no target", "values")[
            -1
        ].min()
        > 1000
        and max(table(results, way, "values")[-1].max() for way in (full, soft)) < 200,
        "DQN overestimates": results["overestimation"][full] > 0,
    }


def main() -> None:
    """Train missing variants, compare and plot; fail if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--afresh", action="store_true", help="train all variants again")
    before = kept(parser.parse_args().afresh)
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, way in WAYS.items():
        results[name] = before[name] if name in before else learn(way)
        late = table(results, name, "scores")[-5:].mean()
        print(
            f"{name}: late score {late:.0f}, autocorrelation {np.mean(results[name]['autocorrelation']):.3f}",
            flush=True,
        )
    bias = {way: float((table(results, way, "values") - table(results, way, "returns"))[10:].mean()) for way in WAYS}
    results |= {
        "late score": {way: float(table(results, way, "scores")[-5:].mean()) for way in WAYS},
        "overestimation": bias,
        "mean autocorrelation": {way: float(np.mean(results[way]["autocorrelation"])) for way in WAYS},
    }
    picture(results)
    conclude(__file__, results, [], claims(results))


if __name__ == "__main__":
    main()
