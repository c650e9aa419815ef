import numpy as np
import pytest

from operant.mdp import MDP
from operant.mdp.solving import solve
from operant.mdp.undiscounted import check_bounded, ends, proper_policy


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
