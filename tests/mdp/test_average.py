import numpy as np
import pytest

from operant.mdp import MDP
from operant.mdp.average import closed_classes, relative_value_iteration
from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.policy_iteration import policy_iteration
from operant.mdp.solution import action_values


def test_a_cycle_earns_its_mean():
    transitions = np.zeros((3, 1, 3))
    for state in range(3):
        transitions[state, 0, (state + 1) % 3] = 1.0
    solution = relative_value_iteration(MDP.from_arrays(transitions, np.array([[0.0], [3.0], [6.0]])))
    assert solution.gain == pytest.approx(3.0, abs=1e-5)


def test_the_better_of_two_loops_is_found():
    transitions = np.zeros((2, 2, 2))
    transitions[0, 0, 0] = transitions[0, 1, 1] = transitions[1, 0, 1] = transitions[1, 1, 0] = 1.0
    rewards = np.array([[1.0, 0.0], [2.0, 0.0]])
    solution = relative_value_iteration(MDP.from_arrays(transitions, rewards))
    assert solution.gain == pytest.approx(2.0, abs=1e-5)
    assert solution.policy.tolist() == [1, 0]


def test_the_swimmer_of_strehl_and_littman():
    mdp = MDP.from_gymnasium("operant/RiverSwim-v0")
    assert relative_value_iteration(mdp, tolerance=1e-5).gain == pytest.approx(668.8073, abs=1e-3)


def test_the_gain_is_the_limit_of_the_discounted_values():
    for seed in range(20):
        mdp = random_model(8, 3, 3, seed=seed)
        solution = relative_value_iteration(mdp, tolerance=1e-9)
        assert solution.converged
        near = (1 - 0.999999) * policy_iteration(mdp, gamma=0.999999).values
        np.testing.assert_allclose(near, solution.gain, atol=1e-4)
        assert solution.lower <= solution.gain <= solution.upper
        q = action_values(mdp, solution.bias, gamma=1.0)
        np.testing.assert_allclose(q.max(axis=1) - solution.bias, solution.gain, atol=1e-7)


def test_two_gains_never_meet():
    mdp = MDP.from_table([[0, 0, 0, 1.0, 1.0], [1, 0, 1, 1.0, 3.0]])
    solution = relative_value_iteration(mdp, max_iterations=50)
    assert not solution.converged
    assert solution.lower <= 1
    assert solution.upper >= 3


def test_episodes_have_no_average_reward():
    with pytest.raises(ValueError, match="state 24 is terminal"):
        relative_value_iteration(slippery_grid(5))


def test_two_closed_classes_are_the_reason():
    apart = MDP.from_arrays([[[1.0, 0.0, 0.0]], [[0.0, 1.0, 0.0]], [[0.5, 0.5, 0.0]]], [1.0, 2.0, 0.0])
    assert [states.tolist() for states in closed_classes(apart)] == [[0], [1]]
    solution = relative_value_iteration(apart, max_iterations=100)
    assert not solution.converged
    assert "2 closed classes" in solution.reason
    assert "states 0 and 1 cannot reach each other" in solution.reason
    one = MDP.from_arrays([[[0.0, 1.0]], [[1.0, 0.0]]], [1.0, 2.0])
    assert [states.tolist() for states in closed_classes(one)] == [[0, 1]]
    assert relative_value_iteration(one).reason == ""


def test_a_tolerance_below_rounding_errors_is_the_reason():
    solution = relative_value_iteration(MDP.from_arrays(np.full((2, 1, 2), 0.5), [1e9, -1e9]), tolerance=1e-9)
    assert not solution.converged
    assert solution.iterations < 100
    assert "rounding errors are larger than the tolerance" in solution.reason
