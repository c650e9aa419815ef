import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.ops.distributions import categorical_entropy
from operant.ops.off_policy import perturbed_action, soft_value, temperature_loss
from operant.ops.value import soft_q

FAST = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**31)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# soft_value


def test_soft_value_worked_by_hand():
    q, log_probs = torch.tensor([1.0, 3.0]), torch.tensor([0.25, 0.75]).log()
    expected = 0.25 * (1 - 0.5 * math.log(0.25)) + 0.75 * (3 - 0.5 * math.log(0.75))
    torch.testing.assert_close(soft_value(q, log_probs, alpha=0.5), torch.tensor(expected))


@FAST
@given(SEEDS)
def test_soft_value_is_the_sum_over_actions(seed: int):
    q, logits = randn(seed, 2, 3, 4, 5)
    log_probs, alpha = logits.log_softmax(-1), randn(seed + 1, 3, 1, 1).exp()
    actual = soft_value(q, log_probs, alpha=alpha)
    for i in range(3):
        for j in range(4):
            total = 0.0
            for a in range(5):
                p = math.exp(log_probs[i, j, a])
                total += p * (float(q[i, j, a]) - float(alpha[i, 0, 0]) * math.log(p))
            assert actual[i, j].item() == pytest.approx(total)


@FAST
@given(SEEDS)
def test_soft_value_is_a_mean_of_soft_q_and_the_value_plus_entropy(seed: int):
    q, logits = randn(seed, 2, 3, 5)
    log_probs = logits.log_softmax(-1)
    mean = (log_probs.exp() * soft_q(q, log_probs, alpha=0.3)).sum(-1)
    torch.testing.assert_close(soft_value(q, log_probs, alpha=0.3), mean)
    plain = soft_value(q, log_probs, alpha=0.0)
    torch.testing.assert_close(plain, (log_probs.exp() * q).sum(-1))
    torch.testing.assert_close(mean, plain + 0.3 * categorical_entropy(logits))


@FAST
@given(SEEDS, st.floats(0.1, 3.0))
def test_no_policy_has_a_higher_soft_value_than_the_softmax(seed: int, alpha: float):
    q, logits = randn(seed, 2, 5)
    best = soft_value(q, (q / alpha).log_softmax(-1), alpha=alpha)
    torch.testing.assert_close(best, alpha * (q / alpha).logsumexp(-1))
    assert soft_value(q, logits.log_softmax(-1), alpha=alpha) <= best + 1e-12


@FAST
@given(SEEDS)
def test_soft_value_knows_no_order_of_actions_and_shifts_with_q(seed: int):
    q, logits = randn(seed, 2, 3, 5)
    log_probs = logits.log_softmax(-1)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    value = soft_value(q, log_probs, alpha=0.2)
    torch.testing.assert_close(soft_value(q[:, order], log_probs[:, order], alpha=0.2), value)
    torch.testing.assert_close(soft_value(q + 2.0, log_probs, alpha=0.2), value + 2.0)


def test_an_action_that_is_not_allowed_has_no_part_in_value_and_gradient():
    logits = torch.tensor([0.3, -torch.inf, -0.2], requires_grad=True)
    value = soft_value(torch.tensor([1.0, torch.nan, 2.0]), logits.log_softmax(-1), alpha=0.5)
    allowed = soft_value(torch.tensor([1.0, 2.0]), torch.tensor([0.3, -0.2]).log_softmax(-1), alpha=0.5)
    torch.testing.assert_close(value, allowed)
    value.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert logits.grad[1] == 0


def test_soft_value_rejects_other_shapes():
    with pytest.raises(ValueError, match=r"log_probs has shape \(3,\), expected \(2,\) as q"):
        inspect.unwrap(soft_value)(torch.zeros(2), torch.zeros(3), alpha=1.0)


# temperature_loss


def test_temperature_loss_worked_by_hand():
    log_alpha = torch.tensor(math.log(0.5), requires_grad=True)
    loss = temperature_loss(log_alpha, torch.tensor([-1.0, 3.0]), target_entropy=-2.0)
    torch.testing.assert_close(loss, torch.tensor([1.5, -0.5]))


