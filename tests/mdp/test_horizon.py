import numpy as np
import pytest
from exact import dense, random_models

from operant.mdp import MDP
from operant.mdp.horizon import backward_induction


def test_it_equals_the_recursion_written_out():
    for mdp, gamma in random_models(20, seed=5):
        transitions, rewards = dense(mdp)
        solution = backward_induction(mdp, horizon=4, gamma=gamma)
        values = np.zeros(mdp.states)
        for _ in range(4):
            q = np.where(mdp.feasible, rewards + gamma * transitions @ values, -np.inf)
            values = np.where(mdp.terminal, 0.0, q.max(axis=1))
        np.testing.assert_allclose(solution.values[0], values, atol=1e-12)


def test_the_lake_within_its_step_limit():
    solution = backward_induction(MDP.from_gymnasium("FrozenLake-v1"), horizon=100)
    assert solution.values[0][0] == pytest.approx(0.744190, abs=1e-6)


def test_a_horizon_below_zero_is_rejected():
    with pytest.raises(ValueError, match="horizon"):
        backward_induction(MDP.from_gymnasium("FrozenLake-v1"), horizon=-1)


def test_a_wrong_final_value_is_named():
    model = MDP.from_table([[0, 0, 0, 1.0, 1.0]])
    with pytest.raises(ValueError, match="final has NaN or Inf, expected 1 finite numbers"):
        backward_induction(model, horizon=2, final=[np.nan])
    with pytest.raises(ValueError, match=r"final has the shape \(2,\)"):
        backward_induction(model, horizon=2, final=[0.0, 0.0])
