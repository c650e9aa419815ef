import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from operant.runtime.checkpoints import Checkpoints, load
from operant.runtime.settings import Settings
from operant.tabular import learner_for, strategies
from operant.tabular.bandit_factory import BanditExperiment
from operant.tabular.bandits import Arms, bernoulli_kl
from operant.tabular.random import stream_states
from operant.tabular.strategies import (
    KLUCB,
    UCB1,
    EpsilonGreedy,
    EpsilonGreedyConfig,
    GradientBandit,
    GradientBanditConfig,
    KLUCBConfig,
    UCBConfig,
)
from operant.tabular.view import view_of

from .checks import bandit_contract


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
    assert strategies.ucb_index(0.5, 0, 100, 2.0) == strategies.kl_ucb_index(0.0, 0, 5) == strategies.UNTRIED


@pytest.mark.parametrize("name", ["ucb1", "kl-ucb"])
def test_it_is_saved_before_all_arms_are_pulled(name, tmp_path):
    made, again = (
        learner_for(name, Arms.paying_one([0.2, 0.5, 0.7], 2), seeds=(3, 4), steps_per_iteration=2) for _ in range(2)
    )
    made.iterate()
    assert (made.pulls.counts == 0).any()
    again.load_state_dict(load(Checkpoints(tmp_path).save(made.state_dict(), made.consumed)))
    for bandit in (made, again):
        bandit.iterate()
    np.testing.assert_array_equal(again.pulls.counts, made.pulls.counts)
    Checkpoints(tmp_path).save(made.state_dict(), made.consumed)


def test_softmax_draws_with_its_probabilities():
    preferences, probabilities, rng = np.array([0.0, 1.0, 2.0]), np.zeros(3), stream_states([0], "test")
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
        (UCB1, UCBConfig, [0.6, 0.5], 25.2),
        (KLUCB, KLUCBConfig, [0.6, 0.5], 13.4),
        (EpsilonGreedy, EpsilonGreedyConfig, [0.6, 0.5], 14.5),
    ],
)
def test_regret_after_1000_pulls(kind, config, means, expected):
    """Compare with expected values within four standard errors of both samples, assuming equal variances."""
    seeds = 400
    bandit = kind(config(steps_per_iteration=1000), Arms.paying_one(means, seeds), seeds=range(seeds))
    regret = bandit.iterate()["bandit/regret"].numpy()
    assert abs(regret.mean() - expected) < 4 * regret.std() * np.sqrt(2 / seeds) + 0.05


@pytest.mark.parametrize(
    ("kind", "config", "reward", "share"),
    [
        (EpsilonGreedy, EpsilonGreedyConfig(exploration_rate=0.0), 1.031, 0.358),
        (EpsilonGreedy, EpsilonGreedyConfig(exploration_rate=0.1), 1.368, 0.794),
        (EpsilonGreedy, EpsilonGreedyConfig(exploration_rate=0.0, step_size=0.1, initial_value=5.0), 1.498, 0.851),
        (UCB1, UCBConfig(bonus_coef=2.0), 1.489, 0.851),
        (UCB1, UCBConfig(bonus_coef=1.0), 1.527, 0.924),
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
        config = GradientBanditConfig(baseline=baseline, steps_per_iteration=900)
        bandit = GradientBandit(config, Arms.testbed(range(seeds), center=4.0), seeds=range(seeds))
        bandit.iterate()
        shares.append(float(bandit.iterate()["bandit/best_arm"].mean()))
    assert shares[0] > 0.8
    assert shares[1] < 0.6


@pytest.mark.parametrize("name", ["epsilon-greedy", "ucb1", "kl-ucb", "gradient-bandit"])
def test_pieces_neighbors_and_resuming_make_no_difference(name):
    bandit_contract(name)


@pytest.mark.parametrize(
    ("name", "kind", "config"),
    [
        ("epsilon-greedy", EpsilonGreedy, EpsilonGreedyConfig(exploration_rate=0.3)),
        ("ucb1", UCB1, UCBConfig()),
        ("kl-ucb", KLUCB, KLUCBConfig()),
        ("gradient-bandit", GradientBandit, GradientBanditConfig()),
    ],
)
def test_the_catalog_names_these_strategies(name, kind, config):
    arms = Arms.paying_one([0.2, 0.5, 0.6], 3)
    values = {"exploration_rate": 0.3} if name == "epsilon-greedy" else {}
    named, made = learner_for(name, arms, seeds=range(3), **values), kind(config, arms, seeds=range(3))
    assert type(named) is kind
    for left, right in zip(named.iterate().values(), made.iterate().values(), strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(named.pulls.counts, made.pulls.counts)


def test_the_greedy_arm_of_a_gradient_bandit_has_the_largest_preference():
    bandit = GradientBandit(GradientBanditConfig(), Arms.normal([0.0, 1.0, 2.0]), seeds=(0,))
    np.testing.assert_allclose(bandit.policy(), 1 / 3)
    bandit.pulls.scores[:], bandit.pulls.estimates[:] = [[-3.0, 2.0, -1.0]], [[0.9, 0.05, 0.05]]
    np.testing.assert_array_equal(bandit.policy(), [[[0.0, 1.0, 0.0]]])


def test_a_gradient_bandit_shows_no_values():
    bandit = GradientBandit(GradientBanditConfig(), Arms.normal([0.0, 1.0, 2.0]), seeds=(0,))
    bandit.iterate()
    assert set(bandit.describe(torch.zeros(1, 2, dtype=torch.int64), None)) == {"probabilities"}
    with pytest.raises(AttributeError, match="estimates no values"):
        _ = bandit.values
    made = BanditExperiment(bandit, Settings("gradient-bandit", "operant/Testbed-v0", seeds=(0,)))
    view = view_of(made, 0)
    assert view.q is None
    assert view.values is None
    assert view.visits.sum() == 100


def test_arms_with_rewards_other_than_0_and_1_are_rejected():
    with pytest.raises(
        ValueError,
        match=r"kl-ucb is for Bernoulli rewards .* but these are normal: use another strategy, such as ucb1, or a",
    ):
        KLUCB(KLUCBConfig(), Arms.normal([0.1, 0.2]), seeds=(0,))


@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (EpsilonGreedyConfig, {"exploration_rate": 1.5}, r"exploration_rate must be in \[0, 1\], got 1.5"),
        (EpsilonGreedyConfig, {"initial_value": float("nan")}, "initial_value must be a finite number, got nan"),
        (UCBConfig, {"bonus_coef": -1.0}, "bonus_coef must be in .0, inf., got -1"),
        (GradientBanditConfig, {"step_size": -0.1}, "step_size must be in .0, inf."),
        (KLUCBConfig, {"steps_per_iteration": 0}, "steps_per_iteration must be in .1, inf., got 0"),
    ],
)
def test_values_out_of_range_are_rejected(config, values, message):
    with pytest.raises(ValueError, match=message):
        config(**values)
