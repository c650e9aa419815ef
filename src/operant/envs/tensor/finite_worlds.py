"""Deterministic finite worlds on arrays: `DeepSea` and `KeyDoor`, whose steps are looked up in their models."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import Tensor

from operant.envs.base import Tree
from operant.envs.finite import Transitions
from operant.envs.tensor.core import Array, TensorEnv
from operant.envs.worlds.chains import DeepSea as SingleDeepSea
from operant.envs.worlds.key_door import KeyDoor as SingleKeyDoor
from operant.tensors import from_numpy

LARGEST_SEA, LARGEST_ROOMS = 4095, 2364
"""Largest sizes: the numbers of all states are below 2²⁴, and so exact in float32."""


class FiniteTensorEnv(TensorEnv):
    """Rows of a finite world in which every action has one outcome, and every episode starts in the same state.

    The state `[1, B]` is the number of the world's state. Observations are int64 `[B]`, members of `Discrete(S)`, which
    networks see as one-hot vectors (`operant.envs.Features`). All rows are in one world.
    """

    DEFAULTS: ClassVar = {}

    def __init__(self, seeds: Sequence[int], model: Transitions, **options: Any) -> None:
        """Start episode 0 of every row.

        Args:
            seeds: one non-negative integer below 2⁶³ a row.
            model: of the world.
            **options: those of `TensorEnv`.

        Raises:
            ValueError: an argument is out of its range.
        """
        self._states, self._actions = model.states, model.actions
        feasible = np.flatnonzero(np.diff(model.indptr))  # one outcome each, in this order
        self._model = np.zeros((3, model.states * model.actions))
        self._model[:, feasible] = model.successors, model.rewards, model.terminates
        first = float(model.start.argmax())
        self.STARTS = ((first, first),)
        super().__init__(seeds, **options)
        self.observation_space = spaces.Discrete(model.states)

    def _derive(self, p: Mapping[str, Array]) -> None:
        tables = from_numpy(self._model).to(self.device, self.dtype)
        self._successors, self._rewards, _ = map(self._library.array, tables)
        self._terminates = self._library.array(tables[2] > 0)

    def _spaces(self) -> tuple[spaces.Box, gymnasium.Space[Any]]:
        return self._box((float(self._states - 1),), (0.0,)), spaces.Discrete(self._actions)

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        (cells,) = self._columns
        # float32 has all numbers of states, but not those of states and actions
        state, action = (self._xp.asarray(numbers, dtype=self._xp.int64) for numbers in (cells, actions))
        places = state * self._actions + action
        cells[:] = self._successors[places]
        return self._rewards[places], self._terminates[places]

    def _observe(self, state: Array, obs: Array) -> None:
        obs[:] = state.T

    def _seen(self, obs: Tensor) -> Tree:
        return obs[:, 0].long()


class DeepSea(FiniteTensorEnv):
    """A dive through `size` rows, of which one sequence of actions finds the treasure (`worlds.DeepSea`).

    Attributes:
        size: rows and columns.
    """

    task = "operant/DeepSea-v0"
    OPTIONS = frozenset({"size", "mapping_seed"})

    def __init__(
        self, seeds: Sequence[int], *, size: int = 10, mapping_seed: int | None = None, **options: Any
    ) -> None:
        """Start episode 0 of every row; parameters are those of `worlds.DeepSea`, `options` those of `TensorEnv`."""
        if size > LARGEST_SEA:
            raise ValueError(f"size must be at most {LARGEST_SEA} on tensors, got {size}: set env_backend to gymnasium")
        self.size = size
        options.setdefault("max_episode_steps", size + 1)  # a dive ends by itself
        super().__init__(seeds, SingleDeepSea(size, mapping_seed=mapping_seed).transitions, **options)


class KeyDoor(FiniteTensorEnv):
    """A key is fetched, a door opened, and the goal behind it reached (`operant.envs.worlds.KeyDoor`)."""

    task = "operant/KeyDoor-v0"
    OPTIONS = frozenset({"size", "layout_seed"})

    def __init__(self, seeds: Sequence[int], *, size: int = 8, layout_seed: int = 0, **options: Any) -> None:
        """Start episode 0 of every row; parameters are those of `worlds.KeyDoor`, `options` those of `TensorEnv`."""
        if size > LARGEST_ROOMS:
            raise ValueError(
                f"size must be at most {LARGEST_ROOMS} on tensors, got {size}: set env_backend to gymnasium"
            )
        single = SingleKeyDoor(size, layout_seed=layout_seed)
        options.setdefault("max_episode_steps", single.max_steps)
        super().__init__(seeds, single.transitions, **options)


FINITE_WORLDS: Mapping[str, type[TensorEnv]] = {env.task: env for env in (DeepSea, KeyDoor)}
"""The tasks of this file."""
