import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom, trim_mean

from operant.runtime.statistics import iqm, performance_profile, stratified_bootstrap

scores = arrays(np.float64, st.integers(1, 23), elements=st.floats(-1e6, 1e6))


@settings(deadline=None, max_examples=100)
@given(scores)
def test_iqm_is_the_trimmed_mean_of_scipy(values):
    assert iqm(values) == pytest.approx(trim_mean(values, 0.25))


def test_iqm_by_hand():
    assert iqm([100.0, 1.0, 2.0, 3.0, -50.0]) == 2.0  # one of five is left out at each end
    assert iqm([1.0, 2.0, 6.0]) == 3.0  # too few to leave any out


def test_iqm_reduces_the_last_axis():
    table = np.arange(24.0).reshape(2, 3, 4)
    assert iqm(table).shape == (2, 3)
    assert np.array_equal(iqm(table), table[..., 1:3].mean(axis=-1))


def test_iqm_does_not_hide_nan():
    assert np.isnan(iqm([1.0, 2.0, 3.0, 4.0, np.nan]))


@pytest.mark.parametrize("bad", [[], 3.0, [[], []]])
def test_no_scores_is_an_error(bad):
    with pytest.raises(ValueError, match="at least one number"):
        iqm(bad)


@settings(deadline=None, max_examples=20)
@given(scores, st.integers(0, 5))
def test_interval_contains_the_statistic_and_stays_in_range(values, seed):
    low, high = stratified_bootstrap(values, repetitions=200, seed=seed)
    slack = 1e-6 * (1 + np.abs(values).max())
    assert values.min() - slack <= low <= high <= values.max() + slack
    assert (low, high) == stratified_bootstrap(values, repetitions=200, seed=seed)


def test_interval_of_the_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(size=400)
    low, high = stratified_bootstrap(values, lambda drawn: drawn.mean(axis=-1))
    half = 1.96 * values.std() / 20
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.012)


def test_one_seed_gives_the_point():
    assert stratified_bootstrap([7.0]) == (7.0, 7.0)


def test_tasks_are_strata():
    # Each task is constant: resampling within tasks has no effect, resampling across them would.
    assert stratified_bootstrap([[1.0] * 5, [9.0] * 5], lambda drawn: drawn.mean(axis=-1)) == (5.0, 5.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": np.zeros((2, 2, 2))}, "shape"),
        ({"scores": [1.0], "repetitions": 0}, "repetitions"),
        ({"scores": [1.0], "confidence": 1.0}, "confidence"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        stratified_bootstrap(**arguments)


def test_a_profile_by_hand_and_its_area():
    profile = performance_profile([1.0, 2.0, 2.0, 5.0], [0.0, 1.0, 2.0, 4.9, 5.0])
    assert profile.share.tolist() == [1.0, 0.75, 0.25, 0.25, 0.0]
    values = np.random.default_rng(0).uniform(size=30)
    fine = np.linspace(0, 1, 20_001)
    assert performance_profile(values, fine, repetitions=2).share.mean() == pytest.approx(values.mean(), abs=1e-3)


def test_the_band_of_a_profile_is_that_of_a_share():
    """At one threshold the bootstrap draws from a binomial distribution, whose quantiles are known."""
    values = np.random.default_rng(1).normal(size=40)
    share = (values > 0.2).mean()
    profile = performance_profile(values, [0.2], repetitions=8000)
    exact = binom.ppf([0.025, 0.975], 40, share) / 40
    assert (profile.low[0], profile.high[0]) == pytest.approx(exact, abs=0.026)
    outside = performance_profile(values, [-9.0, 9.0])
    assert outside.low.tolist() == outside.high.tolist() == outside.share.tolist() == [1.0, 0.0]


def test_a_profile_of_tasks_draws_each_task_by_itself():
    """If one task always succeeds and another always fails, resampling within tasks leaves no uncertainty."""
    profile = performance_profile([[1.0] * 5, [0.0] * 5], [0.5])
    assert (profile.share[0], profile.low[0], profile.high[0]) == (0.5, 0.5, 0.5)
    mixed = performance_profile([1.0] * 5 + [0.0] * 5, [0.5])
    assert mixed.low[0] < 0.5 < mixed.high[0]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"thresholds": []}, r"thresholds must be \[n\]"),
        ({"repetitions": 0}, "repetitions must be at least 1, got 0"),
        ({"confidence": 1.0}, "between 0 and 1, got 1.0"),
    ],
)
def test_wrong_arguments_of_a_profile_are_named(wrong, message):
    with pytest.raises(ValueError, match=message):
        performance_profile(**{"scores": [1.0], "thresholds": [0.0], **wrong})
