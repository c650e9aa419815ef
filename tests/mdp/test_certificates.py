import dataclasses

import numpy as np
import pytest
from exact import dense, rational_optimum

from operant.mdp import MDP
from operant.mdp.certificates import bounds_of_chain, bounds_without_discount
from operant.mdp.examples import random_model, slippery_grid
from operant.mdp.problem import Problem
from operant.mdp.solving import METHODS, solve
from operant.mdp.undiscounted import proper_policy


def best_proper(mdp):
    """Return the values of the best policy that ends every episode, by dense policy iteration; ties have no effect."""
    transitions, rewards = dense(mdp)
    states, live = np.arange(mdp.states), ~mdp.terminal
    policy = np.maximum(proper_policy(mdp), 0)
    while True:
        chain = np.where(live[:, None], transitions[states, policy], 0.0)
        values = np.linalg.solve(np.eye(mdp.states) - chain, np.where(live, rewards[states, policy], 0.0))
        q = rewards + transitions @ values
        better = live & (q.max(axis=1) > values + 1e-9)
        if not better.any():
            return values
        policy = np.where(better, q.argmax(axis=1), policy)


def endings(count, kind):
    """Yield random models in which episodes can end from every state: every step costs, or only ends give reward."""
    seed = 0
    while count:
        seed += 1
        rng = np.random.default_rng(seed)
        sizes = int(rng.integers(1, 12)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
        mdp = random_model(*sizes, seed=seed, termination=0.2, infeasible=0.2)
        rewards = -np.abs(mdp.rewards) if kind == "costs" else np.where(mdp.terminates, mdp.rewards, 0.0)
        mdp = dataclasses.replace(mdp, rewards=rewards)
        try:
            proper_policy(mdp)
        except ValueError:
            continue
        count -= 1
        yield mdp


def with_exit(mdp):
    """Return a model in which every action ends the episode with probability 1/4, by a fourth state."""
    transitions, rewards = dense(mdp)
    following = np.concatenate([transitions * 0.75, 1 - 0.75 * transitions.sum(axis=2, keepdims=True)], axis=2)
    last = np.zeros((1, mdp.actions, mdp.states + 1))
    last[..., -1] = 1.0
    terminal = np.arange(mdp.states + 1) == mdp.states
    table = np.concatenate([rewards, np.zeros((1, mdp.actions))])
    return MDP.from_arrays(np.concatenate([following, last]), table, terminal=terminal)


@pytest.mark.parametrize("kind", ["costs", "ends"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_certified_without_a_discount(method, kind):
    for mdp in endings(25, kind):
        truth = best_proper(mdp)
        solution = solve(mdp, gamma=1.0, method=method, tolerance=1e-7)
        assert solution.converged
        slack = 1e-10 * (1 + np.abs(truth).max())
        assert (solution.lower <= truth + slack).all()
        assert (solution.upper >= truth - slack).all()
        np.testing.assert_allclose(solution.values, truth, rtol=0, atol=1e-7)


def test_the_bounds_hold_in_fractions():
    for seed in range(40):
        mdp = with_exit(random_model(3, 2, 2, seed=seed))
        solution = solve(mdp, gamma=1.0)
        truth = rational_optimum(mdp, 1.0)
        assert all(low <= value <= high for low, value, high in zip(solution.lower, truth, solution.upper, strict=True))


def test_circles_at_no_cost_are_no_obstacle():
    lake = MDP.from_gymnasium("FrozenLake-v1", is_slippery=False)
    solution = solve(lake, gamma=1.0)
    assert solution.lower is not None
    np.testing.assert_allclose(solution.values[~lake.terminal], 1.0, atol=1e-9)
    slippery = solve(MDP.from_gymnasium("FrozenLake-v1"), gamma=1.0)
    assert slippery.lower[0] <= 14 / 17 <= slippery.upper[0]
    assert slippery.upper[0] - slippery.lower[0] < 1e-9


def test_bounds_are_wide_where_values_are_far_off():
    mdp = slippery_grid(5)
    problem, policy = Problem.of(mdp, 1.0), proper_policy(mdp)
    truth = solve(mdp, gamma=1.0).values
    lower, upper = bounds_without_discount(mdp, problem, np.where(mdp.terminal, 0.0, truth - 0.1), policy)
    assert (lower <= truth).all()
    assert (upper >= truth).all()
    assert (upper - lower).max() > 0.1


def test_a_policy_that_does_not_end_proves_nothing():
    mdp = MDP.from_gymnasium("FrozenLake-v1", is_slippery=False)
    left = np.where(mdp.terminal, -1, 0)
    assert bounds_without_discount(mdp, Problem.of(mdp, 1.0), np.zeros(mdp.states), left) is None


def test_the_bounds_of_a_chain():
    mdp = slippery_grid(4)
    chain = Problem.of(mdp, 1.0).chain(proper_policy(mdp))
    lower, upper = bounds_of_chain(chain, np.zeros(mdp.states))
    close = bounds_of_chain(chain, (lower + upper) / 2)
    assert (lower <= upper).all()
    assert close is not None
