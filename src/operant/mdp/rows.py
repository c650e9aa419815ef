"""Facts about sparse rows that are independent of the discount, computed once per model."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from operant.mdp import bellman_kernels
from operant.mdp.bellman_kernels import Rows

__all__ = ["Facts", "examine", "rows_of"]

Floats = NDArray[np.float64]


class Facts(NamedTuple):
    """Facts about the rows of feasible actions.

    Attributes:
        ends: `[rows]`, termination probability, to full precision near 0; below 0 if probabilities sum to more than 1;
            0 for infeasible actions.
        min_end: minimum termination probability, at most 0 if a row cannot end.
        max_end: maximum termination probability.
        longest: maximum number of successors of a row.
        smallest: minimum expected reward.
        largest: maximum absolute expected reward.
    """

    ends: Floats
    min_end: float
    max_end: float
    longest: int
    smallest: float
    largest: float


def examine(rows: Rows, exits: NDArray[np.bool_]) -> Facts:
    """Compute the facts of all rows.

    Args:
        rows: the rows.
        exits: `[rows]`, rows that may end; others miss 1 only by rounding.
    """
    ends = np.empty(rows.rewards.size)
    min_end, max_end, longest = bellman_kernels.endings(0, ends.size, rows, ends)
    feasible = rows.rewards > -np.inf
    if (feasible & ~exits).any():
        min_end = min(min_end, 0.0)
    smallest = float(rows.rewards.min(where=feasible, initial=np.inf))
    highest = float(rows.rewards.max(initial=-np.inf))
    return Facts(ends, min_end, max_end, int(longest), smallest, max(abs(smallest), abs(highest)))


def rows_of(transitions: tuple[Any, Any, Any], rewards: Floats, actions: int, gamma: float) -> Rows:
    """Return sparse rows, `(indptr, successors, probabilities)`, with the kernels' types."""
    indptr, successors, probabilities = transitions
    begins = np.asarray(indptr, np.int64).view(np.uint64)
    return Rows(begins, np.asarray(successors).astype(np.uint32), probabilities, rewards, actions, gamma)
