"""Theory on random models: identities up to rounding, bounds without a violation, gradients by finite differences."""

import itertools

import numpy as np
import pytest

from operant.envs.grid import GridWorld
from operant.mdp import MDP
from operant.mdp.analysis import (
    advantages,
    enumerate_policies,
    expected_return,
    max_kl,
    mixture,
    mixture_bound,
    occupancy,
    performance_difference,
    policy_chain,
    policy_gradient,
    softmax_policy,
    surrogate,
    trust_region_bound,
)
from operant.mdp.policies import check_policy


def random_model(rng, states, actions, *, ends=False):
    """Return a model; with `ends`, transitions terminate at random and one state is terminal."""
    probabilities = rng.dirichlet(np.full(states, 0.5), (states, actions))
    rewards = rng.normal(size=probabilities.shape)
    s, a, successor = np.indices(probabilities.shape).reshape(3, -1)
    terminates = rng.random(s.size) < 0.2 if ends else np.zeros(s.size, bool)
    table = {"s": s, "a": a, "s'": successor, "p": probabilities.ravel(), "r": rewards.ravel()}
    terminal = [states - 1] if ends else None
    start = rng.dirichlet(np.ones(states - ends))
    return MDP.from_table({**table, "terminates": terminates}, terminal=terminal, start=[*start, 0.0][:states])


def random_policy(rng, mdp):
    return rng.dirichlet(np.ones(mdp.actions), mdp.states)


def random_problems(count, seed, **options):
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        mdp = random_model(rng, int(rng.integers(2, 7)), int(rng.integers(2, 5)), **options)
        yield rng, mdp, float(rng.uniform(0, 0.98))


def lake():
    return MDP.from_gymnasium("FrozenLake-v1")


class TestPolicies:
    def test_all_policies_of_a_tiny_model(self):
        mdp = MDP.from_function(3, 3, lambda s, a: None if a > s + 1 else ([1.0], [2], 0.0), terminal=[2])
        policies = [tuple(policy.tolist()) for policy in enumerate_policies(mdp)]
        assert policies == [(a, b, -1) for a in (0, 1) for b in (0, 1, 2)]

    def test_too_many_policies_are_counted_not_listed(self):
        with pytest.raises(ValueError, match=rf"has {4**11} deterministic policies, expected at most 1000000"):
            enumerate_policies(lake())

    def test_one_policy_is_best_in_every_state(self):
        for seed in range(20):
            mdp = random_model(np.random.default_rng(seed), 4, 2, ends=True)
            values = np.array([state_values(mdp, policy, 0.9) for policy in enumerate_policies(mdp)])
            assert len(values) == 2**3
            assert np.isclose(values, values.max(axis=0), rtol=0, atol=1e-12).all(axis=1).any()

    def test_actions_and_probabilities_mean_the_same(self):
        actions = np.arange(16) % 4
        (chain, rewards), (same_chain, same_rewards) = (policy_chain(lake(), p) for p in (actions, np.eye(4)[actions]))
        np.testing.assert_array_equal(chain.toarray(), same_chain.toarray())
        np.testing.assert_array_equal(rewards, same_rewards)

    def test_invalid_policies_are_rejected(self):
        for policy in ([0, 1], [[0.5, 0.4]] * 3, [0, 1, 0]):
            mdp = MDP.from_function(3, 2, lambda s, a: None if s == a == 1 else ([1.0], [2], 0.0), terminal=[2])
            with pytest.raises(ValueError, match="policy"):
                policy_chain(mdp, policy)

    def test_softmax_leaves_out_what_is_not_feasible(self):
        mdp = MDP.from_function(3, 2, lambda s, a: None if s == a == 1 else ([1.0], [2], 0.0), terminal=[2])
        policy = softmax_policy(mdp, [[1000.0, 1000.0 + np.log(3)], [-5.0, 9.0], [1.0, 2.0]])
        np.testing.assert_allclose(policy, [[0.25, 0.75], [1, 0], [0, 0]], atol=1e-12)
        assert softmax_policy(mdp, [[-np.inf, 0.0], [0.0, 0.0], [-np.inf, -np.inf]])[0].tolist() == [0, 1]
        with pytest.raises(ValueError, match="-Inf for all feasible actions of state 1"):
            softmax_policy(mdp, [[0.0, 0.0], [-np.inf, 0.0], [0.0, 0.0]])


