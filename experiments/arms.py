"""Helpers of experiments that compare arms over a few seeds: results stored one by one, merged, intervals, bands."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from operant.runtime.statistics import stratified_bootstrap


def gather(
    file: str,
    description: str | None,
    cases: Mapping[str, Sequence[Any]],
    begin: Callable[[], Sequence[Any]],
    learn: Callable[..., Any],
) -> dict[str, Any]:
    """Return the raw result of each case; each is stored when it ends, so that a second start resumes.

    On the command line, `--draw` means that nothing is to be trained.

    Args:
        file: file of the experiment; the results are next to it.
        description: description of the experiment, for `--help`.
        cases: specific options of each case, by the name of its result.
        begin: makes the first arguments of all cases; called if a case is missing.
        learn: makes a result from these arguments and the options of a case.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw again from the results, without training")
    train = not parser.parse_args().draw
    torch.set_num_threads(1)
    path = Path(file).with_suffix(".cells.json")
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    missing = [name for name in cases if name not in found]
    if missing and not train:
        raise SystemExit(f"nothing to draw of {missing[0]!r} in {path.name}: train first, without --draw")
    start = begin() if missing else ()
    for name in missing:
        found[name] = learn(*start, *cases[name])
        path.write_text(json.dumps(found, separators=(",", ":")) + "\n")
    return {name: found[name] for name in cases}


def groups(count: int, *, together: bool) -> list[list[int]]:
    """Return the seeds of each run: all seeds from 0 in one, or each in a separate run, to be stored sooner."""
    return [list(range(count))] if together else [[seed] for seed in range(count)]


def titled(name: str, seeds: Sequence[int]) -> str:
    """Return the name under which the result of some seeds of an arm is stored."""
    return name if len(seeds) > 1 else f"{name}, seed {seeds[0]}"


def merged(cells: Mapping[str, Mapping[str, Any]], name: str, runs: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return the result of all seeds of an arm.

    Args:
        cells: results by the names of `titled`: `steps` of the points of curves, arrays whose last axis is that of the
            seeds, and totals.
        name: name of the arm.
        runs: seeds of each run.

    Returns:
        The steps of the first run, the arrays with all seeds, and the sums of the totals.
    """
    parts = [cells[titled(name, seeds)] for seeds in runs]
    joined = {key: [np.array(part[key], dtype=np.float64) for part in parts] for key in parts[0] if key != "steps"}
    together = {key: np.concatenate(group, -1) if group[0].ndim else sum(group) for key, group in joined.items()}
    return {"steps": parts[0]["steps"], **together}


def interval(values: ArrayLike) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a mean over seeds."""
    return stratified_bootstrap(np.asarray(values, dtype=np.float64), lambda drawn: drawn.mean(-1))


def over_seeds(values: np.ndarray) -> dict[str, Any]:
    """Return the mean, the interval and the numbers of the seeds."""
    return {"mean": values.mean(), "interval": interval(values), "seeds": values}


def band(axis: Axes, at: ArrayLike, table: np.ndarray, *, color: str, label: str, style: str = "-") -> None:
    """Draw the mean over seeds of a table `[S, n]` at `[n]` places, and its interval."""
    low, high = np.array([interval(column) for column in table.T]).T
    axis.plot(at, table.mean(0), style, color=color, label=label)
    axis.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
