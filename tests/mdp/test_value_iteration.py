import numpy as np
import pytest
from exact import assert_solved, optimum, random_models

from operant.mdp import MDP
from operant.mdp.value_iteration import q_value_iteration, value_iteration


@pytest.mark.parametrize("method", ["jacobi", "gauss-seidel"])
def test_the_optimum_of_random_models_lies_within_the_bounds(method):
    for mdp, gamma in random_models(60):
        assert_solved(value_iteration(mdp, gamma=gamma, tolerance=1e-5, method=method), optimum(mdp, gamma))


def test_a_single_state_that_may_end_is_solved():
    mdp = MDP.from_table([[0, 0, 0, 0.84, 1.0], [0, 0, 1, 0.16, 0.0]])
    assert_solved(value_iteration(mdp, gamma=0.99, tolerance=1e-7), np.array([0.84 / (1 - 0.99 * 0.84), 0.0]), 1e-7)


@pytest.mark.parametrize(("gamma", "value"), [(0.9, 0.068891), (0.95, 0.180472), (0.99, 0.542026), (1.0, 0.823529)])
def test_the_frozen_lake(gamma, value):
    solution = value_iteration(MDP.from_gymnasium("FrozenLake-v1"), gamma=gamma, tolerance=1e-8)
    assert solution.values[0] == pytest.approx(value, abs=1e-6)


def test_q_value_iteration_keeps_the_table():
    for mdp, gamma in random_models(20, seed=1):
        solution = q_value_iteration(mdp, gamma=gamma, tolerance=1e-6)
        assert_solved(solution, optimum(mdp, gamma))
        best = np.where(mdp.terminal, 0.0, solution.q.max(axis=1))
        np.testing.assert_allclose(best, solution.values, atol=1e-5)


def test_too_few_sweeps_are_reported():
    solution = value_iteration(MDP.from_gymnasium("FrozenLake-v1"), gamma=0.99, max_iterations=3)
    assert not solution.converged
    assert solution.iterations <= 3
    assert solution.lower[0] <= 0.542026 <= solution.upper[0]


def test_a_good_start_saves_sweeps():
    mdp = MDP.from_gymnasium("FrozenLake-v1")
    cold = value_iteration(mdp, gamma=0.99, tolerance=1e-6)
    warm = value_iteration(mdp, gamma=0.99, tolerance=1e-6, initial=cold.values)
    assert warm.iterations < cold.iterations / 2
    np.testing.assert_allclose(warm.values, cold.values, atol=2e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"gamma": 1.5}, "gamma"), ({"gamma": float("nan")}, "gamma"), ({"tolerance": 0.0}, "tolerance")],
)
def test_wrong_numbers_are_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        value_iteration(MDP.from_gymnasium("FrozenLake-v1"), **{"gamma": 0.9, **changes})
