"""Helpers of the experiments on tables: comparison of numbers with a reference, result files, plots in one style."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#999999", "#000000")


@dataclass(frozen=True)
class Check:
    """A measured number and its reference.

    Attributes:
        what: was measured.
        measured: mean over the runs.
        error: its standard error; 0 for an exact number.
        reference: the number to reach.
        unit: unit of the last digit that the reference is given with.
        exact: whether the reference is; otherwise it was measured with as many runs, and has the same error.
    """

    what: str
    measured: float
    error: float
    reference: float
    unit: float
    exact: bool = False

    @property
    def tolerance(self) -> float:
        """Four combined standard errors and half a unit of the last digit."""
        return 4.0 * math.sqrt(1.0 if self.exact else 2.0) * self.error + 0.5 * self.unit

    @property
    def holds(self) -> bool:
        """Whether the measured number is within the tolerance."""
        return abs(self.measured - self.reference) <= self.tolerance

    @classmethod
    def of(cls, what: str, samples: ArrayLike, reference: str, *, scale: float = 1.0, exact: bool = False) -> "Check":
        """Compare the mean of `samples` over independent runs, times `scale`, with a printed number."""
        values = np.asarray(samples, dtype=np.float64).ravel() * scale
        return cls(what, float(values.mean()), standard_error(values), float(reference), _unit(reference), exact)


def _unit(printed: str) -> float:
    """Return the unit of the last digit of a printed number."""
    return 10.0 ** -len(printed.partition(".")[2])


def standard_error(samples: ArrayLike) -> float:
    """Return the standard error of the mean of independent samples."""
    values = np.asarray(samples, dtype=np.float64).ravel()
    return float(values.std(ddof=1) / math.sqrt(values.size)) if values.size > 1 else 0.0


def summary(samples: ArrayLike, *, keep: int = 200, digits: int = 4) -> dict[str, Any]:
    """Return mean, standard error and the first `keep` numbers, one per seed."""
    values = np.asarray(samples, dtype=np.float64).ravel()
    finals = [float(f"{value:.{digits}g}") for value in values[:keep]]
    return {"mean": values.mean(), "error": standard_error(values), "runs": values.size, "seeds": finals}


def conclude(file: str, results: dict[str, Any], checks: Sequence[Check], claims: dict[str, bool]) -> None:
    """Write results and checks next to the experiment `file`, print them, and exit with 1 if one fails.

    Args:
        file: file of the experiment.
        results: measurements; rounded to six significant digits.
        checks: numbers against a reference.
        claims: conditions that must hold, each described in words.
    """
    rows = [asdict(check) | {"tolerance": check.tolerance, "holds": check.holds} for check in checks]
    record = rounded({"results": results, "checks": rows, "claims": claims})
    Path(file).with_suffix(".json").write_text(json.dumps(record, indent=None, separators=(",", ":")) + "\n")
    for check in checks:
        mark = "ok  " if check.holds else "FAIL"
        print(
            f"{mark} {check.what:56s} {check.measured:12.5g} ± {check.error:<9.2g} "
            f"reference {check.reference:g}, within {check.tolerance:.2g}"
        )
    for claim, holds in claims.items():
        print(f"{'ok  ' if holds else 'FAIL'} {claim}")
    raise SystemExit(not (all(check.holds for check in checks) and all(claims.values())))


def rounded(value: Any) -> Any:
    """Return JSON values with floats of six significant digits; arrays become lists, and NaN becomes None."""
    if isinstance(value, dict):
        return {str(key): rounded(part) for key, part in value.items()}
    if isinstance(value, np.ndarray):
        return rounded(value.tolist())
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def panels(columns: int, rows: int = 1, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure with a grid of panels, row by row."""
    size = (4.6 * columns, 3.6 * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, constrained_layout=True, squeeze=False, **options)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, list(axes.flat)


def save(figure: Figure, file: str, axes: Iterable[Axes] = (), *, columns: int = 1) -> None:
    """Add a legend of some columns to the axes and save the plot next to the experiment `file`."""
    for axis in axes:
        axis.legend(frameon=False, fontsize=8, ncols=columns)
    figure.savefig(Path(file).with_suffix(".png"), dpi=130)
    plt.close(figure)
