import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.ops import explained_variance, percentile_range, standardize, weighted_mean, whiten

SIZES = st.tuples(st.sampled_from([(), (1,), (3,), (2, 3)]), st.integers(1, 12), st.integers(0, 2**31 - 1))


def batch(size):
    """Return values ``[..., M]`` in float64, and 0-1 weights with at least one 1 in each row."""
    leading, samples, seed = size
    generator = torch.Generator().manual_seed(seed)
    values = 5 * torch.randn(*leading, samples, dtype=torch.float64, generator=generator) + 3
    weights = torch.randint(0, 2, values.shape, generator=generator).double()
    weights[..., 0] = 1
    return values, weights


def rows(values, weights):
    """Yield the live values of each row as a list."""
    flat = zip(values.reshape(-1, values.shape[-1]), weights.reshape(-1, weights.shape[-1]), strict=True)
    return [[value.item() for value, weight in zip(*row, strict=True) if weight] for row in flat]


def mean(numbers):
    return math.fsum(numbers) / len(numbers)


def variance(numbers):
    return mean([(number - mean(numbers)) ** 2 for number in numbers])


def test_weighted_mean_by_hand():
    values = torch.tensor([[1.0, 2.0, 6.0], [4.0, 4.0, 10.0]])
    assert weighted_mean(values).tolist() == [3, 6]
    assert weighted_mean(values, torch.tensor([[1.0, 1.0, 0.0], [0.5, 0.0, 0.5]])).tolist() == [1.5, 7]


def test_weighted_mean_of_no_weight_is_zero():
    assert weighted_mean(torch.ones(2, 3), torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])).tolist() == [0, 1]


@settings(deadline=None, max_examples=50)
@given(SIZES)
def test_moments_of_the_live_samples_match_a_loop(size):
    values, weights = batch(size)
    live = rows(values, weights)
    assert weighted_mean(values, weights).reshape(-1).tolist() == pytest.approx([mean(row) for row in live])
    result = standardize(values, weights)
    for row, expected in zip(rows(result, weights), live, strict=True):
        spread = math.sqrt(variance(expected)) + 1e-8
        assert row == pytest.approx([(number - mean(expected)) / spread for number in expected], abs=1e-6)


@settings(deadline=None, max_examples=50)
@given(SIZES)
def test_no_weights_are_equal_weights(size):
    values, _ = batch(size)
    predictions = values.flip(-1) + 1
    for weights in (torch.ones_like(values), torch.full_like(values, 0.25)):
        torch.testing.assert_close(weighted_mean(values, weights), weighted_mean(values))
        torch.testing.assert_close(standardize(values, weights), standardize(values))
        torch.testing.assert_close(
            explained_variance(predictions, values, weights), explained_variance(predictions, values), equal_nan=True
        )


@settings(deadline=None, max_examples=50)
@given(SIZES)
def test_dead_samples_change_nothing(size):
    values, weights = batch(size)
    predictions = values * 0.5
    junk = torch.where(weights == 0, 1e6, values)
    torch.testing.assert_close(weighted_mean(junk, weights), weighted_mean(values, weights))
    torch.testing.assert_close(
        standardize(junk, weights) * weights, standardize(values, weights) * weights, rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        explained_variance(predictions, junk, weights), explained_variance(predictions, values, weights), equal_nan=True
    )


