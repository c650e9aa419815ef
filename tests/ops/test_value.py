import inspect
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.ops.returns import n_step_returns
from operant.ops.value import (
    clipped_double_q,
    clipped_value_loss,
    double_q,
    dueling,
    huber_loss,
    importance_weights,
    potential_shaping,
    q_target,
    return_range,
    scaled_q_target,
    soft_q,
    value_loss,
)

FAST = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**31)


def randn(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_q_target_worked_by_hand():
    reward, next_q = torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0], requires_grad=True)
    target = q_target(reward, next_q, terminated=torch.tensor([False, True]), gamma=0.5)
    assert target.tolist() == [6.0, 2.0]
    assert not target.requires_grad


def test_q_target_never_reads_the_value_of_a_terminal_state():
    target = q_target(
        torch.tensor([1.0]), torch.tensor([torch.nan]), terminated=torch.tensor([True]), gamma=torch.tensor(0.9)
    )
    assert target.tolist() == [1.0]


@FAST
@given(SEEDS, st.integers(1, 4), st.integers(0, 7))
def test_q_target_of_n_steps_equals_the_n_step_return(seed: int, n: int, ends: int):
    steps, gamma = 6, 0.9
    rewards, next_values = randn(seed, 2, steps)
    terminated = torch.arange(steps) == ends
    returns = n_step_returns(
        rewards, next_values, terminated=terminated, truncated=torch.zeros_like(terminated), gamma=gamma, n=n
    )
    last = [min(t + n - 1, ends if ends >= t else steps - 1, steps - 1) for t in range(steps)]
    sums = torch.stack([sum(gamma ** (k - t) * rewards[k] for k in range(t, last[t] + 1)) for t in range(steps)])
    discounts = torch.tensor([gamma ** (last[t] + 1 - t) for t in range(steps)], dtype=torch.float64)
    target = q_target(sums, next_values[last], terminated=terminated[last], gamma=discounts)
    torch.testing.assert_close(target, returns)


@FAST
@given(SEEDS)
def test_double_q_chooses_online_and_values_by_the_target(seed: int):
    online, target = randn(seed, 2, 3, 4, 5)
    actual = double_q(online, target)
    for i in range(3):
        for j in range(4):
            row = online[i, j].tolist()
            assert actual[i, j] == target[i, j, row.index(max(row))]
    assert torch.equal(double_q(target, target), target.amax(-1))
    assert (actual <= target.amax(-1)).all()
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    assert torch.equal(double_q(online[..., order], target[..., order]), actual)


def test_clipped_double_q_takes_the_smallest_critic_and_sends_it_the_gradient():
    q = torch.tensor([[1.0, 5.0], [2.0, 4.0], [3.0, 6.0]], requires_grad=True)
    smallest = clipped_double_q(q)
    assert smallest.tolist() == [1.0, 4.0]
    smallest.sum().backward()
    assert q.grad is not None
    assert q.grad.tolist() == [[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]


def test_soft_q_subtracts_the_weighted_log_probability():
    next_q, log_prob = torch.tensor([[1.0], [1.0]]), torch.tensor([[-2.0], [-2.0]])
    assert soft_q(next_q, log_prob, alpha=0.5).tolist() == [[2.0], [2.0]]
    assert soft_q(next_q, log_prob, alpha=torch.tensor([[0.0], [1.0]])).tolist() == [[1.0], [3.0]]


@FAST
@given(SEEDS)
def test_expected_soft_q_of_the_boltzmann_policy_is_the_log_sum_exp(seed: int):
    alpha, q = 0.3, randn(seed, 5)
    log_probs = (q / alpha).log_softmax(-1)
    expected = alpha * (q / alpha).logsumexp(-1)
    torch.testing.assert_close((log_probs.exp() * soft_q(q, log_probs, alpha=alpha)).sum(), expected)


def test_dueling_worked_by_hand():
    q = dueling(torch.tensor([[10.0]]), torch.tensor([[1.0, 2.0, 6.0]]))
    assert q.tolist() == [[8.0, 9.0, 13.0]]


@FAST
@given(SEEDS, st.floats(-10.0, 10.0))
def test_dueling_identifies_the_value_and_ignores_shifts_of_the_advantage(seed: int, shift: float):
    value, advantage = randn(seed, 2, 3, 1), randn(seed + 1, 2, 3, 4)
    q = dueling(value, advantage)
    torch.testing.assert_close(q.mean(-1, keepdim=True), value)
    torch.testing.assert_close(dueling(value, advantage + shift), q)
    assert torch.equal(dueling(value[0, 0], advantage[0, 0]), q[0, 0])


def test_value_loss_worked_by_hand():
    values, targets = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 0.0])
    assert value_loss(values, targets).tolist() == [0.5, 4.5]
    old = torch.tensor([0.0, 3.5])
    assert clipped_value_loss(values, targets, old_values=old, clip=0.5).tolist() == [1.125, 4.5]


