import dataclasses

import numpy as np
import pytest
from exact import dense, random_models

from operant.mdp import MDP
from operant.mdp.solution import action_values
from operant.mdp.solving import solve


def test_action_values_equal_the_dense_ones():
    for mdp, gamma in random_models(10, seed=15):
        transitions, rewards = dense(mdp)
        values = np.where(mdp.terminal, 0.0, np.arange(mdp.states, dtype=float))
        expected = np.where(mdp.feasible, rewards + gamma * transitions @ values, -np.inf)
        np.testing.assert_allclose(action_values(mdp, values, gamma=gamma), expected)


def test_the_policy_is_greedy_for_the_table_and_the_record_is_frozen():
    for mdp, gamma in random_models(10, seed=16):
        solution = solve(mdp, gamma=gamma, tolerance=1e-8)
        live = ~mdp.terminal
        chosen = solution.q[np.arange(mdp.states), solution.policy]
        np.testing.assert_allclose(chosen[live], solution.q.max(axis=1)[live], atol=1e-6)
        assert (solution.policy[mdp.terminal] == -1).all()
    with pytest.raises(dataclasses.FrozenInstanceError):
        solution.gamma = 0.5


@pytest.mark.parametrize(
    ("values", "gamma", "message"),
    [
        ([0.0, 0.0], 0.9, r"values has shape \(2,\), expected \(16,\)"),
        ([[0.0] * 16], 0.9, "values has shape"),
        ([0.0] * 15 + [np.nan], 0.9, "values number 15 is nan, expected a finite number"),
        ([0.0] * 16, 7.0, "gamma is 7.0, expected a number between 0 and 1"),
        ([0.0] * 16, np.nan, "gamma is nan"),
    ],
)
def test_action_values_need_one_number_per_state_and_a_discount(values, gamma, message):
    with pytest.raises(ValueError, match=message):
        action_values(MDP.from_gymnasium("FrozenLake-v1"), values, gamma=gamma)
