from itertools import pairwise

import numpy as np
import pytest
from exact import dense, optimum, random_models

from operant.mdp.problem import Problem, Workers, check_gamma, check_tolerance


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_discounts_out_of_range_are_refused(gamma):
    with pytest.raises(ValueError, match="gamma"):
        check_gamma(gamma)


@pytest.mark.parametrize(("tolerance", "limit"), [(0.0, 10), (float("nan"), 10), (1e-3, 0)])
def test_limits_that_cannot_stop_anything_are_refused(tolerance, limit):
    with pytest.raises(ValueError, match=r"tolerance|iterations"):
        check_tolerance(tolerance, limit)


def test_one_backup_bounds_the_optimum_from_any_start():
    rng = np.random.default_rng(0)
    for mdp, gamma in random_models(60, seed=8):
        problem = Problem.of(mdp, gamma)
        values = np.where(mdp.terminal, 0.0, problem.start(rng.normal(size=mdp.states) * 3))
        out, policy = np.empty_like(values), np.full(mdp.states, -1)
        change = problem.improve(values, out, policy)
        down, up = problem.shifts(change, problem.rounding(values))
        truth = optimum(mdp, gamma)
        assert (problem.restore(out, down) <= truth + 1e-9).all()
        assert (problem.restore(out, up) >= truth - 1e-9).all()


def test_action_values_equal_the_dense_ones():
    for mdp, gamma in random_models(10, seed=9):
        transitions, rewards = dense(mdp)
        problem = Problem.of(mdp, gamma, centred=False)
        values = np.where(mdp.terminal, 0.0, np.arange(mdp.states, dtype=float))
        expected = np.where(mdp.feasible, rewards + gamma * transitions @ values, -np.inf)
        np.testing.assert_allclose(problem.action_values(values), expected)


def test_workers_split_what_is_large_and_keep_the_order():
    parts = Workers(10_000_000, threads=2).run(lambda begin, end: (begin, end), 101)
    assert parts[0][0] == 0
    assert parts[-1][1] == 101
    assert all(one[1] == two[0] for one, two in pairwise(parts))
