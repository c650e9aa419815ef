import numpy as np
import pytest

from operant.mdp import MDP, policy_evaluation
from operant.tabular import value_errors

from .models import build


def test_errors_by_hand():
    """From state 0 the policy ends with 1 or moves to 1, which pays 4; state 2 is entered by the other action only."""
    model = build(
        3,
        2,
        [
            *((0, 0, 1, 0.5, 0.0, False), (0, 0, 0, 0.5, 1.0, True), (0, 1, 2, 1.0, 0.0, False)),
            *((1, 0, 0, 1.0, 4.0, True), (2, 0, 0, 1.0, 9.0, True)),
        ],
        start=0,
    )
    found = value_errors(model, [[1.5, 3.0, 0.0], [1.5, 4.0, 0.0]], [0, 0, 0], gamma=0.5)
    np.testing.assert_allclose(found.truth, [1.5, 4.0, 9.0])
    np.testing.assert_allclose(found.rmse, [np.sqrt(0.5), 0.0], atol=1e-9)
    np.testing.assert_allclose(found.mean, [0.5, 0.0], atol=1e-9)
    np.testing.assert_allclose(found.largest, [1.0, 0.0], atol=1e-9)
    assert (found.states, found.state[0], found.gamma) == (2, 1, 0.5)


def test_terminal_states_do_not_count():
    walk = MDP.from_gymnasium("operant/RandomWalk19-v0")
    policy = np.ones((walk.states, 1))
    truth = policy_evaluation(walk, policy, gamma=1.0).values
    found = value_errors(walk, [truth + 0.5], policy, gamma=1.0)
    assert (found.states, found.rmse[0], found.largest[0]) == (19, pytest.approx(0.5), pytest.approx(0.5))


def test_values_of_another_shape_are_rejected():
    walk = MDP.from_gymnasium("operant/RandomWalk19-v0")
    with pytest.raises(ValueError, match=r"values must have shape \('S', 21\), got \(21,\)"):
        value_errors(walk, np.zeros(21), np.ones((21, 1)), gamma=1.0)
