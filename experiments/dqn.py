"""Claim: DQN reaches 475 on CartPole-v1 and -90 on Acrobot-v1 in 100 000 steps, and -120 on MountainCar-v0 in 120 000.

Means over 5 seeds; the score of a seed is the mean over 100 greedy episodes of Gymnasium's own environment, of the
final policy. Double DQN, dueling networks and prioritised replay, with the same hyperparameters on CartPole-v1, are
reported.

    python experiments/dqn.py [run ...]

trains the runs that are named, by default all, and draws them beside the results of the others.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from learning import BLUE, GREY, ORANGE, learn, write

SEEDS = range(5)
RUNS: dict[str, tuple[str, str, int, float | None]] = {
    "cartpole": ("dqn", "CartPole-v1", 100_000, 475.0),
    "acrobot": ("dqn", "Acrobot-v1", 100_000, -90.0),
    "mountain-car": ("dqn", "MountainCar-v0", 120_000, -120.0),
    "double": ("double-dqn", "CartPole-v1", 100_000, None),
    "dueling": ("dueling-dqn", "CartPole-v1", 100_000, None),
    "prioritised": ("prioritised-dqn", "CartPole-v1", 100_000, None),
}
"""Algorithm, task, budget and the mean to reach, None where it is only reported."""


def results() -> dict[str, Any]:
    """Return what was measured before."""
    file = Path(__file__).with_suffix(".json")
    return json.loads(file.read_text()) if file.exists() else {}


def said(finals: np.ndarray) -> str:
    """Return the final scores in words."""
    return f"final: mean {finals.mean():.1f}, least {finals.min():.1f}"


def picture(blocks: dict[str, Any]) -> None:
    """Draw the learning curves of all seeds of every run, and the final scores."""
    names = [name for name in RUNS if name in blocks]
    columns, rows = min(3, len(names)), -(-len(names) // 3)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.9 * columns, 3.5 * rows), squeeze=False, constrained_layout=True
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        block, (algorithm, task, budget, bar) = blocks[name], RUNS[name]
        steps = [point["steps"] for point in block["curve"]]
        scores = np.array([point["scores"] for point in block["curve"]])
        axis.plot(steps, scores, color=BLUE, alpha=0.3, linewidth=0.8)
        axis.plot(steps, np.median(scores, axis=1), color=BLUE, linewidth=2.2)
        finals = np.array(block["final"]["scores"])
        axis.plot([budget * 1.06] * len(finals), finals, "o", color=GREY, markersize=3.5, clip_on=False)
        if bar is not None:
            axis.axhline(bar, color=ORANGE, linestyle="--", linewidth=1, label=f"to reach: {bar:g}")
            axis.legend(frameon=False, loc="lower right", fontsize=8)
        axis.set(xlabel="environment steps of each seed", title=f"{algorithm}, {task}\n{said(finals)}")
        axis.xaxis.set_major_locator(plt.MaxNLocator(4))
        axis.spines[["top", "right"]].set_visible(False)
    for row in axes:
        row[0].set_ylabel("greedy return, 20 episodes; dots: final, 100")
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)
    plt.close(figure)


def main() -> None:
    """Train, score, write down, draw; fail if a mean over the seeds is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", default=list(RUNS), choices=list(RUNS))
    failed = False
    for name in parser.parse_args().runs:
        algorithm, task, budget, bar = RUNS[name]
        block = learn(task, SEEDS, budget, algorithm=algorithm)
        blocks = {**results(), name: block}
        write({known: blocks[known] for known in RUNS if known in blocks}, __file__)
        final = block["final"]
        print(f"{algorithm} on {task}, seeds 0-4:", ", ".join(f"{score:.1f}" for score in final["scores"]))
        reach = "reported" if bar is None else f"to reach: {bar:g}"
        print(f"mean: {final['mean']:.1f}, {reach}  ({block['training_seconds']:.0f} s of training)", flush=True)
        failed |= bar is not None and final["mean"] < bar
        picture(blocks)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