def state_values(mdp, policy, gamma):
    """Return V by a dense solve of `V = R + γ P V`, computed from the sparse rows."""
    probabilities = check_policy(mdp, policy)
    system, rewards = np.eye(mdp.states), np.zeros(mdp.states)
    for row, (s, a) in enumerate(itertools.product(range(mdp.states), range(mdp.actions))):
        for entry in range(mdp.indptr[row], mdp.indptr[row + 1]):
            weight = probabilities[s, a] * mdp.probabilities[entry]
            rewards[s] += weight * mdp.rewards[entry]
            system[s, mdp.successors[entry]] -= gamma * weight * (not mdp.terminates[entry])
    return np.linalg.solve(system, rewards)


class TestChains:
    def test_the_return_against_a_dense_solve(self):
        for rng, mdp, gamma in random_problems(20, 1, ends=True):
            policy = random_policy(rng, mdp)
            expected = mdp.start @ state_values(mdp, policy, gamma)
            assert expected_return(mdp, policy, gamma=gamma) == pytest.approx(expected, abs=1e-12)

    def test_advantages_have_no_expectation(self):
        for rng, mdp, gamma in random_problems(50, 2, ends=True):
            policy = check_policy(mdp, random_policy(rng, mdp))
            found = advantages(mdp, policy, gamma=gamma)
            assert np.isneginf(found[mdp.terminal]).all()
            gains = (policy * np.where(mdp.feasible, found, 0)).sum(axis=1)
            np.testing.assert_allclose(gains, 0, atol=1e-12)

    def test_the_random_policy_on_the_4x4_grid_of_sutton_and_barto(self):
        mdp = MDP.from_gymnasium(GridWorld("step: -1\ngoal: -1\n\nG...\n....\n....\n...G"))
        expected = [0, -14, -20, -22, -14, -18, -20, -20, -20, -20, -18, -14, -22, -20, -14, 0]
        np.testing.assert_allclose(state_values(mdp, np.full((16, 4), 0.25), 1.0), expected, atol=1e-10)
        visits = occupancy(mdp, np.full((16, 4), 0.25), gamma=1.0)
        assert -visits.sum() == pytest.approx(np.mean(expected[1:-1]), abs=1e-10)

    def test_a_random_walk_to_the_goal_of_a_4x4_grid(self):
        env = GridWorld("goal: 1\nstep: -0.01\n\nS...\n....\n....\n...G")
        mdp, policy = MDP.from_gymnasium(env), np.full((16, 4), 0.25)
        assert occupancy(mdp, policy, gamma=1.0).sum() == pytest.approx(416 / 7, abs=1e-10)  # 59.43 steps
        transitions, _ = policy_chain(mdp, policy)
        still_there = np.linalg.matrix_power(transitions.toarray(), 200)
        assert (mdp.start @ still_there).sum() == pytest.approx(0.0220, abs=5e-5)

    def test_occupancy_against_the_sum_over_time(self):
        for rng, mdp, gamma in random_problems(20, 3, ends=True):
            policy = random_policy(rng, mdp)
            chain, rewards = policy_chain(mdp, policy)
            transitions = chain.toarray()
            there, expected = mdp.start, np.zeros(mdp.states)
            for _ in range(2000):
                expected += there
                there = gamma * transitions.T @ there
            visits = occupancy(mdp, policy, gamma=gamma)
            np.testing.assert_allclose(visits, expected, atol=1e-9)
            assert visits @ rewards == pytest.approx(expected_return(mdp, policy, gamma=gamma), abs=1e-9)

    def test_normalized_occupancy_is_a_distribution(self):
        for rng, mdp, gamma in random_problems(20, 4):
            shares = occupancy(mdp, random_policy(rng, mdp), gamma=gamma, normalized=True)
            assert shares.sum() == pytest.approx(1, abs=1e-12)
            assert (shares >= 0).all()

    def test_a_discount_of_1_needs_a_policy_that_ends(self):
        # State 0 stays or goes to 1, which is terminal; staying never ends.
        mdp = MDP.from_function(2, 2, lambda s, a: ([1.0], [s if a == 0 else 1], 1.0, s == 1))
        assert expected_return(mdp, [1, 0], gamma=1.0) == pytest.approx(1.5)  # 2 from state 0, 1 from state 1
        with pytest.raises(ValueError, match="gamma is 1, but from state 0 the policy never ends an episode"):
            expected_return(mdp, [0, 0], gamma=1.0)

    @pytest.mark.parametrize("gamma", [-0.1, 1.1, np.nan])
    def test_a_discount_lies_between_0_and_1(self, gamma):
        for use in (expected_return, occupancy, advantages):
            with pytest.raises(ValueError, match=f"gamma is {gamma}, expected a number in"):
                use(lake(), np.zeros(16, int), gamma=gamma)