@FAST
@given(SEEDS, st.floats(0.05, 3.0))
def test_value_clipping_equals_the_scalar_formula_and_is_pessimistic(seed: int, clip: float):
    values, targets, old = randn(seed, 3, 12)
    values.requires_grad_()
    losses = clipped_value_loss(values, targets, old_values=old, clip=clip)
    plain = value_loss(values, targets)
    expected: list[float] = []
    stopped: list[bool] = []
    for v, y, o in zip(values.tolist(), targets.tolist(), old.tolist(), strict=True):
        clipped = o + min(max(v - o, -clip), clip)
        expected.append(max(0.5 * (v - y) ** 2, 0.5 * (clipped - y) ** 2))
        stopped.append(clipped != pytest.approx(v) and (clipped - y) ** 2 > (v - y) ** 2)
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))
    assert (losses >= plain).all()
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    torch.testing.assert_close(gradient, torch.where(torch.tensor(stopped), 0.0, values - targets))
    torch.testing.assert_close(clipped_value_loss(values, targets, old_values=values.detach(), clip=clip), plain)


def test_a_target_made_of_the_values_is_held_fixed():
    values, advantages = randn(0, 5).requires_grad_(), randn(1, 5)
    (gradient,) = torch.autograd.grad(value_loss(values, advantages + values).sum(), values)
    torch.testing.assert_close(gradient, -advantages)


def test_huber_loss_worked_by_hand():
    values, targets = torch.tensor([1.0, 3.0, -2.0]), torch.tensor([1.5, 0.0, 0.0])
    assert huber_loss(values, targets).tolist() == [0.125, 2.5, 1.5]
    assert huber_loss(values, targets, delta=2.0).tolist() == [0.125, 4.0, 2.0]


@FAST
@given(SEEDS, st.floats(0.05, 3.0))
def test_huber_loss_equals_the_scalar_formula_and_its_slope_is_the_clipped_error(seed: int, delta: float):
    values, targets = randn(seed, 2, 12)
    values.requires_grad_()
    losses = huber_loss(values, targets, delta=delta)
    errors = [v - y for v, y in zip(values.tolist(), targets.tolist(), strict=True)]
    expected = [0.5 * e * e if abs(e) <= delta else delta * (abs(e) - 0.5 * delta) for e in errors]
    torch.testing.assert_close(losses, torch.tensor(expected, dtype=torch.float64))
    (gradient,) = torch.autograd.grad(losses.sum(), values)
    torch.testing.assert_close(gradient, (values - targets).detach().clamp(-delta, delta))


@FAST
@given(SEEDS)
def test_huber_loss_lies_below_the_squared_one_and_is_it_without_a_bound(seed: int):
    values, targets = randn(seed, 2, 3, 4).mul(3.0)
    assert (huber_loss(values, targets) <= value_loss(values, targets) + 1e-12).all()
    torch.testing.assert_close(huber_loss(values, targets, delta=math.inf), value_loss(values, targets))
    torch.testing.assert_close(huber_loss(targets, values), huber_loss(values, targets))
    torch.testing.assert_close(huber_loss(values + 7.0, targets + 7.0), huber_loss(values, targets))
    leaf = values.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(huber_loss(leaf, leaf * 2.0, delta=math.inf).sum(), leaf)
    torch.testing.assert_close(gradient, -values)


def test_importance_weights_worked_by_hand():
    weights = importance_weights(torch.tensor([[0.1, 0.4, 0.0], [0.5, 0.5, 0.5]]), beta=0.5)
    torch.testing.assert_close(weights, torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 1.0]]))
    assert importance_weights(torch.zeros(2, 3), beta=1.0).tolist() == [[0.0] * 3] * 2


