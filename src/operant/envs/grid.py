"""Grid worlds as models and as Gymnasium environments; `operant.envs.drawing` has the format."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant.envs.cells import BONUS, CLIFF, FLOOR, GOAL, HOLE, START, WALL, Grid
from operant.envs.drawing import parse_grid
from operant.envs.finite import FiniteEnv, Transitions, uniform

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1), (-1, 1), (1, 1), (1, -1), (-1, -1), (0, 0))
"""Rows and columns by which each action moves: up, right, down, left, then the diagonals clockwise, then to stay."""

_CELL = 24
_INK, _LINE, _PAPER, _AGENT = (64, 64, 64), (222, 222, 222), (255, 255, 255), (0, 114, 178)
_COLORS = {
    WALL: _INK,
    FLOOR: _PAPER,
    START: (208, 226, 242),
    GOAL: (0, 158, 115),
    "+": (0, 158, 115),
    HOLE: (213, 94, 0),
    "-": (213, 94, 0),
    CLIFF: (230, 159, 0),
    BONUS: (240, 228, 66),
}
_JUMP_COLOR = (204, 160, 200)


def grid_transitions(grid: Grid, *, also: NDArray[np.bool_] | None = None) -> Transitions:
    """Return the model of a grid.

    A step moves by the action, or sideways if it slips, plus the wind of the column that it leaves, and is clipped to
    the grid; if a wall is there, the agent stays. Equal outcomes of an action are merged. Walls, cliffs and ends have
    no feasible action. A slippery grid of 1000 x 1000 cells takes about two seconds.

    Args:
        grid: cells and rules.
        also: `[R, C]`, further cells with feasible actions, since an agent may be in a wall that was just built.
    """
    steps = _steps(grid)
    successors, rewards, probabilities = (np.stack(part, axis=-1) for part in zip(*steps, strict=True))
    shape = (grid.symbols.size, grid.rules.actions, -1)
    successors, rewards, probabilities = (part.reshape(shape) for part in (successors, rewards, probabilities))
    for jump in grid.jumps:
        successors[jump.cell], rewards[jump.cell] = jump.target, jump.reward
    _merge(successors, rewards, probabilities)
    acting = grid.open if also is None else grid.open | also
    probabilities[~acting.ravel()] = 0.0
    keep = probabilities > 0.0
    successors = successors[keep]
    return Transitions(
        states=shape[0],
        actions=shape[1],
        indptr=np.concatenate([[0], np.cumsum(keep.sum(axis=-1).ravel())]),
        successors=successors,
        probabilities=probabilities[keep],
        rewards=rewards[keep],
        terminates=grid.ends.ravel()[successors],
        start=uniform(shape[0], np.flatnonzero(grid.starts)),
    )


_Landing = tuple[NDArray[np.int64], NDArray[np.float64]]


def _steps(grid: Grid) -> list[tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]]:
    """Return `(successors, rewards, probabilities)`, each `[S]`, of every outcome of every action."""
    rules = grid.rules
    wind = np.broadcast_to(np.array(rules.wind or 0, np.int64), grid.shape[1:])
    blows = np.broadcast_to(wind != 0, grid.shape).ravel()
    gusts = {gust: np.where(blows, 1 / 3, float(gust == 0)) for gust in (-1, 0, 1)} if rules.gusts else {0: 1.0}
    landings = {
        (direction, gust): _landing(grid, MOVES[direction], wind + gust * (wind != 0))
        for direction in range(rules.actions)
        for gust in gusts
    }
    return [
        (*landings[direction, gust], np.broadcast_to(probability * share, grid.symbols.size))
        for action in range(rules.actions)
        for direction, probability in _directions(action, rules.slip)
        for gust, share in gusts.items()
    ]


def _directions(action: int, slip: float) -> list[tuple[int, float]]:
    """Return the directions of an action with their probabilities."""
    if slip == 0.0:
        return [(action, 1.0)]
    return [((action - 1) % 4, slip / 2), (action, 1.0 - slip), ((action + 1) % 4, slip / 2)]


def _landing(grid: Grid, move: tuple[int, int], wind: NDArray[np.int64]) -> _Landing:
    """Return the end of a move from every cell, and its reward; both `[S]`."""
    here = np.arange(grid.symbols.size).reshape(grid.shape)
    row, column = np.divmod(here, grid.shape[1])
    to_row, to_column = row + move[0] - wind, column + move[1]
    clipped = (to_row.clip(0, grid.shape[0] - 1), to_column.clip(0, grid.shape[1] - 1))
    walled = grid.walls[clipped]
    bumped = walled | (clipped[0] != to_row) | (clipped[1] != to_column)
    there = np.where(walled, here, clipped[0] * grid.shape[1] + clipped[1])
    bump = grid.rules.step if grid.rules.bump is None else grid.rules.bump
    rewards = np.where(bumped & grid.open.ravel()[there], bump, grid.rewards.ravel()[there])
    if grid.cliffs.any():
        there = np.where(grid.cliffs.ravel()[there], np.flatnonzero(grid.starts)[0], there)
    return there.ravel(), rewards.ravel()


def _merge(successors: NDArray[np.int64], rewards: NDArray[np.float64], probabilities: NDArray[np.float64]) -> None:
    """Add the probabilities `[S, A, K]` of equal outcomes to the first of them, in place."""
    for later in range(1, successors.shape[-1]):
        for earlier in range(later):
            alike = successors[..., later] == successors[..., earlier]
            alike &= rewards[..., later] == rewards[..., earlier]
            moved = np.where(alike, probabilities[..., later], 0.0)
            probabilities[..., earlier] += moved
            probabilities[..., later] -= moved


class GridWorld(FiniteEnv):
    """A grid world with Gymnasium's API. Cell `(r, c)` is state `r * columns + c`.

    Render modes are "ansi", the map with `@` for the agent, and "rgb_array", 24 pixels per cell.

    Attributes:
        grid: cells and rules.
    """

    metadata = FiniteEnv.metadata | {"render_modes": ["ansi", "rgb_array"]}

    def __init__(self, drawing: str | Grid, *, render_mode: str | None = None, **settings: Any) -> None:
        """Make the environment of a drawing.

        Args:
            drawing: text as in `operant.envs.drawing`, or the parsed `Grid`.
            render_mode: "ansi", "rgb_array" or None.
            **settings: as in `operant.envs.cells.Rules`; they override those in the text.

        Raises:
            DrawingError: the drawing is wrong; the message names line and column.
            ValueError: a setting is wrong, or given with a `Grid`, which has its own.
        """
        if isinstance(drawing, Grid) and settings:
            raise ValueError(f"a Grid has its own rules: give the drawing as text to change {', '.join(settings)}")
        self.grid = drawing if isinstance(drawing, Grid) else parse_grid(drawing, **settings)
        super().__init__(grid_transitions(self.grid), render_mode=render_mode)

    def render(self) -> Any:
        """Return the map: text for the render mode "ansi", uint8 `[24 R, 24 C, 3]` for "rgb_array"."""
        if self.render_mode == "rgb_array":
            return _raster(self.grid, self.state)
        if self.render_mode == "ansi":
            symbols = self.grid.symbols.copy()
            if self.state is not None:
                symbols.flat[self.state] = "@"
            return "".join("".join(row) + "\n" for row in symbols)
        return super().render()


def _raster(grid: Grid, state: int | None) -> NDArray[np.uint8]:
    """Return the image of a grid, with the agent as a square in its cell."""
    colors = np.full((*grid.shape, 3), _JUMP_COLOR, np.uint8)
    for symbol, color in _COLORS.items():
        colors[grid.symbols == symbol] = color
    image = colors.repeat(_CELL, axis=0).repeat(_CELL, axis=1)
    image[_CELL - 1 :: _CELL] = _LINE
    image[:, _CELL - 1 :: _CELL] = _LINE
    if state is not None:
        top, left = (_CELL * place + _CELL // 4 for place in divmod(state, grid.shape[1]))
        image[top : top + _CELL // 2, left : left + _CELL // 2] = _AGENT
    return image
