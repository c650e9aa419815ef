"""Strongly connected components of graphs with repeated edges."""

import numpy as np

from operant.mdp.components import strong_components


def reaches(edges, states):
    """Return which states can reach which, by repeated multiplication."""
    found = np.eye(states, dtype=bool)
    for origin, successor in edges:
        found[origin, successor] = True
    for _ in range(states):
        found = found | (found.astype(int) @ found.astype(int) > 0)
    return found


def test_components_are_the_states_that_reach_each_other():
    rng = np.random.default_rng(0)
    for _ in range(200):
        states = int(rng.integers(1, 8))
        edges = rng.integers(states, size=(int(rng.integers(0, 20)), 2))
        edges = np.concatenate([edges, edges[: len(edges) // 2]])  # some of them twice
        count, labels = strong_components(edges[:, 0], edges[:, 1], states)
        together = reaches(edges, states) & reaches(edges, states).T
        assert count == len(set(labels)) == len({tuple(row) for row in together})
        np.testing.assert_array_equal(labels[:, None] == labels, together)