@FAST
@given(SEEDS, st.floats(0.0, 1.0), st.integers(1, 10**6))
def test_importance_weights_equal_the_formula_of_the_paper(seed: int, beta: float, size: int):
    probabilities = randn(seed, 3, 5).abs() / size
    weights = importance_weights(probabilities, beta=beta)
    for row, actual in zip(probabilities.tolist(), weights, strict=True):
        raw = [(size * p) ** -beta for p in row]
        torch.testing.assert_close(actual, torch.tensor([w / max(raw) for w in raw], dtype=torch.float64))
    torch.testing.assert_close(importance_weights(7.0 * probabilities, beta=beta), weights)
    order = torch.randperm(5, generator=torch.Generator().manual_seed(seed))
    permuted = importance_weights(probabilities[:, order], beta=torch.tensor(beta, dtype=torch.float64))
    torch.testing.assert_close(permuted, weights[:, order])


@FAST
@given(SEEDS)
def test_fully_weighted_samples_have_the_uniform_expectation(seed: int):
    values, priorities = randn(seed, 2, 6)
    probabilities = priorities.abs() / priorities.abs().sum()
    weights = importance_weights(probabilities, beta=1.0)
    expected = (probabilities * weights * values).sum() / (probabilities * weights).sum()
    torch.testing.assert_close(expected, values.mean())


def test_single_precision_is_kept():
    values, targets, old = randn(2, 3, 4)
    double = clipped_value_loss(values, targets, old_values=old, clip=0.2)
    single = clipped_value_loss(values.float(), targets.float(), old_values=old.float(), clip=0.2)
    assert single.dtype == torch.float32
    torch.testing.assert_close(single, double.float(), rtol=1e-5, atol=1e-5)


