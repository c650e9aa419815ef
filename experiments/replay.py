"""Claim: without replay samples are correlated, without a target network values diverge; DQN overestimates.

Five ways to learn CartPole-v1, 5 seeds each, with nothing else between them: with and without replay (a memory of one
batch), with and without a target network (a copy after every gradient step), and with both and double estimates. Every
2500 steps each greedy policy plays 20 episodes, and the value that its network gives to their first states is compared
with the discounted return that follows: `(1 - γ^L) / (1 - γ)` for an episode of L steps, at most 100. Whether Double
DQN overestimates less is reported; with two actions there is little to gain.

Consecutive samples of a minibatch are correlated where there is no replay: their lag-1 autocorrelation is the mean of
`(x_i - μ)(x_{i+1} - μ) / σ²` over minibatches, samples and the four observed numbers, with the mean and variance of all
samples of the run.

    python experiments/replay.py
"""

from typing import Any

import numpy as np
import torch
from checks import COLOURS, conclude, panels, save
from torch import Tensor

from operant import streams
from operant.control.dqn import DQN, DQNConfig
from operant.envs import make
from operant.runtime.evaluation import evaluate_policy

TASK, SEEDS, BUDGET, EVERY, EPISODES = "CartPole-v1", tuple(range(5)), 50_000, 2_500, 20
COMMON: dict[str, Any] = {
    "train_every": 32,
    "updates": 16,
    "batch": 32,
    "capacity": 50_000,
    "warmup": 512,
    "sync": 64,
    "learning_rate": 1e-3,
    "huber_delta": float("inf"),
    "max_grad_norm": 10.0,
    "epsilon_end": 0.05,
    "epsilon_fraction": 0.2,
    "hidden": (64, 64),
}
WAYS: dict[str, dict[str, Any]] = {
    "replay and target": {},
    "no target": {"sync": 1},
    "no replay": {"capacity": COMMON["batch"]},
    "neither": {"capacity": COMMON["batch"], "sync": 1},
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
    centred = samples - samples.mean((0, 2), keepdim=True)
    variance = centred.square().mean((0, 2))
    products = (centred[:, :, 1:] * centred[:, :, :-1]).mean((0, 2))
    return (products / variance).mean(-1).tolist()


def learn(way: dict[str, Any]) -> dict[str, Any]:
    """Train all seeds one way."""
    config = DQNConfig(**{**COMMON, **way})
    learner = DQN(config, make(TASK, 1, SEEDS), seeds=SEEDS, budget=BUDGET)
    own = [streams.torch_generator(seed, "what is drawn") for seed in SEEDS]
    points, drawn = [], []
    while learner.consumed < BUDGET:
        learner.iterate()
        if learner.consumed > config.warmup and learner.consumed % 256 == 0:
            replay = learner.experience.replay
            drawn.append(replay.take(replay.draw(config.batch, own), gamma=config.gamma).obs)
        if learner.consumed // EVERY > len(points):
            points.append({"steps": learner.consumed, **look(learner)})
    return {"curve": points, "autocorrelation": autocorrelation(torch.stack(drawn))}


def table(results: dict[str, Any], way: str, column: str) -> np.ndarray:
    """Return one column `[points, seeds]` of a way to learn."""
    return np.array([point[column] for point in results[way]["curve"]])


def picture(results: dict[str, Any]) -> None:
    """Draw scores, biases and autocorrelations."""
    figure, axes = panels(3)
    for way, colour in zip(WAYS, COLOURS, strict=False):
        steps = [point["steps"] for point in results[way]["curve"]]
        scores = table(results, way, "scores")
        axes[0].plot(steps, scores.mean(1), color=colour, label=way)
        axes[0].fill_between(steps, scores.min(1), scores.max(1), color=colour, alpha=0.08, linewidth=0)
        bias = table(results, way, "values") - table(results, way, "returns")
        axes[1].plot(steps, np.median(bias, axis=1), color=colour, label=way)
        axes[1].fill_between(steps, bias.min(1), bias.max(1), color=colour, alpha=0.08, linewidth=0)
    axes[0].set(title="5 seeds: mean, least and most", xlabel="environment steps", ylabel="greedy return, 20 episodes")
    axes[1].set(title="overestimation: median, least and most", xlabel="environment steps")
    axes[1].set_ylabel("max Q less the discounted return")
    axes[1].set_yscale("symlog", linthresh=100)
    axes[1].axhline(0, color="black", linewidth=0.8)
    for place, (way, colour) in enumerate(zip(WAYS, COLOURS, strict=False)):
        values = results[way]["autocorrelation"]
        axes[2].plot([place] * len(values), values, "o", color=colour, alpha=0.7)
    axes[2].set(title="within minibatches, each seed", ylabel="lag-1 autocorrelation", ylim=(-0.1, 1.0))
    axes[2].set_xticks(range(len(WAYS)), [way.replace(" ", "\n", 1) for way in WAYS], fontsize=8)
    axes[2].axhline(0, color="black", linewidth=0.8)
    save(figure, __file__, axes[:1])


def main() -> None:
    """Train, compare, draw; fail if a claim does not hold."""
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, way in WAYS.items():
        results[name] = learn(way)
        late = table(results, name, "scores")[-5:].mean()
        print(
            f"{name}: late score {late:.0f}, autocorrelation {np.mean(results[name]['autocorrelation']):.3f}",
            flush=True,
        )
    late = {way: float(table(results, way, "scores")[-5:].mean()) for way in WAYS}
    bias = {way: float((table(results, way, "values") - table(results, way, "returns"))[10:].mean()) for way in WAYS}
    mixed = {way: float(np.mean(results[way]["autocorrelation"])) for way in WAYS}
    results |= {"late score": late, "overestimation": bias, "mean autocorrelation": mixed}
    picture(results)
    full = "replay and target"
    conclude(
        __file__,
        results,
        [],
        {
            "replay with a target network scores highest of the four": late[full]
            == max(late[way] for way in WAYS if way != "both, double"),
            "samples are nearly uncorrelated with replay (below 0.1) and correlated without (above 0.3)": mixed[full]
            < 0.1
            and mixed["no replay"] > 0.3,
            "values diverge without a target network (above ten times what can be earned), "
            "and not with one (below twice)": table(results, "no target", "values")[-1].min() > 1000
            and table(results, full, "values")[-1].max() < 200,
            "DQN overestimates": bias[full] > 0,
        },
    )


if __name__ == "__main__":
    main()