class TestImprovement:
    @pytest.mark.parametrize("ends", [False, True])
    def test_the_performance_difference_lemma(self, ends):
        for rng, mdp, gamma in random_problems(150, 5, ends=ends):
            new, old = random_policy(rng, mdp), random_policy(rng, mdp)
            expected = expected_return(mdp, new, gamma=gamma) - expected_return(mdp, old, gamma=gamma)
            assert performance_difference(mdp, new, old, gamma=gamma) == pytest.approx(expected, abs=1e-9)

    def test_the_lemma_with_visits_of_the_old_policy_is_the_surrogate(self):
        for rng, mdp, gamma in random_problems(20, 6):
            new, old = random_policy(rng, mdp), random_policy(rng, mdp)
            gains = (new * advantages(mdp, old, gamma=gamma)).sum(axis=1)
            expected = expected_return(mdp, old, gamma=gamma) + occupancy(mdp, old, gamma=gamma) @ gains
            assert surrogate(mdp, new, old, gamma=gamma) == pytest.approx(expected, abs=1e-12)
            assert surrogate(mdp, old, old, gamma=gamma) == pytest.approx(expected_return(mdp, old, gamma=gamma))

    def test_the_surrogate_agrees_with_the_return_to_first_order(self):
        for rng, mdp, gamma in random_problems(30, 7, ends=True):
            logits, direction = rng.normal(size=(2, mdp.states, mdp.actions))
            old, errors = softmax_policy(mdp, logits), []
            for step in (1e-2, 5e-3):
                new = softmax_policy(mdp, logits + step * direction)
                error = surrogate(mdp, new, old, gamma=gamma) - expected_return(mdp, new, gamma=gamma)
                errors.append(abs(error))
            # An error of second order falls fourfold when the step halves, one of first order twofold.
            assert errors[1] <= 0.3 * errors[0] + 1e-10

    @pytest.mark.parametrize("ends", [False, True])
    def test_the_mixture_bound_is_never_violated(self, ends):
        for rng, mdp, gamma in random_problems(150, 8, ends=ends):
            old = random_policy(rng, mdp)
            best = np.where(mdp.feasible, advantages(mdp, old, gamma=gamma), -1e9).argmax(axis=1)
            for alpha in (0.01, 0.3, 1.0):
                new = mixture(mdp, old, best, alpha=alpha)
                bound = mixture_bound(mdp, old, best, alpha=alpha, gamma=gamma)
                assert expected_return(mdp, new, gamma=gamma) >= bound - 1e-10

    def test_the_bound_fails_if_the_mixture_stands_for_what_is_mixed_in(self):
        # ε = max_s |E_{a ~ mixture} A| is smaller by the factor α, which makes the penalty of the order α³.
        violations = 0
        for rng, mdp, _ in random_problems(150, 9):
            old, gamma, alpha = random_policy(rng, mdp), 0.9, 0.01
            best = advantages(mdp, old, gamma=gamma).argmax(axis=1)
            new = mixture(mdp, old, best, alpha=alpha)
            likely = surrogate(mdp, new, old, gamma=gamma)
            penalty = likely - mixture_bound(mdp, old, best, alpha=alpha, gamma=gamma)
            violations += expected_return(mdp, new, gamma=gamma) < likely - alpha * penalty - 1e-12
        assert violations > 0

    @pytest.mark.parametrize("ends", [False, True])
    def test_the_trust_region_bound_is_never_violated(self, ends):
        for rng, mdp, gamma in random_problems(150, 10, ends=ends):
            logits, direction = rng.normal(size=(2, mdp.states, mdp.actions))
            old = softmax_policy(mdp, logits)
            for step in (0.01, 0.3, 3.0):
                new = softmax_policy(mdp, logits + step * direction)
                bound = trust_region_bound(mdp, new, old, gamma=gamma)
                assert bound <= expected_return(mdp, new, gamma=gamma) + 1e-10

    def test_the_bound_is_tight_where_nothing_changes(self):
        for rng, mdp, gamma in random_problems(10, 11):
            policy = random_policy(rng, mdp)
            same = expected_return(mdp, policy, gamma=gamma)
            assert trust_region_bound(mdp, policy, policy, gamma=gamma) == pytest.approx(same, abs=1e-12)
            assert mixture_bound(mdp, policy, policy[::-1], alpha=0.0, gamma=gamma) == pytest.approx(same, abs=1e-12)

    def test_kl_by_hand(self):
        mdp = MDP.from_arrays(np.full((2, 2, 2), 0.5), 0.0)
        half, skewed = np.full((2, 2), 0.5), np.array([[0.5, 0.5], [0.9, 0.1]])
        assert max_kl(mdp, half, skewed) == pytest.approx(0.5 * np.log(0.5 / 0.9) + 0.5 * np.log(0.5 / 0.1))
        assert max_kl(mdp, skewed, half) == pytest.approx(0.9 * np.log(1.8) + 0.1 * np.log(0.2))
        assert max_kl(mdp, half, [0, 0]) == np.inf
        assert max_kl(mdp, [0, 0], half) == pytest.approx(np.log(2))
        assert trust_region_bound(mdp, [0, 0], half, gamma=0.5) == -np.inf

    @pytest.mark.parametrize("gamma", [1.0, -0.5])
    def test_bounds_need_a_discount_below_1(self, gamma):
        policy = np.zeros(16, int)
        with pytest.raises(ValueError, match="divides by 1 - gamma"):
            trust_region_bound(lake(), policy, policy, gamma=gamma)
        with pytest.raises(ValueError, match="divides by 1 - gamma"):
            mixture_bound(lake(), policy, policy, alpha=0.5, gamma=gamma)

    @pytest.mark.parametrize("alpha", [-0.1, 1.1])
    def test_a_share_lies_between_0_and_1(self, alpha):
        policy = np.zeros(16, int)
        with pytest.raises(ValueError, match=r"alpha is .*, expected a number in \[0, 1\]"):
            mixture(lake(), policy, policy, alpha=alpha)


