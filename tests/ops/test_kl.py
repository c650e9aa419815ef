import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.ops.kl import (
    adapt_horizon,
    adapt_penalty,
    balanced_kl,
    categorical_kl,
    cross_entropy,
    gaussian_kl,
    kl_estimate,
)

FAST = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**31)
POLICY = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
REF = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)


def logits(seed: int, count: int, *shape: int) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def expected_gradient(policy: Tensor, ref: Tensor, kind: str, old: Tensor | None) -> Tensor:
    """Return the policy's gradient in the logits of an estimate, averaged exactly over the sampling distribution."""
    log_probs, ref_log_probs = policy.log_softmax(-1), ref.log_softmax(-1)
    old_log_probs = None if old is None else old.log_softmax(-1)
    sampling = (policy if old is None else old).softmax(-1).detach()
    estimates = kl_estimate(log_probs, ref_log_probs, kind, old_log_probs=old_log_probs)
    return torch.autograd.grad((sampling * estimates).sum(), policy)[0]


def gradient_of(value: Tensor, policy: Tensor) -> Tensor:
    return torch.autograd.grad(value, policy)[0]


def test_estimates_worked_by_hand():
    log_probs, ref = torch.tensor([0.6]).log(), torch.tensor([0.2]).log()
    assert kl_estimate(log_probs, ref, "k1").item() == pytest.approx(math.log(3))
    assert kl_estimate(log_probs, ref, "k2").item() == pytest.approx(math.log(3) ** 2 / 2)
    assert kl_estimate(log_probs, ref, "k3").item() == pytest.approx(1 / 3 - 1 + math.log(3))
    old = torch.tensor([0.3]).log()
    assert kl_estimate(log_probs, ref, "k1", old_log_probs=old).item() == pytest.approx(2 * math.log(3))


def test_mean_and_variance_worked_by_hand():
    moments: dict[str, tuple[float, float]] = {}
    for kind in ("k1", "k2", "k3"):
        estimates = kl_estimate(POLICY.log(), REF.log(), kind)
        mean = (POLICY * estimates).sum()
        moments[kind] = mean.item(), (POLICY * (estimates - mean).square()).sum().item()
    assert moments["k1"] == pytest.approx((0.498224, 0.735), abs=5e-4)
    assert moments["k3"] == pytest.approx((0.498224, 0.435), abs=5e-4)
    assert moments["k2"][0] != pytest.approx(0.498224, abs=5e-3)
    torch.testing.assert_close(categorical_kl(POLICY.log(), REF.log()).item(), moments["k3"][0])


@FAST
@given(SEEDS)
def test_estimates_are_unbiased_on_and_off_policy(seed: int):
    policy, ref, old = logits(seed, 3, 5).log_softmax(-1)
    exact = categorical_kl(policy, ref)
    for kind in ("k1", "k3"):
        on_policy = (policy.exp() * kl_estimate(policy, ref, kind)).sum()
        torch.testing.assert_close(on_policy, exact)
        off_policy = (old.exp() * kl_estimate(policy, ref, kind, old_log_probs=old)).sum()
        torch.testing.assert_close(off_policy, exact)
    assert (kl_estimate(policy, ref, "k2") >= 0).all()
    assert (kl_estimate(policy, ref, "k3") >= 0).all()


@FAST
@given(SEEDS)
def test_expected_gradients_on_policy_without_the_ratio(seed: int):
    policy, ref = logits(seed, 2, 4)
    policy.requires_grad_()
    reverse = gradient_of(categorical_kl(policy, ref), policy)
    forward = gradient_of(categorical_kl(ref, policy), policy)
    torch.testing.assert_close(expected_gradient(policy, ref, "k1", None), torch.zeros_like(reverse))
    torch.testing.assert_close(expected_gradient(policy, ref, "k2", None), reverse)
    torch.testing.assert_close(expected_gradient(policy, ref, "k3", None), forward)


