"""Graphs with repeated edges: components, reachable states, and ends, against repeated multiplication."""

import numpy as np

from operant.mdp.graphs import closed_components, ending, ending_actions, reachable, strong_components


def reaches(edges, states):
    """Return which states can reach which, by repeated multiplication."""
    found = np.eye(states, dtype=bool)
    for origin, successor in edges:
        found[origin, successor] = True
    for _ in range(states):
        found = found | (found.astype(int) @ found.astype(int) > 0)
    return found


def graphs():
    """Yield random lists of edges `[n, 2]`, some of them twice, and their numbers of states."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        states = int(rng.integers(1, 8))
        edges = rng.integers(states, size=(int(rng.integers(0, 20)), 2))
        yield np.concatenate([edges, edges[: len(edges) // 2]]), states


def test_components_are_the_states_that_reach_each_other():
    for edges, states in graphs():
        count, labels = strong_components(edges[:, 0], edges[:, 1], states)
        together = reaches(edges, states) & reaches(edges, states).T
        assert count == len(set(labels)) == len({tuple(row) for row in together})
        np.testing.assert_array_equal(labels[:, None] == labels, together)
        same, closed = closed_components(edges[:, 0], edges[:, 1], states)
        np.testing.assert_array_equal(same, labels)
        np.testing.assert_array_equal(closed[labels], (reaches(edges, states) == together).all(1))


def test_reachable_states_and_those_that_can_end():
    rng = np.random.default_rng(1)
    for edges, states in graphs():
        marked, order = rng.random(states) < 0.3, np.lexsort(edges.T[::-1])
        found = reachable(edges[:, 0], edges[:, 1], marked)
        np.testing.assert_array_equal(found, reaches(edges, states)[marked].any(0))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=states))])
        found = ending(indptr, edges[order, 1], marked)
        np.testing.assert_array_equal(found, reaches(edges, states)[:, marked].any(1))


def test_actions_lead_to_an_end_on_a_shortest_path():
    """State 0 leads to 1 or to 2, both to 3, which ends; state 4 leads to itself."""
    successors = np.array([1, 2, 0, 3, 3, 3, 4])
    indptr = np.array([0, 1, 2, 3, 4, 5, 6, 6, 6, 7, 7])  # two rows for each state
    exits = np.zeros(10, bool)
    exits[7] = True
    assert ending_actions(indptr, successors, exits, 5).tolist() == [0, 1, 0, 1, -1]
