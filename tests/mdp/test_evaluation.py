import numpy as np
import pytest
from exact import random_models, value_of

from operant.mdp import MDP
from operant.mdp.evaluation import policy_evaluation
from operant.mdp.solving import solve


@pytest.mark.parametrize("method", ["direct", "krylov", "iterative"])
def test_every_method_solves_the_linear_system(method):
    rng = np.random.default_rng(0)
    for mdp, gamma in random_models(20, seed=6):
        policy = np.array([rng.choice(np.flatnonzero(row)) if row.any() else 0 for row in mdp.feasible])
        values = policy_evaluation(mdp, np.where(mdp.terminal, -1, policy), gamma=gamma, method=method).values
        np.testing.assert_allclose(values, value_of(mdp, policy, gamma), atol=1e-6)


@pytest.mark.parametrize("gamma", [0.999, 1.0])
def test_values_of_an_evaluation_by_sweeps_are_within_its_tolerance_if_all_rows_continue_equally(gamma):
    """The bounds then have the width of the span of the last change, which may be far smaller than the change."""
    rows = [[s, 0, t, 0.5 * share, 1.0 + s, end] for s in (0, 1) for t in (0, 1) for share, end in _ends(gamma)]
    result = policy_evaluation(MDP.from_table(rows), [0, 0], gamma=gamma, method="iterative", tolerance=1e-3)
    direct = policy_evaluation(MDP.from_table(rows), [0, 0], gamma=gamma).values
    assert result.converged
    np.testing.assert_allclose(result.values, direct, rtol=0, atol=1e-3)
    assert (result.lower <= result.values).all()
    assert (result.values <= result.upper).all()


def _ends(gamma):
    return [(1.0, 0)] if gamma < 1 else [(1 - 2**-10, 0), (2**-10, 1)]


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


@pytest.mark.parametrize("method", ["direct", "krylov", "iterative"])
def test_the_random_walk_on_the_grid_of_example_4_1(method):
    """Sutton and Barto (2018), example 4.1: two opposite corners end, each step costs 1."""
    moves, rows = [(-1, 0), (1, 0), (0, 1), (0, -1)], []
    for s in range(1, 15):
        for a, (down, right) in enumerate(moves):
            row, column = np.clip([s // 4 + down, s % 4 + right], 0, 3)
            rows.append([s, a, 4 * row + column, 1.0, -1.0])
    mdp = MDP.from_table(rows)
    result = policy_evaluation(mdp, np.full((16, 4), 0.25), gamma=1.0, method=method)
    truth = [0, -14, -20, -22, -14, -18, -20, -20, -20, -20, -18, -14, -22, -20, -14, 0]
    np.testing.assert_allclose(result.values, truth, atol=1e-8)
    assert (result.lower <= np.array(truth)).all()
    assert (np.array(truth) <= result.upper).all()
    assert result.converged


def test_the_grid_with_two_jumps_of_examples_3_5_and_3_8():
    """Sutton and Barto (2018): reward 10 from A to A', 5 from B to B', and -1 for running into a wall."""
    rows = []
    for s in range(25):
        for a, (down, right) in enumerate([(-1, 0), (1, 0), (0, 1), (0, -1)]):
            inside = 0 <= s // 5 + down < 5 and 0 <= s % 5 + right < 5
            following, reward = (s + 5 * down + right, 0.0) if inside else (s, -1.0)
            following, reward = {1: (21, 10.0), 3: (13, 5.0)}.get(s, (following, reward))
            rows.append([s, a, following, 1.0, reward])
    mdp = MDP.from_table(rows)
    random = policy_evaluation(mdp, np.full((25, 4), 0.25), gamma=0.9).values
    np.testing.assert_allclose(random[:5], [3.3090, 8.7893, 4.4276, 5.3224, 1.4922], atol=5e-5)
    assert random[-1] == pytest.approx(-1.9752, abs=5e-5)
    best = solve(mdp, gamma=0.9).values
    np.testing.assert_allclose(best[:5], [21.9775, 24.4194, 21.9775, 19.4194, 17.4775], atol=5e-5)
    assert best[-1] == pytest.approx(11.6797, abs=5e-5)


def test_bounds_of_stochastic_policies_hold():
    rng = np.random.default_rng(3)
    for mdp, gamma in random_models(40, seed=17):
        weights = rng.random((mdp.states, mdp.actions)) * mdp.feasible
        policy = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
        exact = policy_evaluation(mdp, policy, gamma=gamma, method="direct")
        swept = policy_evaluation(mdp, policy, gamma=gamma, method="iterative", tolerance=1e-3)
        assert swept.converged
        assert (swept.lower <= exact.upper).all()
        assert (exact.lower <= swept.upper).all()
        mean = (policy * np.where(mdp.feasible, exact.q, 0.0)).sum(axis=1)
        np.testing.assert_allclose(mean, exact.values, atol=1e-9)


def test_a_policy_that_never_ends_has_no_value_without_a_discount():
    mdp = MDP.from_gymnasium("FrozenLake-v1", is_slippery=False)
    with pytest.raises(ValueError, match="never ends an episode that is in state 0"):
        policy_evaluation(mdp, np.where(mdp.terminal, -1, 0), gamma=1.0)
