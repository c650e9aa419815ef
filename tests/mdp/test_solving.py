import itertools
import re
from fractions import Fraction

import numpy as np
import pytest
from exact import assert_solved, optimum, random_models, rational_optimum, rational_value
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.mdp import MDP, policy_evaluation, relative_value_iteration, softmax_policy, value_iteration
from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.solving import METHODS, solve
from operant.mdp.undiscounted import ends


def test_the_automatic_choice_solves_small_models():
    for mdp, gamma in random_models(30, seed=3):
        assert_solved(solve(mdp, gamma=gamma, tolerance=1e-5), optimum(mdp, gamma))


@pytest.mark.parametrize("mdp", [slippery_grid(40), random_model(2_000, 3, 4, seed=0)], ids=["grid", "random"])
def test_the_automatic_choice_certifies_larger_ones(mdp):
    solution = solve(mdp, gamma=0.99, tolerance=1e-4)
    assert solution.converged
    assert (solution.upper - solution.lower).max() <= 2.0001e-4


LAKE = """
.542026 .498803 .470696 .456852
.558451 .0      .358348 .0
.591799 .643080 .615208 .0
.0      .741720 .862837 .0
"""


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_the_values_of_the_frozen_lake(method):
    solution = solve(MDP.from_gymnasium("FrozenLake-v1"), gamma=0.99, method=method, tolerance=1e-7)
    np.testing.assert_allclose(solution.values, np.array(LAKE.split(), float), atol=1e-6)
    assert solution.values.sum() == pytest.approx(6.33981954, abs=1e-6)
    live = solution.policy >= 0
    chosen = solution.q[live, solution.policy[live]]
    np.testing.assert_allclose(chosen, solution.q[live].max(axis=1), atol=1e-6)


@pytest.mark.parametrize(
    ("task", "options", "gamma", "value"),
    [
        ("FrozenLake-v1", {}, 0.9, 0.0688909049),
        ("FrozenLake-v1", {}, 0.95, 0.1804715784),
        ("FrozenLake-v1", {}, 0.999, 0.7855332567),
        ("FrozenLake-v1", {}, 1.0, 14 / 17),
        ("FrozenLake-v1", {"is_slippery": False}, 0.9, 0.9**5),
        ("FrozenLake-v1", {"is_slippery": False, "map_name": "8x8"}, 0.99, 0.99**13),
        ("FrozenLake-v1", {"success_rate": 0.8}, 0.99, 0.71632264),
        ("FrozenLake-v1", {"success_rate": 0.8}, 1.0, 0.99692780),
        ("CliffWalking-v1", {}, 0.9, -7.45813417),
        ("CliffWalking-v1", {}, 0.99, -12.24789770),
        ("CliffWalking-v1", {}, 1.0, -13.0),
    ],
)
def test_published_values(task, options, gamma, value):
    mdp = MDP.from_gymnasium(task, **options)
    solution = solve(mdp, gamma=gamma, tolerance=1e-8)
    start = mdp.start.argmax()
    assert solution.values[start] == pytest.approx(value, abs=1e-8)
    assert solution.lower[start] - 5e-9 <= value <= solution.upper[start] + 5e-9


def test_a_discount_of_almost_one_is_answered_honestly():
    """Values of about 1e12 cannot be accurate to 1e-6 in double precision; the bounds show the accuracy."""
    mdp = random_model(20, 2, 3, seed=0)
    for method in ("auto", "modified-policy-iteration", "inexact-policy-iteration"):
        solution = solve(mdp, gamma=1 - 1e-12, method=method, tolerance=1e-6)
        assert not solution.converged
        assert (solution.lower < solution.upper).all()


@pytest.mark.parametrize("gamma", [-0.1, 1.0000001, float("nan"), float("inf"), 1e300])
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_no_method_takes_a_gamma_out_of_range(method, gamma):
    with pytest.raises(ValueError, match="gamma is"):
        solve(slippery_grid(3), gamma=gamma, method=method)


