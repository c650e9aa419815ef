import numpy as np
import pytest
from exact import random_models, value_of

from operant.mdp import MDP
from operant.mdp.evaluation import policy_evaluation


@pytest.mark.parametrize("method", ["direct", "krylov", "iterative"])
def test_every_method_solves_the_linear_system(method):
    rng = np.random.default_rng(0)
    for mdp, gamma in random_models(20, seed=6):
        policy = np.array([rng.choice(np.flatnonzero(row)) if row.any() else 0 for row in mdp.feasible])
        values = policy_evaluation(mdp, np.where(mdp.terminal, -1, policy), gamma=gamma, method=method).values
        np.testing.assert_allclose(values, value_of(mdp, policy, gamma), atol=1e-6)


def test_advantages_average_to_zero_under_the_policy():
    rng = np.random.default_rng(1)
    for mdp, gamma in random_models(20, seed=7):
        policy = rng.dirichlet(np.ones(mdp.actions), size=mdp.states) * mdp.feasible
        result = policy_evaluation(mdp, policy, gamma=gamma)
        advantages = np.where(mdp.feasible, result.advantage, 0.0)
        np.testing.assert_allclose((policy * advantages).sum(axis=1), 0.0, atol=1e-9)


def test_the_random_policy_of_the_lake():
    mdp = MDP.from_gymnasium("FrozenLake-v1")
    policy = np.full((16, 4), 0.25) * mdp.feasible
    assert policy_evaluation(mdp, policy, gamma=1.0).values[0] == pytest.approx(0.013940, abs=1e-6)
