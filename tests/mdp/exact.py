"""Small models and their exact optimum, by enumeration of all policies."""

import itertools
from fractions import Fraction

import numpy as np

from operant.mdp import MDP


def dense(mdp):
    """Return the transitions that continue the episode `[S, A, S]` and the expected rewards `[S, A]`."""
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
    """Compare values, bounds and flag with the exact solution."""
    slack = 1e-9 * max(1.0, np.abs(truth).max())
    assert solution.converged
    np.testing.assert_allclose(solution.values, truth, rtol=0, atol=tolerance + slack)
    assert solution.lower is not None
    assert (solution.lower <= truth + slack).all()
    assert (solution.upper >= truth - slack).all()


def rational_value(mdp, policy, gamma):
    """Return the values of a deterministic policy in fractions, for the numbers that the model stores."""
    indptr, successors, probabilities = mdp.continuation
    size, gamma = mdp.states, Fraction(gamma)
    system = [[Fraction(int(s == t)) for t in range(size)] + [Fraction(0)] for s in range(size)]
    for s in np.flatnonzero(~mdp.terminal):
        k = s * mdp.actions + policy[s]
        for j in range(indptr[k], indptr[k + 1]):
            system[s][successors[j]] -= gamma * Fraction(float(probabilities[j]))
        for j in range(mdp.indptr[k], mdp.indptr[k + 1]):
            system[s][-1] += Fraction(float(mdp.probabilities[j])) * Fraction(float(mdp.rewards[j]))
    for s in range(size):
        pivot = next(t for t in range(s, size) if system[t][s] != 0)
        system[s], system[pivot] = system[pivot], system[s]
        system[s] = [x / system[s][s] for x in system[s]]
        for t in range(size):
            if t != s and system[t][s] != 0:
                system[t] = [x - system[t][s] * y for x, y in zip(system[t], system[s], strict=True)]
    return [row[-1] for row in system]


def rational_optimum(mdp, gamma):
    """Return the optimal values in fractions, by enumeration of all policies."""
    choices = [np.flatnonzero(row) if row.any() else [0] for row in mdp.feasible]
    tried = [rational_value(mdp, policy, gamma) for policy in itertools.product(*choices)]
    return [max(values) for values in zip(*tried, strict=True)]


def random_walk(states, reward):
    """Return a walk to the left or the right that ends beyond the last state."""
    begin, end = np.arange(states), states - 1
    left = [begin, np.zeros(states), np.maximum(begin - 1, 0), np.full(states, 0.5), np.full(states, reward)]
    right = [begin, np.zeros(states), np.minimum(begin + 1, end), np.full(states, 0.5), np.full(states, reward)]
    ends = np.concatenate([np.zeros(states), begin == end])
    return MDP.from_table(np.column_stack([np.hstack([left, right]).T, ends]))