@FAST
@given(SEEDS, st.booleans())
def test_expected_gradients_with_the_ratio_at_and_away_from_the_old_policy(seed: int, on_policy: bool):
    policy, ref, other = logits(seed, 3, 4)
    policy.requires_grad_()
    old = policy.detach() if on_policy else other
    reverse = gradient_of(categorical_kl(policy, ref), policy)
    for kind in ("k1", "k3"):
        torch.testing.assert_close(expected_gradient(policy, ref, kind, old), reverse)
    log_probs = policy.log_softmax(-1)
    squares = (log_probs.exp() * 0.5 * (log_probs - ref.log_softmax(-1)).square()).sum()
    torch.testing.assert_close(expected_gradient(policy, ref, "k2", old), gradient_of(squares, policy))


def test_estimates_are_exact_near_the_reference_in_single_precision():
    gap = 1e-4
    estimate = kl_estimate(torch.tensor([gap - 1.0]), torch.tensor([-1.0]), "k3")
    assert 0.4 * gap**2 < estimate.item() < 0.6 * gap**2
    same = torch.tensor([-3.0])
    assert all(kl_estimate(same, same, kind).item() == 0.0 for kind in ("k1", "k2", "k3"))


def test_log_ratios_are_clamped_before_exp():
    log_probs = torch.tensor([-200.0, -19.0], requires_grad=True)
    estimates = kl_estimate(log_probs, torch.zeros(2), "k3")
    torch.testing.assert_close(estimates, torch.tensor([math.exp(20) - 21, math.exp(19) - 20]))
    (gradient,) = torch.autograd.grad(estimates.sum(), log_probs)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 1 - math.exp(19)]))
    weighted = kl_estimate(torch.zeros(1), torch.tensor([-1.0]), "k1", old_log_probs=torch.tensor([-500.0]))
    torch.testing.assert_close(weighted, torch.tensor([math.exp(20)]))


def test_the_old_policy_is_a_constant():
    policy, ref, old = (x.requires_grad_() for x in logits(0, 3, 4))
    loss = kl_estimate(policy, ref, "k3", old_log_probs=old).sum()
    gradients = torch.autograd.grad(loss, (policy, old), allow_unused=True)
    assert gradients[0] is not None
    assert gradients[1] is None


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
def test_gradients_of_the_estimates(kind: str):
    policy, ref, old = logits(1, 3, 2, 3)
    policy.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, ref, kind), (policy,))
    assert torch.autograd.gradcheck(lambda x: kl_estimate(x, ref, kind, old_log_probs=old), (policy,))


@FAST
@given(SEEDS)
def test_categorical_divergences_equal_the_written_out_sums(seed: int):
    p_logits, q_logits = logits(seed, 2, 2, 3, 4)
    divergences, cross_entropies = categorical_kl(p_logits, q_logits), cross_entropy(p_logits, q_logits)
    for s in range(2):
        for b in range(3):
            p, q = p_logits[s, b].softmax(-1).tolist(), q_logits[s, b].softmax(-1).tolist()
            kl = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
            entropy = -sum(x * math.log(x) for x in p)
            assert divergences[s, b].item() == pytest.approx(kl)
            assert cross_entropies[s, b].item() == pytest.approx(entropy + kl)


