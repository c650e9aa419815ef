import pytest
from exact import assert_solved, optimum, random_models

from operant.mdp import MDP
from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.solving import solve


def test_the_automatic_choice_solves_small_models():
    for mdp, gamma in random_models(30, seed=3):
        assert_solved(solve(mdp, gamma=gamma, tolerance=1e-5), optimum(mdp, gamma))


@pytest.mark.parametrize("mdp", [slippery_grid(40), random_model(2_000, 3, 4, seed=0)], ids=["grid", "random"])
def test_the_automatic_choice_certifies_larger_ones(mdp):
    solution = solve(mdp, gamma=0.99, tolerance=1e-4)
    assert solution.converged
    assert (solution.upper - solution.lower).max() <= 2.0001e-4


def test_an_unknown_method_is_refused():
    with pytest.raises(ValueError, match="magic"):
        solve(MDP.from_gymnasium("FrozenLake-v1"), gamma=0.9, method="magic")
