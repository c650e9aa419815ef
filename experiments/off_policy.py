"""Claim: SAC and TD3 reach -170 on Pendulum-v1 in 20 000 steps, on average over 5 seeds.

DDPG, on the same task, and discrete SAC, on CartPole-v1 in 50 000 steps, are reported. The score of a seed is the mean
over 100 greedy episodes of Gymnasium's own environment, of the final policy.

    python experiments/off_policy.py [algorithm ...]

trains the algorithms that are named, by default all, and draws them beside the results of the others.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from learning import BLUE, GREY, ORANGE, learn, write

SEEDS = range(5)
TASKS = {
    "sac": ("Pendulum-v1", 20_000, -170.0),
    "td3": ("Pendulum-v1", 20_000, -170.0),
    "ddpg": ("Pendulum-v1", 20_000, None),
    "sac-discrete": ("CartPole-v1", 50_000, None),
}
"""Task, budget and the mean to reach, None where it is only reported."""


def results() -> dict[str, Any]:
    """Return what was measured before."""
    file = Path(__file__).with_suffix(".json")
    return json.loads(file.read_text()) if file.exists() else {}


def picture(blocks: dict[str, Any]) -> None:
    """Draw the learning curves of all seeds of every algorithm, and its final scores."""
    names = [name for name in TASKS if name in blocks]
    figure, axes = plt.subplots(1, len(names), figsize=(3.4 * len(names), 3.6), squeeze=False, constrained_layout=True)
    for axis, name in zip(axes[0], names, strict=True):
        block, bar = blocks[name], TASKS[name][2]
        steps = [point["steps"] for point in block["curve"]]
        scores = np.array([point["scores"] for point in block["curve"]])
        axis.plot(steps, scores, color=BLUE, alpha=0.3, linewidth=0.8)
        axis.plot(steps, np.median(scores, axis=1), color=BLUE, linewidth=2.2)
        finals = np.array(block["final"]["scores"])
        axis.plot([block["budget"] * 1.06] * len(finals), finals, "o", color=GREY, markersize=3.5, clip_on=False)
        if bar is not None:
            axis.axhline(bar, color=ORANGE, linestyle="--", linewidth=1, label=f"to reach: {bar:g}")
            axis.legend(frameon=False, loc="lower right")
        score = f"mean {finals.mean():.1f}, least {finals.min():.1f}"
        axis.set(xlabel="thousand steps of each seed", title=f"{name}, {block['task']}\n{score}")
        axis.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0][0].set_ylabel("greedy return, 20 episodes; dots: final, 100")
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)
    plt.close(figure)


def main() -> None:
    """Train, score, write down, draw; fail if a mean over the seeds is below its bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithms", nargs="*", default=list(TASKS), choices=list(TASKS))
    failed = False
    for name in parser.parse_args().algorithms:
        task, budget, bar = TASKS[name]
        block = learn(task, SEEDS, budget, algorithm=name)
        blocks = {**results(), name: block}
        write({known: blocks[known] for known in TASKS if known in blocks}, __file__)
        final = block["final"]
        print(f"{name} on {task}, seeds 0-4:", ", ".join(f"{score:.1f}" for score in final["scores"]))
        reach = "reported" if bar is None else f"to reach: {bar:g}"
        print(f"mean: {final['mean']:.1f}, {reach}  ({block['training_seconds']:.0f} s of training)", flush=True)
        failed |= bar is not None and final["mean"] < bar
        picture(blocks)
    raise SystemExit(failed)


if __name__ == "__main__":
    main()
