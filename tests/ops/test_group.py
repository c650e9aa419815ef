"""Group advantages: values worked by hand, loops over Python floats as twins, and exact zeros."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from operant.ops.group import (
    group_advantages,
    has_signal,
    leave_one_out,
    overlong_penalty,
    pass_at_k,
    process_advantages,
)

REWARDS = hnp.arrays(
    np.float64,
    hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6),
    elements=st.floats(-10, 10, allow_subnormal=False).map(lambda x: round(x, 2)),
)
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def f64(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(("correction", "right", "wrong"), [(0, math.sqrt(3), -1 / math.sqrt(3)), (1, 1.5, -0.5)])
def test_known_values(correction: int, right: float, wrong: float) -> None:
    advantages = group_advantages(f64([[1, 0, 0, 0]]), correction=correction, eps=0.0)
    torch.testing.assert_close(advantages, f64([[right, wrong, wrong, wrong]]))


@pytest.mark.parametrize("right", range(1, 8))
def test_binary_rewards_depend_on_the_pass_rate_alone(right: int) -> None:
    p = right / 8
    rewards = torch.tensor([[1] * right + [0] * (8 - right)])
    advantages = group_advantages(rewards, correction=0, eps=0.0)
    expected = [math.sqrt((1 - p) / p)] * right + [-math.sqrt(p / (1 - p))] * (8 - right)
    torch.testing.assert_close(advantages, torch.tensor([expected]))


def mean_and_std(values: list[float], correction: int) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    squares = math.fsum((x - mean) ** 2 for x in values)
    return mean, math.sqrt(squares / max(len(values) - correction, 1))


@settings(deadline=None, max_examples=80)
@given(REWARDS, st.sampled_from(["group", "batch", "none"]), st.sampled_from([0, 1]), st.data())
def test_against_a_loop(rewards: np.ndarray, scale: str, correction: int, data: st.DataObject) -> None:
    valid = data.draw(hnp.arrays(bool, rewards.shape))
    holes = np.where(valid, rewards, np.nan)
    advantages = group_advantages(
        torch.from_numpy(holes), scale=scale, correction=correction, valid=torch.from_numpy(valid)
    )
    expected = np.zeros_like(rewards)
    for p, row in enumerate(rewards):
        live = row[valid[p]].tolist()
        if not live or max(live) == min(live):
            continue
        mean, std = mean_and_std(live, correction)
        if scale == "batch":
            std = mean_and_std(rewards[valid].tolist(), correction)[1]
        expected[p] = np.where(valid[p], (row - mean) / (1 if scale == "none" else std + 1e-4), 0)
    torch.testing.assert_close(advantages, torch.from_numpy(expected), rtol=1e-9, atol=1e-9)
    equal = torch.from_numpy(expected == 0).all(-1)
    assert (advantages[equal] == 0).all()


@settings(deadline=None, max_examples=60)
@given(
    value=st.floats(-1e4, 1e4, width=16),
    size=st.integers(1, 65),
    dtype=st.sampled_from(DTYPES),
    scale=st.sampled_from(["group", "batch", "none"]),
    eps=st.sampled_from([0.0, 1e-9, 1e-4]),
)
def test_equal_rewards_give_exactly_zero(value: float, size: int, dtype: torch.dtype, scale: str, eps: float) -> None:
    equal = torch.full((1, size), value, dtype=dtype)
    other = torch.arange(size, dtype=dtype).unsqueeze(0)
    advantages = group_advantages(torch.cat([equal, other]), scale=scale, eps=eps)
    assert advantages.dtype == dtype
    assert (advantages[0] == 0).all()
    if size > 1:
        assert (leave_one_out(equal) == 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [0.1, 0.9, 1.1, 100.1, 1e4])
def test_rounding_is_not_signal(dtype: torch.dtype, value: float) -> None:
    # The mean of 64 equal float32 rewards of 1.1, summed in order, is not 1.1.
    rewards = torch.full((1, 64), value, dtype=dtype)
    assert (group_advantages(rewards, eps=0.0) == 0).all()
    assert (leave_one_out(rewards) == 0).all()
    assert not has_signal(rewards).any()


def test_large_rewards_do_not_cancel() -> None:
    rewards = f64([[1000, 1001, 1002, 1003]])
    expected = group_advantages(f64([[0, 1, 2, 3]]))
    assert torch.equal(group_advantages(rewards), expected)
    assert torch.equal(group_advantages(rewards + 2**40), expected)


@settings(deadline=None, max_examples=40)
@given(REWARDS, st.floats(0.1, 10), st.integers(-100, 100))
def test_invariances(rewards: np.ndarray, factor: float, shift: int) -> None:
    tensor = torch.from_numpy(rewards)
    for scale in ("group", "batch", "none"):
        advantages = group_advantages(tensor, scale=scale, eps=0.0)
        torch.testing.assert_close(advantages.sum(-1), torch.zeros_like(advantages[:, 0]), rtol=0, atol=1e-8)
        flipped = group_advantages(tensor.flip(0, 1), scale=scale, eps=0.0)
        torch.testing.assert_close(flipped.flip(0, 1), advantages, rtol=1e-9, atol=1e-8)
    # Units do not matter when dividing by the standard deviation; prompts do not matter to each other.
    moved = group_advantages(factor * tensor + shift, eps=1e-12)
    torch.testing.assert_close(moved, group_advantages(tensor, eps=1e-12), rtol=1e-6, atol=1e-6)
    alone = torch.cat([group_advantages(row.unsqueeze(0)) for row in tensor])
    assert torch.equal(alone, group_advantages(tensor))


def test_none_is_the_deviation_and_batch_takes_the_spread_of_all_rewards() -> None:
    rewards = f64([[0, 2], [10, 10]])
    assert torch.equal(group_advantages(rewards, scale="none"), f64([[-1, 1], [0, 0]]))
    spread = math.sqrt((5.5**2 + 3.5**2 + 2 * 4.5**2) / 4)
    torch.testing.assert_close(
        group_advantages(rewards, scale="batch", correction=0, eps=0.0), f64([[-1 / spread, 1 / spread], [0, 0]])
    )


def test_invalid_answers_count_nowhere() -> None:
    rewards = f64([[1, 0, math.nan, 0], [math.inf, 5, math.nan, math.nan], [math.nan] * 4])
    valid = torch.tensor([[True, True, False, True], [False, True, False, False], [False] * 4])
    advantages = group_advantages(rewards, eps=0.0, valid=valid)
    live = group_advantages(f64([[1, 0, 0]]), eps=0.0)
    torch.testing.assert_close(advantages[0], torch.stack([live[0, 0], live[0, 1], f64(0), live[0, 2]]))
    assert (advantages[1:] == 0).all()
    assert has_signal(rewards, valid).tolist() == [True, False, False]


def test_baseline_replaces_the_mean() -> None:
    rewards = f64([[1, 0, 0, 0], [1, 1, 1, 1]])
    baseline = f64([0.5, 0.75])
    none = group_advantages(rewards, scale="none", baseline=baseline)
    assert torch.equal(none, f64([[0.5, -0.5, -0.5, -0.5], [0.25] * 4]))
    assert torch.equal(group_advantages(rewards, scale="none", baseline=baseline.unsqueeze(1).expand(2, 4)), none)
    std = math.sqrt((5 * 0.375**2 + 3 * 0.625**2) / 8)
    batch = group_advantages(rewards, scale="batch", correction=0, eps=0.0, baseline=baseline)
    torch.testing.assert_close(batch, none / std)
    holes = torch.tensor([[math.nan, 0, 0, 0], [1, 1, 1, 1]], dtype=torch.float64)
    partly = group_advantages(holes, scale="none", valid=~holes.isnan(), baseline=baseline)
    assert torch.equal(partly, f64([[0, -0.5, -0.5, -0.5], [0.25] * 4]))
    # The spread is that of the group; a group of equal rewards has none.
    group = group_advantages(rewards, eps=0.0, baseline=baseline)
    torch.testing.assert_close(group, f64([[1, -1, -1, -1], [0] * 4]))
    torch.testing.assert_close(group_advantages(rewards, baseline=rewards.mean(-1)), group_advantages(rewards))


def test_baseline_per_answer_gives_leave_one_out() -> None:
    rewards = f64([[1, 0, 4], [2, 2, 5]])
    others = (rewards.sum(-1, keepdim=True) - rewards) / 2
    torch.testing.assert_close(group_advantages(rewards, scale="none", baseline=others), leave_one_out(rewards))


def test_integer_rewards() -> None:
    rewards = torch.tensor([[3, 1], [2, 2]])
    for advantages in (group_advantages(rewards, scale="none"), leave_one_out(rewards) / 2):
        assert advantages.dtype == torch.get_default_dtype()
        assert advantages.tolist() == [[1, -1], [0, 0]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scale": "std"}, "scale must be 'group', 'batch' or 'none', got 'std'"),
        ({"correction": 2}, "correction must be 0 .* got 2"),
        ({"eps": -1e-4}, "eps must be at least 0, got -0.0001"),
    ],
)
def test_rejects_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_advantages(torch.zeros(1, 2), **arguments)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rejects_rewards_of_nan_or_inf(bad: float) -> None:
    rewards = f64([[0, 1, 0], [0, 1, bad]])
    message = rf"reward at \(prompt, sample\) = \(1, 2\) is {bad}, expected a finite number"
    for judge in (group_advantages, leave_one_out, has_signal):
        with pytest.raises(ValueError, match=message):
            judge(rewards)


@settings(deadline=None, max_examples=40)
@given(REWARDS.filter(lambda x: x.shape[1] > 1))
def test_leave_one_out_against_a_loop(rewards: np.ndarray) -> None:
    size = rewards.shape[1]
    others = [[np.delete(row, i).mean() for i in range(size)] for row in rewards]
    advantages = leave_one_out(torch.from_numpy(rewards))
    torch.testing.assert_close(advantages, torch.from_numpy(rewards - np.array(others)), rtol=1e-9, atol=1e-9)
    centered = group_advantages(torch.from_numpy(rewards), scale="none")
    torch.testing.assert_close(advantages * (size - 1) / size, centered)


def test_leave_one_out_rejects_a_group_of_one() -> None:
    with pytest.raises(ValueError, match="at least 2 answers to a prompt, got 1"):
        leave_one_out(torch.zeros(3, 1))


@settings(deadline=None, max_examples=40)
@given(REWARDS)
def test_signal_is_a_non_zero_advantage(rewards: np.ndarray) -> None:
    tensor = torch.from_numpy(rewards)
    signal = has_signal(tensor)
    assert signal.tolist() == [max(row) > min(row) for row in rewards.tolist()]
    assert torch.equal(signal, (group_advantages(tensor) != 0).any(-1))


def test_signal_of_binary_rewards_is_the_constraint_of_dynamic_sampling() -> None:
    correct = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]])
    count = correct.sum(-1)
    assert torch.equal(has_signal(correct), (count > 0) & (count < 3))


def test_process_advantages_by_hand() -> None:
    # Two answers with two and one steps: R = {1, 0, 2}, mean 1, sample std 1. Steps end at tokens 1 and 3, and at 2.
    advantages = process_advantages(
        f64([[[1, 0], [2, 99]]]),
        torch.tensor([[[1, 3], [2, -1]]]),
        torch.tensor([[[True, True], [True, False]]]),
        length=5,
        eps=0.0,
    )
    torch.testing.assert_close(advantages, f64([[[-1, -1, -1, -1, 0], [1, 1, 1, 0, 0]]]))
    assert (advantages[0, :, 4] == 0).all()


@settings(deadline=None, max_examples=60)
@given(st.data(), hnp.array_shapes(min_dims=3, max_dims=3, max_side=4), st.integers(1, 6), st.sampled_from([0, 1]))
def test_process_advantages_against_a_loop(
    data: st.DataObject, shape: tuple[int, int, int], length: int, correction: int
) -> None:
    prompts, group, _ = shape
    rewards = data.draw(hnp.arrays(np.float64, shape, elements=st.integers(-3, 3).map(float)))
    ends = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, length - 1)))
    mask = data.draw(hnp.arrays(bool, shape))
    expected = np.zeros((prompts, group, length))
    for p in range(prompts):
        live = rewards[p][mask[p]].tolist()
        if not live or max(live) == min(live):
            continue
        mean, std = mean_and_std(live, correction)
        for g in range(group):
            for t in range(length):
                later = rewards[p, g][mask[p, g] & (ends[p, g] >= t)]
                expected[p, g, t] = sum((r - mean) / (std + 1e-4) for r in later)
    holes = np.where(mask, rewards, np.nan), np.where(mask, ends, 10**6)
    advantages = process_advantages(*map(torch.from_numpy, (*holes, mask)), length=length, correction=correction)
    torch.testing.assert_close(advantages, torch.from_numpy(expected), rtol=1e-9, atol=1e-9)


def test_one_step_per_answer_is_outcome_supervision() -> None:
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.3, 0.3, 0.3, 0.3]])
    ends = torch.full((2, 4, 1), 6)
    tokens = process_advantages(rewards.unsqueeze(-1), ends, torch.ones(2, 4, 1, dtype=torch.bool), length=7)
    assert tokens.dtype == torch.float32
    torch.testing.assert_close(tokens, group_advantages(rewards).unsqueeze(-1).expand(2, 4, 7))
    assert (tokens[1] == 0).all()


@pytest.mark.parametrize(
    ("rewards", "ends", "message"),
    [
        ([[[0.0, math.nan]]], [[[0, 1]]], r"\(prompt, sample, step\) = \(0, 0, 1\) is nan"),
        ([[[0.0, 1.0]]], [[[0, 4]]], r"\(0, 0, 1\) is 4, outside the 4 tokens"),
        ([[[0.0, 1.0]]], [[[-1, 1]]], r"\(0, 0, 0\) is -1, outside the 4 tokens"),
    ],
)
def test_process_advantages_rejects_bad_steps(rewards: list, ends: list, message: str) -> None:
    mask = torch.ones(1, 1, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match=message):
        process_advantages(torch.tensor(rewards), torch.tensor(ends), mask, length=4)


def test_overlong_penalty_by_hand() -> None:
    lengths = torch.tensor([[0, 16383, 16384, 16385], [18432, 20480, 20481, 24576]])
    penalty = overlong_penalty(lengths, max_length=20480, buffer=4096)
    expected = torch.tensor([[0, 0, 0, -1 / 4096], [-0.5, -1, -1, -1]])
    assert torch.equal(penalty, expected)
    unbounded = overlong_penalty(lengths, max_length=20480, buffer=4096, floor=None)
    assert unbounded[1].tolist() == [-0.5, -1, -1 - 1 / 4096, -2]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 50), st.data(), st.integers(0, 120))
def test_overlong_penalty_is_the_published_formula(max_length: int, data: st.DataObject, length: int) -> None:
    buffer = data.draw(st.integers(1, max_length))
    if length <= max_length - buffer:
        expected = 0.0
    elif length <= max_length:
        expected = (max_length - buffer - length) / buffer
    else:
        expected = -1.0
    penalty = overlong_penalty(torch.tensor(length), max_length=max_length, buffer=buffer)
    assert penalty.item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 10, "buffer": 0}, r"buffer must lie in \[1, max_length=10\], got 0"),
        ({"max_length": 10, "buffer": 11}, "got 11"),
        ({"max_length": 10, "buffer": 5, "floor": 1.0}, "floor must be below 0"),
    ],
)
def test_overlong_penalty_rejects_bad_arguments(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        overlong_penalty(torch.tensor([3]), **arguments)


def test_leave_one_out_without_some_rewards_by_hand() -> None:
    rewards = torch.tensor([[1.0, math.nan, 4.0, 7.0], [5.0, 2.0, 0.0, 0.0], [3.0, 1.0, 1.0, 1.0]])
    valid = torch.tensor([[True, False, True, True], [False, True, False, False], [False] * 4])
    found = leave_one_out(rewards, valid=valid)
    assert found.tolist() == [[-4.5, 0, 0, 4.5], [0, 0, 0, 0], [0, 0, 0, 0]]


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.floats(-10, 10, width=32), st.booleans()), min_size=2, max_size=8))
def test_leave_one_out_is_that_of_the_rewards_there_are(group: list[tuple[float, bool]]) -> None:
    rewards = torch.tensor([[reward for reward, _ in group]])
    valid = torch.tensor([[there for _, there in group]])
    found = leave_one_out(rewards, valid=valid)
    assert (found[~valid] == 0).all()
    kept = rewards[valid]
    if len(kept) >= 2:
        torch.testing.assert_close(found[valid], leave_one_out(kept.unsqueeze(0))[0], atol=1e-5, rtol=1e-5)
    else:
        assert (found == 0).all()
    torch.testing.assert_close(leave_one_out(rewards), leave_one_out(rewards, valid=torch.ones_like(valid)))


def test_leave_one_out_rejects_a_valid_reward_of_nan_or_inf() -> None:
    with pytest.raises(ValueError, match="nan"):
        leave_one_out(torch.tensor([[1.0, math.nan]]), valid=torch.tensor([[True, True]]))


@pytest.mark.parametrize(
    ("right", "total", "k", "expected"),
    [(1, 4, 1, 0.25), (1, 4, 2, 0.5), (2, 4, 2, 5 / 6), (3, 4, 2, 1.0), (0, 8, 8, 0.0), (1, 8, 8, 1.0), (5, 5, 1, 1.0)],
)
def test_pass_at_k_by_hand(right: int, total: int, k: int, expected: float) -> None:
    assert pass_at_k(torch.tensor(right), total=total, k=k).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("total", [1, 2, 5, 7])
def test_pass_at_k_is_the_share_of_all_choices(total: int) -> None:
    for right, k in itertools.product(range(total + 1), range(1, total + 1)):
        answers = [i < right for i in range(total)]
        choices = [any(choice) for choice in itertools.combinations(answers, k)]
        found = pass_at_k(torch.tensor(right), total=total, k=k).item()
        assert found == pytest.approx(sum(choices) / len(choices), abs=1e-6)


def test_pass_at_k_is_without_bias() -> None:
    probability, total, k = 0.3, 6, 3
    mean = sum(
        math.comb(total, right)
        * probability**right
        * (1 - probability) ** (total - right)
        * pass_at_k(torch.tensor(right), total=total, k=k).item()
        for right in range(total + 1)
    )
    assert mean == pytest.approx(1 - (1 - probability) ** k, abs=1e-6)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 200), st.data())
def test_pass_at_k_grows_with_both_numbers(total: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(1, total))
    right = torch.arange(total + 1)
    found = pass_at_k(right, total=total, k=k)
    assert found[0] == 0
    assert found[-1] == 1
    assert (found.diff() >= -1e-6).all()
    torch.testing.assert_close(pass_at_k(right, total=total, k=1), right / total, atol=1e-6, rtol=1e-5)
    if k < total:
        assert (pass_at_k(right, total=total, k=k + 1) >= found - 1e-6).all()


@pytest.mark.parametrize(
    ("right", "k", "message"),
    [
        (1, 0, r"k must be in \[1, total=4\], got 0"),
        (1, 5, "got 5"),
        (5, 1, r"right must be in \[0, total=4\], got 5"),
        (-1, 1, "got -1"),
    ],
)
def test_pass_at_k_rejects_bad_numbers(right: int, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pass_at_k(torch.tensor([right]), total=4, k=k)
