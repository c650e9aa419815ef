"""Suboptimality of policies: by hand, by enumeration, and errors."""

import numpy as np
import pytest

from operant import mdp


def fork():
    """Return a model: in state 0, left ends with 1, right leads to state 1, where up ends with 4 and down with 0."""
    outcomes = [(0, 0, 2, 1.0, 1.0, True), (0, 1, 1, 1.0, 0.0, False), (1, 0, 2, 1.0, 4.0, True)]
    outcomes.append((1, 1, 2, 1.0, 0.0, True))
    return mdp.MDP.from_table(outcomes, start=[1, 0, 0], terminal=[2])


@pytest.mark.parametrize(
    ("policy", "start", "largest", "state", "suboptimal"),
    [([1, 0, -1], 0, 0, 0, 0), ([0, 0, -1], 1, 1, 0, 1), ([1, 1, -1], 2, 4, 1, 2), ([0, 1, -1], 1, 4, 1, 2)],
)
def test_by_hand(policy, start, largest, state, suboptimal):
    """With γ = 1/2 the optimal policy is right and up, worth 2 at the start and 4 after it."""
    lost = mdp.value_lost(fork(), policy, gamma=0.5)
    assert (lost.start, lost.largest, lost.state) == pytest.approx((start, largest, state))
    assert (lost.suboptimal, lost.states, lost.optimal, lost.gamma) == (suboptimal, 2, pytest.approx(2), 0.5)


def test_probabilities_lose_the_mean():
    lost = mdp.value_lost(fork(), [[0.5, 0.5], [1, 0], [0, 0]], gamma=0.5)
    assert lost.start == pytest.approx(0.5)


def test_the_least_loss_of_all_policies_is_none():
    model = mdp.random_model(4, 3, 2, seed=3)
    solution = mdp.solve(model, gamma=0.9, tolerance=1e-9)
    every = [mdp.value_lost(model, p, gamma=0.9, solution=solution) for p in np.ndindex(*[3] * 4)]
    values = [mdp.policy_evaluation(model, p, gamma=0.9).values for p in np.ndindex(*[3] * 4)]
    best = np.max(values, axis=0)
    assert min(one.largest for one in every) < 1e-8
    for one, value in zip(every, values, strict=True):
        np.testing.assert_allclose(one.by_state, best - value, atol=1e-7)
        assert one.start == pytest.approx(model.start @ (best - value), abs=1e-7)
        assert one.largest == one.by_state[one.state]
        assert one.suboptimal == (one.by_state > 1e-6 * np.maximum(1, abs(best))).sum()


def test_a_solution_of_another_discount_is_rejected():
    with pytest.raises(ValueError, match=r"solution is for gamma 0.9, expected one for 0.5"):
        mdp.value_lost(fork(), [1, 0, -1], gamma=0.5, solution=mdp.solve(fork(), gamma=0.9))


def test_without_a_discount_a_policy_has_to_end():
    model = mdp.MDP.from_gymnasium("operant/DynaMaze-v0")
    with pytest.raises(ValueError, match="never ends"):
        mdp.value_lost(model, np.zeros(model.states, int), gamma=1.0)


def test_without_a_discount_states_that_are_not_reached_need_no_end():
    cliff = mdp.MDP.from_gymnasium("CliffWalking-v1")
    policy = np.zeros(cliff.states, int)  # up
    policy[36], policy[24:35], policy[35] = 0, 1, 2  # along the cliff
    lost = mdp.value_lost(cliff, policy, gamma=1.0)
    assert (lost.start, lost.largest, lost.suboptimal) == (0, 0, 0)
    assert (lost.left_out, lost.states) == (37 - 13, 37)
    assert np.isnan(lost.by_state).sum() == 47 - 13
    policy[30] = 0
    with pytest.raises(ValueError, match="never ends"):
        mdp.value_lost(cliff, policy, gamma=1.0)


def test_states_that_no_policy_can_enter_do_not_count():
    """The cells of the cliff send the agent to the start, so that they are never entered."""
    cliff = mdp.MDP.from_gymnasium("CliffWalking-v1")
    policy = mdp.solve(cliff, gamma=0.9).policy.copy()
    policy[37:47] = 2  # down
    lost = mdp.value_lost(cliff, policy, gamma=0.9)
    assert (lost.largest, lost.suboptimal, lost.states) == (pytest.approx(0, abs=1e-9), 0, 37)
    assert lost.by_state[45] > 1
    lost = mdp.value_lost(cliff, policy, gamma=1.0)
    assert (lost.start, lost.suboptimal, lost.left_out) == (0, 0, 0)
    assert not np.isnan(lost.by_state[:37]).any()
