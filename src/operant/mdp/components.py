"""Which states can reach each other: `strong_components`."""

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.csgraph import connected_components


def strong_components(
    origins: NDArray[np.int64], successors: NDArray[np.int64], states: int
) -> tuple[int, NDArray[np.int64]]:
    """Return how many strong components a graph has, and that of each state, `[states]`.

    Args:
        origins: where its edges begin; an edge may be there several times.
        successors: where they end.
        states: how many there are.
    """
    edges = (np.ones(origins.size, np.int8), (origins, successors))
    graph = sparse.csr_array(edges, shape=(states, states))
    graph.sum_duplicates()  # SciPy may never end where an edge is there twice, which older versions leave so
    count, labels = connected_components(graph, connection="strong")
    return int(count), labels.astype(np.int64)