@FAST
@given(SEEDS)
def test_temperature_loss_has_the_gradient_of_the_paper_and_leaves_the_policy_alone(seed: int):
    log_alpha = randn(seed, 3, 1).requires_grad_()
    log_probs = randn(seed + 1, 3, 7).requires_grad_()
    temperature_loss(log_alpha, log_probs, target_entropy=-1.5).sum().backward()
    assert log_probs.grad is None
    for s in range(3):
        slow = sum(-math.exp(log_alpha[s, 0].item()) * (p.item() - 1.5) for p in log_probs[s])
        assert log_alpha.grad[s, 0].item() == pytest.approx(slow)


@pytest.mark.parametrize(("entropy", "sign"), [(0.5, -1), (1.5, 1), (1.0, 0)])
def test_a_policy_of_too_little_entropy_raises_the_temperature(entropy, sign):
    log_alpha = torch.zeros(1, requires_grad=True)
    temperature_loss(log_alpha, torch.full((4,), -entropy), target_entropy=1.0).mean().backward()
    assert log_alpha.grad is not None
    assert log_alpha.grad.sign().item() == sign


@FAST
@given(SEEDS)
def test_temperature_loss_is_per_element(seed: int):
    log_alpha, log_probs = randn(seed, 1), randn(seed + 1, 6)
    order = torch.randperm(6, generator=torch.Generator().manual_seed(seed))
    whole = temperature_loss(log_alpha, log_probs, target_entropy=0.5)
    assert torch.equal(temperature_loss(log_alpha, log_probs[order], target_entropy=0.5), whole[order])


# perturbed_action


def test_perturbed_action_clips_the_noise_and_then_the_action():
    actions, noise = torch.tensor([0.0, 0.0, 0.9, -0.9]), torch.tensor([1.0, 5.0, 5.0, -1.0])
    got = perturbed_action(actions, noise, std=0.2, clip=0.5)
    torch.testing.assert_close(got, torch.tensor([0.2, 0.5, 1.0, -1.0]))


@FAST
@given(SEEDS, st.floats(0.0, 2.0), st.one_of(st.none(), st.floats(0.0, 2.0)))
def test_perturbed_action_is_the_rule_for_each_number(seed: int, std: float, clip: float | None):
    actions, noise = randn(seed, 2, 3, 4).clamp(-1, 1)
    got = perturbed_action(actions, noise, std=std, clip=clip)
    for a, e, g in zip(actions.flatten().tolist(), noise.flatten().tolist(), got.flatten().tolist(), strict=True):
        shift = std * e if clip is None else max(-clip, min(clip, std * e))
        assert g == pytest.approx(max(-1.0, min(1.0, a + shift)))


@FAST
@given(SEEDS)
def test_nothing_is_perturbed_by_no_noise_and_signs_are_treated_alike(seed: int):
    actions, noise = randn(seed, 2, 5).clamp(-1, 1)
    assert torch.equal(perturbed_action(actions, noise, std=0.0), actions)
    assert torch.equal(perturbed_action(actions, noise, std=0.3, clip=0.0), actions)
    forth = perturbed_action(actions, noise, std=0.3, clip=0.2)
    assert torch.equal(perturbed_action(-actions, -noise, std=0.3, clip=0.2), -forth)
    wide = perturbed_action(actions, noise, std=0.3, clip=1e9)
    assert torch.equal(wide, perturbed_action(actions, noise, std=0.3))


def test_perturbed_action_rejects_invalid_values():
    with pytest.raises(ValueError, match=r"clip is -0\.1, expected a number of at least 0"):
        perturbed_action(torch.zeros(2), torch.zeros(2), std=0.1, clip=-0.1)
    with pytest.raises(ValueError, match=r"noise has shape \(3,\), expected \(2,\) as actions"):
        inspect.unwrap(perturbed_action)(torch.zeros(2), torch.zeros(3), std=0.1)
