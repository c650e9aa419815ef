import numpy as np
import pytest

from operant.mdp import MDP
from operant.tabular import exact_values, expected_returns, sampled_returns
from operant.tabular.evaluation import LONGEST_EPISODE

from .models import build, corridor, forest, policy_values, random_walk


def uniform(mdp):
    return mdp.feasible / mdp.feasible.sum(axis=1, keepdims=True)


def test_samples_have_the_exact_mean():
    mdp = forest(seed=3, max_steps=8)
    policy = uniform(mdp)
    sampled = sampled_returns(mdp, np.stack([policy] * 50), seeds=range(50), episodes=200)
    assert sampled.returns.shape == sampled.lengths.shape == (50, 200)
    exact = expected_returns(mdp, policy) @ mdp.start
    assert sampled.returns.mean() == pytest.approx(exact, abs=4 * sampled.returns.std() / 100)
    assert sampled.lengths.max() == 8


def test_the_same_seeds_play_the_same_episodes():
    mdp = forest(seed=3)
    policies = np.stack([uniform(mdp)] * 3)
    first = sampled_returns(mdp, policies, seeds=(1, 2, 3), episodes=5)
    again = sampled_returns(mdp, policies[:1], seeds=(2,), episodes=5)
    np.testing.assert_array_equal(first.returns[1], again.returns[0])


def test_a_long_horizon_is_the_linear_solve():
    mdp = forest(seed=5)
    policy = uniform(mdp)
    values = expected_returns(mdp, policy, gamma=0.8, steps=200)
    np.testing.assert_allclose(values, policy_values(mdp, policy, 0.8), rtol=1e-9)
    both = expected_returns(mdp, np.stack([policy, policy]), gamma=0.8, steps=3)
    assert both.shape == (2, mdp.states)
    np.testing.assert_array_equal(expected_returns(mdp, policy, steps=0), 0.0)


def test_exact_values_are_the_linear_solve_of_every_seed():
    mdp = forest(seed=5)
    policies = np.stack([uniform(mdp), np.eye(mdp.actions)[mdp.feasible.argmax(axis=1)]])
    expected = [policy_values(mdp, policy, 0.9) for policy in policies]
    np.testing.assert_allclose(exact_values(mdp, policies, gamma=0.9), expected, rtol=1e-9)
    with pytest.raises(ValueError, match="never end"):
        exact_values(corridor(4), np.eye(2)[np.zeros((1, 4), int)], gamma=1.0)


def test_frozen_lake():
    """Success within 100 steps: at random 0.013940, by the best stationary policy 0.740165."""
    mdp = MDP.from_gymnasium("FrozenLake-v1")
    best = np.array([0, 3, 3, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0])
    policies = np.stack([np.full((16, 4), 0.25), np.eye(4)[best]])
    np.testing.assert_allclose(expected_returns(mdp, policies)[:, 0], [0.013940, 0.740165], atol=5e-7)


def test_a_policy_that_never_ends_is_cut():
    stay = np.eye(2)[np.zeros(4, int)][None]
    sampled = sampled_returns(corridor(4), stay, seeds=(0,), episodes=2)
    assert sampled.lengths.tolist() == [[LONGEST_EPISODE] * 2]


def test_wrong_requests_are_rejected():
    mdp = random_walk()
    with pytest.raises(ValueError, match=r"policies must have shape \(2, 5, 1\), got \(1, 5, 1\)"):
        sampled_returns(mdp, np.ones((1, 5, 1)), seeds=(0, 1), episodes=2)
    with pytest.raises(ValueError, match="episodes at least 1, got 0"):
        sampled_returns(mdp, np.ones((1, 5, 1)), seeds=(0,), episodes=0)
    with pytest.raises(ValueError, match="no step limit"):
        expected_returns(mdp, np.ones((5, 1)))
    with pytest.raises(ValueError, match="give a number of steps"):
        expected_returns(build(1, 1, [(0, 0, 0, 1.0, 1.0, True)]), np.ones((1, 1)), steps=-1)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ([[1.0, 0.0], [1.0, 1.0]], "sum to 2"),
        ([[1.0, 0.0], [np.nan, 1.0]], "expected 0 to 1"),
        ([[0.0, 1.0], [1.0, 0.0]], "not feasible"),
    ],
)
def test_policies_that_do_not_fit_the_model_are_rejected(policy, message):
    mdp = build(2, 2, [(0, 0, 1, 1.0, 1.0, False), (1, 0, 0, 1.0, 1.0, True), (1, 1, 0, 1.0, 1.0, True)])
    with pytest.raises(ValueError, match=message):
        expected_returns(mdp, policy, steps=3)
    with pytest.raises(ValueError, match=message):
        sampled_returns(mdp, [policy], seeds=(0,), episodes=1)
    good = [[1.0, 0.0], [1.0, 0.0]]
    for gamma in (5.0, np.nan):
        with pytest.raises(ValueError, match="expected a number between 0 and 1"):
            expected_returns(mdp, good, gamma=gamma, steps=3)
    with pytest.raises(ValueError, match=r"policies has shape \(2, 3\), expected \(\.\.\., 2, 2\)"):
        expected_returns(mdp, np.ones((2, 3)), steps=3)
