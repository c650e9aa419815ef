import numpy as np
import pytest

from operant.tabular import NStepTD, NStepTDConfig
from operant.tabular.prediction import of_state, policy_table
from operant.tabular.simulator import Step

from .models import build, forest

FEASIBLE = np.array([[True, True], [False, True], [False, False]])


def test_policies_become_tables():
    np.testing.assert_array_equal(policy_table(None, FEASIBLE), [[0.5, 0.5], [0, 1], [0, 0]])
    np.testing.assert_array_equal(policy_table([1, 1, -1], FEASIBLE), [[0, 1], [0, 1], [0, 0]])
    given = [[0.3, 0.7], [0, 1], [9, 9]]
    np.testing.assert_array_equal(policy_table(given, FEASIBLE), [[0.3, 0.7], [0, 1], [0, 0]])


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ([0, 0, 0], "policy takes action 0 in state 1, which is not feasible"),
        ([[0.3, 0.6], [0, 1], [0, 0]], "probabilities that sum to 0.8.* in state 0"),
        ([[1.5, -0.5], [0, 1], [0, 0]], r"\[ 1.5 -0.5\] in state 0"),
        ([[float("nan"), 1.0], [0, 1], [0, 0]], r"\[nan  1.\] in state 0"),
        ([[0.5, 0.5], [1, 0], [0, 0]], "takes an action in state 1 that is not feasible"),
        ([0, 2, 0], "action 2 in state 1, expected 0 to 1"),
        ([0, 1], r"expected \(3,\)"),
    ],
)
def test_invalid_policies_are_rejected(policy, message):
    with pytest.raises(ValueError, match=message):
        policy_table(policy, FEASIBLE)


def test_a_prediction_follows_its_policy_whatever_it_learns():
    mdp = forest(seed=2)
    table = policy_table(None, mdp.feasible)
    learner = NStepTD(NStepTDConfig(), mdp, seeds=(0, 1), policy=table)
    for _ in range(2):
        np.testing.assert_allclose(learner.policy(), np.stack([table, table]))
        np.testing.assert_allclose(learner.policy(exploring=True), np.stack([table, table]))
        assert set(learner.iterate()) >= {"schedule/step_size"}
    assert learner.values.shape == (2, mdp.states)


def test_terminal_states_are_worth_nothing():
    mdp = build(2, 1, [(0, 0, 1, 1.0, 0.0, True)])
    learner = NStepTD(NStepTDConfig(initial_value=3.0), mdp, seeds=(0,))
    assert learner.values.tolist() == [[3.0, 0.0]]


def test_a_step_of_states_has_action_0():
    assert of_state(Step(4, 2, 1.0, 3, False, True)) == Step(4, 0, 1.0, 3, False, True)
