"""Goal-conditioned tasks on arrays, equal to `operant.envs.worlds.goal_worlds`."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from operant.envs.base import Tree
from operant.envs.tensor.core import Array, TensorEnv
from operant.envs.worlds.goal_worlds import SPEED
from operant.envs.worlds.goal_worlds import BitFlip as SingleBitFlip
from operant.envs.worlds.goal_worlds import Reach as SingleReach


class GoalTensorEnv(TensorEnv):
    """Tasks whose state `[2 G, B]` stacks achieved and desired goal (see `operant.envs.GoalEnv`)."""

    LOW: ClassVar[float]
    """The minimum of a state's components; the maximum is 1."""

    def __init__(self, seeds: Sequence[int], *, goals: int, **options: Any) -> None:
        self.goals, self.STARTS = goals, ((self.LOW, 1.0),) * (2 * goals)
        super().__init__(seeds, **options)
        box = self._box((1.0,) * goals, (self.LOW,) * goals)
        self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box))

    def compute_reward(self, achieved_goal: Tensor, desired_goal: Tensor) -> Tensor:
        """Return 0 where the goal `[M, G]` is reached, else -1, `[M]`."""
        return self._reached(achieved_goal, desired_goal, 1).to(self.dtype) - 1.0

    @abstractmethod
    def compute_terminated(self, achieved_goal: Tensor, desired_goal: Tensor) -> Tensor:
        """Return whether episodes end, `[M]`."""

    @abstractmethod
    def _reached(self, achieved: Array, desired: Array, axis: int) -> Array:
        """Return whether goals along an axis are reached."""

    @abstractmethod
    def _move(self, state: Array, actions: Array) -> None:
        """Change the achieved goal `[G, B]` in place."""

    def _derive(self, p: Mapping[str, Array]) -> None:
        self._paid, self._unpaid = self._constant(0.0), self._constant(-1.0)
        self._never = self._paid > 0

    def _spaces(self) -> tuple[spaces.Box, gymnasium.Space[Any]]:
        return self._box((1.0,) * 2 * self.goals, (self.LOW,) * 2 * self.goals), self._actions()

    @abstractmethod
    def _actions(self) -> gymnasium.Space[Any]: ...

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        achieved, desired = self._state[: self.goals], self._state[self.goals :]
        self._move(achieved, actions)
        self._success = self._reached(achieved, desired, 0)
        reward = self._xp.where(self._success, self._paid, self._unpaid)
        return reward, self._ends(self._success)

    @abstractmethod
    def _ends(self, reached: Array) -> Array: ...

    def _observe(self, state: Array, obs: Array) -> None:
        obs[:] = state.T

    def _seen(self, obs: Tensor) -> Tree:
        achieved, desired = obs[:, : self.goals], obs[:, self.goals :]
        return {"observation": achieved, "achieved_goal": achieved, "desired_goal": desired}

    def _told(self, ended: Array) -> Mapping[str, Tensor] | None:
        if self._library.on_host and not ended.any():
            return None
        success = self._library.tensor(self._success).to(torch.float64)
        return {"is_success": success.masked_fill(~self._library.tensor(ended), torch.nan)}


class BitFlip(GoalTensorEnv):
    """Bits, each action flips one, until they are those of the goal (`operant.envs.worlds.goal_worlds.BitFlip`)."""

    task = "operant/BitFlip-v0"
    OPTIONS = frozenset({"bits"})
    DEFAULTS: ClassVar = {}
    LOW = 0.0

    def __init__(self, seeds: Sequence[int], *, bits: int = 15, **options: Any) -> None:
        """Start episode 0 of every row; `options` are those of `TensorEnv`."""
        SingleBitFlip(bits)  # which validates
        options.setdefault("max_episode_steps", bits)
        super().__init__(seeds, goals=bits, **options)

    def compute_terminated(self, achieved_goal: Tensor, desired_goal: Tensor) -> Tensor:
        """Return whether the goal is reached, `[M]`."""
        return self._reached(achieved_goal, desired_goal, 1)

    def _derive(self, p: Mapping[str, Array]) -> None:
        super()._derive(p)
        self._numbers = self._library.array(torch.arange(self.goals, device=self.device, dtype=self.dtype).unsqueeze(1))

    def _actions(self) -> gymnasium.Space[Any]:
        return spaces.Discrete(self.goals)

    def _start(self, keys: Array, episodes: Array) -> Array:
        start = super()._start(keys, episodes)
        start[:] = start >= 0.5
        return start

    def _move(self, state: Array, actions: Array) -> None:
        state[:] = self._xp.where(self._numbers == actions, 1 - state, state)

    def _reached(self, achieved: Array, desired: Array, axis: int) -> Array:
        return (achieved == desired).all(axis)

    def _ends(self, reached: Array) -> Array:
        return reached


class Reach(GoalTensorEnv):
    """A point is pushed to a place, and stays there (`operant.envs.worlds.goal_worlds.Reach`)."""

    task = "operant/Reach-v0"
    OPTIONS = frozenset({"dimensions", "tolerance"})
    DEFAULTS: ClassVar = {"speed": SPEED}
    LOW = -1.0

    def __init__(self, seeds: Sequence[int], *, dimensions: int = 2, tolerance: float = 0.1, **options: Any) -> None:
        """Start episode 0 of every row; `options` are those of `TensorEnv`."""
        SingleReach(dimensions, tolerance)  # which validates
        self.tolerance = tolerance
        super().__init__(seeds, goals=dimensions, **options)

    def compute_terminated(self, achieved_goal: Tensor, desired_goal: Tensor) -> Tensor:
        """Return false: episodes continue, `[M]`."""
        return torch.zeros(len(achieved_goal), dtype=torch.bool, device=achieved_goal.device)

    def _derive(self, p: Mapping[str, Array]) -> None:
        super()._derive(p)
        self._speed = p["speed"]

    def _actions(self) -> gymnasium.Space[Any]:
        return spaces.Box(-1.0, 1.0, (self.goals,), np.float64 if self.dtype is torch.float64 else np.float32)

    def _move(self, state: Array, actions: Array) -> None:
        pushes = actions.reshape(self.rows, self.goals).T.clip(-1.0, 1.0)
        state[:] = (state + self._speed * pushes).clip(-1.0, 1.0)

    def _reached(self, achieved: Array, desired: Array, axis: int) -> Array:
        return ((achieved - desired) ** 2).sum(axis) <= self.tolerance**2

    def _ends(self, reached: Array) -> Array:
        return self._never


GOAL_TASKS: Mapping[str, type[TensorEnv]] = {env.task: env for env in (BitFlip, Reach)}
"""The tasks of this file."""
