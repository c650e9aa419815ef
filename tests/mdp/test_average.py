import numpy as np
import pytest

from operant.mdp import MDP
from operant.mdp.average import relative_value_iteration


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
