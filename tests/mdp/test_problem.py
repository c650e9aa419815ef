from itertools import pairwise

import numpy as np
import pytest
from exact import dense, optimum, random_models, rational_optimum

from operant.mdp import MDP
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


def test_bounds_hold_in_fractions_when_rounding_is_all_that_is_left():
    for mdp, gamma in random_models(60, seed=21):
        if mdp.feasible.sum(axis=1).clip(min=1).prod() > 30:
            continue
        problem = Problem.of(mdp, gamma)
        values, out, policy = problem.start(None), np.empty(mdp.states), np.full(mdp.states, -1)
        for _ in range(3_000):
            change = problem.improve(values, out, policy)
            values, out = out, values
        down, up = problem.shifts(change, problem.rounding(values))
        lower, upper = problem.restore(values, down), problem.restore(values, up)
        truth = rational_optimum(mdp, gamma)
        assert all(low <= value <= high for low, value, high in zip(lower, truth, upper, strict=True))
        assert (upper - lower).max() < 1e-9


def test_rows_that_leak_are_bounded_by_how_much_they_go_on():
    rows = [[0, 0, 0, 0.25, 1.0, 0], [0, 0, 0, 0.75, 1.0, 1]]
    problem = Problem.of(MDP.from_table(rows), 0.8, centred=False)
    assert problem.most == pytest.approx(0.2)
    assert not problem.even or problem.least == pytest.approx(problem.most)
    down, up = problem.shifts((1.0, 1.0), 0.0)  # the first backup of 0
    assert (down, up) == pytest.approx((0.25, 0.25))
    assert problem.spread((-2.0, 1.0)) == pytest.approx(3.0)


def test_centring_keeps_values_in_the_range_that_they_can_have():
    mdp = MDP.from_arrays(np.full((3, 1, 3), 1 / 3), np.array([[0.0], [1.0], [2.0]]))
    problem = Problem.of(mdp, 0.99)
    values = np.array([0.0, 1.0, 2.0])
    problem.centre(values, (1e6, 1e6))
    assert values.max() <= problem.ceiling
