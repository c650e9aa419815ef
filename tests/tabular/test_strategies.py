import numpy as np
import pytest
from scipy.optimize import brentq

from operant.tabular import strategies
from operant.tabular.bandits import Arms, bernoulli_kl
from operant.tabular.random import words
from operant.tabular.strategies import (
    KLUCB,
    UCB1,
    EpsilonGreedy,
    EpsilonGreedyConfig,
    GradientBandit,
    GradientBanditConfig,
    KLUCBConfig,
    ThompsonBeta,
    ThompsonBetaConfig,
    ThompsonGaussian,
    ThompsonGaussianConfig,
    UCBConfig,
)


@pytest.mark.parametrize(("estimate", "count", "clock"), [(0.3, 5, 40), (0.0, 3, 10), (1.0, 4, 10), (0.95, 6, 1000)])
def test_the_kl_index_solves_its_equation(estimate, count, clock):
    index = strategies.kl_ucb_index(estimate, count, clock)
    bound = np.log(clock) / count
    if estimate < 1.0:
        root = brentq(lambda q: bernoulli_kl(estimate, q) - bound, max(estimate, 1e-12), 1.0 - 1e-15)
        assert index == pytest.approx(root, abs=1e-9)
    assert estimate <= index <= 1.0


def test_indices_by_hand():
    assert strategies.ucb_index(0.5, 4, 100, 2.0) == pytest.approx(0.5 + 2.0 * np.sqrt(np.log(100) / 4))
    assert strategies.ucb_index(0.5, 0, 100, 2.0) == strategies.kl_ucb_index(0.0, 0, 5) == np.inf
    mean, deviation = strategies.posterior(3.0, 4, 2.0, 1.0)
    assert mean == pytest.approx(3.0 * 4 / (4 + 0.25))
    assert deviation == pytest.approx(np.sqrt(1 / 4.25))


def test_softmax_draws_with_its_probabilities():
    preferences, probabilities, rng = np.array([0.0, 1.0, 2.0]), np.zeros(3), words([0], "test")
    drawn = [strategies.softmax_arm(preferences, probabilities, rng, 0) for _ in range(5000)]
    expected = np.exp(preferences) / np.exp(preferences).sum()
    np.testing.assert_allclose(probabilities, expected)
    np.testing.assert_allclose(np.bincount(drawn) / 5000, expected, atol=0.03)
    strategies.climb(preferences, probabilities, 1, 0.5)
    np.testing.assert_allclose(preferences, np.array([0, 1, 2]) + 0.5 * (np.eye(3)[1] - expected))


@pytest.mark.parametrize(
    ("kind", "config", "means", "expected"),
    [
        (UCB1, UCBConfig, [0.9, 0.8], 25.0),
        (KLUCB, KLUCBConfig, [0.9, 0.8], 7.7),
        (ThompsonBeta, ThompsonBetaConfig, [0.9, 0.8], 6.7),
        (UCB1, UCBConfig, [0.6, 0.5], 25.2),
        (KLUCB, KLUCBConfig, [0.6, 0.5], 13.4),
        (ThompsonBeta, ThompsonBetaConfig, [0.6, 0.5], 12.1),
        (EpsilonGreedy, EpsilonGreedyConfig, [0.6, 0.5], 14.5),
    ],
)
def test_regret_after_1000_pulls(kind, config, means, expected):
    """Expected values within four standard errors of both samples, which are taken to be alike."""
    seeds = 400
    bandit = kind(config(steps=1000), Arms.paying_one(means, seeds), seeds=range(seeds))
    regret = bandit.iterate()["bandit/regret"].numpy()
    assert abs(regret.mean() - expected) < 4 * regret.std() * np.sqrt(2 / seeds) + 0.05


@pytest.mark.parametrize(
    ("kind", "config", "reward", "share"),
    [
        (EpsilonGreedy, EpsilonGreedyConfig(epsilon=0.0), 1.031, 0.358),
        (EpsilonGreedy, EpsilonGreedyConfig(epsilon=0.1), 1.368, 0.794),
        (EpsilonGreedy, EpsilonGreedyConfig(epsilon=0.0, step_size=0.1, initial_value=5.0), 1.498, 0.851),
        (UCB1, UCBConfig(scale=2.0), 1.489, 0.851),
        (UCB1, UCBConfig(scale=1.0), 1.527, 0.924),
        (GradientBandit, GradientBanditConfig(), 1.502, 0.845),
    ],
)
def test_the_testbed_after_1000_pulls(kind, config, reward, share):
    """The last 100 of 1000 pulls (Sutton and Barto 2018, figures 2.2 to 2.5)."""
    seeds = 1000
    bandit = kind(config, Arms.testbed(range(seeds)), seeds=range(seeds))
    for _ in range(10):
        report = bandit.iterate()
    for name, expected in (("reward", reward), ("best_arm", share)):
        found = report[f"bandit/{name}"].numpy()
        assert abs(found.mean() - expected) < 4 * found.std() * np.sqrt(1 / seeds + 1 / 20_000) + 5e-4, name


def test_a_baseline_matters_where_all_rewards_are_good():
    seeds, shares = 500, []
    for baseline in (True, False):
        config = GradientBanditConfig(baseline=baseline, steps=900)
        bandit = GradientBandit(config, Arms.testbed(range(seeds), centre=4.0), seeds=range(seeds))
        bandit.iterate()
        shares.append(float(bandit.iterate()["bandit/best_arm"].mean()))
    assert shares[0] > 0.8
    assert shares[1] < 0.6


def test_thompson_sampling_of_normal_arms_beats_epsilon_greedy():
    seeds = 500
    arms = Arms.testbed(range(seeds))
    thompson = ThompsonGaussian(ThompsonGaussianConfig(steps=1000), arms, seeds=range(seeds)).iterate()
    chance = EpsilonGreedy(EpsilonGreedyConfig(steps=1000), arms, seeds=range(seeds)).iterate()
    assert thompson["bandit/regret"].mean() < 0.7 * chance["bandit/regret"].mean()


def test_arms_that_do_not_pay_one_are_refused():
    for kind, config in ((KLUCB, KLUCBConfig()), (ThompsonBeta, ThompsonBetaConfig())):
        with pytest.raises(ValueError, match="is for arms that pay 1 or 0"):
            kind(config, Arms.normal([0.1, 0.2]), seeds=(0,))


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (EpsilonGreedyConfig, {"epsilon": 1.5}, r"epsilon must be in \[0, 1\], got 1.5"),
        (EpsilonGreedyConfig, {"initial_value": float("nan")}, "initial_value must be finite, got nan"),
        (UCBConfig, {"scale": -1.0}, "scale must be finite and at least 0, got -1"),
        (ThompsonBetaConfig, {"failures": 0.5}, "failures must be finite and at least 1, got 0.5"),
        (ThompsonGaussianConfig, {"noise": 0.0}, "noise must be positive and finite, got 0"),
        (GradientBanditConfig, {"step_size": -0.1}, "step_size must be finite and at least 0"),
        (KLUCBConfig, {"steps": 0}, "steps must be finite and at least 1, got 0"),
    ],
)
def test_values_out_of_range_are_refused(config, values, message):
    with pytest.raises(ValueError, match=message):
        config(**values)
