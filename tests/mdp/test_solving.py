import numpy as np
import pytest
from exact import assert_solved, optimum, random_models

from operant.mdp import MDP
from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.solving import METHODS, solve


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
    """Values of about 1e12 cannot be had to 1e-6 in double precision; the bounds say how far they can."""
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
def test_every_method_refuses_a_model_that_never_ends_without_a_discount(method):
    with pytest.raises(ValueError, match="gamma is 1, but no policy ends"):
        solve(random_model(5, 2, 2, seed=0), gamma=1.0, method=method)


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="magic"):
        solve(MDP.from_gymnasium("FrozenLake-v1"), gamma=0.9, method="magic")
