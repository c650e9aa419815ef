import numpy as np
from exact import random_models, random_walk, value_of

from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.linear import factorize, is_narrow, solve_chain, solve_iteratively
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


def test_a_chain_on_which_the_iterative_method_fails_is_factorized():
    mdp = random_walk(3_000, -1.0)
    chain = Problem.of(mdp, 1.0).chain(np.zeros(mdp.states, np.int64))
    guess = np.zeros(mdp.states)
    values = solve_iteratively(chain, guess, 1e-6)
    np.testing.assert_allclose(values[[0, -1]], [-3000.0 * 3001, -2.0 * 3000], rtol=1e-9)
    assert not guess.any()


def test_transitions_are_short_in_corridors_and_grids_not_in_random_graphs():
    for mdp, narrow in (
        (random_walk(50_000, 0.0), True),
        (slippery_grid(90), True),
        (random_model(5_000, 1, 5, seed=0), False),
    ):
        assert is_narrow(Problem.of(mdp, 0.9).chain(first_actions(mdp))) == narrow
