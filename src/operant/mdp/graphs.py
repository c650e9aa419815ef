"""Graphs of transitions: which states can be reached, from which an episode can end, and closed classes.

Probabilities do not matter here: an edge is a transition that is possible. Graphs are lists of edges, or rows as in
sparse matrices, one or several for each state.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant.mdp import sparse
from operant.mdp.bellman_kernels import compiled

__all__ = ["closed_components", "ending", "ending_actions", "reachable", "strong_components"]

Actions = NDArray[np.int64]
Bools = NDArray[np.bool_]


def reachable(origins: NDArray[Any], successors: NDArray[Any], sources: Bools) -> Bools:
    """Return the states, `[S]`, that can be reached from some states, including these.

    Args:
        origins: origins of the edges, which may repeat.
        successors: successors of the edges.
        sources: `[S]`, the states from which to start.
    """
    states, first = sources.size, np.flatnonzero(sources)
    origins = np.concatenate([origins, np.full(first.size, states)])  # an additional state leads to all sources
    successors = np.concatenate([successors, first])
    graph = sparse.csr_array((np.ones(origins.size), (origins, successors)), shape=(states + 1, states + 1))
    reached = np.zeros(states + 1, np.bool_)
    reached[sparse.breadth_first_order(graph, states, return_predecessors=False)] = True
    return reached[:states]


@compiled
def _attract(predecessors: tuple[Actions, Actions], exits: Bools, policy: Actions, queue: Actions) -> None:
    """Search backwards from the rows that can end, breadth first; set each state's action to the one on the path."""
    begins, rows = predecessors
    actions, count = exits.size // policy.size, 0
    for k in range(exits.size):
        if exits[k] and policy[k // actions] < 0:
            policy[k // actions] = k % actions
            queue[count] = k // actions
            count += 1
    head = 0
    while head < count:
        s = queue[head]
        head += 1
        for j in range(begins[s], begins[s + 1]):
            k = rows[j]
            if policy[k // actions] < 0:
                policy[k // actions] = k % actions
                queue[count] = k // actions
                count += 1


def ending_actions(indptr: NDArray[Any], successors: NDArray[Any], exits: Bools, states: int) -> Actions:
    """Return in every state an action on a shortest path to a row that can end, `[S]`; -1 if there is none.

    Args:
        indptr: `[S * A + 1]`, start of each row; A rows for each state.
        successors: `[n]`.
        exits: `[S * A]`, whether the episode can end in a row.
        states: S.
    """
    graph = sparse.csr_matrix((np.ones(successors.size, np.int8), successors, indptr), shape=(exits.size, states))
    back = graph.tocsc()
    policy = np.full(states, -1)
    predecessors = back.indptr.astype(np.int64), back.indices.astype(np.int64)
    _attract(predecessors, exits, policy, np.empty_like(policy))
    return policy


def ending(indptr: NDArray[Any], successors: NDArray[Any], exits: Bools) -> Bools:
    """Return the states of a chain from which it can end, `[S]`.

    Args:
        indptr: `[S + 1]`, start of the row of each state.
        successors: `[n]`.
        exits: `[S]`, states in which it can end.
    """
    return ending_actions(indptr, successors, exits, exits.size) >= 0


def strong_components(
    origins: NDArray[np.int64], successors: NDArray[np.int64], states: int
) -> tuple[int, NDArray[np.int64]]:
    """Return the number of strong components of a graph, and that of each state, `[S]`.

    Args:
        origins: origins of the edges, which may repeat.
        successors: successors of the edges.
        states: S.
    """
    edges = (np.ones(origins.size, np.int8), (origins, successors))
    graph = sparse.csr_array(edges, shape=(states, states))
    graph.sum_duplicates()  # older SciPy may not terminate with repeated edges
    count, labels = sparse.connected_components(graph, connection="strong")
    return int(count), labels.astype(np.int64)


def closed_components(
    origins: NDArray[np.int64], successors: NDArray[np.int64], states: int
) -> tuple[NDArray[np.int64], Bools]:
    """Return the strong component of each state, `[S]`, and for each component whether no edge leaves it.

    Arguments are those of `strong_components`.
    """
    count, labels = strong_components(origins, successors, states)
    closed = np.ones(count, np.bool_)
    closed[labels[origins[labels[origins] != labels[successors]]]] = False
    return labels, closed
