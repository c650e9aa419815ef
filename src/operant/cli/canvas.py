"""Typed interface to the parts of matplotlib that plots use (extra: `plots`).

Annotations of matplotlib do not cover keyword arguments.
"""

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, cast, overload

from operant.runtime.files import replace_durably


class Axes(Protocol):
    """One panel of a plot. The methods are those of `matplotlib.axes.Axes`."""

    figure: Any
    images: Sequence[Any]
    spines: Any
    xaxis: Any
    add_collection: Callable[..., object]
    add_patch: Callable[..., object]
    annotate: Callable[..., object]
    axhline: Callable[..., object]
    axvline: Callable[..., object]
    errorbar: Callable[..., object]
    fill_between: Callable[..., object]
    get_legend_handles_labels: Callable[[], tuple[list[Any], list[str]]]
    grid: Callable[..., object]
    imshow: Callable[..., object]
    label_outer: Callable[[], None]
    legend: Callable[..., object]
    plot: Callable[..., object]
    scatter: Callable[..., object]
    set_axisbelow: Callable[[bool], None]
    set_facecolor: Callable[[str], None]
    set_title: Callable[..., object]
    set_xlabel: Callable[[str], object]
    set_xlim: Callable[[float, float], object]
    set_xticks: Callable[..., object]
    set_ylabel: Callable[[str], object]
    set_ylim: Callable[[float, float], object]
    set_yticks: Callable[..., object]
    sharey: Callable[["Axes"], None]
    step: Callable[..., object]
    text: Callable[..., object]
    tick_params: Callable[..., object]


class Grid(Protocol):
    """Panels in rows and columns."""

    @property
    def flat(self) -> Iterable[Axes]:
        """Return all panels, row by row."""
        ...


class Figure(Protocol):
    """A plot. The methods are those of `matplotlib.figure.Figure`."""

    legend: Callable[..., object]
    savefig: Callable[..., None]
    set_size_inches: Callable[[float, float], None]
    suptitle: Callable[..., object]

    @overload
    def subplots(self, rows: int, columns: int, /, *, squeeze: Literal[False]) -> Grid: ...
    @overload
    def subplots(
        self, rows: Literal[1], columns: int, /, *, width_ratios: Sequence[float], sharey: bool = False
    ) -> Iterable[Axes]: ...


def plain(text: str) -> str:
    """Return a text that plots show unchanged: `$` begins a formula, and legends omit labels that begin with `_`."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def new_figure(size: tuple[float, float] | None = None, *, dpi: int) -> Figure:
    """Return an empty plot of the given size in inches; it needs no display."""
    from matplotlib import figure
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    made = figure.Figure(figsize=size, dpi=dpi, layout="constrained")
    FigureCanvasAgg(made)
    return cast(Figure, made)


def save(figure: Figure, path: Path) -> None:
    """Write a plot to a file, which is complete or stays as before; its folder is created if needed.

    Args:
        figure: plot.
        path: output file; its suffix selects the format.

    Raises:
        OSError: the file cannot be written.
    """
    data = io.BytesIO()
    figure.savefig(data, format=path.suffix.removeprefix("."))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_durably(path, data.getvalue())
