"""Helpers of the experiments that train algorithms one after another, each with a target score."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from learning import BLUE, GRAY, ORANGE, learn, write

SEEDS = range(5)


class Reach(NamedTuple):
    """A training.

    Attributes:
        algorithm: its name in the catalog.
        task: name of the environment.
        budget: environment steps of each seed.
        bar: the mean final score to reach; None if it is only reported.
    """

    algorithm: str
    task: str
    budget: int
    bar: float | None


def panels(blocks: Mapping[str, Any], runs: Mapping[str, Reach], file: str) -> None:
    """Draw the learning curves of all seeds, and their final scores, of all runs so far, next to `file`."""
    names = [name for name in runs if name in blocks]
    columns = len(names) if len(names) < 5 else 3
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(3.9 * columns, 3.5 * rows), squeeze=False, constrained_layout=True
    )
    for axis in axes.flat[len(names) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, names, strict=False):
        _panel(axis, blocks[name], runs[name].bar)
    for row in axes:
        row[0].set_ylabel("greedy return, 20 episodes; dots: final, 100")
    figure.savefig(Path(file).with_suffix(".png"), dpi=130)
    plt.close(figure)


def _panel(axis: Any, block: Mapping[str, Any], bar: float | None) -> None:
    steps = [point["steps"] for point in block["curve"]]
    scores = np.array([point["scores"] for point in block["curve"]])
    axis.plot(steps, scores, color=BLUE, alpha=0.3, linewidth=0.8)
    axis.plot(steps, np.median(scores, axis=1), color=BLUE, linewidth=2.2)
    finals = np.array(block["final"]["scores"])
    axis.plot([block["budget"] * 1.06] * len(finals), finals, "o", color=GRAY, markersize=3.5, clip_on=False)
    if bar is not None:
        axis.axhline(bar, color=ORANGE, linestyle="--", linewidth=1, label=f"to reach: {bar:g}")
        axis.legend(frameon=False, loc="lower right", fontsize=8)
    said = f"final: mean {finals.mean():.1f}, least {finals.min():.1f}"
    axis.set(xlabel="thousand steps of each seed", title=f"{block['algorithm']}, {block['task']}\n{said}")
    axis.xaxis.set_major_locator(plt.MaxNLocator(5))
    axis.xaxis.set_major_formatter(lambda steps, _: f"{steps / 1000:g}")
    axis.spines[["top", "right"]].set_visible(False)


def reach(runs: Mapping[str, Reach], file: str, words: str | None) -> None:
    """Train the runs of the command line, by default all; evaluate, store and plot them; fail if a target is missed.

    Args:
        runs: runs by name.
        file: the experiment; results and plot are written next to it, with those of earlier runs.
        words: description for `--help`.
    """
    parser = argparse.ArgumentParser(description=words, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", metavar="run", help=f"of {', '.join(runs)}; default: all")
    named = parser.parse_args().runs or list(runs)
    if unknown := set(named) - set(runs):
        parser.error(f"there is no run {', '.join(sorted(unknown))}; there are: {', '.join(runs)}")
    stored, failed = Path(file).with_suffix(".json"), False
    for name in named:
        algorithm, task, budget, bar = runs[name]
        block = learn(task, SEEDS, budget, algorithm=algorithm)
        blocks = {**(json.loads(stored.read_text()) if stored.exists() else {}), name: block}
        write({known: blocks[known] for known in runs if known in blocks}, file)
        final = block["final"]
        print(f"{algorithm} on {task}, seeds 0-4:", ", ".join(f"{score:.1f}" for score in final["scores"]))
        said = "reported" if bar is None else f"to reach: {bar:g}"
        print(f"mean: {final['mean']:.1f}, {said}  ({block['training_seconds']:.0f} s of training)", flush=True)
        failed |= bar is not None and final["mean"] < bar
        panels(blocks, runs, file)
    raise SystemExit(failed)
