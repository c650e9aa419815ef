import numpy as np
from exact import random_models, value_of

from operant.mdp.examples import slippery_grid
from operant.mdp.linear import factorize, solve_chain
from operant.mdp.problem import Problem


def first_actions(mdp):
    return np.where(mdp.terminal, -1, mdp.feasible.argmax(axis=1))


def test_the_direct_solution_is_the_value_of_the_policy():
    for mdp, gamma in random_models(20, seed=11):
        policy = first_actions(mdp)
        chain = Problem.of(mdp, gamma, centered=False).chain(policy)
        np.testing.assert_allclose(factorize(chain), value_of(mdp, np.maximum(policy, 0), gamma), atol=1e-9)


def test_the_iterative_solution_agrees_with_it():
    mdp = slippery_grid(15)
    chain = Problem.of(mdp, 0.99, centered=False).chain(first_actions(mdp))
    values = np.zeros(mdp.states)
    solve_chain(chain, values, 1e-10)
    np.testing.assert_allclose(values, factorize(chain), atol=1e-7)
