"""Facts about sparse rows at any discount: computed once per model."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from operant.mdp import bellman_kernels
from operant.mdp.bellman_kernels import Rows

__all__ = ["Facts", "examine", "rows_of"]

Floats = NDArray[np.float64]


class Facts(NamedTuple):
    """Facts about rows for the solvers, without infeasible actions.

    Attributes:
        ends: `[rows]`, termination probability, to full precision near 0; below 0 if probabilities sum to more than 1;
            0 for infeasible actions.
        least: minimum of them.
        most: maximum of them.
        longest: the greatest number of successors of a row.
        smallest: expected reward.
        largest: absolute value of an expected reward.
    """

    ends: Floats
    least: float
    most: float
    longest: int
    smallest: float
    largest: float


def examine(rows: Rows) -> Facts:
    """Compute the facts of all rows."""
    ends = np.empty(rows.rewards.size)
    least, most, longest = bellman_kernels.endings(0, ends.size, rows, ends)
    feasible = rows.rewards > -np.inf
    smallest = float(rows.rewards.min(where=feasible, initial=np.inf))
    greatest = float(rows.rewards.max(initial=-np.inf))
    return Facts(ends, least, most, int(longest), smallest, max(abs(smallest), abs(greatest)))


def rows_of(transitions: tuple[Any, Any, Any], rewards: Floats, actions: int, gamma: float) -> Rows:
    """Return sparse rows, `(indptr, successors, probabilities)`, with the kernels' types."""
    indptr, successors, probabilities = transitions
    begins = np.asarray(indptr, np.int64).view(np.uint64)
    return Rows(begins, np.asarray(successors).astype(np.uint32), probabilities, rewards, actions, gamma)
