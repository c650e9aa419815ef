"""Groups of states that are connected by transitions with reward 0, and have equal values."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from operant.mdp.graphs import strong_components
from operant.mdp.model import MDP

__all__ = ["Groups", "free_groups"]

Floats = NDArray[np.float64]

ROUNDS = 100
"""Maximum rounds of removing rows that leave their component, before all states become singletons."""


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of merged states.

    Attributes:
        labels: `[S]`, the group of each state; terminal states are singletons.
        inner: `[S * A]`, the rows with reward 0 within a group.
    """

    labels: NDArray[np.int64]
    inner: NDArray[np.bool_]

    @property
    def count(self) -> int:
        """Number of groups."""
        return int(self.labels.max(initial=-1)) + 1

    def maximum(self, values: Floats) -> Floats:
        """Return the maximum value in each group, `[G]`."""
        best = np.full(self.count, -np.inf)
        np.maximum.at(best, self.labels, values)
        return best

    def nearest(self, steps: Floats) -> NDArray[np.int64]:
        """Return the state of each group with the fewest remaining steps, `[G]`."""
        order = np.lexsort((steps, self.labels))
        return order[np.searchsorted(self.labels[order], np.arange(self.count))]


def free_groups(mdp: MDP) -> Groups:
    """Return the maximal end components of the rows with reward 0 that never terminate (de Alfaro 1997).

    In such a component, any state can be reached from any other with probability 1 and reward 0.
    """
    indptr, successors, _ = mdp.continuation
    lengths = np.diff(indptr)
    owners = np.arange(lengths.size) // mdp.actions
    inner = (mdp.expected_rewards.ravel() == 0) & (lengths == np.diff(mdp.indptr))
    sources = np.repeat(np.arange(lengths.size), lengths)
    for _ in range(ROUNDS):
        kept = inner[sources]
        _, labels = strong_components(owners[sources[kept]], successors[kept], mdp.states)
        leaves = kept & (labels[owners[sources]] != labels[successors])
        if not leaves.any():
            return Groups(labels, inner)
        inner[sources[leaves]] = False
    return Groups(np.arange(mdp.states), np.zeros_like(inner))
