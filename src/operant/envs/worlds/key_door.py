"""Two rooms, a locked door between them, and a key: reward comes after a long way, and only once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant.envs.finite import FiniteEnv, Outcome, Transitions

MOVES = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Rows and columns that the actions up, right, down and left move by."""

USE = len(MOVES)
"""The action that picks up the key or opens the door."""

EMPTY_HANDED, WITH_KEY, OPEN = range(3)
"""Stages of an episode."""

SMALLEST = 5

Cell = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """Positions of the wall, the door, the key, the goal and the agent.

    Attributes:
        size: rows and columns, the outer walls included.
        start: cell of the agent at first.
        key: cell of the key.
        door: cell of the door, in the wall between the rooms.
        goal: cell that pays.
    """

    size: int
    start: Cell
    key: Cell
    door: Cell
    goal: Cell

    @classmethod
    def draw(cls, size: int, seed: int) -> "Layout":
        """Draw the wall between the rooms, its door, and the key and the agent in the left room.

        Raises:
            ValueError: the size is less than 5, or the seed is negative.
        """
        if size < SMALLEST:
            raise ValueError(f"size must be at least {SMALLEST}, for two rooms and a wall, got {size}")
        if seed < 0:
            raise ValueError(f"layout_seed must not be negative, got {seed}")
        rng = np.random.default_rng(seed)
        wall, door = int(rng.integers(2, size - 2)), int(rng.integers(1, size - 1))
        left = [(row, column) for row in range(1, size - 1) for column in range(1, wall)]
        drawn: NDArray[np.int64] = rng.choice(len(left), 2, replace=False)
        start, key = (left[int(place)] for place in drawn)
        return cls(size, start, key, (door, wall), (size - 2, size - 2))

    def is_open(self, cell: Cell, stage: int) -> bool:
        """Return whether the agent can stand on a cell."""
        if cell == self.door:
            return stage == OPEN
        return all(0 < place < self.size - 1 for place in cell) and cell[1] != self.door[1]

    def used(self, cell: Cell, stage: int) -> int:
        """Return the stage after `USE` in a cell."""
        if stage == EMPTY_HANDED and cell == self.key:
            return WITH_KEY
        if stage == WITH_KEY and any(_moved(cell, move) == self.door for move in MOVES):
            return OPEN
        return stage

    def state(self, cell: Cell, stage: int) -> int:
        """Return the number of a state."""
        return stage * self.size**2 + cell[0] * self.size + cell[1]


def _moved(cell: Cell, move: Cell) -> Cell:
    return cell[0] + move[0], cell[1] + move[1]


def _outcomes(layout: Layout) -> Iterator[tuple[int, int, Outcome]]:
    size = layout.size
    for stage in (EMPTY_HANDED, WITH_KEY, OPEN):
        for cell in ((row, column) for row in range(size) for column in range(size)):
            behind = cell[1] > layout.door[1] and stage != OPEN
            if not layout.is_open(cell, stage) or cell == layout.goal or behind:
                continue
            for action, move in enumerate(MOVES):
                to = _moved(cell, move)
                to = to if layout.is_open(to, stage) else cell
                found = to == layout.goal
                yield layout.state(cell, stage), action, (1.0, layout.state(to, stage), float(found), found)
            yield layout.state(cell, stage), USE, (1.0, layout.state(cell, layout.used(cell, stage)), 0.0, False)


class KeyDoor(FiniteEnv):
    """Fetch a key, open a door with it, and reach the goal behind, which alone pays: 1, and the episode ends.

    The task of MiniGrid's DoorKey (Chevalier-Boisvert et al. 2023, arXiv:2306.13831) with a layout that stays, so that
    it is a finite model with exact values. Actions 0 to 3 move up, right, down and left; 4 picks up the key in the
    agent's cell, opens the door next to the agent if it has the key, and otherwise does nothing. Walls and the locked
    door are not entered. A state is `stage * size² + row * size + column`, where the stage is 0 before the key is
    picked up, 1 with it, and 2 when the door is open. An episode is truncated after `10 size²` steps, as in MiniGrid.

    Attributes:
        layout: where things are.
        max_steps: of an episode; `max_episode_steps` of `operant.envs.make` replaces it.
    """

    def __init__(self, size: int = 8, *, layout_seed: int = 0, render_mode: str | None = None) -> None:
        """Make the rooms.

        Args:
            size: rows and columns, the outer walls included; at least 5.
            layout_seed: of the draw of wall, door, key and start.
            render_mode: "ansi" or None.

        Raises:
            ValueError: the size is less than 5, or the seed is negative.
        """
        self.layout = layout = Layout.draw(size, layout_seed)
        self.max_steps, self._elapsed = 10 * size**2, 0
        start = layout.state(layout.start, EMPTY_HANDED)
        model = Transitions.of(3 * size**2, USE + 1, _outcomes(layout), [start])
        super().__init__(model, render_mode=render_mode)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Start an episode; see `FiniteEnv.reset`."""
        self._elapsed = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Take an action; see `FiniteEnv.step`."""
        obs, reward, terminated, _, info = super().step(action)
        self._elapsed += 1
        return obs, reward, terminated, self._elapsed >= self.max_steps, info

    def render(self) -> Any:
        """Return a drawing: `#` wall, `D` locked door, `K` key, `G` goal, `@` agent."""
        if self.render_mode is None or self.state is None:
            return super().render()
        stage, place = divmod(self.state, self.layout.size**2)
        marks = {self.layout.goal: "G"}
        marks |= {self.layout.key: "K"} if stage == EMPTY_HANDED else {}
        marks |= {self.layout.door: "D"} if stage != OPEN else {}
        marks[divmod(place, self.layout.size)] = "@"
        cells = [[(row, column) for column in range(self.layout.size)] for row in range(self.layout.size)]
        return "".join(
            "".join(marks.get(cell, "." if self.layout.is_open(cell, stage) else "#") for cell in line) + "\n"
            for line in cells
        )
