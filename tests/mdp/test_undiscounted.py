import numpy as np
import pytest

from operant.mdp import MDP, evaluation_sweeps, expected_return, policy_evaluation, relative_value_iteration
from operant.mdp.solving import solve
from operant.mdp.undiscounted import check_bounded, ends, proper_policy, quick_policy


def loop(reward):
    """Return two states: in the first one action stays with a reward, the other ends."""
    return MDP.from_table([[0, 0, 0, 1.0, reward], [0, 1, 1, 1.0, 0.0]])


def test_a_proper_policy_ends_from_everywhere():
    mdp = MDP.from_gymnasium("CliffWalking-v1")
    policy = proper_policy(mdp)
    assert ends(mdp, policy).all()


def test_a_model_that_never_ends_is_rejected():
    mdp = MDP.from_table([[0, 0, 1, 1.0, -1.0], [1, 0, 0, 1.0, -1.0]])
    with pytest.raises(ValueError, match=r"never ends|no policy ends"):
        solve(mdp, gamma=1.0)


def test_a_loop_with_positive_reward_is_rejected():
    with pytest.raises(ValueError, match="collected forever in state 0"):
        solve(loop(1.0), gamma=1.0)


@pytest.mark.parametrize(
    ("loops", "words"), [(1, "state 0,"), (2, "state 0 and 1 other,"), (3, "state 0 and 2 others,")]
)
def test_states_without_bound_are_counted_in_words(loops, words):
    mdp = MDP.from_table([row for s in range(loops) for row in ([s, 0, s, 1.0, 1.0], [s, 1, loops, 1.0, 0.0])])
    with pytest.raises(ValueError, match=words):
        check_bounded(mdp, np.array([0] * loops + [-1]))


def test_a_proper_policy_is_bounded_and_another_is_not():
    mdp = loop(1.0)
    check_bounded(mdp, proper_policy(mdp))
    with pytest.raises(ValueError, match="collected forever"):
        check_bounded(mdp, np.array([0, -1]))


def test_a_loop_that_costs_is_left():
    solution = solve(loop(-1.0), gamma=1.0)
    assert solution.policy[0] == 1
    np.testing.assert_allclose(solution.values, 0.0, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "value"), [("FrozenLake-v1", 0.823529), ("CliffWalking-v1", -13.0), ("FrozenLake8x8-v1", 1.0)]
)
def test_bounds_without_a_discount_hold(task, value):
    mdp = MDP.from_gymnasium(task)
    solution = solve(mdp, gamma=1.0)
    assert float(mdp.start @ solution.values) == pytest.approx(value, abs=2e-6)
    if solution.lower is not None:
        assert float(mdp.start @ solution.lower) <= value + 1e-6
        assert float(mdp.start @ solution.upper) >= value - 1e-6


THIRD = 0.3333333333


def test_rounded_rows_do_not_end_episodes():
    looping = MDP.from_arrays([[[THIRD] * 3]] * 3, 1.0)
    np.testing.assert_array_equal(looping.probabilities, np.full(9, THIRD) / np.full(9, 3 * THIRD))
    again = MDP(
        3, 1, looping.indptr, looping.successors, np.full(9, THIRD), looping.rewards, looping.terminates, [1, 0, 0]
    )
    np.testing.assert_array_equal(again.probabilities, looping.probabilities)
    for attempt in (
        lambda: solve(looping, gamma=1.0),
        lambda: policy_evaluation(looping, [0, 0, 0], gamma=1.0),
        lambda: expected_return(looping, [0, 0, 0], gamma=1.0),
        lambda: next(evaluation_sweeps(looping, [0, 0, 0], gamma=1.0)),
    ):
        with pytest.raises(ValueError, match="gamma is 1, but"):
            attempt()


def test_rounded_policies_do_not_end_episodes():
    model = MDP.from_arrays([[[1.0, 0.0]] * 3, [[0.0, 1.0]] * 3], 1.0)
    with pytest.raises(ValueError, match="gamma is 1, but this policy never ends"):
        policy_evaluation(model, [[THIRD] * 3] * 2, gamma=1.0)


def test_rare_ends_are_ends():
    model = MDP.from_table([[0, 0, 0, 1 - 1e-10, 1.0, 0], [0, 0, 0, 1e-10, 1.0, 1]])
    assert expected_return(model, [0], gamma=1.0) == pytest.approx(1e10, rel=1e-5)


def test_errors_list_the_names_of_states():
    endless = MDP.from_dict({"up": {"go": [(1.0, "down", 1.0, False)]}, "down": {"go": [(1.0, "up", 0.0, False)]}})
    for call in (lambda: proper_policy(endless), lambda: policy_evaluation(endless, [0, 0], gamma=1.0)):
        with pytest.raises(ValueError, match=r"state 0 \(up\), 1 \(down\), so its value"):
            call()
    ends = MDP.from_dict({"up": {"go": [(1.0, "out", 1.0, False)]}, "out": {}})
    with pytest.raises(ValueError, match=r"state 1 \(out\) is terminal"):
        relative_value_iteration(ends)


def test_the_first_policy_is_not_exponentially_long():
    """Both actions may move either way, so each is on a shortest path; the first one drifts away from the end."""
    states = 100
    begin = np.arange(states)
    moves = [
        [begin, np.full(states, action), np.clip(begin + move, 0, states - 1), np.full(states, chance)]
        for action, likely in enumerate((-1, 1))
        for move, chance in ((likely, 0.7), (-likely, 0.3))
    ]
    last = np.tile(begin == states - 1, 4) & (np.repeat([-1, 1, 1, -1], states) == 1)
    columns = np.concatenate(moves, axis=1)
    corridor = MDP.from_table(np.column_stack([*columns, np.full(4 * states, -1.0), last]))
    right = policy_evaluation(corridor, np.ones(states, np.int64), gamma=1.0).values
    for method in ("policy-iteration", "inexact-policy-iteration"):
        solution = solve(corridor, gamma=1.0, method=method)
        assert solution.converged
        np.testing.assert_allclose(solution.values, right, atol=1e-6)
    assert (quick_policy(corridor) == 1).all()