class TestGradient:
    @pytest.mark.parametrize("ends", [False, True])
    def test_the_policy_gradient_theorem_against_differences(self, ends):
        for rng, mdp, gamma in random_problems(25, 12, ends=ends):
            logits, step = rng.normal(size=(mdp.states, mdp.actions)), 1e-5
            found = policy_gradient(mdp, logits, gamma=gamma)
            expected = np.zeros_like(logits)
            for place in np.ndindex(logits.shape):
                shift = np.zeros_like(logits)
                shift[place] = step
                ahead, behind = (
                    expected_return(mdp, softmax_policy(mdp, logits + sign * shift), gamma=gamma) for sign in (1, -1)
                )
                expected[place] = (ahead - behind) / (2 * step)
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-8)

    def test_the_constant_of_the_theorem_is_the_length_of_the_horizon(self):
        """`∇J = Σ_s ν(s) Σ_a Q ∇π / (1 - γ)` with visits ν that sum to 1; a baseline such as V changes nothing."""
        for rng, mdp, gamma in random_problems(20, 13):
            logits = rng.normal(size=(mdp.states, mdp.actions))
            policy = softmax_policy(mdp, logits)
            q = advantages(mdp, policy, gamma=gamma) + state_values(mdp, policy, gamma)[:, None]
            jacobian = np.einsum("sa,ab->sab", policy, np.eye(mdp.actions)) - np.einsum("sa,sb->sab", policy, policy)
            shares = occupancy(mdp, policy, gamma=gamma, normalized=True)
            expected = np.einsum("s,sa,sab->sb", shares, q, jacobian) / (1 - gamma)
            np.testing.assert_allclose(policy_gradient(mdp, logits, gamma=gamma), expected, atol=1e-10)


def test_a_normalized_occupancy_needs_a_discount():
    with pytest.raises(ValueError, match="normalized is true, expected gamma below 1"):
        occupancy(MDP.from_table([[0, 0, 0, 1.0, 1.0, 1]]), [0], gamma=1.0, normalized=True)
