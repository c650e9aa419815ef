"""Action distributions against torch.distributions, numerical integrals and their own samples."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor
from torch.distributions import Categorical, Independent, Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from operant.ops.distributions import (
    categorical_entropy,
    categorical_log_prob,
    categorical_log_prob_entropy,
    categorical_mode,
    categorical_sample,
    gaussian_entropy,
    gaussian_log_prob,
    gaussian_mode,
    gaussian_sample,
    gumbel_softmax,
    one_hot,
    straight_through,
    tanh_gaussian_log_prob,
    tanh_gaussian_mode,
    tanh_gaussian_sample,
    tanh_gaussian_sample_log_prob,
    unimix,
)

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, max_side=4)


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gumbel(seed: int, *shape: int) -> Tensor:
    exponential = torch.empty(*shape, dtype=torch.float64)
    return -exponential.exponential_(generator=torch.Generator().manual_seed(seed)).log()


def test_categorical_known_values() -> None:
    logits = f64([[0.6, 0.3, 0.1], [1, 1, 1]]).log()
    torch.testing.assert_close(categorical_log_prob(logits, torch.tensor([1, 2])), f64([0.3, 1 / 3]).log())
    entropy = -(0.6 * math.log(0.6) + 0.3 * math.log(0.3) + 0.1 * math.log(0.1))
    torch.testing.assert_close(categorical_entropy(logits), f64([entropy, math.log(3)]))
    assert categorical_mode(logits).tolist() == [0, 0]
    assert categorical_sample(logits, f64([[0, 2, 0], [0, 0, 0.1]])).tolist() == [1, 2]


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.integers(0, 10**6), st.floats(-50, 50))
def test_categorical_against_torch(shape: tuple[int, ...], seed: int, shift: float) -> None:
    logits = 3 * random(seed, *shape)
    peer = Categorical(logits=logits)
    actions = categorical_sample(logits, gumbel(seed + 1, *shape))
    assert actions.shape == shape[:-1]
    assert actions.dtype == torch.int64
    torch.testing.assert_close(categorical_log_prob(logits, actions), peer.log_prob(actions))
    torch.testing.assert_close(categorical_entropy(logits), peer.entropy())
    assert torch.equal(categorical_mode(logits), peer.mode)
    for mine, shifted in zip(
        categorical_log_prob_entropy(logits, actions),
        categorical_log_prob_entropy(logits + shift, actions),
        strict=True,
    ):
        torch.testing.assert_close(mine, shifted)


def test_categorical_joint_form_is_the_two_apart() -> None:
    logits, actions = random(0, 4, 3, 5), torch.randint(5, (4, 3), generator=torch.Generator().manual_seed(0))
    log_prob, entropy = categorical_log_prob_entropy(logits, actions)
    assert torch.equal(log_prob, categorical_log_prob(logits, actions))
    assert torch.equal(entropy, categorical_entropy(logits))


def test_gumbel_max_samples_the_softmax() -> None:
    probabilities = f64([0.5, 0.3, 0.2, 0])
    count = 100_000
    actions = categorical_sample(probabilities.log().expand(count, 4), gumbel(0, count, 4))
    frequency = torch.bincount(actions, minlength=4) / count
    error = (probabilities * (1 - probabilities) / count).sqrt()
    assert ((frequency - probabilities).abs() <= 4 * error).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_masked_choices_have_finite_entropy_and_gradients(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.5, -math.inf, 1.0], [-math.inf, 2.0, -math.inf]], dtype=dtype, requires_grad=True)
    log_prob, entropy = categorical_log_prob_entropy(logits, torch.tensor([2, 1]))
    (log_prob.sum() + entropy.sum()).backward()
    assert logits.grad is not None
    # The allowed choices have the same distribution as without the others.
    allowed = torch.tensor([0.5, 1.0], dtype=dtype, requires_grad=True)
    log_prob_allowed, entropy_allowed = categorical_log_prob_entropy(allowed, torch.tensor(1))
    (log_prob_allowed + entropy_allowed).backward()
    torch.testing.assert_close(entropy[0], entropy_allowed)
    torch.testing.assert_close(logits.grad[0, [0, 2]], allowed.grad)
    assert entropy[1] == 0
    assert logits.grad[0, 1] == 0
    assert (logits.grad[1] == 0).all()
    assert categorical_log_prob(logits, torch.tensor([1, 1])).tolist() == [-math.inf, 0]
    assert categorical_sample(logits, torch.tensor([[0, 99, 0], [99, 0, 99]], dtype=dtype)).tolist() == [2, 1]


def test_gaussian_known_values() -> None:
    mean, log_std = f64([[0, 1]]), f64([0, math.log(2)])
    # z = (1, 1): -½(1 + 1) - log 2 - log 2π.
    torch.testing.assert_close(
        gaussian_log_prob(mean, log_std, f64([[1, 3]])), f64([-1 - math.log(2) - math.log(2 * math.pi)])
    )
    torch.testing.assert_close(gaussian_entropy(mean, log_std), f64([math.log(2) + 1 + math.log(2 * math.pi)]))
    torch.testing.assert_close(gaussian_sample(mean, log_std, f64([[-1, 1.5]])), f64([[-1, 4]]))
    assert torch.equal(gaussian_mode(mean, log_std), mean)


@settings(deadline=None, max_examples=40)
@given(SHAPES, st.integers(0, 10**6), st.data())
def test_gaussians_against_torch(shape: tuple[int, ...], seed: int, data: st.DataObject) -> None:
    mean, noise = random(seed, 2, *shape)
    # Any leading dimensions of log_std may be missing or 1.
    lead = tuple(data.draw(st.sampled_from([1, n])) for n in shape[:-1])[data.draw(st.integers(0, len(shape) - 1)) :]
    log_std = random(seed + 1, *lead, shape[-1])
    peer = Independent(Normal(mean, log_std.exp().expand(shape)), 1)
    u = gaussian_sample(mean, log_std, noise)
    torch.testing.assert_close(u, mean + log_std.exp() * noise)
    torch.testing.assert_close(gaussian_log_prob(mean, log_std, u), peer.log_prob(u))
    torch.testing.assert_close(gaussian_entropy(mean, log_std), peer.entropy())
    squashed = TransformedDistribution(peer, TanhTransform(cache_size=1))
    action = squashed.transforms[0](u)
    torch.testing.assert_close(tanh_gaussian_sample(mean, log_std, noise), action)
    torch.testing.assert_close(tanh_gaussian_log_prob(mean, log_std, u), squashed.log_prob(action))
    both = tanh_gaussian_sample_log_prob(mean, log_std, noise)
    torch.testing.assert_close(both, (action, squashed.log_prob(action)))
    torch.testing.assert_close(tanh_gaussian_mode(mean, log_std), mean.tanh())


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.7, -1.0), (-2.0, 0.5)])
def test_densities_integrate_to_one(mean: float, log_std: float) -> None:
    at = f64([[mean]]), f64([log_std])
    grid = torch.linspace(-15, 15, 20001, dtype=torch.float64).unsqueeze(-1)
    parameters = at[0].expand_as(grid), at[1]
    density = gaussian_log_prob(*parameters, grid).exp()
    torch.testing.assert_close(torch.trapezoid(density, grid[:, 0]), f64(1))
    # -∫ p log p is the entropy.
    torch.testing.assert_close(
        torch.trapezoid(-density * density.clamp(min=1e-300).log(), grid[:, 0]), gaussian_entropy(*at)[0]
    )
    # Over actions, on the image of the grid: dense near ±1, where the density bends most.
    squashed = tanh_gaussian_log_prob(*parameters, grid).exp()
    torch.testing.assert_close(torch.trapezoid(squashed, grid[:, 0].tanh()), f64(1), rtol=1e-5, atol=0)


def test_tanh_gaussian_is_finite_where_actions_saturate() -> None:
    u = torch.tensor([[-1e4], [-50.0], [-10.0], [10.0], [50.0], [1e4]], requires_grad=True)
    mean, log_std = u.detach().clone(), torch.zeros(1)
    assert (u.tanh().abs() == 1).all()
    log_prob = tanh_gaussian_log_prob(mean, log_std, u)
    # log(1 - tanh²u) -> 2 log 2 - 2|u|.
    exact = -0.5 * math.log(2 * math.pi) - 2 * math.log(2) + 2 * u.detach().abs().squeeze(-1)
    torch.testing.assert_close(log_prob, exact)
    log_prob.sum().backward()
    torch.testing.assert_close(u.grad, 2 * u.detach().sign())


@settings(deadline=None, max_examples=40)
@given(st.floats(-8, 8))
def test_tanh_correction_is_the_slope_of_tanh(u: float) -> None:
    value = f64([u])
    gaussian = gaussian_log_prob(torch.zeros(1).double(), torch.zeros(1).double(), value)
    squashed = tanh_gaussian_log_prob(torch.zeros(1).double(), torch.zeros(1).double(), value)
    assert (gaussian - squashed).item() == pytest.approx(-2 * math.log(math.cosh(u)), rel=1e-12, abs=1e-12)


def test_gradients() -> None:
    mean, noise = random(3, 2, 3, 2)
    log_std = random(4, 2)
    for leaf in (mean, log_std):
        leaf.requires_grad_()
    for op in (gaussian_sample, gaussian_log_prob, tanh_gaussian_sample, tanh_gaussian_log_prob):
        assert torch.autograd.gradcheck(lambda m, s, op=op: op(m, s, noise.detach()), (mean, log_std))
    assert torch.autograd.gradcheck(lambda m, s: tanh_gaussian_sample_log_prob(m, s, noise.detach()), (mean, log_std))
    logits = random(5, 3, 4).requires_grad_()
    actions = torch.tensor([0, 3, 1])
    assert torch.autograd.gradcheck(lambda x: categorical_log_prob_entropy(x, actions), (logits,))
    assert torch.autograd.gradgradcheck(categorical_entropy, (logits,))


def test_single_sample_estimates_the_tanh_gaussian_entropy() -> None:
    mean, log_std = f64([0.3]), f64([-0.2])
    grid = torch.linspace(-12, 12, 10001, dtype=torch.float64).unsqueeze(-1)
    log_density = tanh_gaussian_log_prob(mean.expand_as(grid), log_std, grid)
    exact = -torch.trapezoid(log_density * gaussian_log_prob(mean.expand_as(grid), log_std, grid).exp(), grid[:, 0])
    noise = random(6, 100_000, 1)
    _, log_prob = tanh_gaussian_sample_log_prob(mean.expand_as(noise), log_std, noise)
    assert (-log_prob.mean() - exact).abs() < 4 * log_prob.std() / math.sqrt(len(noise))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_leading_dimensions_are_independent_and_dtypes_kept(dtype: torch.dtype) -> None:
    mean, noise = random(7, 2, 3, 4, 2).to(dtype)
    log_std = random(8, 2).to(dtype)
    for op in (gaussian_sample, gaussian_log_prob, tanh_gaussian_sample, tanh_gaussian_log_prob):
        whole = op(mean, log_std, noise)
        assert whole.dtype == dtype
        torch.testing.assert_close(op(mean[1, 2], log_std, noise[1, 2]), whole[1, 2])
        torch.testing.assert_close(op(mean.flip(1), log_std, noise.flip(1)), whole.flip(1))
    actions = np.random.default_rng(9).integers(2, size=(3, 4))
    log_prob, entropy = categorical_log_prob_entropy(mean, torch.from_numpy(actions))
    assert log_prob.dtype == entropy.dtype == dtype
    torch.testing.assert_close(categorical_log_prob(mean[1], torch.from_numpy(actions[1])), log_prob[1])
    torch.testing.assert_close(categorical_entropy(mean[:, 2]), entropy[:, 2])


def test_unimix_by_hand():
    """A tenth of the uniform distribution over two: (0.9, 0.1) becomes (0.86, 0.14), and a forbidden choice 0.05."""
    found = unimix(torch.tensor([0.9, 0.1], dtype=torch.float64).log(), 0.1).exp()
    torch.testing.assert_close(found, torch.tensor([0.86, 0.14], dtype=torch.float64))
    found = unimix(torch.tensor([0.0, -torch.inf], dtype=torch.float64), 0.1).exp()
    torch.testing.assert_close(found, torch.tensor([0.95, 0.05], dtype=torch.float64))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.01, 0.3, 1.0]))
def test_unimix_against_a_loop(seed, share):
    logits = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = unimix(logits, share)
    for row, log_probs in zip(logits.tolist(), found.tolist(), strict=True):
        total = sum(math.exp(x) for x in row)
        expected = [math.log((1 - share) * math.exp(x) / total + share / 5) for x in row]
        assert log_probs == pytest.approx(expected, abs=1e-12)
    torch.testing.assert_close(found.logsumexp(-1), torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-12)


def test_unimix_of_a_share_that_cannot_be():
    with pytest.raises(ValueError, match=r"share is 1.5, expected a number in \[0, 1\]"):
        unimix(torch.zeros(2), 1.5)


def test_one_hot_vectors_are_those_of_pytorch():
    choices = torch.tensor([[0, 2], [1, 0], [2, 2]])
    assert torch.equal(one_hot(choices, 4), torch.nn.functional.one_hot(choices, 4).float())
    assert one_hot(choices, 4, dtype=torch.float64).dtype == torch.float64


def test_straight_through_chooses_and_passes_the_gradient_of_the_probabilities():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    log_probs, choices = logits.log_softmax(-1), torch.tensor([0, 1, 2, 3, 0, 2])
    chosen = straight_through(log_probs, choices)
    torch.testing.assert_close(chosen, torch.nn.functional.one_hot(choices, 4).double())
    weights = torch.arange(24, dtype=torch.float64).view(6, 4)
    (found,) = torch.autograd.grad((chosen * weights).sum(), logits, retain_graph=True)
    (expected,) = torch.autograd.grad((log_probs.exp() * weights).sum(), logits)
    torch.testing.assert_close(found, expected)


def test_gumbel_softmax_by_hand():
    logits, noise = torch.tensor([math.log(2.0), 0.0]), torch.tensor([0.0, math.log(8.0)])
    # Sums are log 2 and log 8: at temperature 1 the weights are 2 : 8, at 3 they are 2^(1/3) : 2.
    torch.testing.assert_close(gumbel_softmax(logits, noise), torch.tensor([0.2, 0.8]))
    root = 2 ** (1 / 3)
    expected = torch.tensor([root / (root + 2), 2 / (root + 2)])
    torch.testing.assert_close(gumbel_softmax(logits, noise, temperature=3.0), expected)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.1, 1.0, 10.0]))
def test_gumbel_softmax_relaxes_the_sample_of_the_same_noise(seed, temperature):
    logits, noise = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    relaxed = gumbel_softmax(logits, noise, temperature=temperature)
    for row in range(6):
        weights = [math.exp((logits[row, k] + noise[row, k]) / temperature) for k in range(4)]
        assert relaxed[row].tolist() == pytest.approx([weight / sum(weights) for weight in weights], abs=1e-12)
    assert torch.equal(relaxed.argmax(-1), categorical_sample(logits, noise))
    torch.testing.assert_close(relaxed[2], gumbel_softmax(logits[2], noise[2], temperature=temperature))


def test_gumbel_softmax_has_the_gradient_of_its_formula():
    logits, noise = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: gumbel_softmax(x, noise, temperature=2.0), logits.requires_grad_())
    with pytest.raises(ValueError, match=r"temperature is 0\.0, expected a positive number"):
        gumbel_softmax(logits, noise, temperature=0.0)
