"""Published numbers and identities that belong to no single module, each of them exact."""

import gymnasium
import numpy as np
import pytest
from scipy import integrate, stats

from operant.mdp import MDP, policy_evaluation, policy_iteration, solve
from operant.tabular import Arms, expected_returns, lai_robbins

from .models import build, forest, optimal_values, policy_values


def greedy(solution):
    """Return the policy of a solution as a table `[S, A]`."""
    mdp = solution.mdp
    return np.eye(mdp.actions)[np.maximum(solution.policy, 0)] * ~mdp.terminal[:, None]


@pytest.mark.parametrize(("gamma", "success"), [(0.9, 0.729766), (0.95, 0.729766), (0.99, 0.740165), (0.999, 0.740165)])
def test_success_of_the_lakes_optimal_policies_within_100_steps(gamma, success):
    lake = MDP.from_gymnasium("FrozenLake-v1")
    policy = greedy(policy_iteration(lake, gamma=gamma))
    assert expected_returns(lake, policy) @ lake.start == pytest.approx(success, abs=1e-6)


def test_the_optimal_policy_of_the_lake():
    """Left, down, right and up are 0 to 3, as published for γ = 0.99; in state 6 left and right are equally good."""
    lake = MDP.from_gymnasium("FrozenLake-v1")
    solution = policy_iteration(lake, gamma=0.99)
    expected = np.array([0, 3, 3, 3, 0, -1, 0, -1, 3, 1, 0, -1, -1, 2, 1, -1])
    live = solution.policy >= 0
    assert (live == (expected >= 0)).all()
    best = solution.q[live].max(axis=1)
    np.testing.assert_allclose(solution.q[live, expected[live]], best, atol=1e-9)
    several = (np.isclose(solution.q[live], best[:, None], atol=1e-9)).sum(axis=1) > 1
    assert (solution.policy[live] == expected[live])[~several].all()
    assert np.flatnonzero(live)[several].tolist() == [6]


def test_outcomes_that_the_lake_lists_twice_are_one():
    table = gymnasium.make("FrozenLake-v1").unwrapped.P
    lake = MDP.from_gymnasium("FrozenLake-v1")
    twice = [
        (s, a) for s in range(16) for a in range(4) if len({o[1] for o in table[s][a]}) == 2 and not lake.terminal[s]
    ]
    assert twice == [(0, 0), (0, 3), (3, 2), (3, 3)]
    for s, a in twice:
        row = slice(lake.indptr[4 * s + a], lake.indptr[4 * s + a + 1])
        assert sorted(lake.probabilities[row]) == pytest.approx([1 / 3, 2 / 3])


def test_the_mean_reward_of_the_best_of_ten_arms():
    """The mean of the maximum of ten standard normal numbers, by integration: 1.5388."""
    density = lambda x: x * 10 * stats.norm.pdf(x) * stats.norm.cdf(x) ** 9  # noqa: E731 - a formula
    oracle = integrate.quad(density, -12, 12)[0]
    assert oracle == pytest.approx(1.5388, abs=5e-5)
    best = Arms.testbed(range(4000)).best
    assert best.mean() == pytest.approx(oracle, abs=4 * best.std() / np.sqrt(4000))


def test_constants_of_lai_and_robbins_in_closed_form():
    """For two arms p and 1 - p the divergence is (2p - 1) ln(p / (1 - p))."""
    for p in (0.55, 0.7, 0.99):
        gap = 2 * p - 1
        expected = gap / (gap * np.log(p / (1 - p)))
        assert lai_robbins(Arms.paying_one([p, 1 - p]))[0] == pytest.approx(expected, rel=1e-12)


def shaped(mdp, potential, gamma):
    """Return the model with γ Φ(s') - Φ(s) added to each reward; Φ is 0 after the end of an episode."""
    rows = np.repeat(np.arange(mdp.states * mdp.actions), np.diff(mdp.indptr))
    after = np.where(mdp.terminates, 0.0, potential[mdp.successors])
    entries = zip(
        rows // mdp.actions,
        rows % mdp.actions,
        mdp.successors,
        mdp.probabilities,
        mdp.rewards + gamma * after - potential[rows // mdp.actions],
        mdp.terminates,
        strict=True,
    )
    return build(mdp.states, mdp.actions, list(entries), start=np.flatnonzero(mdp.start))


@pytest.mark.parametrize("seed", range(10))
def test_a_potential_shifts_values_and_changes_no_policy(seed):
    """Ng, Harada and Russell 1999: V' = V - Φ for every policy, so the optimal ones stay optimal."""
    mdp, gamma = forest(seed=seed, max_steps=None), 0.9
    potential = np.where(mdp.terminal, 0.0, np.random.default_rng(seed).normal(size=mdp.states) * 5)
    other = shaped(mdp, potential, gamma)
    uniform = mdp.feasible / np.maximum(mdp.feasible.sum(axis=1, keepdims=True), 1)
    values = policy_evaluation(mdp, uniform, gamma=gamma).values
    np.testing.assert_allclose(policy_evaluation(other, uniform, gamma=gamma).values, values - potential, atol=1e-9)
    np.testing.assert_allclose(values, policy_values(mdp, uniform, gamma), atol=1e-9)
    best, best_other = (solve(model, gamma=gamma, tolerance=1e-9) for model in (mdp, other))
    np.testing.assert_allclose(best_other.values, best.values - potential, atol=1e-8)
    np.testing.assert_allclose(best.values, optimal_values(mdp, gamma), atol=1e-8)
    np.testing.assert_array_equal(best.policy, best_other.policy)


def test_a_bonus_that_is_no_potential_teaches_to_walk_in_circles():
    """Start, middle, goal worth 1: with 0.5 for each arrival in the middle, returning to it beats the goal."""
    ways = [(0, 1, 1, 0.0), (0, 0, 0, 0.0), (1, 0, 0, 0.0), (1, 1, 2, 1.0)]
    plain = build(3, 2, [(s, a, to, 1.0, pay, to == 2) for s, a, to, pay in ways])
    bribed = build(3, 2, [(s, a, to, 1.0, pay + 0.5 * (to == 1), to == 2) for s, a, to, pay in ways])
    assert solve(plain, gamma=0.95).policy[:2].tolist() == [1, 1]
    assert solve(bribed, gamma=0.95).policy[:2].tolist() == [1, 0]
    potential = np.array([0.0, 0.5, 0.0])
    assert solve(shaped(plain, potential, 0.95), gamma=0.95).policy[:2].tolist() == [1, 1]
