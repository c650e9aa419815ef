import inspect
from itertools import product
from math import inf, log, prod

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.ops.returns import (
    discounted_returns,
    episode_totals,
    first_episode_mask,
    gae,
    lambda_returns,
    n_step_returns,
    vtrace,
)

FAST = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**31)
STEPS = st.integers(1, 9)
UNIT = st.floats(0.0, 1.0)


def rollout(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return flags, rewards and successor values; one step in sixteen is both terminated and truncated."""
    generator = torch.Generator().manual_seed(seed)
    rewards, next_values = torch.randn(2, *shape, generator=generator, dtype=dtype)
    terminated, truncated = torch.rand(2, *shape, generator=generator) < 0.25
    return {"terminated": terminated, "truncated": truncated}, rewards, next_values


def running(steps: int) -> dict[str, Tensor]:
    return {name: torch.zeros(steps, dtype=torch.bool) for name in ("terminated", "truncated")}


def brute_n_step(
    flags: dict[str, Tensor], rewards: Tensor, next_values: Tensor, t: int, *, gamma: float, n: int
) -> float:
    total, discount, step = 0.0, 1.0, t
    for step in range(t, min(t + n, len(rewards))):
        total += discount * float(rewards[step])
        discount *= gamma
        if flags["terminated"][step]:
            return total
        if flags["truncated"][step]:
            break
    return total + discount * float(next_values[step])


def brute_steps_left(flags: dict[str, Tensor], t: int) -> int:
    """List the rewards from step t to the end of its episode or of the data."""
    stops = (flags["terminated"] | flags["truncated"])[t:].tolist()
    return stops.index(True) + 1 if True in stops else len(stops)


def brute_lambda(
    flags: dict[str, Tensor], rewards: Tensor, next_values: Tensor, t: int, *, gamma: float, lam: float
) -> float:
    """Compute the geometric mixture term by term, with its tail weight on the longest return."""
    longest = brute_steps_left(flags, t)
    returns = [brute_n_step(flags, rewards, next_values, t, gamma=gamma, n=n) for n in range(1, longest + 1)]
    mixed = sum((1 - lam) * lam**k * value for k, value in enumerate(returns[:-1]))
    return mixed + lam ** (longest - 1) * returns[-1]


def test_gae_worked_by_hand():
    rewards, values = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.6, 0.7])
    next_values = torch.tensor([0.6, 0.7, 0.0])
    expected = {0.0: [1.04, 2.03, 2.3], 0.95: [4.4570075, 3.9965, 2.3], 1.0: [4.73, 4.1, 2.3]}
    for lam, advantages in expected.items():
        actual = gae(rewards, values, next_values, **running(3), gamma=0.9, lam=lam)
        torch.testing.assert_close(actual, torch.tensor(advantages))


def test_termination_drops_the_bootstrap_and_truncation_keeps_it():
    rewards, next_values = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([10.0, 20.0, 30.0])
    flag = torch.tensor([False, True, False])
    terminated = lambda_returns(
        rewards, next_values, terminated=flag, truncated=torch.zeros_like(flag), gamma=0.5, lam=1.0
    )
    truncated = lambda_returns(
        rewards, next_values, terminated=torch.zeros_like(flag), truncated=flag, gamma=0.5, lam=1.0
    )
    both = lambda_returns(rewards, next_values, terminated=flag, truncated=flag, gamma=0.5, lam=1.0)
    assert terminated.tolist() == [1.5, 1.0, 16.0]
    assert truncated.tolist() == [6.5, 11.0, 16.0]
    assert both.tolist() == terminated.tolist()


@FAST
@given(SEEDS, STEPS, UNIT, UNIT)
def test_lambda_returns_equal_the_written_out_mixture(seed: int, steps: int, gamma: float, lam: float):
    flags, rewards, next_values = rollout(seed, steps)
    expected = [brute_lambda(flags, rewards, next_values, t, gamma=gamma, lam=lam) for t in range(steps)]
    actual = lambda_returns(rewards, next_values, **flags, gamma=gamma, lam=lam)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


@FAST
@given(SEEDS, STEPS, UNIT, UNIT)
def test_gae_is_the_lambda_return_less_the_value(seed: int, steps: int, gamma: float, lam: float):
    flags, rewards, next_values = rollout(seed, steps, 2)
    values = torch.randn(steps, 2, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    continues = ~(flags["terminated"] | flags["truncated"])[:-1]
    next_values[:-1] = torch.where(continues, values[1:], next_values[:-1])
    expected = lambda_returns(rewards, next_values, **flags, gamma=gamma, lam=lam) - values
    torch.testing.assert_close(gae(rewards, values, next_values, **flags, gamma=gamma, lam=lam), expected)


@FAST
@given(SEEDS, STEPS, UNIT, UNIT)
def test_gae_equals_the_discounted_sum_of_residuals(seed: int, steps: int, gamma: float, lam: float):
    flags, rewards, next_values = rollout(seed, steps)
    values = torch.randn(steps, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    deltas = rewards + gamma * torch.where(flags["terminated"], 0.0, next_values) - values
    expected = [
        sum((gamma * lam) ** k * float(deltas[t + k]) for k in range(brute_steps_left(flags, t))) for t in range(steps)
    ]
    advantages = gae(rewards, values, next_values, **flags, gamma=gamma, lam=lam)
    torch.testing.assert_close(advantages, torch.tensor(expected, dtype=torch.float64))


@FAST
@given(SEEDS, STEPS, UNIT, st.integers(1, 12))
def test_n_step_returns_equal_the_loop(seed: int, steps: int, gamma: float, n: int):
    flags, rewards, next_values = rollout(seed, steps)
    expected = [brute_n_step(flags, rewards, next_values, t, gamma=gamma, n=n) for t in range(steps)]
    actual = n_step_returns(rewards, next_values, **flags, gamma=gamma, n=n)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


@FAST
@given(SEEDS, STEPS, UNIT)
def test_limits_are_td0_and_monte_carlo(seed: int, steps: int, gamma: float):
    flags, rewards, next_values = rollout(seed, steps, 3)
    td0 = rewards + gamma * next_values * ~flags["terminated"]
    monte_carlo = discounted_returns(rewards, **flags, gamma=gamma, next_values=next_values)
    options = {**flags, "gamma": gamma}
    torch.testing.assert_close(lambda_returns(rewards, next_values, **options, lam=0.0), td0)
    torch.testing.assert_close(n_step_returns(rewards, next_values, **options, n=1), td0)
    torch.testing.assert_close(lambda_returns(rewards, next_values, **options, lam=1.0), monte_carlo)
    torch.testing.assert_close(n_step_returns(rewards, next_values, **options, n=steps + 5), monte_carlo)


@FAST
@given(SEEDS, STEPS, UNIT)
def test_discounted_returns_without_values_sum_the_rewards_of_the_episode(seed: int, steps: int, gamma: float):
    flags, rewards, _ = rollout(seed, steps)
    expected = [sum(gamma**k * float(rewards[t + k]) for k in range(brute_steps_left(flags, t))) for t in range(steps)]
    actual = discounted_returns(rewards, **flags, gamma=gamma)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


def test_episode_totals_worked_by_hand():
    rewards = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    terminated = torch.tensor([False, True, False, False, False])
    truncated = torch.tensor([False, False, False, True, False])
    totals = episode_totals(rewards, terminated=terminated, truncated=truncated, gamma=0.5)
    assert totals.tolist() == [2.0, 2.0, 5.0, 5.0, 5.0]


@FAST
@given(SEEDS, STEPS, UNIT)
def test_episode_totals_repeat_the_return_of_each_segment(seed: int, steps: int, gamma: float):
    flags, rewards, _ = rollout(seed, steps)
    expected: list[float] = []
    while len(expected) < steps:
        start, length = len(expected), brute_steps_left(flags, len(expected))
        expected += [sum(gamma**k * float(rewards[start + k]) for k in range(length))] * length
    actual = episode_totals(rewards, **flags, gamma=gamma)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64))


def test_a_value_function_that_is_right_leaves_no_advantage():
    gamma, steps = 0.9, 20
    values = torch.full((steps,), 1.0 / (1.0 - gamma), dtype=torch.float64)
    flags = running(steps)
    flags["truncated"][[4, 11]] = True
    for lam in (0.0, 0.5, 1.0):
        advantages = gae(torch.ones_like(values), values, values, **flags, gamma=gamma, lam=lam)
        torch.testing.assert_close(advantages, torch.zeros_like(values))


@FAST
@given(SEEDS, STEPS)
def test_nothing_crosses_the_end_of_an_episode(seed: int, steps: int):
    flags, rewards, next_values = rollout(seed, steps + 1)
    flags["truncated"][steps - 1] = True
    other_rewards, other_values = rewards.clone(), next_values.clone()
    other_rewards[steps:] += 100.0
    other_values[steps:] -= 100.0
    options = {**flags, "gamma": 0.9}
    for function, extra in ((lambda_returns, {"lam": 0.9}), (n_step_returns, {"n": 3})):
        before = function(rewards, next_values, **options, **extra)
        after = function(other_rewards, other_values, **options, **extra)
        assert torch.equal(before[:steps], after[:steps])
        assert not torch.equal(before[steps:], after[steps:])


@FAST
@given(SEEDS, STEPS)
def test_trailing_dimensions_are_independent_problems(seed: int, steps: int):
    flags, rewards, next_values = rollout(seed, steps, 2, 3)
    gamma, lam = torch.tensor([[0.9], [0.5]], dtype=torch.float64), torch.tensor([[0.0], [0.8]], dtype=torch.float64)
    whole = {
        "lambda": lambda_returns(rewards, next_values, **flags, gamma=gamma, lam=lam),
        "n_step": n_step_returns(rewards, next_values, **flags, gamma=gamma, n=2),
        "totals": episode_totals(rewards, **flags, gamma=gamma),
    }
    for s in range(2):
        for b in range(3):
            alone = {name: flag[:, s, b] for name, flag in flags.items()}
            r, v = rewards[:, s, b], next_values[:, s, b]
            alone["gamma"] = float(gamma[s, 0])
            parts = {
                "lambda": lambda_returns(r, v, **alone, lam=float(lam[s, 0])),
                "n_step": n_step_returns(r, v, **alone, n=2),
                "totals": episode_totals(r, **alone),
            }
            for name, part in parts.items():
                torch.testing.assert_close(whole[name][:, s, b], part, rtol=1e-12, atol=1e-12)


def test_batch_order_and_memory_layout_do_not_matter():
    flags, rewards, next_values = rollout(0, 6, 5)
    order = torch.tensor([3, 0, 4, 1, 2])
    expected = lambda_returns(rewards, next_values, **flags, gamma=0.9, lam=0.8)
    shuffled = {name: flag[:, order] for name, flag in flags.items()}
    actual = lambda_returns(rewards[:, order], next_values[:, order], **shuffled, gamma=0.9, lam=0.8)
    assert torch.equal(actual, expected[:, order])
    batch_first = rewards.T.contiguous().T
    assert not batch_first.is_contiguous()
    assert torch.equal(lambda_returns(batch_first, next_values, **flags, gamma=0.9, lam=0.8), expected)


def test_single_precision_agrees_with_double_and_is_kept():
    flags, rewards, next_values = rollout(1, 200, 4)
    for function, extra in ((lambda_returns, {"lam": 0.95}), (n_step_returns, {"n": 5})):
        double = function(rewards, next_values, **flags, gamma=0.99, **extra)
        single = function(rewards.float(), next_values.float(), **flags, gamma=0.99, **extra)
        assert single.dtype == torch.float32
        torch.testing.assert_close(single, double.float(), rtol=1e-5, atol=1e-5)


def test_values_under_a_terminated_flag_may_be_nan():
    flags, rewards, next_values = rollout(2, 12)
    flags["terminated"][[3, 11]] = True
    poisoned = next_values.masked_fill(flags["terminated"], torch.nan).requires_grad_()
    for function, extra in ((lambda_returns, {"lam": 0.9}), (n_step_returns, {"n": 3})):
        expected = function(rewards, next_values, **flags, gamma=0.9, **extra)
        actual = function(rewards, poisoned, **flags, gamma=0.9, **extra)
        torch.testing.assert_close(actual, expected)
        (gradient,) = torch.autograd.grad(actual.sum(), poisoned)
        assert gradient.isfinite().all()
        assert (gradient[flags["terminated"]] == 0).all()
    advantages = gae(rewards, rewards, poisoned, **flags, gamma=0.9, lam=0.9)
    torch.testing.assert_close(advantages, gae(rewards, rewards, next_values, **flags, gamma=0.9, lam=0.9))


def test_gradients():
    flags, rewards, next_values = rollout(3, 6, 2)
    inputs = (rewards.requires_grad_(), next_values.requires_grad_())
    options = {**flags, "gamma": 0.9}
    assert torch.autograd.gradcheck(lambda r, v: lambda_returns(r, v, **options, lam=0.7), inputs)
    assert torch.autograd.gradcheck(lambda r, v: n_step_returns(r, v, **options, n=3), inputs)
    assert torch.autograd.gradcheck(lambda r, v: gae(r, 0.5 * v, v, **options, lam=0.7), inputs)


def test_bad_input_is_named():
    flags, rewards, next_values = rollout(0, 4)
    with pytest.raises(ValueError, match=r"gamma is 1\.5, expected a number in \[0, 1\]"):
        lambda_returns(rewards, next_values, **flags, gamma=1.5, lam=0.9)
    with pytest.raises(ValueError, match=r"lam is -0\.1"):
        gae(rewards, next_values, next_values, **flags, gamma=0.9, lam=-0.1)
    with pytest.raises(ValueError, match="gamma is nan"):
        n_step_returns(rewards, next_values, **flags, gamma=float("nan"), n=2)
    with pytest.raises(ValueError, match="n is 0, expected at least 1"):
        n_step_returns(rewards, next_values, **flags, gamma=0.9, n=0)
    empty, _, _ = rollout(0, 0, 3)
    with pytest.raises(ValueError, match=r"rewards has shape \(0, 3\), expected \[T, ...\] with at least one step"):
        episode_totals(torch.zeros(0, 3), **empty, gamma=0.9)
    unchecked = {f: inspect.unwrap(f) for f in (lambda_returns, gae, n_step_returns)}
    with pytest.raises(ValueError, match=r"next_values has shape \(4, 1\), expected \(4,\)"):
        unchecked[lambda_returns](rewards, next_values[:, None], **flags, gamma=0.9, lam=0.9)
    with pytest.raises(ValueError, match=r"values has shape \(5,\), expected \(4,\)"):
        unchecked[gae](rewards, torch.zeros(5), next_values, **flags, gamma=0.9, lam=0.9)
    with pytest.raises(TypeError, match=r"terminated has dtype torch.float64, expected torch.bool"):
        unchecked[n_step_returns](
            rewards, next_values, terminated=rewards, truncated=flags["truncated"], gamma=0.9, n=2
        )


# V-trace


def actions(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Return values, and log-probabilities of actions under π and μ."""
    generator = torch.Generator().manual_seed(seed + 1)
    values, log_probs, behavior = torch.randn(3, *shape, generator=generator, dtype=dtype)
    return values, -log_probs.abs(), -behavior.abs()


def brute_vtrace(flags, rewards, values, next_values, ratios, *, t, gamma, lam, rho_bar, c_bar) -> float:
    """Compute the target of step t by equation 1, term by term."""
    total = float(values[t])
    for k in range(t, t + brute_steps_left(flags, t)):
        bootstrap = 0.0 if flags["terminated"][k] else float(next_values[k])
        delta = min(rho_bar, ratios[k]) * (float(rewards[k]) + gamma * bootstrap - float(values[k]))
        total += gamma ** (k - t) * prod(lam * min(c_bar, ratio) for ratio in ratios[t:k]) * delta
    return total


def test_vtrace_worked_by_hand():
    rewards, values, next_values = torch.tensor([[1.0, 2.0], [1.0, 2.0], [2.0, 4.0]])
    ratio = {"log_probs": torch.tensor([log(0.8), log(0.2)]), "behavior_log_probs": torch.tensor([0.4, 0.4]).log()}
    options = {**running(2), **ratio, "gamma": 0.5}
    for caps, targets, advantages in (
        ({}, [2.5, 3.0], [1.5, 1.0]),
        ({"rho_bar": inf}, [3.5, 3.0], [3.0, 1.0]),
        ({"rho_bar": inf, "c_bar": 0.5}, [3.25, 3.0], [3.0, 1.0]),
        ({"lam": 0.0}, [2.0, 3.0], [1.0, 1.0]),
    ):
        found = vtrace(rewards, values, next_values, **options, **caps)
        torch.testing.assert_close(found.targets, torch.tensor(targets))
        torch.testing.assert_close(found.advantages, torch.tensor(advantages))


@FAST
@given(SEEDS, STEPS, UNIT, UNIT, st.tuples(st.floats(0.1, 3.0), st.floats(0.1, 3.0)))
def test_vtrace_equals_its_sum(seed: int, steps: int, gamma: float, lam: float, caps: tuple[float, float]):
    flags, rewards, next_values = rollout(seed, steps)
    values, log_probs, behavior = actions(seed, steps)
    rho_bar, c_bar = caps
    options = {"gamma": gamma, "lam": lam, "rho_bar": rho_bar, "c_bar": c_bar}
    found = vtrace(rewards, values, next_values, log_probs, behavior, **flags, **options)
    ratios = (log_probs - behavior).exp().tolist()
    targets = [brute_vtrace(flags, rewards, values, next_values, ratios, t=t, **options) for t in range(steps)]
    torch.testing.assert_close(found.targets, torch.tensor(targets, dtype=torch.float64))
    for t, ratio in enumerate(ratios):
        after = 0.0 if flags["terminated"][t] else float(next_values[t])
        if brute_steps_left(flags, t) > 1:
            after += lam * (targets[t + 1] - float(values[t + 1]))
        expected = min(rho_bar, ratio) * (float(rewards[t]) + gamma * after - float(values[t]))
        assert float(found.advantages[t]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@FAST
@given(SEEDS, STEPS, UNIT, UNIT)
def test_on_policy_vtrace_is_the_lambda_return_and_gae(seed: int, steps: int, gamma: float, lam: float):
    flags, rewards, next_values = rollout(seed, steps, 2)
    values, log_probs, _ = actions(seed, steps, 2)
    continues = ~(flags["terminated"] | flags["truncated"])[:-1]
    next_values[:-1] = torch.where(continues, values[1:], next_values[:-1])
    options = {**flags, "gamma": gamma, "lam": lam}
    found = vtrace(rewards, values, next_values, log_probs, log_probs, **options)
    torch.testing.assert_close(found.targets, lambda_returns(rewards, next_values, **options))
    torch.testing.assert_close(found.advantages, gae(rewards, values, next_values, **options))
    if lam == 1.0:
        n_step = n_step_returns(rewards, next_values, **flags, gamma=gamma, n=steps)
        torch.testing.assert_close(found.targets, n_step)


def test_without_truncation_the_mean_over_actions_of_mu_is_the_return_of_pi():
    steps, gamma = 3, 0.9
    generator = torch.Generator().manual_seed(5)
    rewards, values = torch.randn(2, steps, 2, generator=generator, dtype=torch.float64)
    values = values[:, 0]
    next_values = torch.cat((values[1:], torch.tensor([0.7], dtype=torch.float64)))
    policy, behavior = torch.rand(2, steps, 2, generator=generator, dtype=torch.float64).softmax(-1)
    mean = 0.0
    for chosen in product((0, 1), repeat=steps):
        index = (torch.arange(steps), torch.tensor(chosen))
        log_probs, old = policy[index].log(), behavior[index].log()
        options = {**running(steps), "gamma": gamma, "rho_bar": inf, "c_bar": inf}
        found = vtrace(rewards[index], values, next_values, log_probs, old, **options)
        mean += float(old.sum().exp() * found.targets[0])
    expected = sum(gamma**t * float((policy[t] * rewards[t]).sum()) for t in range(steps)) + gamma**steps * 0.7
    assert mean == pytest.approx(expected)


@pytest.mark.parametrize("rho_bar", [0.5, 1.0, 2.0])
def test_the_fixed_point_is_the_value_of_the_policy_between_pi_and_mu(rho_bar: float):
    """Equation 3: with one state, the policy that is proportional to min(rho_bar μ, π)."""
    policy, behavior, rewards = torch.tensor([[0.7, 0.2, 0.1], [0.2, 0.2, 0.6], [1.0, -1.0, 0.5]])
    between = torch.minimum(rho_bar * behavior, policy)
    value = (between / between.sum() * rewards).sum() / (1 - 0.9)
    still = value.expand(1, 3)
    flags = {name: flag[:, None].expand(1, 3) for name, flag in running(1).items()}
    options = {**flags, "gamma": 0.9, "rho_bar": rho_bar}
    found = vtrace(rewards[None], still, still, policy.log()[None], behavior.log()[None], **options)
    torch.testing.assert_close((behavior * found.targets).sum(), value)


@FAST
@given(SEEDS, STEPS)
def test_vtrace_of_parts_and_of_other_precision(seed: int, steps: int):
    flags, rewards, next_values = rollout(seed, steps, 2, 3)
    values, log_probs, behavior = actions(seed, steps, 2, 3)
    gamma, lam = torch.tensor([[0.9], [0.5]], dtype=torch.float64), torch.tensor([[1.0], [0.8]], dtype=torch.float64)
    poisoned = next_values.masked_fill(flags["terminated"], torch.nan)
    whole = vtrace(rewards, values, poisoned, log_probs, behavior, **flags, gamma=gamma, lam=lam)
    for s, b in product(range(2), range(3)):
        alone = {name: flag[:, s, b] for name, flag in flags.items()}
        inputs = [tensor[:, s, b] for tensor in (rewards, values, next_values, log_probs, behavior)]
        part = vtrace(*inputs, **alone, gamma=float(gamma[s, 0]), lam=float(lam[s, 0]))
        torch.testing.assert_close(part, type(part)(*(tensor[:, s, b] for tensor in whole)), rtol=1e-12, atol=1e-12)
    order = torch.tensor([2, 0, 1])
    moved = [tensor[..., order] for tensor in (rewards, values, poisoned, log_probs, behavior)]
    flags_moved = {name: flag[..., order] for name, flag in flags.items()}
    assert torch.equal(vtrace(*moved, **flags_moved, gamma=gamma, lam=lam).targets, whole.targets[..., order])
    single = [tensor.float() for tensor in (rewards, values, poisoned, log_probs, behavior)]
    found = vtrace(*single, **flags, gamma=gamma.float(), lam=lam.float())
    assert found.advantages.dtype == torch.float32
    torch.testing.assert_close(found.advantages, whole.advantages.float(), rtol=1e-4, atol=1e-4)


def test_no_gradient_flows_through_the_weights_of_vtrace():
    flags, rewards, next_values = rollout(3, 6, 2)
    values, log_probs, behavior = actions(3, 6, 2)
    found = vtrace(
        rewards, values.requires_grad_(), next_values, log_probs.requires_grad_(), behavior, **flags, gamma=0.9
    )
    assert torch.autograd.grad(found.targets.sum() + found.advantages.sum(), log_probs, allow_unused=True) == (None,)
    inputs = (values, next_values.requires_grad_())
    options = {**flags, "gamma": 0.9, "lam": 0.7}
    assert torch.autograd.gradcheck(lambda v, n: vtrace(rewards, v, n, log_probs, behavior, **options), inputs)


@pytest.mark.parametrize("caps", [{"rho_bar": 0.0}, {"c_bar": -1.0}, {"rho_bar": float("nan")}])
def test_caps_of_vtrace_must_be_positive(caps):
    flags, rewards, next_values = rollout(0, 4)
    values, log_probs, behavior = actions(0, 4)
    with pytest.raises(ValueError, match="expected positive numbers: they bound weights"):
        vtrace(rewards, values, next_values, log_probs, behavior, **flags, gamma=0.9, **caps)
    with pytest.raises(ValueError, match=r"behavior_log_probs has shape \(5,\), expected \(4,\)"):
        inspect.unwrap(vtrace)(rewards, values, next_values, log_probs, torch.zeros(5), **flags, gamma=0.9)


# Windows


def test_windows_reach_to_the_first_end_by_hand():
    terminated = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0]]).bool().T
    truncated = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 0]]).bool().T
    expected = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]]).bool().T
    assert torch.equal(first_episode_mask(terminated, truncated), expected)
    valid = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 1], [0, 1, 1, 1], [1, 1, 1, 1]]).bool().T
    expected = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 0]]).bool().T
    assert torch.equal(first_episode_mask(terminated, truncated, valid=valid), expected)


@FAST
@given(SEEDS, STEPS)
def test_windows_against_a_loop(seed, steps):
    flags, _, _ = rollout(seed, steps, 3)
    valid = torch.rand(steps, 3, generator=torch.Generator().manual_seed(seed + 1)) < 0.8
    plain, masked = first_episode_mask(**flags), first_episode_mask(**flags, valid=valid)
    for row in range(3):
        of_row = {name: flag[:, row] for name, flag in flags.items()}
        left = brute_steps_left(of_row, 0)
        assert plain[:, row].tolist() == [t < left for t in range(steps)]
        first = next((t for t in range(steps) if not valid[t, row]), steps)
        assert masked[:, row].tolist() == [t < min(left, first) for t in range(steps)]
