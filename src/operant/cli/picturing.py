"""Plots of learned tables (extra: `plots`): state values, policy, action values, visits."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from operant.cli.canvas import Axes, new_figure, plain, save

if TYPE_CHECKING:
    from operant.tabular.view import View

CELL, WIDEST = 0.95, 24.0
"""Size of a cell and of the longer side of a map, in inches."""

SMALLEST_WITH_NUMBERS = 0.6
"""Size in inches below which cells have only colors, no numbers."""

MOST_ROWS = 60
"""Maximum number of states of a table with numbers; larger tables have only colors."""

DIRECTIONS = {
    "↑": (0, -1),
    "→": (1, 0),
    "↓": (0, 1),
    "←": (-1, 0),
    "↗": (1, -1),
    "↘": (1, 1),
    "↙": (-1, 1),
    "↖": (-1, -1),
}
"""Direction of each arrow on the map, as (columns, rows)."""

_WALL, _BLANK, _END, _BAD_END, _INK = "#404040", "#e4e4e4", "#009E73", "#D55E00", "#D55E00"


Panel = tuple[str, Callable[[Axes], None]]
"""Title of a panel, and the function that draws the panel."""


def draw_tables(view: "View", title: str, path: Path) -> None:
    """Plot the table of a seed: on the map of the task if it has one, else as a heat map of states and actions.

    Args:
        view: learned table.
        title: title of the plot.
        path: output file, .png, .svg or .pdf; its folder is created if needed.
    """
    panels = _map_panels(view) if view.shape is not None else _table_panels(view)
    figure = new_figure(dpi=110)
    width, height = _size(view)
    stacked = view.shape is not None and width >= height
    rows, columns = (len(panels), 1) if stacked else (1, len(panels))
    figure.set_size_inches(columns * (width + 1.6), rows * (height + 0.7) + 0.4)
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes, (name, draw) in zip(grid.flat, panels, strict=True):
        draw(axes)
        axes.set_title(name, fontsize=10)
    figure.suptitle(plain(title), fontsize=12)
    save(figure, path)


def _size(view: "View") -> tuple[float, float]:
    """Return width and height of one panel in inches."""
    if view.shape is None:
        states = len(view.policy)
        return 1.2 + 0.55 * min(view.policy.shape[1], 12), 1.0 + min(0.22 * states, 12.0)
    cell = _cell(view)
    return view.shape[1] * cell, view.shape[0] * cell


def _cell(view: "View") -> float:
    return min(CELL, WIDEST / max(view.shape or (1,)))


def _map_panels(view: "View") -> list[Panel]:
    panels: list[Panel] = []
    values = np.zeros(len(view.policy)) if view.values is None else view.values
    name = "policy" if view.values is None else "values, and the greedy policy"
    panels.append((name, lambda axes: _draw_values(axes, view, values)))
    if view.q is not None and view.arrows and len(view.arrows) == 4:
        panels.append(("values of actions", lambda axes: _draw_triangles(axes, view)))
    if view.visits is not None:
        panels.append(("visits (updates)", lambda axes: _draw_visits(axes, view)))
    return panels


def _draw_values(axes: Axes, view: "View", values: NDArray[np.float64]) -> None:
    """Color the cells by state value, with the number above and the arrows of the policy below."""
    shown = np.where(view.ends | view.unreached, np.nan, values)
    color = _color_cells(axes, view, shown)
    numbers = view.values is not None and _cell(view) >= SMALLEST_WITH_NUMBERS
    for state in np.flatnonzero(~(view.ends | view.unreached)):
        row, column = divmod(int(state), (view.shape or (1, 1))[1])
        ink = color(values[state])
        if numbers:
            axes.text(column, row - 0.28, _short(values[state]), ha="center", va="center", fontsize=8, color=ink)
        _draw_arrows(axes, view, int(state), (column, row + (0.14 if numbers else 0.0)), ink)
    _decorate(axes, view)


def _draw_arrows(axes: Axes, view: "View", state: int, place: tuple[float, float], ink: str) -> None:
    """Draw an arrow for each action of the policy, whose length is the action's probability."""
    x, y = place
    for action, probability in enumerate(view.policy[state]):
        if probability <= 0.0:
            continue
        arrow = view.arrows[action] if action < len(view.arrows) else ""
        if arrow not in DIRECTIONS:
            axes.text(x, y, arrow or str(action), ha="center", va="center", fontsize=9, color=ink)
            continue
        dx, dy = (0.3 * max(probability, 0.4) * step for step in DIRECTIONS[arrow])
        tied = probability < 1.0
        start, end = ((x, y), (x + dx, y + dy)) if tied else ((x - dx / 2, y - dy / 2), (x + dx / 2, y + dy / 2))
        scale = 14 * _cell(view)
        properties = {"arrowstyle": "-|>", "color": ink, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", xy=end, xytext=start, arrowprops=properties | {"mutation_scale": scale})


def _draw_triangles(axes: Axes, view: "View") -> None:
    """Color four triangles per cell by action value; the best actions have framed bold numbers."""
    from matplotlib.collections import PolyCollection

    assert view.q is not None  # noqa: S101 - the panel is drawn only for action values
    columns = (view.shape or (1, 1))[1]
    acting = np.flatnonzero(~(view.ends | view.unreached))
    color = _color_cells(axes, view, np.full(len(view.q), np.nan), values=view.q[acting])
    corners: list[list[tuple[float, float]]] = []
    numbers: list[float] = []
    for state in acting.tolist():
        row, column = divmod(state, columns)
        for action, arrow in enumerate(view.arrows):
            dx, dy = DIRECTIONS[arrow]
            side = ((dx - dy) / 2, (dy + dx) / 2), ((dx + dy) / 2, (dy - dx) / 2)
            corners.append([(column, row), *((column + a, row + b) for a, b in side)])
            numbers.append(view.q[state, action])
            if _cell(view) >= SMALLEST_WITH_NUMBERS:
                weight = "bold" if view.policy[state, action] > 0 else "normal"
                x, y, ink = column + 0.31 * dx, row + 0.36 * dy, color(view.q[state, action])
                text = _short(view.q[state, action])
                axes.text(x, y, text, ha="center", va="center", fontsize=6, color=ink, fontweight=weight)
    image = axes.images[0]
    triangles = PolyCollection(corners, array=np.array(numbers), cmap=image.cmap, norm=image.norm, edgecolors="white")
    triangles.set_linewidth(0.4)
    axes.add_collection(triangles)
    _decorate(axes, view)


def _draw_visits(axes: Axes, view: "View") -> None:
    assert view.visits is not None  # noqa: S101 - the panel is drawn only if visits are counted
    counts = view.visits.sum(axis=1).astype(np.float64)
    color = _color_cells(axes, view, np.where(view.ends | view.unreached, np.nan, counts), name="magma")
    if _cell(view) >= SMALLEST_WITH_NUMBERS:
        for state in np.flatnonzero(~(view.ends | view.unreached)):
            row, column = divmod(int(state), (view.shape or (1, 1))[1])
            text, ink = _short(counts[state]), color(counts[state])
            axes.text(column, row, text, ha="center", va="center", fontsize=8, color=ink)
    _decorate(axes, view)


def _color_cells(
    axes: Axes, view: "View", shown: NDArray[np.float64], *, values: Any = None, name: str = "viridis"
) -> Callable[[float], str]:
    """Color the cells of the map, and return a function from a value to its text color.

    Args:
        axes: axes to draw on.
        view: learned table.
        shown: `[states]`, values of the cells; NaN leaves a cell blank.
        values: values that determine the range of the colors. Default: `shown`.
        name: name of the color map.
    """
    from matplotlib import colormaps

    finite = shown[np.isfinite(shown)] if values is None else np.asarray(values).ravel()
    low, high = _range(finite)
    image = axes.imshow(shown.reshape(view.shape or (1, -1)), cmap=colormaps[name], vmin=low, vmax=high, aspect="equal")
    axes.figure.colorbar(image, ax=axes, fraction=0.025, pad=0.01).ax.tick_params(labelsize=7)

    def ink(value: float) -> str:
        return "black" if (value - low) / (high - low) > 0.55 else "white"

    return ink


def _range(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return minimum and maximum of the values, made distinct if they are equal."""
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    return low, high if high > low else low + 1.0


def _decorate(axes: Axes, view: "View") -> None:
    """Mark walls, terminal cells, unreachable cells, and the lines between cells."""
    from matplotlib.patches import Rectangle

    rows, columns = view.shape or (1, 1)
    for state in np.flatnonzero(view.ends | view.unreached):
        row, column = divmod(int(state), columns)
        symbol = view.symbol(int(state))
        wall = symbol == "#"
        ending = _BAD_END if symbol in ("H", "-") else _END
        color = ending if view.ends[state] else _WALL if wall else _BLANK
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, color=color, linewidth=0))
        text = "" if wall else symbol
        size = 11 if _cell(view) >= SMALLEST_WITH_NUMBERS else 5
        axes.text(
            column, row, text, ha="center", va="center", fontsize=size, color="white" if view.ends[state] else _WALL
        )
    if view.symbols is not None:
        for row, column in zip(*np.nonzero(view.symbols == "S"), strict=True):
            axes.add_patch(
                Rectangle((column - 0.47, row - 0.47), 0.94, 0.94, fill=False, edgecolor=_INK, linewidth=1.5)
            )
    axes.set_xticks(range(columns) if columns <= 30 else [])
    axes.set_yticks(range(rows) if rows <= 30 else [])
    axes.tick_params(labelsize=7, length=0)
    for line in range(rows + 1):
        axes.axhline(line - 0.5, color="white", linewidth=0.6)
    for line in range(columns + 1):
        axes.axvline(line - 0.5, color="white", linewidth=0.6)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(rows - 0.5, -0.5)


def _table_panels(view: "View") -> list[Panel]:
    panels: list[Panel] = []
    if view.q is not None:
        panels.append(("values of actions", lambda axes: _draw_table(axes, view, view.q, bold=view.policy > 0)))
    elif view.values is not None:
        values = view.values[:, None]
        panels.append(("values of states", lambda axes: _draw_table(axes, view, values)))
    if view.policy.shape[1] > 1:
        panels.append(("policy", lambda axes: _draw_table(axes, view, view.policy, name="Blues")))
    if view.visits is not None:
        visits = view.visits.astype(np.float64)
        panels.append(("visits (updates)", lambda axes: _draw_table(axes, view, visits, name="magma")))
    return panels


def _draw_table(axes: Axes, view: "View", table: Any, *, bold: Any = None, name: str = "viridis") -> None:
    """Plot states as rows and actions as columns, with numbers if they fit.

    Terminal and unvisited states are gray.
    """
    shown = np.where((view.ends | view.unreached)[:, None], np.nan, table)
    finite = shown[np.isfinite(shown)]
    low, high = _range(finite)
    axes.set_facecolor(_BLANK)
    image = axes.imshow(shown, cmap=name, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, fraction=0.05, pad=0.02).ax.tick_params(labelsize=7)
    states, actions = shown.shape
    axes.set_xticks(range(actions) if actions <= 12 else [])
    axes.set_xlabel("action" if actions > 1 else "")
    axes.set_ylabel("state")
    axes.tick_params(labelsize=7, length=0)
    if states > MOST_ROWS or actions > 12:
        return
    axes.set_yticks(range(states))
    dark_high = name == "Blues"
    for (state, action), value in np.ndenumerate(shown):
        if np.isnan(value):
            continue
        bright = ((value - low) / (high - low) > 0.55) != dark_high
        weight = "bold" if bold is not None and bold[state, action] else "normal"
        ink = "black" if bright else "white"
        axes.text(action, state, _short(value), ha="center", va="center", fontsize=7, color=ink, fontweight=weight)


def _short(value: float) -> str:
    """Return a number with at most six characters."""
    size = abs(value)
    if size >= 100_000:
        return f"{value:.0e}".replace("e+0", "e")
    if size >= 10_000:
        return f"{value / 1000:.0f}k"
    if value == round(value) or size >= 1000:
        return f"{value:.0f}"
    return f"{value:.1f}" if size >= 100 else f"{value:.2f}" if size >= 0.01 else f"{value:.0e}"
