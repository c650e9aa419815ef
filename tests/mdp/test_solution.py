import dataclasses

import numpy as np
import pytest
from exact import dense, random_models

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
