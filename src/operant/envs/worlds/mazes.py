"""Mazes whose walls change while the agent learns."""

from typing import Any

from operant.envs.cells import Grid
from operant.envs.drawing import parse_grid
from operant.envs.grid import GridWorld, grid_transitions


class ChangingMaze(GridWorld):
    """A grid world that becomes another one after a number of steps (Sutton and Barto 2018, section 8.3).

    Steps are counted over the life of the environment, across episodes. An agent in a cell that becomes a wall can
    leave it, so the same actions are feasible before and after. The option `"steps"` of `reset` sets the count, to
    repeat an experiment. With `frozen_at` the maze stays as it is after that number of steps: evaluations use the
    maze that training has reached. `grid`, `transitions` and `P` are the current ones.

    Attributes:
        before: the first grid.
        after: the second grid.
        change_at: the number of steps until the change.
        steps: number of steps so far.
        frozen_at: number of steps at which the count stays; None: it does not.
        models: transition models of the two grids.
    """

    def __init__(
        self,
        before: str | Grid,
        after: str | Grid,
        *,
        change_at: int,
        frozen_at: int | None = None,
        render_mode: str | None = None,
        **settings: Any,
    ) -> None:
        """Make the environment of two drawings of the same size.

        Args:
            before: drawing of the first grid.
            after: drawing of the second one.
            change_at: number of steps before the change, not negative.
            frozen_at: number of steps, not negative, at which the maze stays as it is; None: it changes.
            render_mode: "ansi", "rgb_array" or None.
            **settings: settings of both grids, as in `operant.envs.cells.Rules`.

        Raises:
            DrawingError: a drawing is wrong.
            ValueError: a setting is wrong, or the two grids differ in size or actions.
        """
        for name, steps in {"change_at": change_at, "frozen_at": frozen_at or 0}.items():
            if steps < 0:
                raise ValueError(f"{name} must not be negative, got {steps}")
        super().__init__(before, render_mode=render_mode, **settings)
        self.before: Grid = self.grid
        self.after = after if isinstance(after, Grid) else parse_grid(after, **settings)
        if self.after.shape != self.before.shape or self.after.rules.actions != self.before.rules.actions:
            raise ValueError(
                f"the grids must have the same size and actions, got {self.before.shape} and {self.after.shape}, "
                f"{self.before.rules.actions} and {self.after.rules.actions}"
            )
        self.change_at, self.frozen_at, self.steps = change_at, frozen_at, frozen_at or 0
        ever_open = self.before.open | self.after.open
        self.models = tuple(grid_transitions(grid, also=ever_open) for grid in (self.before, self.after))
        self._use(self.models[0])
        self._follow_the_count()

    def _follow_the_count(self) -> None:
        phase = int(self.steps >= self.change_at)
        if self.transitions is not self.models[phase]:
            self.grid = (self.before, self.after)[phase]
            self._use(self.models[phase])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """Start an episode; `options["steps"]` sets the count of steps."""
        self.steps = int((options or {}).get("steps", self.steps))
        self._follow_the_count()
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Take an action in the current maze."""
        self._follow_the_count()
        result = super().step(action)
        self.steps += self.frozen_at is None
        return result
