"""Small models and their exact optimum, by trying every policy."""

import itertools

import numpy as np

from operant.mdp import MDP


def dense(mdp):
    """Return the transitions that go on `[S, A, S]` and the expected rewards `[S, A]`."""
    indptr, successors, probabilities = mdp.continuation
    table = np.zeros((mdp.states * mdp.actions, mdp.states))
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    np.add.at(table, (rows, successors), probabilities)
    return table.reshape(mdp.states, mdp.actions, mdp.states), mdp.expected_rewards


def value_of(mdp, policy, gamma):
    """Return the values of a deterministic policy, solved as a dense linear system."""
    transitions, rewards = dense(mdp)
    states = np.arange(mdp.states)
    live = ~mdp.terminal
    chain = np.where(live[:, None], transitions[states, policy], 0.0)
    return np.linalg.solve(np.eye(mdp.states) - gamma * chain, np.where(live, rewards[states, policy], 0.0))


def optimum(mdp, gamma):
    """Return the optimal values."""
    choices = [np.flatnonzero(row) if row.any() else [0] for row in mdp.feasible]
    return np.max([value_of(mdp, np.array(policy), gamma) for policy in itertools.product(*choices)], axis=0)


def random_models(count, *, seed=0):
    """Yield models of up to 5 states and 3 actions, some of whose transitions end the episode, with a discount."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        states, actions = int(rng.integers(2, 6)), int(rng.integers(1, 4))
        transitions = rng.dirichlet(np.full(states, 0.5), size=(states, actions))
        rewards = rng.normal(size=(states, actions, states))
        terminal = rng.random(states) < 0.2
        terminal[int(rng.integers(states))] = False
        gamma = float(rng.choice([0.0, 0.5, 0.9, 0.99]))
        yield MDP.from_arrays(transitions, rewards, terminal=terminal), gamma


def assert_solved(solution, truth, tolerance=1e-5):
    """Check values, bounds and flag against the truth."""
    slack = 1e-9 * max(1.0, np.abs(truth).max())
    assert solution.converged
    np.testing.assert_allclose(solution.values, truth, rtol=0, atol=tolerance + slack)
    assert solution.lower is not None
    assert (solution.lower <= truth + slack).all()
    assert (solution.upper >= truth - slack).all()
