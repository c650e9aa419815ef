from itertools import islice

import numpy as np
import pytest
from exact import optimum, random_models

from operant.mdp import MDP
from operant.mdp.iterate import sweeps


@pytest.mark.parametrize("method", ["jacobi", "gauss-seidel", "policy-iteration", "modified-policy-iteration"])
def test_every_method_arrives(method):
    for mdp, gamma in random_models(8, seed=14):
        *_, last = islice(sweeps(mdp, gamma=gamma, method=method), 3_000)
        np.testing.assert_allclose(last.values, optimum(mdp, gamma), atol=1e-4)


def test_the_first_sweep_of_the_eight_by_eight_grid_reaches_the_neighbors():
    mdp = MDP.from_gymnasium("FrozenLake-v1", is_slippery=False)
    first, second = islice(sweeps(mdp, gamma=0.9), 2)
    assert first.values[14] == pytest.approx(1.0)
    assert second.values[13] == pytest.approx(0.9)


def test_yielded_values_do_not_change_later():
    mdp = MDP.from_gymnasium("FrozenLake-v1")
    steps = sweeps(mdp, gamma=0.9)
    first = next(steps)
    kept = first.values.copy()
    next(steps)
    np.testing.assert_array_equal(first.values, kept)


@pytest.mark.parametrize("method", ["jacobi", "gauss-seidel", "policy-iteration", "modified-policy-iteration"])
def test_sweeps_without_a_discount_begin_with_a_policy_that_ends(method):
    model = MDP.from_table([[0, 0, 0, 1.0, 0.0], [0, 1, 1, 1.0, -1.0]])
    first = next(sweeps(model, gamma=1.0, method=method))
    np.testing.assert_array_equal(first.values, [-1.0, 0.0])
    assert first.policy.tolist() == [1, -1]
    with pytest.raises(ValueError, match="initial values were given, expected None: at gamma = 1"):
        sweeps(model, gamma=1.0, method=method, initial=[0.0, 0.0])
