import numpy as np
import pytest

from operant.mdp import MDP
from operant.mdp.examples import random_model
from operant.mdp.policies import check_deterministic, check_policy, reachable_states

LAKE = MDP.from_gymnasium("FrozenLake-v1")


def test_actions_become_probabilities():
    policy = np.where(LAKE.terminal, -1, 2)
    table = check_policy(LAKE, policy)
    assert table.shape == (16, 4)
    assert (table[~LAKE.terminal, 2] == 1.0).all()
    assert (table[LAKE.terminal] == 0.0).all()


@pytest.mark.parametrize("policy", [np.full(16, 7), np.zeros(3, int), np.full(16, np.nan)])
def test_invalid_policies_are_rejected(policy):
    with pytest.raises((ValueError, TypeError)):
        check_deterministic(LAKE, policy)


@pytest.mark.parametrize("policy", [np.full((16, 4), 0.3), np.full((16, 4), np.nan), np.full((16, 3), 1 / 3)])
def test_invalid_probabilities_are_rejected(policy):
    with pytest.raises((ValueError, TypeError)):
        check_policy(LAKE, policy)


def test_policies_of_single_precision_are_divided_by_their_sums():
    model = random_model(20, 7, 3, seed=0)
    single = np.random.default_rng(0).dirichlet(np.ones(7), 20).astype(np.float32)
    assert np.abs(single.astype(float).sum(axis=1) - 1).max() > 1e-9
    assert np.abs(check_policy(model, single).sum(axis=1) - 1).max() < 1e-15
    with pytest.raises(ValueError, match="sum to"):
        check_policy(model, single.astype(float))


def test_states_are_reachable_by_actions_that_are_possible_and_do_not_end_the_episode():
    entries = [
        [0, 0, 1, 1.0, 0, 0],
        [0, 0, 3, 0.0, 0, 0],
        [1, 0, 2, 1.0, 0, 1],
        [2, 0, 1, 1.0, 0, 0],
        [3, 0, 2, 1.0, 0, 0],
    ]
    model = MDP.from_table(entries, start=0)
    assert reachable_states(model).tolist() == [True, True, False, False]
    loops = MDP.from_table([[0, 0, 0, 1.0, 0], [0, 1, 1, 1.0, 0], [1, 0, 1, 1.0, 0], [1, 1, 1, 1.0, 0]], start=0)
    assert reachable_states(loops).tolist() == [True, True]
    assert reachable_states(loops, np.array([[1.0, 0.0], [1.0, 0.0]])).tolist() == [True, False]
