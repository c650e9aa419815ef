import numpy as np
import pytest
from scipy import stats

from operant.tabular import thompson
from operant.tabular.bandits import Arms
from operant.tabular.strategies import EpsilonGreedy, EpsilonGreedyConfig
from operant.tabular.thompson import Thompson, ThompsonConfig

from .checks import bandit_contract


@pytest.mark.parametrize("prior", ["auto", "beta", "gaussian"])
def test_pieces_neighbors_and_resuming_make_no_difference(prior):
    bandit_contract("thompson", prior=prior)


def test_posteriors_by_hand():
    """Use three 1s and one 0 after a uniform prior, and four rewards of mean 3 after N(0, 2²)."""
    assert thompson.beta_posterior(0.75, 4, 1.0, 1.0) == (4.0, 2.0)
    mean, deviation = thompson.gaussian_posterior(3.0, 4, 2.0, 1.0)
    assert mean == pytest.approx(3.0 * 4 / (4 + 0.25))
    assert deviation == pytest.approx(np.sqrt(1 / 4.25))


def test_the_normal_posterior_is_that_of_bayes_rule():
    """Compare on a grid of means with the prior times the likelihood of single rewards."""
    rewards, grid = np.array([0.3, 1.9, -0.4]), np.linspace(-8, 8, 20_001)
    weights = stats.norm.pdf(grid, 0.0, 1.5) * np.prod(stats.norm.pdf(rewards[:, None], grid, 0.8), axis=0)
    weights /= weights.sum()
    mean = (weights * grid).sum()
    found = thompson.gaussian_posterior(rewards.mean(), 3, 1.5, 0.8)
    assert found == pytest.approx((mean, np.sqrt((weights * (grid - mean) ** 2).sum())), rel=1e-6)


@pytest.mark.parametrize(("prior", "chosen"), [("beta", "beta"), ("gaussian", "gaussian"), ("auto", "beta")])
def test_arms_are_pulled_as_often_as_they_are_believed_to_be_the_best(prior, chosen):
    """From one posterior, many seeds pull once; the shares are integrals over the posteriors."""
    seeds = 20_000
    made = Thompson(
        ThompsonConfig(prior=prior, steps_per_iteration=1), Arms.paying_one([0.5, 0.5], seeds), seeds=range(seeds)
    )
    assert made.prior == chosen
    made.pulls.counts[:], made.pulls.estimates[:] = [6, 2], [0.5, 1.0]
    made.iterate()
    first = (made.pulls.counts[:, 0] == 7).mean()
    x = np.linspace(-6, 7, 100_001)
    if chosen == "beta":
        beliefs = stats.beta(4, 4), stats.beta(3, 1)
    else:
        beliefs = (
            stats.norm(*thompson.gaussian_posterior(0.5, 6, 1.0, 1.0)),
            stats.norm(*thompson.gaussian_posterior(1.0, 2, 1.0, 1.0)),
        )
    expected = np.trapezoid(beliefs[0].pdf(x) * beliefs[1].cdf(x), x)
    assert first == pytest.approx(expected, abs=4 * np.sqrt(0.25 / seeds))


def test_the_greedy_arm_has_the_largest_believed_mean():
    """One lucky pull has little weight: a mean of 0.8 in 40 pulls beats 1.0 in one."""
    for prior, arms in (("beta", Arms.paying_one([0.5, 0.5])), ("gaussian", Arms.normal([0.5, 0.5]))):
        made = Thompson(ThompsonConfig(prior=prior), arms, seeds=(0,))
        np.testing.assert_allclose(made.policy(), 0.5)
        made.pulls.counts[:], made.pulls.estimates[:] = [40, 1], [0.8, 1.0]
        np.testing.assert_array_equal(made.policy(), [[[1.0, 0.0]]])


@pytest.mark.parametrize(("means", "expected"), [([0.9, 0.8], 6.7), ([0.6, 0.5], 12.1)])
def test_regret_after_1000_pulls(means, expected):
    """Compare with expected values within four standard errors of both samples, assuming equal variances."""
    seeds = 400
    made = Thompson(ThompsonConfig(steps_per_iteration=1000), Arms.paying_one(means, seeds), seeds=range(seeds))
    regret = made.iterate()["bandit/regret"].numpy()
    assert abs(regret.mean() - expected) < 4 * regret.std() * np.sqrt(2 / seeds) + 0.05


def test_the_value_is_that_of_the_greedy_arm():
    """An arm that has paid once, or was never pulled, may have the largest estimate but not the largest belief."""
    learner = Thompson(ThompsonConfig(steps_per_iteration=4), Arms.paying_one([0.1, 0.9, 0.85], 50), seeds=range(50))
    learner.iterate()
    greedy = learner.preferences().argmax(axis=1)
    np.testing.assert_array_equal(learner.values[:, 0], learner.q[np.arange(50), 0, greedy])
    assert (learner.values[:, 0] < learner.q[:, 0].max(axis=1)).any()


def test_with_normal_arms_it_beats_epsilon_greedy():
    seeds = 500
    arms = Arms.testbed(range(seeds))
    made = Thompson(ThompsonConfig(steps_per_iteration=1000), arms, seeds=range(seeds))
    assert made.prior == "gaussian"
    chance = EpsilonGreedy(EpsilonGreedyConfig(steps_per_iteration=1000), arms, seeds=range(seeds)).iterate()
    assert made.iterate()["bandit/regret"].mean() < 0.7 * chance["bandit/regret"].mean()


def test_a_beta_prior_of_normal_arms_is_rejected():
    with pytest.raises(
        ValueError, match=r"thompson with the prior beta is for Bernoulli rewards .*: use the prior gaussian, or"
    ):
        Thompson(ThompsonConfig(prior="beta"), Arms.normal([0.1, 0.2]), seeds=(0,))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"prior": "cauchy"}, "prior must be auto, beta or gaussian, got 'cauchy'"),
        ({"failures": 0.5}, "failures must be in .1, inf., got 0.5"),
        ({"noise": 0.0}, "noise must be in .0, inf., got 0"),
        ({"prior_deviation": float("inf")}, "prior_deviation must be in .0, inf., got inf"),
        ({"steps_per_iteration": 0}, "steps_per_iteration must be in .1, inf., got 0"),
    ],
)
def test_values_out_of_range_are_rejected(values, message):
    with pytest.raises(ValueError, match=message):
        ThompsonConfig(**values)


def test_values_of_a_prior_that_does_not_suit_the_rewards_are_named(caplog):
    values = {"noise": 2.0, "successes": 3.0}
    Thompson(ThompsonConfig(**values), Arms.paying_one([0.5]), seeds=[0])
    assert "noise=2.0 has no effect with the prior beta" in caplog.text
    assert "successes" not in caplog.text
    Thompson(ThompsonConfig(**values), Arms.normal([0.5]), seeds=[0])
    assert "successes=3.0 has no effect with the prior gaussian" in caplog.text
