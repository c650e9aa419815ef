"""Strongly connected components: `strong_components`."""

import numpy as np
from numpy.typing import NDArray

from operant.mdp import sparse


def strong_components(
    origins: NDArray[np.int64], successors: NDArray[np.int64], states: int
) -> tuple[int, NDArray[np.int64]]:
    """Return the number of strong components of a graph, and that of each state, `[states]`.

    Args:
        origins: origins of the edges, which may repeat.
        successors: successors of the edges.
        states: number of states.
    """
    edges = (np.ones(origins.size, np.int8), (origins, successors))
    graph = sparse.csr_array(edges, shape=(states, states))
    graph.sum_duplicates()  # older SciPy may not terminate with repeated edges
    count, labels = sparse.connected_components(graph, connection="strong")
    return int(count), labels.astype(np.int64)
