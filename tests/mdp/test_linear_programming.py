import numpy as np
import pytest
from exact import optimum, random_models

from operant.mdp.linear_programming import linear_programming
from operant.mdp.model import MDP


def test_it_finds_the_optimum_of_random_models():
    for mdp, gamma in random_models(40, seed=4):
        solution = linear_programming(mdp, gamma=gamma, tolerance=1e-5)
        truth = optimum(mdp, gamma)
        np.testing.assert_allclose(solution.values, truth, atol=1e-5)
        assert solution.converged
        assert (solution.lower <= truth + 1e-9).all()
        assert (solution.upper >= truth - 1e-9).all()


@pytest.mark.parametrize("gamma", [0.9, 1.0])
def test_rewards_that_highs_takes_for_infinite_are_named(gamma):
    mdp = MDP.from_table(np.array([[0, 0, 0, 1.0, 1e140, 1]]), states=1, actions=1)
    with pytest.raises(ValueError, match=r"1e\+20 or more as infinite.*: divide the rewards"):
        linear_programming(mdp, gamma=gamma)
