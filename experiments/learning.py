"""Helpers of the experiments about learning: train, evaluate, store results, plot."""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

import operant
from operant.catalog import find
from operant.control import assemble
from operant.runtime.metrics import read_records
from operant.runtime.settings import Settings

BLUE, ORANGE, GRAY = "#0072b2", "#d55e00", "#999999"


def learn(task: str, seeds: Sequence[int], budget: int, *, algorithm: str = "ppo", **parameters: Any) -> dict[str, Any]:
    """Train an algorithm with its preset for the task and score every seed.

    Args:
        task: name of the environment.
        seeds: trained as one program.
        budget: environment steps of each.
        algorithm: its name in the catalog.
        **parameters: what `operant.train` takes besides, such as single hyperparameters.

    Returns:
        The settings and configuration, the evaluations along the way (20 episodes each), the final scores over 100
        episodes of Gymnasium's own environment, and the seconds of training.
    """
    with tempfile.TemporaryDirectory() as folder:
        trained = operant.train(algorithm, task, seeds=seeds, budget=budget, run=Path(folder) / "run", **parameters)
        return describe(trained, algorithm, task)


def one_by_one(algorithm: str, task: str, seeds: Sequence[int], budget: int) -> dict[str, Any]:
    """Do as `learn` does with an algorithm that trains one seed at a time; the seconds of training are of all seeds."""
    blocks = [learn(task, [seed], budget, algorithm=algorithm) for seed in seeds]
    whole = {**blocks[0], "seeds": list(seeds)}
    whole["training_seconds"] = sum(block["training_seconds"] for block in blocks)
    scores = [block["final"]["scores"][0] for block in blocks]
    whole["final"] = {"episodes": 100, "scores": scores, "mean": float(np.mean(scores))}
    whole["curve"] = [
        {"steps": points[0]["steps"], "scores": [point["scores"][0] for point in points]}
        for points in zip(*(block["curve"] for block in blocks), strict=False)
    ]
    return whole


def describe(trained: operant.Trained, algorithm: str, task: str, *, episodes: int = 100) -> dict[str, Any]:
    """Evaluate a run over `episodes` of Gymnasium's own environment, and return its record."""
    if trained.outcome is None:
        raise RuntimeError("the run did not train")
    final = trained.evaluate(episodes, backend="gymnasium")
    curve = [
        {"steps": record["consumed"], "scores": record["scores"]}
        for record in read_records(trained.run.evaluations_path)
    ]
    facts, settings = trained.run.facts(), trained.run.settings
    *_, end = read_records(trained.run.metrics_path)
    return {
        "algorithm": algorithm,
        "task": task,
        "seeds": list(settings.seeds),
        "budget": settings.budget,
        "precision": settings.precision,
        "config": asdict(trained.experiment.learner.config),
        "versions": facts["sessions"][0]["versions"],
        "training_seconds": end["time/seconds"],
        "steps_per_second": end["consumed"] * len(settings.seeds) / end["time/seconds"],
        "curve": curve,
        "final": {
            "episodes": final.episodes,
            "scores": list(final.scores),
            "mean": final.mean,
            "iqm": final.iqm,
            "interval": list(final.interval),
        },
    }


def write(results: Any, file: str) -> None:
    """Write the results next to the experiment `file`."""
    Path(file).with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")


def draw(blocks: Sequence[dict[str, Any]], file: str, *, title: str, bar: float) -> None:
    """Draw the learning curves of all seeds, and their final scores with the target."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9, 3.6), width_ratios=(3, 1), sharey=True, constrained_layout=True
    )
    for block in blocks:
        steps = [point["steps"] for point in block["curve"]]
        scores = np.array([point["scores"] for point in block["curve"]])
        left.plot(steps, scores, color=BLUE, alpha=0.25, linewidth=0.8)
    everything = np.concatenate([[point["scores"] for point in block["curve"]] for block in blocks], axis=1)
    left.plot(steps, np.median(everything, axis=1), color=BLUE, linewidth=2.2, label="median seed")
    left.axhline(bar, color=ORANGE, linestyle="--", linewidth=1, label=f"to reach: {bar:g}")
    left.set(xlabel="environment steps of each seed", ylabel="greedy return, 20 episodes", title=title)
    left.legend(frameon=False, loc="lower right")
    finals = np.concatenate([block["final"]["scores"] for block in blocks])
    offsets = (np.arange(len(finals)) / max(1, len(finals) - 1) - 0.5) * 0.6
    right.plot(offsets, finals, "o", color=BLUE, markersize=4, alpha=0.8)
    right.axhline(bar, color=ORANGE, linestyle="--", linewidth=1)
    right.axhline(finals.mean(), color=GRAY, linewidth=1.5)
    right.set(xticks=[], xlim=(-0.6, 0.6), title="final, each seed")
    right.set_xlabel(f"mean {finals.mean():.1f}, least {finals.min():.1f}")
    for axis in (left, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(file).with_suffix(".png"), dpi=130)
    plt.close(figure)


def follow(
    task: str,
    seeds: Sequence[int],
    budget: int,
    *,
    prepare: Callable[[Any], None] | None = None,
    keep: Sequence[str] = (),
    **parameters: Any,
) -> dict[str, Any]:
    """Train PPO on tensor environments and keep what every seed got while it learned.

    Args:
        task: name of the environment.
        seeds: trained as one program.
        budget: environment steps of each.
        prepare: changes the learner before the first step.
        keep: names of metrics.
        **parameters: of the configuration; what is not named is that of the task's preset.

    Returns:
        The consumed `steps` and the `curve` of the returns of the episodes that ended in each rollout, not a number
        where none did; its `mean` over the training; the `final` greedy scores of 50 episodes, one per seed; and the
        metrics that were asked for, by name.
    """
    settings = Settings("ppo", task, seeds=tuple(seeds), budget=budget, evaluate_episodes=50)
    config = operant.configure("ppo", task, **parameters)
    experiment = assemble(find("ppo"), settings, config, device="cpu")
    if prepare is not None:
        prepare(experiment.learner)
    steps, curve = [], []
    kept: dict[str, list[Any]] = {name: [] for name in keep}
    while experiment.learner.consumed < budget:
        metrics = experiment.learner.iterate()
        curve.append(metrics["rollout/episode_return"].tolist())
        steps.append(experiment.learner.consumed)
        for name, values in kept.items():
            values.append(metrics[name].tolist())
    final = experiment.evaluate().scores
    experiment.close()
    means = np.nanmean(np.array(curve), axis=0)
    return {"steps": steps, "curve": curve, "mean": means.tolist(), "final": list(final), **kept}
