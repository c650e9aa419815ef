import numpy as np
import pytest

from operant.mdp import MDP, policy_evaluation
from operant.tabular import expected_returns, sampled_returns
from operant.tabular.evaluation import LONGEST_EPISODE
from operant.tabular.exact import MOST_WORK, circling_states, expected_episodes, may_compute

from .models import build, corridor, forest

GREEDY = np.eye(4)


def uniform(mdp):
    return mdp.feasible / np.maximum(mdp.feasible.sum(axis=1, keepdims=True), 1)


@pytest.mark.parametrize("limit", [1, 2, 7, 8, 1000])
def test_returns_are_those_of_backward_induction(limit):
    for seed in range(5):
        mdp = forest(seed=seed)
        policies = np.stack([uniform(mdp), np.eye(mdp.actions)[mdp.feasible.argmax(axis=1)]])
        found = expected_episodes(mdp, policies, limit=limit)
        exact = expected_returns(mdp, policies, steps=limit) @ mdp.start
        np.testing.assert_allclose(found.returns, exact, rtol=1e-9, atol=1e-12)


def test_episodes_are_those_that_are_sampled():
    mdp = MDP.from_gymnasium("FrozenLake-v1")
    policies = np.stack([np.eye(4)[[0, 3, 3, 3, 0, 0, 0, 0, 3, 1, 0, 0, 0, 2, 1, 0]], uniform(mdp)])
    found = expected_episodes(mdp, policies, limit=100)
    np.testing.assert_allclose(found.returns, [0.740165, 0.013940], atol=5e-7)
    sampled = sampled_returns(mdp, policies, seeds=(0, 1), episodes=20_000)
    np.testing.assert_allclose(found.lengths, sampled.lengths.mean(axis=1), rtol=0.02)
    np.testing.assert_allclose(found.cut, sampled.cut.mean(axis=1), atol=0.01)
    assert found.cut[0] > 0.1


def test_a_policy_that_ends_has_the_value_of_the_linear_system():
    cliff = MDP.from_gymnasium("CliffWalking-v1")
    found = expected_episodes(cliff, uniform(cliff)[None], limit=LONGEST_EPISODE * 100)
    value = policy_evaluation(cliff, uniform(cliff), gamma=1.0).values @ cliff.start
    assert found.returns[0] == pytest.approx(value, rel=1e-9)
    assert found.cut[0] == 0.0


def test_circles_are_counted_and_not_walked():
    """Three states in a ring, and a path into it: 10¹² steps take no time."""
    ring = build(4, 1, [(0, 0, 1, 1.0, 5.0, False), *((s, 0, s % 3 + 1, 1.0, float(s), False) for s in (1, 2, 3))])
    for limit in (1, 2, 3, 4, 5, 6, 7, 8, 9, 100, 10**12):
        found = expected_episodes(ring, np.ones((1, 4, 1)), limit=limit)
        rounds, rest = divmod(limit - 1, 3)
        assert found.returns[0] == 5 + 6 * rounds + sum((1, 2, 3)[:rest])
        assert (found.lengths[0], found.cut[0]) == (limit, 1.0)
    assert circling_states(ring, np.ones((4, 1))).tolist() == [1, 2, 3]


def test_only_closed_circles_that_can_be_reached_are_named():
    # From 0 to the end or to the ring {1, 2}; 3 and 4 are a ring that no state leads to; 5 loops but may end.
    mdp = build(
        6,
        1,
        [
            (0, 0, 1, 0.25, 0.0, False),
            (0, 0, 5, 0.75, 0.0, False),
            (1, 0, 2, 1.0, -1.0, False),
            (2, 0, 1, 1.0, -1.0, False),
            (3, 0, 4, 1.0, 0.0, False),
            (4, 0, 3, 1.0, 0.0, False),
            (5, 0, 5, 0.9, 0.0, False),
            (5, 0, 0, 0.1, 0.0, True),
        ],
    )
    assert circling_states(mdp, np.ones((6, 1))).tolist() == [1, 2]
    assert expected_episodes(mdp, np.ones((1, 6, 1)), limit=10_000).cut[0] == pytest.approx(0.25)
    assert circling_states(corridor(4), np.eye(2)[[1] * 4]).size == 0
    assert circling_states(corridor(4), np.eye(2)[[0] * 4]).size == 1
    cliff = MDP.from_gymnasium("CliffWalking-v1")
    assert circling_states(cliff, np.eye(4)[[0] * 48]).tolist() == [0]
    assert circling_states(cliff, uniform(cliff)).size == 0


def test_large_models_without_a_limit_are_not_for_it():
    cliff = MDP.from_gymnasium("CliffWalking-v1")
    assert may_compute(cliff, LONGEST_EPISODE)
    assert not may_compute(cliff, MOST_WORK)


def test_wrong_requests_are_rejected():
    with pytest.raises(ValueError, match=r"policies must have shape \('S', 4, 2\), got \(4, 2\)"):
        expected_episodes(corridor(4), np.ones((4, 2)), limit=3)
    with pytest.raises(ValueError, match="limit at least 1, got 0"):
        expected_episodes(corridor(4), np.ones((1, 4, 2)), limit=0)
    nothing = np.zeros((1, 4, 2))
    with pytest.raises(ValueError, match=r"policy has probabilities that sum to 0\.0 in state 0, expected 1"):
        expected_episodes(corridor(4), nothing, limit=3)
