"""The cells and the rules of a grid world."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

WALL, START, GOAL, HOLE, CLIFF, FLOOR, BONUS = "#SGHC.*"
"""Symbols of `Grid.symbols`. `BONUS` is floor with its own reward."""
ENDS = (GOAL, HOLE, "+", "-")
"""Symbols of `Grid.symbols` where an episode ends; `+` and `-` have their own reward."""


@dataclass(frozen=True)
class Rules:
    """Settings of a drawing; `operant.envs.drawing` explains them.

    Attributes:
        step: reward of a step.
        goal: reward of entering `G`.
        hole: reward of entering `H`.
        cliff: reward of entering `C`.
        bump: reward of a move against a wall or over the edge; None for that of a step.
        slip: probability of moving sideways.
        wind: cells of every column by which its steps are shifted upwards; empty for no wind.
        gusts: whether the wind varies.
        actions: 4, 8 or 9.
    """

    step: float = 0.0
    goal: float = 1.0
    hole: float = 0.0
    cliff: float = -100.0
    bump: float | None = None
    slip: float = 0.0
    wind: tuple[int, ...] = ()
    gusts: bool = False
    actions: int = 4

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the rules from `settings`, by name.

        Raises:
            ValueError: a setting does not exist or has a wrong value.
        """
        names = [field.name for field in fields(cls)]
        for name in settings:
            if name not in names:
                raise ValueError(f"{name!r} is not a setting of a grid; the settings are {', '.join(names)}")
        return cls(**settings)

    def __post_init__(self) -> None:
        for name in ("step", "goal", "hole", "cliff", "bump"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ValueError(f"{name} must be a finite number, got {value}")
        if not 0.0 <= self.slip <= 1.0:
            raise ValueError(f"slip must be a probability between 0 and 1, got {self.slip}")
        if self.actions not in (4, 8, 9):
            raise ValueError(f"actions must be 4, 8 or 9, got {self.actions}")
        if self.slip and self.actions != 4:
            raise ValueError(f"slip needs 4 actions, as others have no two sides, got actions={self.actions}")


class Jump(NamedTuple):
    """A cell that every action leaves for another one.

    Attributes:
        cell: its number, `row * columns + column`.
        target: where it leads.
        reward: of the step.
    """

    cell: int
    target: int
    reward: float


@dataclass(frozen=True, eq=False)
class Grid:
    """A grid world before it is an environment. Cell `(r, c)` is state `r * columns + c`; walls are states as well.

    Attributes:
        symbols: `[R, C]`, one character per cell: those of the drawing, `+` or `-` for an end with a reward of its own,
            `*` for floor that pays one.
        rewards: float64 `[R, C]`, of entering a cell.
        rules: the settings.
        jumps: cells that lead elsewhere.
    """

    symbols: NDArray[np.str_]
    rewards: NDArray[np.float64]
    rules: Rules
    jumps: tuple[Jump, ...] = ()

    def __post_init__(self) -> None:
        columns = self.symbols.shape[1]
        if self.rules.wind and len(self.rules.wind) != columns:
            raise ValueError(f"wind needs {columns} numbers, one per column, got {len(self.rules.wind)}")
        if self.cliffs.any() and (self.symbols == START).sum() != 1:
            raise ValueError(f"a cliff needs one start S to put the agent back to, got {(self.symbols == START).sum()}")
        if not self.open.any():
            raise ValueError("no open cell is left: every one is a wall, a cliff or an end")

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self.symbols.shape
        return rows, columns

    @property
    def walls(self) -> NDArray[np.bool_]:
        """Cells that cannot be entered, `[R, C]`."""
        return self.symbols == WALL

    @property
    def ends(self) -> NDArray[np.bool_]:
        """Cells where an episode ends, `[R, C]`."""
        return np.isin(self.symbols, ENDS)

    @property
    def cliffs(self) -> NDArray[np.bool_]:
        """Cells that return the agent to a start, `[R, C]`."""
        return self.symbols == CLIFF

    @property
    def open(self) -> NDArray[np.bool_]:
        """Cells where the agent can be and act, `[R, C]`."""
        return ~(self.walls | self.ends | self.cliffs)

    @property
    def starts(self) -> NDArray[np.bool_]:
        """Cells where episodes start, `[R, C]`: those marked, or all that are open."""
        marked = self.symbols == START
        return marked if marked.any() else self.open

    @classmethod
    def empty(cls, rows: int, columns: int, **settings: Any) -> Self:
        """Return a grid without walls that starts in the top left corner and ends in the bottom right one.

        Args:
            rows: R.
            columns: C.
            **settings: by name, as in a drawing.

        Raises:
            ValueError: it has fewer than two cells, or a setting is wrong.
        """
        if rows < 1 or columns < 1 or rows * columns < 2:
            raise ValueError(f"a grid needs at least two cells, got {rows} rows and {columns} columns")
        rules = Rules.of(settings)
        symbols = np.full((rows, columns), FLOOR)
        symbols[0, 0], symbols[-1, -1] = START, GOAL
        rewards = np.full((rows, columns), rules.step)
        rewards[-1, -1] = rules.goal
        return cls(symbols, rewards, rules)
