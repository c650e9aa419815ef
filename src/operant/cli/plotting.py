"""Plots of learning curves (extra: `plots`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from operant.cli.canvas import Axes, new_figure, plain, save
from operant.cli.output import number

if TYPE_CHECKING:
    from operant.runtime.comparison import Standing
    from operant.tuning import Result

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Colorblind-safe palette (Okabe and Ito 2008)."""

BAND_FROM = 10
"""Minimum number of seeds for a confidence band of the IQM; with fewer, each seed is a line."""

DASHES = ("-", "--", ":")
"""Color of runs beyond the number of colors."""


def draw(names: Sequence[str], standings: Sequence["Standing"], path: Path) -> None:
    """Plot the learning curves of runs, their final scores by seed, and performance profiles of the final scores.

    Args:
        names: names of the runs.
        standings: results of the runs, all on the same task.
        path: output file; its folder is created if needed.
    """
    settings = standings[0].run.settings
    figure = new_figure((11.5, 4.2 + 0.22 * len(names)), dpi=150)
    curves, finals, profiles = figure.subplots(1, 3, width_ratios=[3.2, 1, 1.6])
    finals.sharey(curves)
    finals.label_outer()
    for i, (name, standing) in enumerate(zip(names, standings, strict=True)):
        color, dash = COLORS[i % len(COLORS)], DASHES[i // len(COLORS) % len(DASHES)]
        _draw_curve(curves, standing, color, dash, plain(_label(name, standing)))
        _draw_final(finals, standing, i, color)
        _draw_profile(profiles, standing, color, dash)
    figure.suptitle(plain(settings.task), fontsize=12)
    curves.set_xlim(0, max(standing.curve.consumed[-1] for standing in standings))
    entries = [standing.run.entry for standing in standings]
    curves.set_xlabel(f"{' or '.join(dict.fromkeys(entry.unit for entry in entries))} per seed")
    speaks = entries[0].package == "language"
    scored = "score on held-out examples" if speaks else "score: undiscounted return, greedy"
    curves.set_ylabel(standings[0].metric or scored)
    curves.xaxis.set_major_formatter(_thousands)
    finals.set_xlabel("at the end: each seed, IQM")
    finals.set_xticks([])
    finals.set_xlim(-0.7, len(names) - 0.3)
    profiles.set_xlabel("score τ at the end")
    profiles.set_ylabel("share of seeds above τ")
    profiles.set_ylim(0, 1.02)
    for axes in (curves, finals, profiles):
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*curves.get_legend_handles_labels(), loc="outside lower left", frameon=False, fontsize=9)
    save(figure, path)


def _thousands(x: float, _: int | None) -> str:
    return f"{x / 1000:g} k" if x >= 1000 else f"{x:g}"


def _draw_curve(axes: Axes, standing: "Standing", color: str, dash: str, label: str) -> None:
    curve = standing.curve
    if curve.scores.shape[1] < BAND_FROM:  # a confidence interval of few seeds is unreliable: plot each seed
        axes.plot(curve.consumed, curve.scores, color=color, linestyle=dash, linewidth=0.6, alpha=0.45)
    else:
        axes.fill_between(curve.consumed, curve.low, curve.high, color=color, alpha=0.18, linewidth=0)
    axes.plot(curve.consumed, curve.iqm, color=color, linestyle=dash, linewidth=2.2, label=label)


def _draw_final(axes: Axes, standing: "Standing", column: int, color: str) -> None:
    """Plot every seed's score as a point, next to the IQM with its confidence interval."""
    scores, final = sorted(standing.final.scores), standing.final
    axes.scatter([column - 0.15] * len(scores), scores, color=color, s=14, alpha=0.5, linewidths=0)
    below, above = final.iqm - final.interval[0], final.interval[1] - final.iqm
    spread = [[max(below, 0.0)], [max(above, 0.0)]] if len(scores) > 1 else None
    axes.errorbar(column + 0.15, final.iqm, yerr=spread, color=color, fmt="o", markersize=6, capsize=4, linewidth=1.6)


def _draw_profile(axes: Axes, standing: "Standing", color: str, dash: str) -> None:
    """Plot the fraction of seeds above each score, with a confidence band if there are enough seeds."""
    profile = standing.profile
    if len(standing.final.scores) >= BAND_FROM:
        axes.fill_between(profile.thresholds, profile.low, profile.high, color=color, alpha=0.18, linewidth=0)
    axes.step(profile.thresholds, profile.share, where="post", color=color, linestyle=dash, linewidth=1.8)


def _label(name: str, standing: "Standing") -> str:
    final, seeds = standing.final, len(standing.final.scores)
    if seeds == 1:
        return f"{name}: {number(final.iqm)}, one seed"
    low, high = final.interval
    return f"{name}: IQM {number(final.iqm)}, 95 % interval [{number(low)}, {number(high)}], {seeds} seeds"


def draw_study(result: "Result", path: Path) -> None:
    """Plot the trials of a study, and the scores of the best one on new seeds.

    Args:
        result: result of the study.
        path: output file.
    """
    figure = new_figure((9.5, 4.2), dpi=150)
    search, fresh = figure.subplots(1, 2, width_ratios=[2.4, 1], sharey=True)
    complete = [trial for trial in result.trials if trial.value is not None]
    values = [trial.value or 0.0 for trial in complete]
    search.scatter([trial.number + 1 for trial in complete], values, color=COLORS[0], s=18, label="complete")
    best = [max(values[: i + 1]) for i in range(len(values))]
    ends = [trial.number + 1 for trial in complete] + [len(result.trials)]
    search.step(ends, [*best, best[-1]], where="post", color=COLORS[0], label="best so far")
    pruned = [trial for trial in result.trials if trial.state == "pruned"]
    last = [list(trial.curve.values())[-1] for trial in pruned]
    search.scatter([trial.number + 1 for trial in pruned], last, marker="x", s=18, color="0.6", label="pruned")
    search.set_xlabel("trial")
    search.set_ylabel("score on the seeds of the search")
    search.legend(frameon=False, fontsize=8)
    columns = [("before", result.initial, result.default), ("tuned", result.best, result.tuned or result.default)]
    for column, (_, trial, standing) in enumerate(columns):
        if trial.value is not None:
            fresh.plot(column, trial.value, "D", color=COLORS[0], markerfacecolor="none", label="search")
        if standing is not None:
            _draw_final(fresh, standing, column, COLORS[1])
    fresh.set_xticks(range(2), [name for name, *_ in columns])
    fresh.set_xlim(-0.6, 1.6)
    fresh.set_xlabel("diamond: on the search's seeds\npoints: new seeds, IQM with interval")
    for axes in (search, fresh):
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, path)