def test_standardized_values_have_mean_zero_and_deviation_one_in_every_row():
    values, _ = batch(((4,), 1000, 0))
    result = standardize(values * torch.tensor([[1.0], [1e-3], [1e3], [7.0]]))
    torch.testing.assert_close(result.mean(1), torch.zeros(4, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(result.std(1, correction=0), torch.ones(4, dtype=torch.float64), atol=1e-5, rtol=0)


def test_standardizing_a_single_sample_or_equal_samples_gives_zero():
    assert standardize(torch.tensor([[5.0]])).tolist() == [[0]]
    assert standardize(torch.tensor([2.0, 2.0, 2.0])).tolist() == [0, 0, 0]
    assert standardize(torch.full((2048,), -7.3)).count_nonzero() == 0, "rounding errors of the mean are not amplified"
    assert standardize(torch.tensor([2.0, 9.0]), torch.tensor([1.0, 0.0]))[0] == 0


def test_standardize_adds_eps_to_the_deviation():
    assert standardize(torch.tensor([-1.0, 1.0]), eps=1.0).tolist() == [-0.5, 0.5]


def test_whiten_by_hand():
    values = torch.tensor([1.0, 3.0, 5.0], dtype=torch.float64)  # mean 3, sum of squares 8
    expected = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(whiten(values, eps=0.0), expected)
    torch.testing.assert_close(whiten(values, eps=0.0, shift_mean=False), expected + 3)
    torch.testing.assert_close(whiten(values, eps=0.0, correction=0), expected * math.sqrt(1.5))
    torch.testing.assert_close(whiten(values, eps=12.0), expected / 2)
    masked = whiten(torch.tensor([1.0, 99.0, 3.0]), torch.tensor([1.0, 0.0, 1.0]), correction=0)
    torch.testing.assert_close(masked[[0, 2]], torch.tensor([-1.0, 1.0]))


@settings(deadline=None, max_examples=50)
@given(SIZES)
def test_whiten_matches_a_loop(size):
    values, weights = batch(size)
    for correction in (0, 1):
        results = rows(whiten(values, weights, correction=correction), weights)
        kept = rows(whiten(values, weights, correction=correction, shift_mean=False), weights)
        for row, with_mean, live in zip(results, kept, rows(values, weights), strict=True):
            center, freedom = mean(live), len(live) - correction
            spread = math.sqrt(math.fsum((x - center) ** 2 for x in live) / freedom + 1e-8) if freedom > 0 else 1.0
            assert row == pytest.approx([(x - center) / spread for x in live], abs=1e-6)
            assert with_mean == pytest.approx([(x - center) / spread + center for x in live], abs=1e-6)


def test_whitening_keeps_the_mean_and_ignores_shift_scale_and_dead_samples():
    values, weights = batch(((4,), 30, 2))
    kept = whiten(values, weights, shift_mean=False)
    torch.testing.assert_close(weighted_mean(kept, weights), weighted_mean(values, weights))
    shifted = whiten(values, weights)
    torch.testing.assert_close(whiten(3 * values - 7, weights), shifted, rtol=1e-6, atol=1e-6)
    junk = torch.where(weights == 0, 1e6, values)
    torch.testing.assert_close(whiten(junk, weights) * weights, shifted * weights, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(whiten(values, torch.ones_like(values)), whiten(values))
    torch.testing.assert_close(whiten(values, correction=0), standardize(values), rtol=1e-6, atol=1e-6)


def test_whitening_one_sample_or_equal_samples_divides_by_nothing():
    for correction in (0, 1):
        assert whiten(torch.tensor([5.0]), correction=correction).tolist() == [0.0]
        assert whiten(torch.tensor([5.0]), correction=correction, shift_mean=False).tolist() == [5.0]
        equal = torch.full((2048,), -7.3)
        assert whiten(equal, correction=correction).count_nonzero() == 0
        assert torch.equal(whiten(equal, correction=correction, shift_mean=False), equal)
        masked = whiten(torch.tensor([2.0, 9.0]), torch.tensor([1.0, 0.0]), correction=correction)
        assert masked[0] == 0
        assert masked.isfinite().all()
        assert whiten(torch.tensor([2.0, 9.0]), torch.zeros(2), correction=correction).isfinite().all()


def test_explained_variance_by_hand():
    targets = torch.tensor([0.0, 2.0, 4.0])  # variance 8/3
    assert explained_variance(targets, targets) == 1
    assert explained_variance(targets + 5, targets) == 1, "a constant error has no effect"
    assert explained_variance(torch.zeros(3), targets) == 0
    assert explained_variance(-targets, targets) == -3
    assert explained_variance(targets / 2, targets) == pytest.approx(0.75)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -7.3, 1e4, 1e-4])
@pytest.mark.parametrize("samples", [1, 3, 2048])
def test_explained_variance_of_equal_targets_is_not_a_number(value, samples):
    predictions = torch.randn(samples, generator=torch.Generator().manual_seed(0))
    assert explained_variance(predictions, torch.full((samples,), value)).isnan()


def test_explained_variance_sees_small_differences_of_large_targets():
    targets = 1000 + torch.tensor([0.0, 0.1, 0.2, 0.3])
    assert explained_variance(targets, targets) == 1
    assert explained_variance(torch.zeros(4), targets) == pytest.approx(0, abs=1e-3)


def test_moments_are_differentiable():
    values, weights = batch(((2,), 5, 1))
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: weighted_mean(x, weights), values)
    assert torch.autograd.gradcheck(lambda x: standardize(x, weights), values)
    assert torch.autograd.gradcheck(lambda x: whiten(x, weights), values)
    assert torch.autograd.gradcheck(lambda x: whiten(x, weights, shift_mean=False, correction=0), values)


def test_percentile_range_by_hand():
    """Of 0, 1, ..., 20 the percentiles are 1 and 19; of two numbers they lie on the line between them."""
    assert percentile_range(torch.arange(21.0).flip(0)).item() == pytest.approx(18.0)
    assert percentile_range(torch.tensor([3.0, 13.0])).item() == pytest.approx(9.0)
    assert percentile_range(torch.tensor([4.0])).item() == 0.0


@given(SIZES, st.sampled_from([(0.05, 0.95), (0.0, 1.0), (0.3, 0.6)]))
@settings(max_examples=30, deadline=None)
def test_percentile_range_against_quantiles(size, shares):
    values, _ = batch(size)
    low, high = shares
    expected = torch.quantile(values, high, dim=-1) - torch.quantile(values, low, dim=-1)
    torch.testing.assert_close(percentile_range(values, low=low, high=high), expected)
    torch.testing.assert_close(percentile_range(3 * values - 7, low=low, high=high), 3 * expected)


def test_an_outlier_does_not_change_the_percentile_range():
    values = torch.arange(101.0)
    values[-1] = 1e9
    assert percentile_range(values).item() == pytest.approx(90.0)
    with pytest.raises(ValueError, match=r"low is 0.9 and high is 0.1, expected 0 <= low < high <= 1"):
        percentile_range(values, low=0.9, high=0.1)