@FAST
@given(SEEDS, st.floats(-50.0, 50.0))
def test_categorical_identities(seed: int, shift: float):
    p, q = logits(seed, 2, 3, 5)
    kl = categorical_kl(p, q)
    assert (kl >= 0).all()
    torch.testing.assert_close(categorical_kl(p, p), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(categorical_kl(p + shift, q - shift), kl)
    torch.testing.assert_close(cross_entropy(p, q) - cross_entropy(p, p), kl)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(categorical_kl(p[:, order], q[:, order]), kl)
    torch.testing.assert_close(categorical_kl(p.float(), q.float()), kl.float(), rtol=1e-4, atol=1e-5)


def test_excluded_actions_add_nothing_and_have_no_gradient():
    p, q = logits(2, 2, 4)
    excluded = torch.tensor([False, True, False, False])
    p_masked = p.masked_fill(excluded, -torch.inf).requires_grad_()
    q_masked = q.masked_fill(excluded, -torch.inf).requires_grad_()
    for function in (categorical_kl, cross_entropy):
        value = function(p_masked, q_masked)
        torch.testing.assert_close(value, function(p[~excluded], q[~excluded]))
        for gradient in torch.autograd.grad(value, (p_masked, q_masked)):
            assert gradient.isfinite().all()
            assert gradient[1] == 0
    assert categorical_kl(p, q_masked).item() == math.inf
    assert categorical_kl(p_masked, q).isfinite()


def test_gradients_of_the_exact_divergences():
    p, q = (x.requires_grad_() for x in logits(3, 2, 2, 3))
    for function in (categorical_kl, cross_entropy):
        assert torch.autograd.gradcheck(function, (p, q))
        assert torch.autograd.gradgradcheck(function, (p, q))
    means_and_log_stds = tuple(x.requires_grad_() for x in logits(4, 4, 2, 3))
    assert torch.autograd.gradcheck(gaussian_kl, means_and_log_stds)
    assert torch.autograd.gradgradcheck(gaussian_kl, means_and_log_stds)


def test_gaussian_kl_worked_by_hand():
    zero, one = torch.zeros(1), torch.ones(1)
    assert gaussian_kl(one, zero, zero, zero).item() == pytest.approx(0.5)
    log_two = torch.full((1,), math.log(2))
    assert gaussian_kl(zero, log_two, zero, zero).item() == pytest.approx(0.5 * (4 - 1) - math.log(2))
    assert gaussian_kl(zero, zero, zero, log_two).item() == pytest.approx(math.log(2) + 1 / 8 - 0.5)


@FAST
@given(SEEDS)
def test_gaussian_kl_equals_the_reference_and_broadcasts(seed: int):
    mean_p, mean_q = logits(seed, 2, 2, 3, 4)
    log_std_p, log_std_q = logits(seed + 1, 2, 4)
    p = torch.distributions.Normal(mean_p, log_std_p.exp().expand_as(mean_p))
    q = torch.distributions.Normal(mean_q, log_std_q.exp().expand_as(mean_q))
    actual = gaussian_kl(mean_p, log_std_p, mean_q, log_std_q)
    torch.testing.assert_close(actual, torch.distributions.kl_divergence(p, q).sum(-1))
    torch.testing.assert_close(gaussian_kl(mean_p[0, 0], log_std_p, mean_q[0, 0], log_std_q), actual[0, 0])
    per_seed = torch.stack([log_std_p, log_std_q])[:, None]
    assert gaussian_kl(mean_p, per_seed, mean_q, log_std_q).shape == (2, 3)
    assert (gaussian_kl(mean_p, log_std_p, mean_p, log_std_p) == 0).all()


def test_adapt_penalty_doubles_and_halves():
    assert adapt_penalty(3.0, 0.0155, target=0.01) == 6.0
    assert adapt_penalty(3.0, 0.006, target=0.01) == 1.5
    assert adapt_penalty(3.0, 0.01, target=0.01) == 3.0
    assert adapt_penalty(3.0, 0.0145, target=0.01) == 3.0
    adapted = adapt_penalty(torch.tensor([3.0, 3.0, 3.0]), torch.tensor([0.02, 0.001, 0.01]), target=0.01)
    assert adapted.tolist() == [6.0, 1.5, 3.0]


def test_adapt_horizon_is_proportional_and_clipped():
    options = {"target": 6.0, "horizon": 10_000, "n": 256}
    assert adapt_horizon(0.2, 6.6, **options) == pytest.approx(0.2 * (1 + 0.1 * 0.0256))
    assert adapt_horizon(0.2, 60.0, **options) == pytest.approx(0.2 * (1 + 0.2 * 0.0256))
    assert adapt_horizon(0.2, 0.0, **options) == pytest.approx(0.2 * (1 - 0.2 * 0.0256))
    kl = torch.tensor([6.6, 60.0, 0.0, 6.0])
    adapted = adapt_horizon(torch.full((4,), 0.2), kl, **options)
    expected = [adapt_horizon(0.2, value, **options) for value in kl.tolist()]
    torch.testing.assert_close(adapted, torch.tensor(expected))


def test_bad_input_is_named():
    log_probs = torch.zeros(3)
    with pytest.raises(ValueError, match=r"target is 0\.0, expected a positive number"):
        adapt_penalty(1.0, 1.0, target=0.0)
    with pytest.raises(ValueError, match="horizon is 0"):
        adapt_horizon(1.0, 1.0, target=1.0, horizon=0, n=1)
    with pytest.raises(ValueError, match="horizon is 10, expected more than n / 5 = 10"):
        adapt_horizon(1.0, 0.0, target=1.0, horizon=10, n=50)
    unchecked = inspect.unwrap(kl_estimate)
    with pytest.raises(ValueError, match="kind is 'k4', expected 'k1', 'k2' or 'k3'"):
        unchecked(log_probs, log_probs, "k4")
    with pytest.raises(ValueError, match=r"ref_log_probs has shape \(3, 1\), expected \(3,\)"):
        unchecked(log_probs, log_probs[:, None], "k1")
    with pytest.raises(ValueError, match=r"old_log_probs has shape \(2,\), expected \(3,\)"):
        unchecked(log_probs, log_probs, "k1", old_log_probs=torch.zeros(2))


def test_balanced_kl_by_hand():
    """KL of (3/4, 1/4) to (1/2, 1/2) is 0.75 log 1.5 + 0.25 log 0.5 = 0.1308, and twice that of two such variables."""
    posterior = torch.tensor([[0.75, 0.25]] * 2, dtype=torch.float64).log()
    prior = torch.zeros(2, 2, dtype=torch.float64)
    expected = 2 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    for side in balanced_kl(posterior, prior, free=0.1):
        assert side.item() == pytest.approx(expected)
    for side in balanced_kl(posterior, prior, free=1.0):
        assert side.item() == 1.0


@FAST
@given(SEEDS)
def test_balanced_kl_against_a_loop(seed):
    posterior, prior = logits(seed, 3, 2, 4), logits(seed + 1, 3, 2, 4)
    for side in balanced_kl(posterior, prior, free=0.7):
        for row, found in enumerate(side.tolist()):
            total = 0.0
            for p, q in zip(posterior[row].softmax(-1).tolist(), prior[row].softmax(-1).tolist(), strict=True):
                total += sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
            assert found == pytest.approx(max(total, 0.7))


def test_each_side_of_a_balanced_kl_moves_its_own_distribution():
    posterior, prior = logits(0, 3, 2, 4).requires_grad_(), logits(1, 3, 2, 4).requires_grad_()
    dynamics, representation = balanced_kl(posterior, prior, free=0.0)
    assert torch.autograd.grad(dynamics.sum(), posterior, allow_unused=True, retain_graph=True)[0] is None
    assert torch.autograd.grad(representation.sum(), prior, allow_unused=True, retain_graph=True)[0] is None
    (towards,) = torch.autograd.grad(dynamics.sum(), prior)
    torch.testing.assert_close(towards, prior.softmax(-1) - posterior.softmax(-1))
    (whole,) = torch.autograd.grad(categorical_kl(posterior, prior).sum(), posterior, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(representation.sum(), posterior)[0], whole)


def test_free_nats_have_no_gradient():
    posterior, prior = logits(0, 3, 2, 4).requires_grad_(), logits(1, 3, 2, 4).requires_grad_()
    dynamics, representation = balanced_kl(posterior, prior, free=1e3)
    for gradient in torch.autograd.grad((dynamics + representation).sum(), (posterior, prior)):
        assert (gradient == 0).all()
    with pytest.raises(ValueError, match=r"free is -1.0, expected at least 0 nats"):
        balanced_kl(posterior, prior, free=-1.0)
