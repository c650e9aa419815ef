import numpy as np
from exact import optimum, random_models

from operant.mdp.linear_programming import linear_programming


def test_it_finds_the_optimum_of_random_models():
    for mdp, gamma in random_models(40, seed=4):
        solution = linear_programming(mdp, gamma=gamma, tolerance=1e-5)
        truth = optimum(mdp, gamma)
        np.testing.assert_allclose(solution.values, truth, atol=1e-5)
        assert solution.converged
        assert (solution.lower <= truth + 1e-9).all()
        assert (solution.upper >= truth - 1e-9).all()
