"""Latent-variable models: hand-worked numbers, torch's own distributions, integrals and samples."""

import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import Bernoulli, Categorical, Independent, MixtureSameFamily, Normal
from torch.testing import assert_close

from operant import ops

FAST = settings(max_examples=30, deadline=None)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def random(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gumbel(seed, *shape):
    drawn = torch.empty(*shape, dtype=torch.float64)
    return -drawn.exponential_(generator=torch.Generator().manual_seed(seed)).log()


def test_bits_by_hand():
    """Log-odds of log 3 are a probability of 3/4: both bits right 9/16, one wrong 3/16; a gray one is between."""
    logits = f64([math.log(3), -math.log(3)])
    assert_close(ops.bernoulli_log_prob(logits, f64([1, 0])), f64(math.log(9 / 16)))
    assert_close(ops.bernoulli_log_prob(logits, f64([1, 1])), f64(math.log(3 / 16)))
    assert_close(ops.bernoulli_log_prob(logits, f64([1, 0.5])), f64(math.log(3 / 4) + math.log(3 / 16) / 2))


@FAST
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_bits_against_torch(seed, size):
    logits, values = 3 * random(seed, 3, size), (random(seed + 1, 3, size) > 0).double()
    assert_close(ops.bernoulli_log_prob(logits, values), Bernoulli(logits=logits).log_prob(values).sum(-1))


def test_certain_bits_stay_finite():
    logits = torch.tensor([200.0, -200.0], requires_grad=True)
    loss = ops.bernoulli_log_prob(logits, torch.tensor([0.0, 1.0]))
    assert loss.item() == -400
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == [-1, 1]


def test_probabilities_of_all_bits_sum_to_one():
    logits = random(0, 3)
    every = f64([[a, b, c] for a in (0, 1) for b in (0, 1) for c in (0, 1)])
    assert_close(ops.bernoulli_log_prob(logits.expand(8, 3), every).exp().sum(), f64(1))


def test_a_mixture_by_hand():
    """Half of N(0, 1) and half of N(2, 1) at 1: both densities are exp(-1/2) / sqrt(2π)."""
    logits, mean = torch.zeros(2, dtype=torch.float64), f64([[0], [2]])
    found = ops.gaussian_mixture_log_prob(logits, mean, torch.zeros_like(mean), f64([1]))
    assert_close(found, f64(-0.5 - 0.5 * math.log(2 * math.pi)))
    found = ops.gaussian_mixture_log_prob(f64([math.log(3), 0]), mean, torch.zeros_like(mean), f64([0]))
    assert_close(found.exp(), f64((0.75 + 0.25 * math.exp(-2)) / math.sqrt(2 * math.pi)))


@FAST
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 3), st.floats(-20, 20))
def test_mixtures_against_torch(seed, components, size, shift):
    logits, mean, log_std = random(seed, 5, components), random(seed, 5, components, size), random(seed + 1, 5, 1, 1)
    log_std = log_std.expand_as(mean)
    values = random(seed + 2, 5, size)
    peer = MixtureSameFamily(Categorical(logits=logits), Independent(Normal(mean, log_std.exp()), 1))
    found = ops.gaussian_mixture_log_prob(logits, mean, log_std, values)
    assert_close(found, peer.log_prob(values))
    assert_close(ops.gaussian_mixture_log_prob(logits + shift, mean, log_std, values), found)
    assert_close(ops.gaussian_mixture_log_prob(logits.flip(-1), mean.flip(-2), log_std.flip(-2), values), found)


def test_one_component_is_a_gaussian():
    mean, log_std, values = random(0, 3, 1, 2), random(1, 3, 1, 2), random(2, 3, 2)
    alone = ops.gaussian_log_prob(mean[:, 0], log_std[:, 0], values)
    assert_close(ops.gaussian_mixture_log_prob(random(3, 3, 1), mean, log_std, values), alone)
    point = ops.gaussian_mixture_sample(random(3, 3, 1), mean, log_std, gumbel(4, 3, 1), values)
    assert_close(point, ops.gaussian_sample(mean[:, 0], log_std[:, 0], values))


def test_densities_integrate_to_one():
    grid = torch.linspace(-12, 12, 20001, dtype=torch.float64).unsqueeze(-1)
    logits, mean, log_std = f64([1, 0, -1]), f64([[-3], [0], [2.5]]), f64([[0.3], [-1], [0]])
    parts = (part.expand(len(grid), *part.shape) for part in (logits, mean, log_std))
    density = ops.gaussian_mixture_log_prob(*parts, grid).exp()
    assert_close(torch.trapezoid(density, grid[:, 0]), f64(1))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_have_the_moments_of_a_mixture_at_a_temperature(temperature):
    """Shares are softmax(logits / τ), variances τ std²."""
    count = 200_000
    logits, mean, log_std = f64([1, 0]), f64([[-3], [2]]), f64([[0.2], [-0.5]])
    parts = (part.expand(count, *part.shape) for part in (logits, mean, log_std))
    drawn = ops.gaussian_mixture_sample(
        *parts, gumbel(0, count, 2), random(1, count, 1), temperature=temperature
    ).squeeze(-1)
    shares = (logits / temperature).softmax(0)
    center = (shares * mean[:, 0]).sum()
    variance = (shares * (temperature * (2 * log_std[:, 0]).exp() + mean[:, 0].square())).sum() - center.square()
    assert abs(drawn.mean() - center) < 4 * (variance / count).sqrt()
    assert_close(drawn.var(), variance, rtol=0.02, atol=0)


