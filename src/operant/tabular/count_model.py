"""A model learned by counting transitions and rewards.

The successors of each cell are stored in `K` slots, in the order of their first occurrence; the terminal outcome has
the index `states`. If a cell of a seed is full, the seed waits until the number of slots is doubled.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from operant.tabular.acting import Cell, Rule, best_value
from operant.tabular.numba_config import compiled


class Counts(NamedTuple):
    """Counted outcomes of the actions of `S` seeds.

    Attributes:
        tries: `[S, states, A]`, number of tries.
        reward_sums: `[S, states, A]`.
        successors: `[S, states, A, K]`; -1 for an empty slot.
        counts: `[S, states, A, K]`.
        full: bool `[S]`, whether a cell is full.
    """

    tries: NDArray[np.int64]
    reward_sums: NDArray[np.float64]
    successors: NDArray[np.int64]
    counts: NDArray[np.int64]
    full: NDArray[np.bool_]

    @classmethod
    def new(cls, seeds: int, states: int, actions: int, slots: int = 2) -> Self:
        """Return an empty model."""
        shape = (seeds, states, actions)
        return cls(
            tries=np.zeros(shape, np.int64),
            reward_sums=np.zeros(shape),
            successors=np.full((*shape, slots), -1, np.int64),
            counts=np.zeros((*shape, slots), np.int64),
            full=np.zeros(seeds, np.bool_),
        )

    def with_room(self) -> Self:
        """Return the model with twice as many slots, if a seed is full."""
        if not self.full.any():
            return self
        empty = np.full_like(self.successors, -1)
        return self._replace(
            successors=np.concatenate([self.successors, empty], axis=3),
            counts=np.concatenate([self.counts, np.zeros_like(self.counts)], axis=3),
            full=np.zeros_like(self.full),
        )


@compiled
def observe(model: Counts, i: int, cell: Cell, reward: float, outcome: int) -> tuple[int, bool]:
    """Count a step to `outcome`, a state, or the number of states for a termination.

    Returns:
        The slot of the outcome, and whether it is new.
    """
    state, action = cell
    model.tries[i, state, action] += 1
    model.reward_sums[i, state, action] += reward
    successors, slot = model.successors[i, state, action], 0
    while successors[slot] >= 0 and successors[slot] != outcome:
        slot += 1
    first = successors[slot] < 0
    successors[slot] = outcome
    model.counts[i, state, action, slot] += 1
    if first and slot == len(successors) - 1:
        model.full[i] = True
    return slot, first


@compiled
def expected_backup(rule: Rule, model: Counts, q: NDArray[np.float64], i: int, cell: Cell) -> float:
    """Return `r̂ + γ Σ_s' P̂(s') max_a' Q(s', a')` from the observed frequencies; the action must have been tried."""
    state, action = cell
    total, states = 0.0, model.successors.shape[1]
    for slot in range(model.successors.shape[3]):
        outcome = model.successors[i, state, action, slot]
        if outcome < 0:
            break
        if outcome < states:
            total += model.counts[i, state, action, slot] * best_value(rule.choices, q[i, outcome], outcome)
    return (model.reward_sums[i, state, action] + rule.gamma * total) / model.tries[i, state, action]
