import numpy as np
import pytest
from exact import assert_solved, optimum, random_models

from operant.mdp import MDP
from operant.mdp.examples import random_model
from operant.mdp.rtdp import asynchronous_value_iteration


@pytest.mark.parametrize("order", ["real-time", "random"])
def test_it_converges_in_every_state(order):
    for mdp, gamma in random_models(20, seed=12):
        assert_solved(asynchronous_value_iteration(mdp, gamma=gamma, tolerance=1e-5, order=order), optimum(mdp, gamma))


def test_a_seed_gives_the_same_run_again():
    mdp = MDP.from_gymnasium("FrozenLake-v1")
    one, two = (asynchronous_value_iteration(mdp, gamma=0.95, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.values, two.values)
    assert one.values[0] == pytest.approx(0.180472, abs=2e-6)


def test_a_negative_seed_is_rejected():
    with pytest.raises(ValueError, match="seed is -1, expected 0 to"):
        asynchronous_value_iteration(random_model(3, 2, 2, seed=0), gamma=0.9, seed=-1)
