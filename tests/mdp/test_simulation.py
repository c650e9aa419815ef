from dataclasses import replace

import numpy as np
import pytest

from operant.mdp import MDP, expected_return, random_model, simulate, stationary_distributions

LINE = MDP.from_table([[0, 0, 1, 1, -1, 0], [1, 0, 2, 1, -2, 0], [2, 0, 3, 1, 5, 1]], start=0)
LINE = replace(LINE, state_names=("a", "b", "c", "d"))


def test_a_trajectory_without_chance():
    found = simulate(LINE, [0, 0, 0, 0], steps=10)
    assert found.states.tolist() == [0, 1, 2, 3]
    assert found.actions.tolist() == [0, 0, 0]
    assert found.rewards.tolist() == [-1.0, -2.0, 5.0]
    assert found.terminated
    assert simulate(LINE, [0] * 4, steps=2, start="b").states.tolist() == [1, 2, 3]
    cut = simulate(replace(LINE, max_steps=2), [0] * 4)
    assert (cut.states.tolist(), cut.terminated) == ([0, 1, 2], False)


def test_frequencies_are_those_of_the_chain():
    model = random_model(4, 3, 3, seed=1)
    policy = np.random.default_rng(0).dirichlet(np.ones(3), 4)
    found = simulate(model, policy, steps=20_000, seed=2)
    assert found.states.size == found.actions.size + 1 == found.rewards.size + 1 == 20_001
    shares = np.bincount(found.states, minlength=4) / found.states.size
    np.testing.assert_allclose(shares, stationary_distributions(model, policy)[0], atol=0.02)
    for s in range(4):
        taken = np.bincount(found.actions[found.states[:-1] == s], minlength=3)
        np.testing.assert_allclose(taken / taken.sum(), policy[s], atol=0.03)
    np.testing.assert_allclose(found.rewards.mean(), (model.expected_rewards * policy).sum(axis=1) @ shares, atol=0.02)


def test_returns_have_the_expected_mean():
    model = random_model(5, 2, 3, seed=3, termination=0.3)
    policy = np.array([row.argmax() for row in model.feasible])
    returns = [simulate(model, policy, steps=10_000, seed=seed).rewards.sum() for seed in range(2_000)]
    error = np.std(returns) / np.sqrt(len(returns))
    assert abs(np.mean(returns) - expected_return(model, policy, gamma=1.0)) < 4 * error


def test_a_seed_gives_one_trajectory():
    model = random_model(6, 2, 3, seed=0)
    one, again, other = (simulate(model, [0] * 6, steps=50, seed=seed).states.tolist() for seed in (7, 7, 8))
    assert one == again != other


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, ValueError, "the model has no step limit"),
        ({"steps": 0}, ValueError, "steps is 0, expected at least 1"),
        ({"steps": 1.5}, TypeError, "steps is 1.5, expected an int"),
        ({"steps": 1, "seed": 0.5}, TypeError, "seed is 0.5, expected a whole number"),
        ({"steps": 1, "seed": -1}, ValueError, "seed and index must be non-negative"),
        ({"steps": 1, "start": 4}, ValueError, "start is 4, expected 0 to 3"),
        ({"steps": 1, "start": 3}, ValueError, "start is 3, which is terminal"),
        ({"steps": 1, "start": "e"}, ValueError, "start is 'e', expected a, b, c, d"),
        ({"steps": 1, "start": 0.5}, TypeError, "start is 0.5, expected a state"),
    ],
)
def test_wrong_arguments_are_named(options, error, said):
    with pytest.raises(error, match=said):
        simulate(LINE, [0, 0, 0, 0], **options)
