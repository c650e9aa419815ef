"""DeepSea on arrays, with the model of `operant.envs.worlds.DeepSea`."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces
from torch import Tensor

from operant.envs.base import Tree
from operant.envs.tensor.core import Array, TensorEnv
from operant.envs.worlds.chains import DeepSea as SingleDeepSea
from operant.tensors import from_numpy

LARGEST = 4095
"""Maximum rows of a sea: its cell numbers are exact in float32."""


class DeepSea(TensorEnv):
    """A dive through `size` rows, of which one sequence of actions finds the treasure (Osband et al. 2019).

    The state `[1, B]` is the number of the cell, and `size²` on the sea floor. Observations are int64 `[B]`, members of
    `Discrete(size² + 1)`, one-hot vectors for networks (`operant.envs.Features`). All environments share one sea.

    Attributes:
        size: rows and columns.
    """

    task = "operant/DeepSea-v0"
    OPTIONS = frozenset({"size", "mapping_seed"})
    DEFAULTS: ClassVar = {}
    STARTS = ((0.0, 0.0),)

    def __init__(
        self, seeds: Sequence[int], *, size: int = 10, mapping_seed: int | None = None, **options: Any
    ) -> None:
        """Start episode 0 of every row.

        Args:
            seeds: one non-negative integer below 2⁶³ a row.
            size: rows and columns, from 1 to 4095.
            mapping_seed: of the random action that goes right in each cell; None: action 1.
            **options: those of `TensorEnv`.

        Raises:
            ValueError: an argument is out of range.
        """
        if size > LARGEST:
            raise ValueError(f"a sea on tensors has at most {LARGEST} rows, got {size}")
        model = SingleDeepSea(size, mapping_seed=mapping_seed).transitions
        self.size = size
        self._actions = model.actions
        feasible = np.flatnonzero(np.diff(model.indptr))  # deterministic: one outcome each, in this order
        self._model = np.zeros((3, model.states * model.actions))
        self._model[:, feasible] = model.successors, model.rewards, model.terminates
        options.setdefault("max_episode_steps", size + 1)  # a dive always ends
        super().__init__(seeds, **options)
        self.observation_space = spaces.Discrete(model.states)

    def _derive(self, p: Mapping[str, Array]) -> None:
        tables = from_numpy(self._model).to(self.device, self.dtype)
        self._successors, self._rewards, _ = map(self._library.array, tables)
        self._terminates = self._library.array(tables[2] > 0)

    def _spaces(self) -> tuple[spaces.Box, gymnasium.Space[Any]]:
        return self._box((float(self.size**2),), (0.0,)), spaces.Discrete(self._actions)

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        (cells,) = self._columns
        places = self._xp.asarray(cells * self._actions + actions, dtype=self._xp.int64)
        cells[:] = self._successors[places]
        return self._rewards[places], self._terminates[places]

    def _observe(self, state: Array, obs: Array) -> None:
        obs[:] = state.T

    def _seen(self, obs: Tensor) -> Tree:
        return obs[:, 0].long()
