import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import trim_mean

from operant.runtime.statistics import iqm, stratified_bootstrap

scores = arrays(np.float64, st.integers(1, 23), elements=st.floats(-1e6, 1e6))


@settings(deadline=None, max_examples=100)
@given(scores)
def test_iqm_is_the_trimmed_mean_of_scipy(values):
    assert iqm(values) == pytest.approx(trim_mean(values, 0.25))


def test_iqm_by_hand():
    assert iqm([100.0, 1.0, 2.0, 3.0, -50.0]) == 2.0  # one of five left out at each end
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
    # Each task is constant: drawing within tasks changes nothing, drawing across them would.
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
