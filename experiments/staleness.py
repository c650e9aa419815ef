"""How old are the gradients of A3C? By the number of workers, on CartPole-v1.

Each worker copies the shared parameters, plays, and steps the shared parameters along its gradient; staleness is the
number of updates by others between its reading and its writing. The preset of the task, with 1, 2, 4 and 8 workers and
five seeds each, trained one at a time. Every `slice_steps` steps the workers wait for each other, for reports and
checkpoints, and begin together again: once as the preset has it, once ten times as rarely.

The staleness depends on the machine: here all workers share one core.

    taskset -c 0 python experiments/staleness.py      # what is there already is kept
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from checks import COLORS, panels, rounded, save

import operant
from operant.catalog import find
from operant.control import assemble
from operant.runtime.settings import Settings

TASK, SEEDS, BUDGET = "CartPole-v1", range(5), 100_000
WORKERS, SLICES = (1, 2, 4, 8), (2_000, 20_000)
FILE = Path(__file__).with_suffix(".json")


def train(workers: int, slice_steps: int, seed: int) -> dict[str, float]:
    """Train one seed; return the staleness over all its updates, and its final greedy score."""
    config = operant.configure("a3c", TASK, workers=workers, steps_per_iteration=slice_steps)
    settings = Settings("a3c", TASK, seeds=(seed,), budget=BUDGET)
    experiment = assemble(find("a3c"), settings, config, device="cpu")
    learner = experiment.learner
    weights, means, most = [], [], 0.0
    while learner.consumed < BUDGET:
        before = learner.consumed
        metrics = learner.iterate()
        weights.append(learner.consumed - before)
        means.append(float(metrics["staleness/mean"]))
        most = max(most, float(metrics["staleness/most"]))
    score = experiment.evaluate(100, backend="gymnasium").mean
    experiment.close()
    return {"mean": float(np.average(means, weights=weights)), "most": most, "score": score}


def draw(cells: dict[str, Any]) -> None:
    """Draw the staleness and the final score by the number of workers."""
    figure, (left, right) = panels(2)
    for slice_steps, color in zip(SLICES, COLORS, strict=False):
        runs = [cells[f"{workers} workers, {slice_steps} steps"] for workers in WORKERS]
        for axis, name in ((left, "mean"), (right, "score")):
            for workers, run in zip(WORKERS, runs, strict=True):
                axis.plot([workers] * len(SEEDS), [seed[name] for seed in run], "o", color=color, ms=4, alpha=0.6)
            middle = [np.mean([seed[name] for seed in run]) for run in runs]
            axis.plot(WORKERS, middle, color=color, label=f"all wait every {slice_steps:,} steps")
    left.plot(WORKERS, [workers - 1 for workers in WORKERS], ":", color="black", label="workers - 1")
    left.set(ylabel="updates by others, mean", title="staleness of a gradient")
    right.set(ylabel=f"greedy return after {BUDGET:,} steps", title=f"{TASK}, each seed", ylim=(0, 515))
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(WORKERS, [str(workers) for workers in WORKERS])
        axis.set_xlabel("workers")
    save(figure, __file__, (left,))


def main() -> None:
    """Train missing cases; print and plot the results."""
    results = json.loads(FILE.read_text()) if FILE.exists() else {"task": TASK, "budget": BUDGET, "cells": {}}
    results["cores"] = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    for slice_steps in SLICES:
        for workers in WORKERS:
            name = f"{workers} workers, {slice_steps} steps"
            if name not in results["cells"]:
                results["cells"][name] = [train(workers, slice_steps, seed) for seed in SEEDS]
                FILE.write_text(json.dumps(rounded(results), indent=1) + "\n")
            run = results["cells"][name]
            mean, score = (np.mean([seed[column] for seed in run]) for column in ("mean", "score"))
            most, worst = max(seed["most"] for seed in run), min(seed["score"] for seed in run)
            print(f"{name}: staleness {mean:.2f}, most {most:.0f}; score {score:.1f}, worst {worst:.1f}", flush=True)
    draw(results["cells"])


if __name__ == "__main__":
    main()