def test_toward_zero_only_the_likeliest_mean_is_left():
    logits, mean, log_std = random(0, 50, 4), random(1, 50, 4, 3), random(2, 50, 4, 3)
    drawn = ops.gaussian_mixture_sample(logits, mean, log_std, gumbel(3, 50, 4), random(4, 50, 3), temperature=1e-12)
    assert_close(drawn, mean[torch.arange(50), logits.argmax(-1)], atol=1e-4, rtol=0)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_is_positive(temperature):
    parts = random(0, 2), random(0, 2, 3), random(0, 2, 3), gumbel(0, 2), random(0, 3)
    with pytest.raises(ValueError, match=f"temperature is {temperature}, expected a positive number"):
        ops.gaussian_mixture_sample(*parts, temperature=temperature)


def test_gradients():
    logits, mean, log_std = (random(n, 2, 3, *size).requires_grad_() for n, size in enumerate([(), (2,), (2,)]))
    values = random(9, 2, 2).requires_grad_()
    assert torch.autograd.gradcheck(ops.gaussian_mixture_log_prob, (logits, mean, log_std, values))
    noise = gumbel(5, 2, 3), random(6, 2, 2)
    assert torch.autograd.gradcheck(
        lambda m, s: ops.gaussian_mixture_sample(logits.detach(), m, s, *noise), (mean, log_std)
    )
    bits = (random(7, 4) > 0).double()
    assert torch.autograd.gradcheck(lambda x: ops.bernoulli_log_prob(x, bits), (random(8, 4).requires_grad_(),))


def test_the_evidence_lower_bound_is_tight_for_the_true_posterior():
    """z is standard normal and x given z a bit: the bound of the best Gaussian q is below log p(x), and close."""
    grid = torch.linspace(-9, 9, 4001, dtype=torch.float64)
    exact = torch.trapezoid(grid.sigmoid() * (-grid.square() / 2).exp() / math.sqrt(2 * math.pi), grid).log()
    q = f64([0.4, -0.1]).requires_grad_()

    def bound():
        density = ops.gaussian_log_prob(q[:1].expand(4001, 1), q[1:], grid.unsqueeze(-1)).exp()
        likelihood = ops.bernoulli_log_prob(grid.unsqueeze(-1), torch.ones(4001, 1, dtype=torch.float64))
        nothing = torch.zeros(1, dtype=torch.float64)
        return torch.trapezoid(density * likelihood, grid) - ops.gaussian_kl(q[:1], q[1:], nothing, nothing)

    for _ in range(200):
        (slope,) = torch.autograd.grad(bound(), q)
        q = (q + 0.3 * slope).detach().requires_grad_()
    assert bound() < exact
    assert exact - bound() < 0.01


def test_leading_dimensions_are_independent_and_dtypes_kept():
    logits, mean, log_std, values = (
        random(n, 2, 3, *size).float() for n, size in enumerate([(4,), (4, 2), (4, 2), (2,)])
    )
    whole = ops.gaussian_mixture_log_prob(logits, mean, log_std, values)
    assert whole.dtype == torch.float32
    assert_close(ops.gaussian_mixture_log_prob(logits[1, 2], mean[1, 2], log_std[1, 2], values[1, 2]), whole[1, 2])
    assert ops.bernoulli_log_prob(values, (values > 0).float()).shape == (2, 3)


def test_the_error_of_a_latent_state_by_hand():
    predicted, target = f64([[1.0, 2.0], [0.0, 0.0]]), f64([[3.0, 1.0], [0.0, 0.0]])
    assert ops.latent_prediction_loss(predicted, target).tolist() == [2.5, 0.0]  # (4 + 1) / 2


@FAST
@given(st.integers(0, 2**31))
def test_the_error_of_a_latent_state_against_a_loop(seed):
    predicted, target = random(seed, 3, 2, 5), random(seed + 1, 3, 2, 5).requires_grad_()
    found = ops.latent_prediction_loss(predicted.requires_grad_(), target)
    for i in range(3):
        for j in range(2):
            pairs = zip(predicted[i, j].tolist(), target[i, j].tolist(), strict=True)
            expected = sum((one - other) ** 2 for one, other in pairs) / 5
            assert found[i, j].item() == pytest.approx(expected)
    (gradient,) = torch.autograd.grad(found.sum(), predicted, retain_graph=True)
    assert_close(gradient, 2 * (predicted - target).detach() / 5)
    assert torch.autograd.grad(found.sum(), target, allow_unused=True) == (None,)


def test_a_target_of_another_shape_is_named():
    with pytest.raises(ValueError, match=r"target has shape \(2, 1\), expected \(2, 4\)"):
        inspect.unwrap(ops.latent_prediction_loss)(torch.zeros(2, 4), torch.zeros(2, 1))
