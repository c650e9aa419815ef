"""The effect of lower matrix precision on the learning of SAC and TD3: Pendulum-v1, 10 000 steps, five seeds.

Networks are 256 x 256, since `medium` is for layers of 256 and more. On a processor with bfloat16 units the results
differ, and learning curves vary at random; on others the runs are the same bit for bit. `benchmarks/sac.py` measures
the speed.

    python experiments/precision.py
"""

from typing import Any

import numpy as np
from checks import COLORS, conclude, panels, save
from learning import learn

TASK, SEEDS, BUDGET, AIM = "Pendulum-v1", range(5), 10_000, -170.0
ALGORITHMS, PRECISIONS = ("sac", "td3"), ("highest", "medium")


def picture(results: dict[str, dict[str, Any]]) -> None:
    """Plot the curves of all seeds and their mean, one panel per algorithm."""
    figure, axes = panels(len(ALGORITHMS))
    for axis, algorithm in zip(axes, ALGORITHMS, strict=True):
        for precision, color in zip(PRECISIONS, COLORS, strict=False):
            curve = results[f"{algorithm}, {precision}"]["curve"]
            steps, scores = [point["steps"] for point in curve], np.array([point["scores"] for point in curve])
            axis.plot(steps, scores, color=color, alpha=0.25, linewidth=0.8)
            axis.plot(steps, scores.mean(axis=1), color=color, linewidth=2, label=precision)
        axis.axhline(AIM, color="black", linewidth=0.8, linestyle=":")
        axis.set(title=f"{algorithm.upper()}: 5 seeds and mean", xlabel="environment steps of each seed")
        axis.set_ylabel("greedy return, 20 episodes")
    save(figure, __file__, axes)


def main() -> None:
    """Train, store and plot the results; fail if a median seed is below the target."""
    results = {
        f"{algorithm}, {precision}": learn(
            TASK, SEEDS, BUDGET, algorithm=algorithm, precision=precision, hidden_sizes=(256, 256), compile="on"
        )
        for algorithm in ALGORITHMS
        for precision in PRECISIONS
    }
    for name, result in results.items():
        scores = result["final"]["scores"]
        print(f"{name}: mean {np.mean(scores):.1f}, worst {min(scores):.1f}, {result['training_seconds']:.0f} s")
    picture(results)
    medians = {name: np.median(result["final"]["scores"]) for name, result in results.items()}
    claims = {f"{name}: {AIM:g} or more, the median seed": bool(score >= AIM) for name, score in medians.items()}
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