@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_every_method_rejects_a_model_that_never_ends_without_a_discount(method):
    with pytest.raises(ValueError, match="gamma is 1, but no policy ends"):
        solve(random_model(5, 2, 2, seed=0), gamma=1.0, method=method)


def test_an_unknown_method_is_rejected():
    with pytest.raises(ValueError, match="magic"):
        solve(MDP.from_gymnasium("FrozenLake-v1"), gamma=0.9, method="magic")


REWARDS = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 1e-9, -1e6, 1e12]), st.floats(-10, 10, allow_subnormal=False))
WEIGHTS = st.sampled_from([1.0, 1.0, 2.0, 3.0, 1e-6])


@st.composite
def tables(draw):
    """Draw the transitions of a small valid model: rows of (s, a, s', p, r, terminates)."""
    states, actions, scale = draw(st.integers(1, 4)), draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 1e3, 1e140]))
    rows = []
    for s, a in itertools.product(range(states), range(actions)):
        weights = draw(st.lists(WEIGHTS, min_size=0 if s + a else 1, max_size=3))
        for weight in weights:
            successor, reward, ending = (
                draw(st.integers(0, states - 1)),
                draw(REWARDS),
                draw(st.sampled_from([0, 0, 1])),
            )
            rows.append([s, a, successor, weight / sum(weights), reward * scale, ending])
    return rows, states, actions


def best_values(mdp, gamma):
    """Return the optimal values in fractions, at gamma = 1 those of the best proper policy; None if unbounded."""
    if gamma < 1:
        return rational_optimum(mdp, gamma)
    choices = [np.flatnonzero(row) if row.any() else [-1] for row in mdp.feasible]
    policies = [np.array(policy) for policy in itertools.product(*choices)]
    tried = [rational_value(mdp, policy, 1) for policy in policies if ends(mdp, policy).all()]
    if not tried:
        return None
    best = [max(values) for values in zip(*tried, strict=True)]
    lived = [policy for policy in policies if not ends(mdp, policy).all()]
    return None if any(_gains_without_bound(mdp, policy) for policy in lived) else best


def _gains_without_bound(mdp, policy):
    """Return whether a policy that need not end has a positive average reward somewhere, from discounts close to 1."""
    gamma = 1 - Fraction(1, 2**44)  # far above the rounding errors of 1 in rows of doubles
    near, nearer = (rational_value(mdp, policy, g) for g in (gamma, (1 + gamma) / 2))
    return any(two > Fraction(3, 2) * one > 0 for one, two in zip(near, nearer, strict=True))


def check(solution, mdp, gamma, tolerance):
    """Compare a solution's values, bounds and flags with the exact ones in fractions."""
    truth = best_values(mdp, gamma)
    if truth is None:  # a gain below rounding errors cannot be detected, but nothing may be certified then
        assert solution.upper is None
        return
    size = max(1.0, *(float(abs(value)) for value in truth))
    if solution.lower is not None:
        for low, value, high in zip(solution.lower.tolist(), truth, solution.upper.tolist(), strict=True):
            assert low <= value <= high
    if solution.converged:
        start = int(mdp.start.argmax())
        checked = [start] if "asynchronous" in solution.method else range(mdp.states)
        for s in checked:
            assert abs(Fraction(float(solution.values[s])) - truth[s]) <= tolerance + 1e-12 * size


@settings(max_examples=120, deadline=20_000)
@given(
    table=tables(),
    gamma=st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 1 - 1e-9, 1.0]),
    tolerance=st.sampled_from([1e-3, 1e-6, 1e-9, 1e-30, 1e3]),
    iterations=st.sampled_from([1, 3, 1_000]),
    method=st.sampled_from(["auto", *METHODS]),
)
def test_no_method_is_wrong_about_any_model_without_saying_so(table, gamma, tolerance, iterations, method):
    rows, states, actions = table
    mdp = MDP.from_table(np.array(rows, float), states=states, actions=actions)
    limits = {"linear-programming": None, "prioritized-sweeping": "max_backups"}
    limit = limits.get(method, "max_iterations")
    try:
        solution = solve(mdp, gamma=gamma, method=method, tolerance=tolerance, **({limit: iterations} if limit else {}))
    except (ValueError, RuntimeError) as error:
        words = str(error)
    else:
        check(solution, mdp, gamma, tolerance)
        return
    if method == "linear-programming" and words.startswith("HiGHS"):
        return
    assert "gamma is 1" in words or "divide the rewards" in words
    assert "divide the rewards" in words or best_values(mdp, gamma) is None


