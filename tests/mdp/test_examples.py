import numpy as np
import pytest

from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.solving import solve


def test_a_grid_pays_minus_one_a_step_until_its_goal():
    mdp = slippery_grid(5)
    assert mdp.states == 25
    assert mdp.actions == 4
    assert (mdp.rewards == -1.0).all()
    assert mdp.terminal.sum() == 1


def test_a_grid_that_does_not_slip_takes_the_shortest_way():
    mdp = slippery_grid(4, slip=0.0)
    values = solve(mdp, gamma=1.0).values
    assert values.min() == pytest.approx(-6.0, abs=1e-6)


def test_random_models_are_models_and_repeat():
    one, two = (random_model(50, 3, 4, seed=2, termination=0.1, infeasible=0.2) for _ in range(2))
    np.testing.assert_array_equal(one.probabilities, two.probabilities)
    sums = np.add.reduceat(one.probabilities, one.indptr[:-1][np.diff(one.indptr) > 0])
    np.testing.assert_allclose(sums, 1.0)
    assert one.terminates.any()
    assert not one.feasible.all()