def test_gradients():
    value, advantage = randn(3, 2, 1).requires_grad_(), randn(4, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(dueling, (value, advantage))
    q = randn(5, 2, 4).requires_grad_()
    assert torch.autograd.gradcheck(clipped_double_q, (q,))
    assert torch.autograd.gradcheck(lambda x: soft_q(x[0], x[1], alpha=0.3), (q,))
    targets, old = randn(6, 2, 8)
    assert torch.autograd.gradcheck(
        lambda v: clipped_value_loss(v, targets, old_values=old, clip=0.4), (randn(7, 8).requires_grad_(),)
    )


def test_bad_input_is_named():
    four, live = torch.zeros(4), torch.zeros(4, dtype=torch.bool)
    with pytest.raises(ValueError, match=r"gamma is 1\.1, expected a number in \[0, 1\]"):
        q_target(four, four, terminated=live, gamma=1.1)
    with pytest.raises(ValueError, match=r"clip is -0\.2, expected a positive number"):
        clipped_value_loss(four, four, old_values=four, clip=-0.2)
    with pytest.raises(ValueError, match=r"delta is 0\.0, expected a positive number"):
        huber_loss(four, four, delta=0.0)
    with pytest.raises(ValueError, match=r"beta is 1\.5, expected a number in \[0, 1\]"):
        importance_weights(four, beta=1.5)
    with pytest.raises(ValueError, match=r"targets has shape \(4, 1\), expected \(4,\) as values"):
        inspect.unwrap(value_loss)(four, four[:, None])
    with pytest.raises(ValueError, match=r"old_values has shape \(4, 1\), expected \(4,\) as values"):
        inspect.unwrap(clipped_value_loss)(four, four, old_values=four[:, None], clip=0.2)
    with pytest.raises(ValueError, match=r"next_q has shape \(4, 1\), expected \(4,\) as reward"):
        inspect.unwrap(q_target)(four, four[:, None], terminated=live, gamma=0.9)
    with pytest.raises(ValueError, match=r"value has shape \(3,\), expected \(3, 1\)"):
        inspect.unwrap(dueling)(torch.zeros(3), torch.zeros(3, 4))


# --- shaping


def test_shaping_worked_by_hand():
    potential, following = torch.tensor([2.0, 2.0, -1.0]), torch.tensor([3.0, math.nan, 0.5])
    found = potential_shaping(potential, following, terminated=torch.tensor([False, True, False]), gamma=0.9)
    torch.testing.assert_close(found, torch.tensor([0.7, -2.0, 1.45]))


@FAST
@given(SEEDS, st.integers(1, 8), st.floats(0, 1), st.booleans())
def test_the_discounted_sum_of_shaping_rewards_is_what_the_ends_differ_by(seed, length, gamma, terminates):
    potential = randn(seed, length + 1)
    terminated = torch.arange(length) == (length - 1 if terminates else length)
    rewards = potential_shaping(potential[:-1], potential[1:], terminated=terminated, gamma=gamma)
    last = 0.0 if terminates else gamma**length * potential[-1]
    found = (rewards * gamma ** torch.arange(length, dtype=torch.float64)).sum()
    torch.testing.assert_close(found, last - potential[0], atol=1e-9, rtol=0)


def test_a_discount_of_shaping_is_checked():
    with pytest.raises(ValueError, match=r"gamma is 1.5, expected a number in \[0, 1\]"):
        potential_shaping(torch.zeros(1), torch.zeros(1), terminated=torch.zeros(1, dtype=torch.bool), gamma=1.5)


# --- the range of returns


def test_the_range_of_returns_worked_by_hand():
    assert return_range(-1.0, 0.0, gamma=0.75) == (-4.0, 0.0)
    assert return_range(0.5, 1.0, gamma=0.75) == (0.5, 4.0), "a single reward is a return, too"
    assert return_range(-2.0, -1.0, gamma=0.5) == (-4.0, -1.0)
    assert return_range(-1.0, 0.0, gamma=1.0) == (-math.inf, 0.0)


@FAST
@given(SEEDS, st.integers(1, 60), st.floats(0, 0.99), st.floats(-3, 3), st.floats(0, 3))
def test_no_return_is_out_of_range_and_constant_rewards_come_to_its_ends(seed, length, gamma, low, width):
    powers = gamma ** torch.arange(length, dtype=torch.float64)
    rewards = low + width * torch.rand(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    least, greatest = return_range(low, low + width, gamma=gamma)
    assert least - 1e-9 <= (powers * rewards).sum() <= greatest + 1e-9
    endless = (gamma ** torch.arange(4000, dtype=torch.float64)).sum()
    assert least == pytest.approx(min(low, float(low * endless)))
    assert greatest == pytest.approx(max(low + width, float((low + width) * endless)))


def test_bad_ranges_are_named():
    with pytest.raises(ValueError, match=r"low is 1\.0 and high is 0.0, expected low <= high"):
        return_range(1.0, 0.0, gamma=0.9)
    with pytest.raises(ValueError, match=r"gamma is -0.1, expected a number in \[0, 1\]"):
        return_range(0.0, 1.0, gamma=-0.1)


def test_targets_in_units_of_rewards_by_hand():
    found = scaled_q_target(
        torch.tensor([4.0, 4.0]),
        torch.tensor([10.0, math.nan]),
        terminated=torch.tensor([False, True]),
        gamma=0.5,
        scale=torch.tensor(2.0),
        next_scale=torch.tensor(4.0),
    )
    assert found.tolist() == [12.0, 2.0]  # (4 + 0.5 * 4 * 10) / 2, and 4 / 2


@FAST
@given(SEEDS, st.floats(0.01, 100.0), st.floats(0.0, 1.0))
def test_the_unit_of_values_does_not_change_returns(seed, unit, gamma):
    generator = torch.Generator().manual_seed(seed)
    reward, next_q = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    terminated = torch.rand(3, 4, generator=generator) < 0.3
    scale = torch.tensor([[1.0], [unit], [1 / unit]], dtype=torch.float64)
    plain = q_target(reward, next_q, terminated=terminated, gamma=gamma)
    found = scaled_q_target(reward, next_q / scale, terminated=terminated, gamma=gamma, scale=scale, next_scale=scale)
    torch.testing.assert_close(found * scale, plain)
    one = torch.ones(3, 1, dtype=torch.float64)
    alone = scaled_q_target(reward, next_q, terminated=terminated, gamma=gamma, scale=one, next_scale=one)
    assert torch.equal(alone, plain)
    assert not scaled_q_target(
        reward.requires_grad_(), next_q, terminated=terminated, gamma=gamma, scale=one, next_scale=one
    ).requires_grad
