"""PPO compared with TRPO on Pendulum-v1, in samples and in time, each with its preset: 300 000 steps, five seeds.

Every 10 000 steps each greedy policy plays the same 20 episodes, which is not counted in the time. The results are the
first steps and CPU seconds at which a seed reaches -200, and its final score over 100 episodes of Gymnasium's own
environment. `trust_region.py` compares both with equal networks on CartPole-v1.

    python experiments/ppo_trpo.py
"""

import time
from typing import Any

import numpy as np
import torch
from checks import COLORS, conclude, panels, save

import operant
from operant.catalog import find
from operant.control import assemble
from operant.runtime.settings import Settings

TASK, SEEDS, BUDGET, EVERY, EPISODES, AIM = "Pendulum-v1", tuple(range(5)), 300_000, 10_000, 20, -200.0


def race(algorithm: str) -> dict[str, Any]:
    """Train all seeds with the preset, and evaluate them during training."""
    settings = Settings(algorithm, TASK, seeds=SEEDS, budget=BUDGET)
    experiment = assemble(find(algorithm), settings, operant.configure(algorithm, TASK), device="cpu")
    learner, points, spent = experiment.learner, [], 0.0
    while learner.consumed < BUDGET:
        start = time.process_time()
        learner.iterate()
        spent += time.process_time() - start
        if learner.consumed // EVERY > len(points) or learner.consumed >= BUDGET:
            scores = list(experiment.evaluate(EPISODES, backend="tensor").scores)
            points.append({"steps": learner.consumed, "seconds": spent, "scores": scores})
    final = experiment.evaluate(100, backend="gymnasium")
    experiment.close()
    reached = [next((p for p in points if p["scores"][seed] >= AIM), None) for seed in range(len(SEEDS))]
    return {
        "curve": points,
        "seconds": spent,
        "final": final.scores,
        "mean": final.mean,
        "steps to -200": [None if point is None else point["steps"] for point in reached],
        "seconds to -200": [None if point is None else point["seconds"] for point in reached],
    }


def picture(results: dict[str, Any]) -> None:
    """Draw the scores of all seeds and their median, by steps and by seconds."""
    figure, axes = panels(2)
    for (name, result), color in zip(results.items(), COLORS, strict=False):
        scores = np.array([point["scores"] for point in result["curve"]])
        for axis, unit in zip(axes, ("steps", "seconds"), strict=True):
            place = [point[unit] for point in result["curve"]]
            axis.plot(place, scores, color=color, alpha=0.25, linewidth=0.8)
            axis.plot(place, np.median(scores, axis=1), color=color, linewidth=2, label=name.upper())
    for axis in axes:
        axis.axhline(AIM, color="black", linewidth=0.8, linestyle=":")
        axis.set_ylabel(f"greedy return, {EPISODES} episodes")
    axes[0].set(title=f"{TASK}, by samples: 5 seeds and median", xlabel="environment steps of each seed")
    axes[1].set(title=f"{TASK}, by time", xlabel="seconds of one processor, 5 seeds together")
    save(figure, __file__, axes[:1])


def main() -> None:
    """Train both, store and plot the results; fail if a claim does not hold."""
    torch.set_num_threads(1)
    results = {algorithm: race(algorithm) for algorithm in ("trpo", "ppo")}
    for name, result in results.items():
        print(name, {key: value for key, value in result.items() if key != "curve"}, flush=True)
    picture(results)
    claims = {
        f"{name.upper()} ends above {AIM:g} on average": result["mean"] >= AIM for name, result in results.items()
    }
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
