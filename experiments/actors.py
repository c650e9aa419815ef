"""Do actors that do not wait for the learner learn as well? IMPALA on CartPole-v1, by how stale its rollouts are.

The preset of the task, with four actors: in this process, waiting for every update; in four processes that do not wait,
with four rollouts in a batch; and with one in a batch, of four times as many environments, so that a batch is as
large and rollouts are some four updates old. V-trace corrects; where nothing is stale it changes nothing.

    python experiments/actors.py      # what is there already is kept
"""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from checks import COLORS, panels, rounded, save

import operant
from operant.catalog import find
from operant.control import assemble
from operant.runtime.settings import Settings

TASK, SEEDS, BUDGET = "CartPole-v1", (0, 1, 2, 3, 4), 500_000
POINTS = 10
CELLS: dict[str, dict[str, Any]] = {
    "actors wait": {},
    "4 actors, batches of 4": {"workers": 4, "max_staleness": 4},
    "4 actors, batches of 1": {"workers": 4, "max_staleness": 8, "rollouts_per_batch": 1, "num_envs": 16},
}
FILE = Path(__file__).with_suffix(".json")


def train(options: dict[str, Any]) -> dict[str, Any]:
    """Train all seeds as one program; return scores during training and at the end, and the staleness of updates."""
    config = operant.configure("impala", TASK, **options)
    settings = Settings("impala", TASK, seeds=SEEDS, budget=BUDGET)
    experiment, began = assemble(find("impala"), settings, config, device="cpu"), time.monotonic()
    learner, curve = experiment.learner, list[dict[str, Any]]()
    reports = []
    while learner.consumed < BUDGET:
        reports.append(learner.iterate())
        if learner.consumed >= (len(curve) + 1) * BUDGET / POINTS:
            curve.append({"steps": learner.consumed, "scores": experiment.evaluate(20).scores})
    final = experiment.evaluate(100, backend="gymnasium").scores
    experiment.close()
    return {
        "options": options,
        "curve": curve,
        "scores": final,
        "staleness": float(np.mean([report["staleness/mean"] for report in reports])),
        "most": max(report["staleness/most"] for report in reports),
        "truncated": float(np.mean([report["staleness/truncated_ratios"].mean() for report in reports])),
        "dropped": sum(report["health/dropped_rollouts"] for report in reports),
        "updates": len(reports),
        "seconds": time.monotonic() - began,
    }


def draw(cells: dict[str, Any]) -> None:
    """Draw learning curves, and final scores by the mean staleness."""
    figure, (left, right) = panels(2)
    for (name, cell), color in zip(cells.items(), COLORS, strict=False):
        steps, scores = [point["steps"] for point in cell["curve"]], [point["scores"] for point in cell["curve"]]
        left.plot(steps, np.mean(scores, axis=1), color=color, label=f"{name}: {cell['staleness']:.1f} updates old")
        left.fill_between(steps, np.min(scores, axis=1), np.max(scores, axis=1), color=color, alpha=0.12, lw=0)
        place = cell["staleness"] + np.linspace(-0.15, 0.15, len(SEEDS))
        right.plot(place, cell["scores"], "o", color=color, ms=5, alpha=0.7)
    left.set(
        xlabel="environment steps of each seed", ylabel="greedy return", title=f"{TASK}, mean, least, most of 5 seeds"
    )
    right.set(xlabel="updates between acting and learning, mean", title="final score of each seed", ylim=(0, 515))
    right.axhline(475, color="black", ls=":", lw=1)
    save(figure, __file__, (left,))


def main() -> None:
    """Train missing cases; print and plot the results."""
    results = json.loads(FILE.read_text()) if FILE.exists() else {"task": TASK, "budget": BUDGET, "cells": {}}
    for name, options in CELLS.items():
        if name not in results["cells"]:
            results["cells"][name] = train(options)
            FILE.write_text(json.dumps(rounded(results), indent=1) + "\n")
        cell = results["cells"][name]
        facts = ", ".join(
            f"{fact} {cell[fact]:.3g}" for fact in ("staleness", "most", "truncated", "dropped", "seconds")
        )
        print(f"{name}: {facts}; scores {', '.join(f'{score:.1f}' for score in cell['scores'])}", flush=True)
    draw(results["cells"])


if __name__ == "__main__":
    main()