SPOILT = {
    "NaN probability": lambda row, n: row.__setitem__(3, np.nan),
    "negative probability": lambda row, n: row.__setitem__(3, -row[3]),
    "row off by 1e-6": lambda row, n: row.__setitem__(3, row[3] + 1e-6),
    "infinite probability": lambda row, n: row.__setitem__(3, np.inf),
    "successor out of range": lambda row, n: row.__setitem__(2, n),
    "negative successor": lambda row, n: row.__setitem__(2, -1),
    "half a state": lambda row, n: row.__setitem__(0, 0.5),
    "NaN reward": lambda row, n: row.__setitem__(4, np.nan),
    "infinite reward": lambda row, n: row.__setitem__(4, -np.inf),
}


@settings(max_examples=100, deadline=20_000)
@given(table=tables(), spoil=st.sampled_from(sorted(SPOILT)), data=st.data())
def test_no_spoilt_model_gets_as_far_as_a_solver(table, spoil, data):
    rows, states, actions = table
    SPOILT[spoil](data.draw(st.sampled_from(rows)), states)
    with pytest.raises((ValueError, TypeError)):
        MDP.from_table(np.array(rows, float), states=states, actions=actions)


@pytest.mark.parametrize("table", [[], np.zeros((0, 5)), np.zeros((0, 6))])
def test_an_empty_table_is_no_model(table):
    with pytest.raises(ValueError, match=r"table|transition|states"):
        MDP.from_table(table)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("method", ["auto", *METHODS])
def test_every_method_rejects_an_invalid_tolerance(method, tolerance):
    with pytest.raises(ValueError, match="tolerance is"):
        solve(slippery_grid(3), gamma=0.9, method=method, tolerance=tolerance)


def test_a_solver_that_reaches_its_limit_warns(caplog):
    lake = MDP.from_gymnasium("FrozenLake-v1")
    assert not value_iteration(lake, gamma=0.99, max_iterations=3).converged
    assert not policy_evaluation(lake, [[0.25] * 4] * 16, gamma=0.99, method="iterative", max_iterations=2).converged
    river = MDP.from_gymnasium("operant/RiverSwim-v0")
    assert not relative_value_iteration(river, max_iterations=2).converged
    assert caplog.text.count("without certifying the tolerance") == 3
    caplog.clear()
    assert value_iteration(lake, gamma=0.99).converged
    assert not caplog.text


FROZEN = MDP.from_gymnasium("FrozenLake-v1")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: solve("FrozenLake-v1", gamma=0.9),
            "MDP.from_gymnasium, from_dict, from_table, from_arrays or from_function",
        ),
        (lambda: MDP.from_gymnasium(3), "env must be an environment or an id such as 'FrozenLake-v1', got 3"),
        (lambda: solve(FROZEN, gamma="0.9"), "gamma is '0.9', expected a number between 0 and 1"),
        (lambda: solve(FROZEN, gamma=0.9, tolerance=None), "tolerance is None, expected a positive number"),
        (
            lambda: value_iteration(FROZEN, gamma=0.9, max_iterations=1.5),
            "max_iterations is 1.5, expected an integer of at least 1",
        ),
        (lambda: softmax_policy(FROZEN, np.zeros((2, 2))), "logits has shape (2, 2), expected (16, 4)"),
        (lambda: softmax_policy(FROZEN, np.full((16, 4), np.nan)), "but one is NaN or +Inf"),
    ],
)
def test_arguments_of_another_type_are_named(call, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        call()
