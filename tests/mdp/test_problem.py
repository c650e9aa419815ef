from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from exact import dense, optimum, random_models, rational_optimum

from operant.mdp import MDP
from operant.mdp.examples import random_model
from operant.mdp.policy_iteration import policy_iteration
from operant.mdp.problem import Problem, Workers, check_gamma, check_tolerance


@pytest.mark.parametrize("gamma", [-0.1, 1.1, float("nan")])
def test_discounts_out_of_range_are_rejected(gamma):
    with pytest.raises(ValueError, match="gamma"):
        check_gamma(gamma)


@pytest.mark.parametrize(("tolerance", "limit"), [(0.0, 10), (float("nan"), 10), (1e-3, 0)])
def test_limits_that_cannot_stop_anything_are_rejected(tolerance, limit):
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
        problem = Problem.of(mdp, gamma, centered=False)
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


def test_leaking_rows_are_bounded_by_their_probability_of_continuing():
    rows = [[0, 0, 0, 0.25, 1.0, 0], [0, 0, 0, 0.75, 1.0, 1]]
    problem = Problem.of(MDP.from_table(rows), 0.8, centered=False)
    assert problem.max_discount == pytest.approx(0.2)
    assert not problem.even or problem.min_discount == pytest.approx(problem.max_discount)
    down, up = problem.shifts((1.0, 1.0), 0.0)  # the first backup of 0
    assert (down, up) == pytest.approx((0.25, 0.25))
    assert problem.spread((-2.0, 1.0)) == pytest.approx(3.0)


def test_centering_keeps_values_in_the_range_that_they_can_have():
    mdp = MDP.from_arrays(np.full((3, 1, 3), 1 / 3), np.array([[0.0], [1.0], [2.0]]))
    problem = Problem.of(mdp, 0.99)
    values = np.array([0.0, 1.0, 2.0])
    problem.center(values, (1e6, 1e6))
    assert values.max() <= problem.ceiling


def test_a_chain_that_is_overwritten_equals_a_new_one():
    rng = np.random.default_rng(0)
    for infeasible, termination in ((0.0, 0.0), (0.4, 0.3)):
        mdp = random_model(60, 4, 3, seed=0, infeasible=infeasible, termination=termination)
        problem, chain, held = Problem.of(mdp, 0.9), None, None
        for share in (1.0, 0.5, 0.1, 0.0):
            drawn = np.where(mdp.feasible, rng.random((60, 4)), -1.0).argmax(axis=1)
            policy = drawn if held is None else np.where(rng.random(60) < share, drawn, held)
            fresh = problem.chain(policy)
            chain = problem.chain(policy, None if held is None else (held, chain))
            for found, expected in zip(chain.rows, fresh.rows, strict=True):
                np.testing.assert_array_equal(found, expected)
            held = policy


def test_following_a_chain_is_improving_without_a_choice():
    mdp = random_model(300_000, 1, 2, seed=0)
    problem = Problem.of(mdp, 0.9, threads=2)
    values = np.random.default_rng(0).normal(size=mdp.states)
    chain = problem.chain(np.zeros(mdp.states, np.int64))
    out, expected = np.empty((2, mdp.states))
    assert chain.follow(values, out) == problem.improve(values, expected, np.zeros(mdp.states, np.int64))
    np.testing.assert_array_equal(out, expected)


def exact_backup(mdp, problem, values, gamma):
    """Return the backup of `values`, with the offset of the problem, in fractions."""
    indptr, successors, probabilities = mdp.continuation
    offset, gamma, best = Fraction(problem.offset), Fraction(gamma), []
    whole = [Fraction(value) + offset * (not ends) for value, ends in zip(values.tolist(), mdp.terminal, strict=True)]
    for s in range(mdp.states):
        backups = []
        for k in range(s * mdp.actions, (s + 1) * mdp.actions):
            earned = range(mdp.indptr[k], mdp.indptr[k + 1])
            reward = sum(Fraction(float(mdp.probabilities[j])) * Fraction(float(mdp.rewards[j])) for j in earned)
            goes = range(indptr[k], indptr[k + 1])
            follows = sum(Fraction(float(probabilities[j])) * whole[successors[j]] for j in goes)
            backups += [reward + gamma * follows - offset] if earned else []
        best.append(max(backups, default=Fraction(0)))
    return best


@pytest.mark.parametrize("gamma", [0.0, 0.3, 0.9, 0.999, 1 - 1e-9, 1.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e9])
def test_no_backup_errs_by_more_than_its_bound(gamma, scale):
    rng = np.random.default_rng(1)
    models = [random_model(6, 2, n, seed=n, termination=end) for n in (1, 3, 30) for end in (0.0, 0.2)]
    for mdp in models + [mdp for mdp, _ in random_models(10, seed=77)]:
        mixed = rng.normal(size=mdp.rewards.size) * scale * 10.0 ** rng.integers(-3, 1, mdp.rewards.size)
        rewarded = MDP.from_table(
            {
                "s": np.repeat(np.arange(mdp.states * mdp.actions), np.diff(mdp.indptr)) // mdp.actions,
                "a": np.repeat(np.arange(mdp.states * mdp.actions), np.diff(mdp.indptr)) % mdp.actions,
                "s'": mdp.successors,
                "p": mdp.probabilities,
                "r": mixed + scale * rng.normal(),
                "terminates": mdp.terminates,
            },
            states=mdp.states,
            actions=mdp.actions,
        )
        problem = Problem.of(rewarded, gamma)
        values = np.where(rewarded.terminal, 0.0, rng.random(mdp.states) * min(abs(problem.offset), 1e12) + scale)
        out = np.empty(mdp.states)
        problem.improve(values, out, np.full(mdp.states, -1))
        bound = Fraction(problem.rounding(values))
        for found, truth in zip(out.tolist(), exact_backup(rewarded, problem, values, gamma), strict=True):
            assert abs(Fraction(found) - truth) <= bound


def test_large_rewards_and_a_discount_near_one_still_certify_a_small_tolerance():
    mdp = random_model(40, 3, 4, seed=0)
    scaled = MDP.from_arrays(dense(mdp)[0], dense(mdp)[1] * 10)
    solution = policy_iteration(scaled, gamma=0.999, tolerance=1e-7)
    assert solution.converged


def test_rewards_that_double_precision_cannot_value_are_rejected():
    mdp = MDP.from_table([[0, 0, 0, 1.0, 1e300]])
    with pytest.raises(ValueError, match="divide the rewards"):
        Problem.of(mdp, 0.9)


@pytest.mark.parametrize("units", [1, 2, 8])
def test_values_are_right_for_a_discount_that_cannot_be_told_from_one(units):
    """Backups then do not certainly contract, so there is no offset, which would be about 1e16."""
    chain = MDP.from_arrays([[[0.5, 0.5, 0.0]], [[0.0, 0.0, 1.0]], [[0.0, 0.0, 1.0]]], [-1.0, -2.0, 0.0], terminal=[2])
    solution = policy_iteration(chain, gamma=1 - units * 2**-53)
    np.testing.assert_allclose(solution.values, [-4.0, -2.0, 0.0], atol=1e-9)
    assert (solution.lower <= solution.values).all()
    assert (solution.values <= solution.upper).all()
