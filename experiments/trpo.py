"""Claim: TRPO with its presets reaches 495 on CartPole-v1, -200 on Pendulum-v1 and -90 on Acrobot-v1.

With 100 000, 300 000 and 500 000 steps per seed, on average over 5 seeds. The score of a seed is the mean over 100
greedy episodes of Gymnasium's own environment, of the final policy. The natural policy gradient, which is TRPO without
the line search, is also reported on CartPole-v1.

    python experiments/trpo.py [case ...]

trains the given cases, by default all, and plots them with the results of the others.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from learning import BLUE, GRAY, ORANGE, learn, write

SEEDS = range(5)
CASES = {
    "trpo CartPole-v1": (100_000, 495.0),
    "trpo Pendulum-v1": (300_000, -200.0),
    "trpo Acrobot-v1": (500_000, -90.0),
    "npg CartPole-v1": (100_000, None),
}
"""Budget and target of the mean, None if it is only reported."""


def results() -> dict[str, Any]:
    """Return the results of earlier runs."""
    file = Path(__file__).with_suffix(".json")
    return json.loads(file.read_text()) if file.exists() else {}


def picture(blocks: dict[str, Any]) -> None:
    """Draw the learning curves of all seeds of every case, and their final scores."""
    names = [name for name in CASES if name in blocks]
    figure, axes = plt.subplots(1, len(names), figsize=(3.4 * len(names), 3.6), squeeze=False, constrained_layout=True)
    for axis, name in zip(axes[0], names, strict=True):
        block, bar = blocks[name], CASES[name][1]
        steps = [point["steps"] / 1000 for point in block["curve"]]
        scores = np.array([point["scores"] for point in block["curve"]])
        axis.plot(steps, scores, color=BLUE, alpha=0.3, linewidth=0.8)
        axis.plot(steps, np.median(scores, axis=1), color=BLUE, linewidth=2.2, label="median seed")
        finals = np.array(block["final"]["scores"])
        axis.plot([block["budget"] * 1.05 / 1000] * len(finals), finals, "o", color=GRAY, markersize=3.5, label="final")
        if bar is not None:
            axis.axhline(bar, color=ORANGE, linestyle="--", linewidth=1, label=f"to reach: {bar:g}")
        axis.set(xlabel="thousand steps of each seed", title=name.replace(" ", " on ", 1))
        axis.legend(
            frameon=False, loc="lower right", title=f"mean {finals.mean():.1f}, least {finals.min():.1f}", fontsize=8
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("greedy return, 20 episodes; dots: final, 100")
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)
    plt.close(figure)


def main() -> None:
    """Train, evaluate, store and plot the results; fail if a mean over the seeds is below its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), metavar="case", help=", ".join(CASES))
    failed = False
    for name in parser.parse_args().cases:
        budget, bar = CASES[name]
        algorithm, task = name.split()
        block = learn(task, SEEDS, budget, algorithm=algorithm)
        write({**results(), name: block}, __file__)
        picture(results())
        final = block["final"]
        print(f"{name}, seeds 0-4:", ", ".join(f"{score:.1f}" for score in final["scores"]))
        reach = "" if bar is None else f", to reach: {bar:g}"
        print(f"mean: {final['mean']:.1f}{reach}  ({block['training_seconds']:.1f} s of training)", flush=True)
        failed |= bar is not None and final["mean"] < bar
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
