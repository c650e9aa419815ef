import numpy as np
import pytest
from exact import assert_solved, optimum, random_models

from operant.mdp import MDP
from operant.mdp.examples import random_model
from operant.mdp.random import stream_states
from operant.mdp.rtdp import PURPOSES, asynchronous_value_iteration


@pytest.mark.parametrize("order", ["real-time", "random"])
def test_it_converges_in_every_state(order):
    for mdp, gamma in random_models(20, seed=12):
        assert_solved(asynchronous_value_iteration(mdp, gamma=gamma, tolerance=1e-5, order=order), optimum(mdp, gamma))


def test_a_seed_gives_the_same_run_again():
    mdp = MDP.from_gymnasium("FrozenLake-v1")
    one, two = (asynchronous_value_iteration(mdp, gamma=0.95, seed=3) for _ in range(2))
    np.testing.assert_array_equal(one.values, two.values)
    assert one.values[0] == pytest.approx(0.180472, abs=2e-6)


def test_orders_and_other_users_of_a_seed_have_different_numbers():
    streams = {stream_states([3], purpose)[0] for purpose in (*PURPOSES.values(), "environment", "policy")}
    assert len(streams) == 4
    assert 3 not in streams
    mdp = random_model(50, 2, 3, seed=0)
    runs = [
        asynchronous_value_iteration(mdp, gamma=0.9, order="random", seed=seed, max_iterations=1) for seed in (3, 4)
    ]
    assert (runs[0].values != runs[1].values).any()


def test_a_negative_seed_is_rejected():
    with pytest.raises(ValueError, match="seed and index must be non-negative, got seed -1"):
        asynchronous_value_iteration(random_model(3, 2, 2, seed=0), gamma=0.9, seed=-1)
