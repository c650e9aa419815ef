import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.ops.kl import categorical_kl
from operant.ops.policy import (
    approximate_kl,
    cispo,
    clip_fraction,
    clipped_surrogate,
    mismatch_mask,
    penalized_surrogate,
    policy_gradient,
    sequence_log_ratio,
    sequence_weights,
    surrogate,
    truncated_weights,
)

FAST = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**31)
CLIP = {"clip_low": 0.2, "clip_high": 0.3}


def batch(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Return new and old log-probabilities, some ratios far outside any range, and advantages of both signs."""
    generator = torch.Generator().manual_seed(seed)
    steps, old, advantages = torch.randn(3, *shape, generator=generator, dtype=dtype)
    return old + 0.7 * steps, old, advantages


def gradient(losses: Tensor, log_probs: Tensor) -> Tensor:
    return torch.autograd.grad(losses.sum(), log_probs)[0]


def test_policy_gradient_is_minus_psi_log_prob():
    log_probs, psi = torch.tensor([-1.0, -2.0], requires_grad=True), torch.tensor([3.0, -4.0], requires_grad=True)
    losses = policy_gradient(log_probs, psi)
    assert losses.tolist() == [3.0, -8.0]
    losses.sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [-3.0, 4.0]
    assert psi.grad is None


@FAST
@given(SEEDS, st.floats(-5.0, 5.0))
def test_expected_policy_gradient_is_that_of_the_return_with_any_baseline(seed: int, baseline: float):
    generator = torch.Generator().manual_seed(seed)
    logits, action_values = torch.randn(2, 4, generator=generator, dtype=torch.float64)
    logits.requires_grad_()
    probs = logits.softmax(-1)
    loss = (probs.detach() * policy_gradient(logits.log_softmax(-1), action_values - baseline)).sum()
    expected = gradient(-(probs * action_values), logits)
    torch.testing.assert_close(gradient(loss, logits), expected)


def test_clipped_surrogate_worked_by_hand():
    rho = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.1, 5.0], dtype=torch.float64)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0, -2.0], dtype=torch.float64)
    old = torch.zeros_like(rho)
    losses = clipped_surrogate(rho.log(), old, advantages, clip_low=0.2, clip_high=0.2)
    torch.testing.assert_close(losses, torch.tensor([-1.2, 1.5, -0.5, 0.8, -2.2, 10.0], dtype=torch.float64))
    bounded = clipped_surrogate(rho.log(), old, advantages, clip_low=0.2, clip_high=0.2, dual_clip=3.0)
    torch.testing.assert_close(bounded, torch.tensor([-1.2, 1.5, -0.5, 0.8, -2.2, 6.0], dtype=torch.float64))


@FAST
@given(SEEDS, st.floats(0.01, 1.0), st.floats(0.01, 2.0), st.floats(1.01, 4.0))
def test_clipped_surrogate_equals_the_scalar_formula(seed: int, low: float, high: float, dual: float):
    new, old, advantages = batch(seed, 12)
    expected: list[float] = []
    dual_expected: list[float] = []
    for log_ratio, advantage in zip((new - old).tolist(), advantages.tolist(), strict=True):
        rho = math.exp(log_ratio)
        objective = min(rho * advantage, min(max(rho, 1 - low), 1 + high) * advantage)
        by_sign = min(rho * advantage, (1 + high if advantage > 0 else 1 - low) * advantage)
        assert objective == pytest.approx(by_sign)
        expected.append(-objective)
        dual_expected.append(-(max(objective, dual * advantage) if advantage < 0 else objective))
    losses = clipped_surrogate(new, old, advantages, clip_low=low, clip_high=high)
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))
    bounded = clipped_surrogate(new, old, advantages, clip_low=low, clip_high=high, dual_clip=dual)
    torch.testing.assert_close(bounded, torch.tensor(dual_expected, dtype=torch.float64))


@FAST
@given(SEEDS)
def test_the_clip_stops_the_gradient_on_the_side_of_the_advantage_only(seed: int):
    new, old, advantages = batch(seed, 40)
    new.requires_grad_()
    rho = (new - old).exp()
    stopped = ((advantages > 0) & (rho > 1.3)) | ((advantages < 0) & (rho < 0.8))
    expected = torch.where(stopped, 0.0, -rho * advantages)
    actual = gradient(clipped_surrogate(new, old, advantages, **CLIP), new)
    torch.testing.assert_close(actual, expected)
    stopped |= (advantages < 0) & (rho > 2.0)
    actual = gradient(clipped_surrogate(new, old, advantages, **CLIP, dual_clip=2.0), new)
    torch.testing.assert_close(actual, torch.where(stopped, 0.0, expected))


@FAST
@given(SEEDS)
def test_the_clipped_objective_is_a_lower_bound(seed: int):
    new, old, advantages = batch(seed, 20)
    unclipped, clipped = surrogate(new, old, advantages), clipped_surrogate(new, old, advantages, **CLIP)
    torch.testing.assert_close(unclipped, -(new - old).exp() * advantages)
    assert (clipped >= unclipped).all()
    assert (clipped_surrogate(new, old, advantages, **CLIP, dual_clip=1.5) <= clipped).all()


@FAST
@given(SEEDS)
def test_at_ratio_one_every_surrogate_has_the_gradient_of_reinforce(seed: int):
    log_probs, _, advantages = batch(seed, 10)
    log_probs.requires_grad_()
    expected = gradient(policy_gradient(log_probs, advantages), log_probs)
    kl = torch.zeros_like(advantages)
    for losses in (
        surrogate(log_probs, log_probs, advantages),
        clipped_surrogate(log_probs, log_probs, advantages, **CLIP),
        clipped_surrogate(log_probs, log_probs, advantages, **CLIP, dual_clip=3.0),
        penalized_surrogate(log_probs, log_probs, advantages, kl, beta=2.0),
    ):
        torch.testing.assert_close(losses, -advantages)
        torch.testing.assert_close(gradient(losses, log_probs), expected)


def test_advantages_and_old_log_probs_are_constants():
    inputs = [tensor.requires_grad_() for tensor in batch(0, 5)]
    for losses in (surrogate(*inputs), clipped_surrogate(*inputs, **CLIP, dual_clip=3.0)):
        gradients = torch.autograd.grad(losses.sum(), inputs, allow_unused=True)
        assert [g is not None for g in gradients] == [True, False, False]


def test_a_zero_advantage_gives_a_zero_loss_and_gradient():
    new, old, _ = batch(1, 8)
    new.requires_grad_()
    losses = clipped_surrogate(new, old, torch.zeros_like(old), **CLIP, dual_clip=3.0)
    assert (losses == 0).all()
    assert (gradient(losses, new) == 0).all()


def test_penalized_surrogate_weighs_each_seed_by_its_own_beta():
    new, old, advantages = batch(2, 3, 4)
    kl = torch.rand(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64, requires_grad=True)
    beta = torch.tensor([[0.0], [0.5], [2.0]], dtype=torch.float64)
    losses = penalized_surrogate(new, old, advantages, kl, beta=beta)
    torch.testing.assert_close(losses, surrogate(new, old, advantages) + beta * kl)
    torch.testing.assert_close(gradient(losses, kl), beta.expand(3, 4))
    torch.testing.assert_close(penalized_surrogate(new, old, advantages, kl, beta=0.5)[1], losses[1])


def test_gradients():
    new, old, advantages = batch(3, 12)
    new.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda log_probs: clipped_surrogate(log_probs, old, advantages, **CLIP, dual_clip=3.0), (new,)
    )


def test_truncated_weights_cap_the_ratio_and_carry_no_gradient():
    log_probs = torch.tensor([0.5, 2.0, 4.0], dtype=torch.float64).log().requires_grad_()
    behavior = torch.zeros(3, dtype=torch.float64)
    weights = truncated_weights(log_probs, behavior, cap=2.5)
    torch.testing.assert_close(weights, torch.tensor([0.5, 2.0, 2.5], dtype=torch.float64))
    assert not weights.requires_grad
    far = truncated_weights(torch.tensor([1000.0]), torch.tensor([0.0]), cap=2.0)
    assert far.tolist() == [2.0]


def test_sequence_log_ratio_worked_by_hand():
    log_probs = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    old = torch.tensor([-2.0, -5.0, -3.5])
    log_ratio = sequence_log_ratio(log_probs, old, torch.tensor([0, 0, 2]), 3)
    assert log_ratio.tolist() == [2.0, 2.0, 0.5]
    (log_ratio * torch.tensor([1.0, 10.0, 100.0])).sum().backward()
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [1.0, 10.0, 100.0]


@FAST
@given(SEEDS)
def test_sequence_log_ratio_has_the_gradient_of_the_sequence_ratio(seed: int):
    new, old, _ = batch(seed, 10)
    new.requires_grad_()
    generator = torch.Generator().manual_seed(seed)
    segments = torch.randint(4, (10,), generator=generator)
    of_sequence = torch.randn(4, generator=generator, dtype=torch.float64)
    weights, expected = torch.zeros(10, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for i in range(4):  # the objective of GSPO, equation 5: one ratio per sequence, with its gradient
        here = segments == i
        if here.any():
            ratio = (new - old)[here].mean().exp()
            advantage = of_sequence[i]
            expected = expected - torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.3) * advantage)
            weights[here] = 1.0 / here.sum()
    log_ratio = sequence_log_ratio(new, old, segments, 4)
    losses = clipped_surrogate(log_ratio, torch.zeros_like(old), of_sequence[segments], **CLIP)
    actual = (weights * losses).sum()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(gradient(actual, new), gradient(expected, new))


@FAST
@given(SEEDS)
def test_sequence_log_ratio_does_not_depend_on_the_order_and_is_the_token_ratio_of_single_tokens(seed: int):
    new, old, _ = batch(seed, 10)
    generator = torch.Generator().manual_seed(seed)
    segments, order = torch.randint(4, (10,), generator=generator), torch.randperm(10, generator=generator)
    log_ratio = sequence_log_ratio(new, old, segments, 4)
    torch.testing.assert_close(sequence_log_ratio(new[order], old[order], segments[order], 4), log_ratio[order])
    torch.testing.assert_close(sequence_log_ratio(new, old, order, 10), new - old)
    assert (sequence_log_ratio(new, new, segments, 4) == 0).all()
    assert sequence_log_ratio(new[:0], old[:0], segments[:0], 2).shape == (0,)


def test_cispo_worked_by_hand():
    log_probs = torch.tensor([0.5, 0.2, 0.9], dtype=torch.float64).log().requires_grad_()
    old = torch.tensor([0.25, 0.4, 0.1], dtype=torch.float64).log()  # ratios 2, 1/2 and 9
    losses = cispo(log_probs, old, torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64), cap=5.0)
    expected = [-2.0 * math.log(0.5), 1.0 * math.log(0.2), -15.0 * math.log(0.9)]
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))
    torch.testing.assert_close(gradient(losses, log_probs), torch.tensor([-2.0, 1.0, -15.0], dtype=torch.float64))
    bounded = cispo(log_probs, old, torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64), cap=5.0, floor=0.8)
    torch.testing.assert_close(gradient(bounded, log_probs), torch.tensor([-2.0, 1.6, -15.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="floor is 6"):
        cispo(log_probs, old, old, cap=5.0, floor=6.0)


@FAST
@given(SEEDS, st.floats(0.1, 5.0))
def test_cispo_has_the_gradient_of_the_surrogate_up_to_the_cap_and_keeps_one_beyond(seed: int, cap: float):
    new, old, advantages = batch(seed, 3, 7)
    new.requires_grad_()
    actual = gradient(cispo(new, old, advantages, cap=cap), new)
    uncapped = gradient(surrogate(new, old, advantages), new)
    rho = (new - old).exp()
    torch.testing.assert_close(actual, torch.where(rho < cap, uncapped, -cap * advantages))
    torch.testing.assert_close(cispo(new, old, advantages, cap=cap)[1], cispo(new[1], old[1], advantages[1], cap=cap))
    on_policy = gradient(cispo(new, new, advantages, cap=1.0), new)
    torch.testing.assert_close(on_policy, gradient(policy_gradient(new, advantages), new))


def test_mismatch_mask_worked_by_hand():
    log_probs = torch.tensor([0.4, 0.5, 1.0, 2.0, 2.1], dtype=torch.float64).log().requires_grad_()
    mask = mismatch_mask(log_probs, torch.zeros(5, dtype=torch.float64), low=0.5, high=2.0)
    assert mask.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]
    assert not mask.requires_grad


@FAST
@given(SEEDS, st.floats(0.0, 1.0), st.floats(1.0, 4.0))
def test_mismatch_mask_equals_the_scalar_rule_and_turns_round_with_the_policies(seed: int, low: float, high: float):
    new, old, _ = batch(seed, 2, 8)
    mask = mismatch_mask(new, old, low=low, high=high)
    expected = [[float(low <= math.exp(x) <= high) for x in row] for row in (new - old).tolist()]
    assert mask.tolist() == expected
    assert (mismatch_mask(new, new, low=low, high=high) == 1).all()
    wide = mismatch_mask(new, old, low=0.0, high=math.inf)
    assert (wide == 1).all()
    if low > 0:
        assert torch.equal(mismatch_mask(old, new, low=1 / high, high=1 / low), mask)


def test_sequence_weights_worked_by_hand():
    log_probs = torch.tensor([0.5, 0.4, 2.0, 1.5, 4.0], dtype=torch.float64).log().requires_grad_()
    behavior, segments = torch.zeros(5, dtype=torch.float64), torch.tensor([0, 0, 2, 2, 3])
    for mask, over in ((False, 3.5), (True, 0.0)):
        weights = sequence_weights(log_probs, behavior, segments, 4, cap=3.5, mask=mask)
        torch.testing.assert_close(weights, torch.tensor([0.2, 0.2, 3.0, 3.0, over], dtype=torch.float64))
        assert not weights.requires_grad
    huge = sequence_weights(torch.tensor([99.0, 99.0]), torch.zeros(2), torch.tensor([0, 1]), 2, cap=3.0, mask=True)
    assert huge.tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"cap is 0.0, expected a positive number"):
        sequence_weights(log_probs, behavior, segments, 4, cap=0.0, mask=True)


@FAST
@given(SEEDS)
def test_sequence_weights_make_the_gradient_of_whole_answers_unbiased(seed: int):
    """Σ_y μ(y) w(y) f(y) = Σ_y π(y) f(y) over all answers of two tokens out of three, while no ratio is capped."""
    generator = torch.Generator().manual_seed(seed)
    pi, mu = torch.randn(2, 2, 3, generator=generator, dtype=torch.float64).log_softmax(-1)
    answers = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    new, old = (rows[torch.arange(2), answers].flatten() for rows in (pi, mu))
    owner = torch.arange(9).repeat_interleave(2)
    weights = sequence_weights(new, old, owner, 9, cap=math.inf, mask=True).view(9, 2)[:, 0]
    values = torch.randn(9, generator=generator, dtype=torch.float64)
    chance, own = (rows.view(9, 2).sum(1).exp() for rows in (old, new))
    torch.testing.assert_close((chance * weights * values).sum(), (own * values).sum())


def test_clip_fraction_counts_ratios_outside_the_range():
    old = torch.zeros(2, 4)
    rho = torch.tensor([[1.0, 1.29, 1.31, 0.79], [0.81, 1.0, 1.1, 3.0]])
    assert clip_fraction(rho.log(), old, **CLIP).tolist() == [0.5, 0.25]
    mask = torch.tensor([[1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(clip_fraction(rho.log(), old, **CLIP, weights=mask), torch.tensor([1 / 3, 0.0]))
    assert clip_fraction(rho.log(), old, clip_low=1.0, clip_high=0.3).tolist() == [0.25, 0.25]


@FAST
@given(SEEDS)
def test_approximate_kl_has_the_mean_kl_of_old_to_new(seed: int):
    new_logits, old_logits, _ = batch(seed, 3, 5)
    new, old = new_logits.log_softmax(-1), old_logits.log_softmax(-1)
    expected = categorical_kl(old_logits, new_logits)
    torch.testing.assert_close(approximate_kl(new, old, weights=old.exp()), expected)
    per_sample = torch.stack([approximate_kl(new[:, i : i + 1], old[:, i : i + 1]) for i in range(5)], -1)
    assert (per_sample >= 0).all()
    torch.testing.assert_close(approximate_kl(new, old), per_sample.mean(-1))


def test_diagnostics_ignore_what_has_no_weight_and_carry_no_gradient():
    new, old, _ = batch(4, 6)
    new.requires_grad_()
    counts = torch.arange(6) != 2
    for function, extra in ((approximate_kl, {}), (clip_fraction, CLIP)):
        value = function(new, old, **extra, weights=counts.double())
        torch.testing.assert_close(value, function(new[counts], old[counts], **extra))
        assert not value.requires_grad


@FAST
@given(SEEDS)
def test_elements_are_independent_in_any_shape_order_and_precision(seed: int):
    new, old, advantages = batch(seed, 2, 6)
    losses = clipped_surrogate(new, old, advantages, **CLIP, dual_clip=3.0)
    flat = clipped_surrogate(new.flatten(), old.flatten(), advantages.flatten(), **CLIP, dual_clip=3.0)
    assert torch.equal(losses.flatten(), flat)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    shuffled = clipped_surrogate(new[:, order], old[:, order], advantages[:, order], **CLIP, dual_clip=3.0)
    assert torch.equal(losses[:, order], shuffled)
    single = clipped_surrogate(new.float(), old.float(), advantages.float(), **CLIP, dual_clip=3.0)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, losses.float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": 0.0, "clip_high": 0.2}, "clip_low is 0.0"),
        ({"clip_low": 1.2, "clip_high": 0.2}, "clip_low is 1.2"),
        ({"clip_low": 0.2, "clip_high": -0.2}, "clip_high is -0.2"),
        ({"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 1.0}, "dual_clip is 1.0, expected a number above 1"),
    ],
)
def test_clip_ranges_are_checked(options: dict[str, float], message: str):
    with pytest.raises(ValueError, match=message):
        clipped_surrogate(*batch(0, 3), **options)


def test_bad_input_is_named():
    new, old, advantages = batch(0, 3)
    with pytest.raises(ValueError, match=r"cap is 0\.0, expected a positive number"):
        truncated_weights(new, old, cap=0.0)
    with pytest.raises(ValueError, match=r"low is 2\.0 and high is 0\.5, expected 0 <= low <= high"):
        mismatch_mask(new, old, low=2.0, high=0.5)
    with pytest.raises(ValueError, match=r"segments has shape \(2,\), expected \(3,\)"):
        inspect.unwrap(sequence_log_ratio)(new, old, torch.zeros(2, dtype=torch.int64), 1)
    for function, extra in ((surrogate, {}), (clipped_surrogate, CLIP), (cispo, {"cap": 2.0})):
        with pytest.raises(ValueError, match=r"advantages has shape \(3, 1\), expected \(3,\)"):
            inspect.unwrap(function)(new, old, advantages[:, None], **extra)
