"""Values as distributions: hand-worked numbers, loops, and the identities that make them targets."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch.testing import assert_close

from operant import ops

FAST = settings(max_examples=30, deadline=None)
SUPPORT = torch.tensor([-2.0, -1.0, 0.0, 2.0, 6.0], dtype=torch.float64)
numbers = st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=8).map(lambda x: torch.tensor(x, dtype=torch.float64))


def test_squashing_by_hand():
    """sqrt(8 + 1) - 1 = 2 and sqrt(24 + 1) - 1 = 4, plus a thousandth of the number."""
    x = torch.tensor([8.0, -24.0, 0.0], dtype=torch.float64)
    assert_close(ops.signed_hyperbolic(x), torch.tensor([2.008, -4.024, 0.0], dtype=torch.float64))
    assert_close(ops.signed_hyperbolic(x, eps=0.0), torch.tensor([2.0, -4.0, 0.0], dtype=torch.float64))


@FAST
@given(numbers, st.sampled_from([0.0, 1e-3, 1e-2]))
def test_squashing_is_undone(x, eps):
    assert_close(ops.signed_parabolic(ops.signed_hyperbolic(x, eps=eps), eps=eps), x, rtol=1e-9, atol=1e-12)


@FAST
@given(numbers)
def test_squashing_against_the_formulas_as_printed(x):
    eps = 1e-3
    for value, squashed, back in zip(
        x.tolist(), ops.signed_hyperbolic(x).tolist(), ops.signed_parabolic(x).tolist(), strict=True
    ):
        sign, size = math.copysign(1, value), abs(value)
        assert squashed == pytest.approx(sign * (math.sqrt(size + 1) - 1) + eps * value, abs=1e-9)
        root = (math.sqrt(1 + 4 * eps * (size + 1 + eps)) - 1) / (2 * eps)
        assert back == pytest.approx(sign * (root**2 - 1), rel=1e-9, abs=1e-9)


def test_small_numbers_survive_single_precision():
    """The inverse as printed has errors of 0.0001 and more here, since it subtracts 1 from a number close to 1."""
    x = torch.tensor([1e-6, -3e-5, 2e-3])
    assert_close(ops.signed_parabolic(ops.signed_hyperbolic(x)), x, rtol=1e-5, atol=0)


def test_gradients_pass_zero():
    x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(ops.signed_hyperbolic(x).sum(), x)
    assert_close(slope, torch.tensor([0.501], dtype=torch.float64))
    (slope,) = torch.autograd.grad(ops.signed_parabolic(x).sum(), x)
    assert_close(slope, torch.tensor([1 / 0.501], dtype=torch.float64))


def test_two_hot_by_hand():
    """3 lies a quarter of the way from 2 to 6; an atom has its full weight; -9 and 7 lie outside."""
    found = ops.two_hot(torch.tensor([3.0, -1.0, -9.0, 7.0, -0.25], dtype=torch.float64), SUPPORT)
    expected = [
        [0, 0, 0, 0.75, 0.25],
        [0, 1, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1],
        [0, 0.25, 0.75, 0, 0],
    ]
    assert_close(found, torch.tensor(expected, dtype=torch.float64))


@FAST
@given(st.lists(st.floats(-8, 8), min_size=1, max_size=8))
def test_two_hot_against_a_loop(values):
    atoms = SUPPORT.tolist()
    found = ops.two_hot(torch.tensor(values, dtype=torch.float64), SUPPORT)
    for value, row in zip(values, found.tolist(), strict=True):
        inside = min(max(value, atoms[0]), atoms[-1])
        for k, weight in enumerate(row):
            expected = 0.0
            if k > 0 and atoms[k - 1] <= inside <= atoms[k]:
                expected = (inside - atoms[k - 1]) / (atoms[k] - atoms[k - 1])
            elif k < len(atoms) - 1 and atoms[k] <= inside <= atoms[k + 1]:
                expected = (atoms[k + 1] - inside) / (atoms[k + 1] - atoms[k])
            assert weight == pytest.approx(expected, abs=1e-12)


@FAST
@given(st.lists(st.floats(-2, 6), min_size=1, max_size=8))
def test_a_number_is_the_mean_of_its_weights(values):
    x = torch.tensor(values, dtype=torch.float64)
    weights = ops.two_hot(x, SUPPORT)
    assert (weights >= 0).all()
    assert ((weights > 0).sum(-1) <= 2).all()
    assert_close(weights.sum(-1), torch.ones_like(x))
    assert_close(ops.two_hot_mean(weights.log(), SUPPORT), x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64])
def test_numbers_may_have_another_precision_than_the_support(dtype):
    x = torch.tensor([-1, 0, 1, 2]).to(dtype) / (4 if dtype.is_floating_point else 1)
    support = torch.linspace(-1, 1, 5)
    assert_close(ops.two_hot(x, support) @ support.to(ops.two_hot(x, support).dtype), x.clamp(max=1), check_dtype=False)


@pytest.mark.parametrize("mean", [ops.two_hot_mean, ops.symmetric_mean])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_logits_may_have_another_precision_than_the_support(mean, dtype):
    support = ops.symexp_support(5, bound=2.0)
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.5]])
    found = mean(logits.to(dtype), support)
    assert found.dtype == torch.promote_types(dtype, torch.float32)
    assert_close(found.float(), mean(logits, support))


def test_means_and_losses_by_hand():
    """Equal logits: the mean of the atoms is 1, and every target costs log 5."""
    logits = torch.zeros(2, 5, dtype=torch.float64)
    assert_close(ops.two_hot_mean(logits, SUPPORT), torch.ones(2, dtype=torch.float64))
    target = torch.tensor([0.3, -7.0], dtype=torch.float64)
    assert_close(ops.two_hot_loss(logits, target, SUPPORT), torch.full((2,), math.log(5), dtype=torch.float64))


def test_the_gradient_of_the_loss():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 5, generator=draw, dtype=torch.float64).requires_grad_()
    target = (torch.rand(3, 4, generator=draw, dtype=torch.float64) * 10 - 3).requires_grad_()
    loss = ops.two_hot_loss(logits, target, SUPPORT)
    assert loss.shape == (3, 4)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert_close(gradient, logits.softmax(-1) - ops.two_hot(target, SUPPORT))
    with pytest.raises(RuntimeError, match="does not require grad"):
        ops.two_hot(target, SUPPORT).sum().backward()


def test_the_least_loss_predicts_the_mean_of_random_targets():
    """Half of the targets are 5, half are -1: the cross-entropy is minimal at the mixture, whose mean is 2."""
    weights = ops.two_hot(torch.tensor([5.0, -1.0], dtype=torch.float64), SUPPORT).mean(0)
    assert_close(ops.two_hot_mean(weights.log(), SUPPORT), torch.tensor(2.0, dtype=torch.float64))
    mixture = weights.log().clamp(min=-50).expand(2, -1).clone().requires_grad_()
    loss = ops.two_hot_loss(mixture, torch.tensor([5.0, -1.0], dtype=torch.float64), SUPPORT)
    (gradient,) = torch.autograd.grad(loss.sum(), mixture)
    assert_close(gradient.sum(0), torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0)


def test_numbers_do_not_see_each_other():
    x = torch.tensor([[0.5, torch.nan], [3.0, -2.0]], dtype=torch.float32)
    support = SUPPORT.float()
    together = ops.two_hot(x, support)
    assert together.dtype == torch.float32
    assert together[0, 1].isnan().any()
    for i, j in ((0, 0), (1, 0), (1, 1)):
        assert torch.equal(together[i, j], ops.two_hot(x[i, j], support))


@pytest.mark.parametrize("transform", [ops.signed_hyperbolic, ops.signed_parabolic])
def test_a_negative_eps_is_an_error(transform):
    with pytest.raises(ValueError, match=r"eps is -0.1, expected a number of at least 0"):
        transform(torch.zeros(1), eps=-0.1)


def test_a_support_has_two_atoms():
    with pytest.raises(ValueError, match="support has 1 atoms, expected at least 2"):
        ops.two_hot(torch.zeros(1), torch.zeros(1))


def test_symlog_by_hand():
    """log(e² - 1 + 1) = 2; the function is odd, and 0 at 0."""
    x = torch.tensor([math.e**2 - 1, 1 - math.e, 0.0], dtype=torch.float64)
    assert_close(ops.symlog(x), torch.tensor([2.0, -1.0, 0.0], dtype=torch.float64))


@FAST
@given(numbers)
def test_symlog_against_the_formula_and_undone(x):
    for value, squashed in zip(x.tolist(), ops.symlog(x).tolist(), strict=True):
        assert squashed == pytest.approx(math.copysign(math.log(abs(value) + 1), value), abs=1e-12)
    assert_close(ops.symexp(ops.symlog(x)), x, rtol=1e-9, atol=1e-12)
    assert_close(ops.symlog(-x), -ops.symlog(x))


def test_small_numbers_survive_symlog_in_single_precision():
    x = torch.tensor([1e-6, -3e-5, 2e-3])
    assert_close(ops.symexp(ops.symlog(x)), x, rtol=1e-6, atol=0)


def test_the_support_of_symexp_by_hand():
    """symexp of -2, -1, 0, 1, 2; the atoms are symmetric around 0."""
    found = ops.symexp_support(5, bound=2.0)
    e = math.e
    assert_close(found, torch.tensor([1 - e**2, 1 - e, 0.0, e - 1, e**2 - 1]))
    paper = ops.symexp_support(255)
    assert torch.equal(paper, -paper.flip(0))
    assert paper[-1].item() == pytest.approx(math.exp(20) - 1, rel=1e-6)
    assert (paper.diff() > 0).all()


@pytest.mark.parametrize("size", [1, 4])
def test_the_support_of_symexp_has_a_middle(size):
    with pytest.raises(ValueError, match=f"size is {size}, expected an odd number of at least 3"):
        ops.symexp_support(size)


@FAST
@given(st.integers(0, 2**31))
def test_the_symmetric_mean_is_the_mean(seed):
    logits = torch.randn(4, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    support = ops.symexp_support(7, bound=2.0).double()
    assert_close(ops.symmetric_mean(logits, support), ops.two_hot_mean(logits, support))
    assert_close(ops.symmetric_mean(logits.flip(-1), support), -ops.symmetric_mean(logits, support))
    by_loop = [sum(p * a for p, a in zip(row.softmax(-1).tolist(), support.tolist(), strict=True)) for row in logits]
    assert ops.symmetric_mean(logits, support).tolist() == pytest.approx(by_loop)


def test_equal_logits_mean_0_exactly():
    """The naive sum over all atoms differs from 0 by a lot in single precision: the last ones are 5e8."""
    support = ops.symexp_support(255)
    assert torch.equal(ops.symmetric_mean(torch.zeros(3, 255), support), torch.zeros(3))
