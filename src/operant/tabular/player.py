"""Actions of learned policies: `Player`."""

from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from operant.envs.base import Tree
from operant.streams import seed_sequence
from operant.tensors import from_numpy

Floats = NDArray[np.float64]


class HasPolicies(Protocol):
    """An object with the policies of its seeds."""

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds, one per policy."""
        ...

    def probabilities(self, states: NDArray[np.int64], *, exploring: bool = False) -> Floats:
        """Return the policies in some states (see `TabularLearner.probabilities`)."""
        ...


class Player:
    """The policies of a learner, with their own random numbers for ties and stochastic policies.

    Args:
        learner: the learner, which is not modified.
    """

    def __init__(self, learner: HasPolicies) -> None:
        self._learner = learner
        self._rngs = [np.random.Generator(np.random.PCG64(seed_sequence(s, "playing"))) for s in learner.seeds]

    def act(self, obs: Any, hidden_state: Any, noise: Tensor | None) -> tuple[Tensor, None]:
        """Return actions `[S, N]` for states `[S, N]`; with noise `[S, N]` in [0, 1), behavior actions."""
        states = indices(obs)
        cumulative = self._learner.probabilities(states, exploring=noise is not None).cumsum(axis=2)
        count: int = states.shape[1]
        drawn = np.stack([rng.random(count) for rng in self._rngs]) if noise is None else noise.numpy()
        passed = cumulative[:, :, :-1] <= drawn[:, :, None] * cumulative[:, :, -1:]
        return from_numpy(passed.sum(axis=2)), None

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return the random numbers in [0, 1) for exploration in `act`, `[rows]` of one seed."""
        return torch.rand(rows, generator=generator, dtype=torch.float64)


def shares(mask: NDArray[np.bool_]) -> Floats:
    """Return uniform probabilities over a mask; zeros for empty rows."""
    return mask / np.maximum(mask.sum(axis=-1, keepdims=True), 1)


def indices(obs: Tree) -> NDArray[np.int64]:
    """Return observations of a Discrete space as state indices."""
    return cast(Tensor, obs).numpy().astype(np.int64)
