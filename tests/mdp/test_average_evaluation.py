"""Gain, bias and stationary distributions, compared with powers of the transition matrix."""

import numpy as np
import pytest

from operant.mdp import (
    MDP,
    average_policy_evaluation,
    policy_chain,
    random_model,
    relative_value_iteration,
    slippery_grid,
    stationary_distributions,
)


def limiting_matrix(chain):
    """Return the limit of the mean of the powers of a chain, that of the powers of a chain that may also stay."""
    power = (np.eye(len(chain)) + chain) / 2
    for _ in range(60):
        power = power @ power
        power /= power.sum(axis=1, keepdims=True)
    return power


def random_chain(rng):
    """Return a model with a policy `[S, A]`; some states are absorbing, and blocks are closed or periodic."""
    states, actions = int(rng.integers(2, 9)), 2
    table = np.where(rng.random((states, actions, states)) < 0.4, rng.random((states, actions, states)), 0.0)
    table[np.arange(states), :, rng.permutation(states)] += 0.5
    absorbing = rng.random(states) < 0.2
    table[absorbing] = np.eye(states)[absorbing][:, None]
    model = MDP.from_arrays(table / table.sum(axis=2, keepdims=True), rng.normal(size=(states, actions)))
    policy = rng.dirichlet(np.ones(actions), states) if rng.random() < 0.5 else rng.integers(actions, size=states)
    return model, policy


def test_gain_and_bias_agree_with_powers_of_the_transition_matrix():
    rng = np.random.default_rng(0)
    classes = []
    for _ in range(60):
        model, policy = random_chain(rng)
        transitions, rewards = policy_chain(model, policy)
        chain = transitions.toarray()
        limit, identity = limiting_matrix(chain), np.eye(model.states)
        found = average_policy_evaluation(model, policy)
        np.testing.assert_allclose(found.gain, limit @ rewards, atol=1e-10)
        bias = np.linalg.solve(identity - chain + limit, (identity - limit) @ rewards)
        np.testing.assert_allclose(found.bias, bias, atol=1e-9)
        np.testing.assert_allclose(found.bias + found.gain, rewards + chain @ found.bias, atol=1e-9)
        distributions = stationary_distributions(model, policy)
        classes.append(len(distributions))
        np.testing.assert_allclose(distributions @ chain, distributions, atol=1e-12)
        np.testing.assert_allclose(distributions.sum(axis=1), 1.0)
        for row in distributions:  # that of any of its states
            np.testing.assert_allclose(limit[np.flatnonzero(row)], np.tile(row, (np.count_nonzero(row), 1)), atol=1e-10)
    assert {1, 2, 3} <= set(classes)


def test_a_cycle_by_hand():
    """Rewards 0, 3 and 6 in turns: gain 3; the bias solves h(0) = -3 + h(1), h(1) = h(2), h(0) + h(1) + h(2) = 0."""
    cycle = MDP.from_arrays(np.roll(np.eye(3), 1, axis=1)[:, None], [0.0, 3.0, 6.0])
    found = average_policy_evaluation(cycle, [0, 0, 0])
    np.testing.assert_allclose(found.gain, 3.0)
    np.testing.assert_allclose(found.bias, [-2.0, 1.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(stationary_distributions(cycle, [0, 0, 0]), [[1 / 3, 1 / 3, 1 / 3]])


def test_the_optimal_policy_has_the_optimal_gain():
    model = random_model(300, 3, 4, seed=5)
    best = relative_value_iteration(model, tolerance=1e-9)
    found = average_policy_evaluation(model, best.policy)
    np.testing.assert_allclose(found.gain, best.gain, atol=1e-8)
    np.testing.assert_allclose(found.bias - found.bias[0], best.bias, atol=1e-6)


def test_episodes_that_end_have_no_average():
    for function in (average_policy_evaluation, stationary_distributions):
        with pytest.raises(ValueError, match="state 8 is terminal"):
            function(slippery_grid(3), np.zeros(9, int))
    leaves = MDP.from_table([[0, 0, 0, 1.0, 1.0, 0], [0, 1, 0, 1.0, 2.0, 1]])
    assert average_policy_evaluation(leaves, [0]).gain.tolist() == [1.0]
    with pytest.raises(ValueError, match="the policy may end the episode in state 0"):
        average_policy_evaluation(leaves, [1])
