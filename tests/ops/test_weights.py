import inspect

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from operant.ops.weights import aggregate, segment_sum, token_weights

FAST = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**31)
HOW = st.sampled_from(["token_mean", "sequence_mean", "constant"])


def budget(how: str) -> dict[str, int]:
    return {"constant": 7} if how == "constant" else {}


def padded(seed: int, *, sequences: int = 5, width: int = 6) -> tuple[Tensor, Tensor]:
    """Return per-token losses and a mask with holes; the first sequence is empty."""
    generator = torch.Generator().manual_seed(seed)
    per_token = torch.randn(sequences, width, generator=generator, dtype=torch.float64)
    mask = torch.rand(sequences, width, generator=generator) < 0.6
    mask[0] = False
    mask[1, 0] = True
    return per_token, mask


def whole_count(mask: Tensor, how: str) -> Tensor:
    return mask.sum() if how == "token_mean" else mask.any(-1).sum()


def brute(per_token: Tensor, mask: Tensor, how: str) -> float:
    sequences = [
        [float(x) for x, m in zip(row, live, strict=True) if m] for row, live in zip(per_token, mask, strict=True)
    ]
    sequences = [s for s in sequences if s]
    match how:
        case "token_mean":
            return sum(map(sum, sequences)) / sum(map(len, sequences))
        case "sequence_mean":
            return sum(sum(s) / len(s) for s in sequences) / len(sequences)
        case _:
            return sum(sum(s) / 7 for s in sequences) / len(sequences)


def test_weights_worked_by_hand():
    lengths = torch.tensor([2, 8])
    torch.testing.assert_close(token_weights(lengths, how="sequence_mean"), torch.tensor([0.25, 0.0625]))
    torch.testing.assert_close(token_weights(lengths, how="token_mean"), torch.tensor([0.1, 0.1]))
    torch.testing.assert_close(token_weights(lengths, how="constant", constant=10), torch.tensor([0.05, 0.05]))


def test_an_empty_sequence_has_no_weight_and_is_not_counted():
    lengths = torch.tensor([2, 0, 8])
    torch.testing.assert_close(token_weights(lengths, how="sequence_mean"), torch.tensor([0.25, 0.0, 0.0625]))
    torch.testing.assert_close(
        token_weights(lengths, how="sequence_mean", total=4), torch.tensor([0.125, 0.0, 0.03125])
    )
    for how in ("token_mean", "sequence_mean", "constant"):
        assert token_weights(torch.zeros(3, dtype=torch.int64), how=how, **budget(how)).tolist() == [0.0, 0.0, 0.0]
        assert token_weights(torch.zeros(2, dtype=torch.int64), how=how, **budget(how), total=0).tolist() == [0.0, 0.0]


@FAST
@given(SEEDS, HOW)
def test_aggregate_equals_the_loop(seed: int, how: str):
    per_token, mask = padded(seed)
    assert aggregate(per_token, mask, how, **budget(how)).item() == pytest.approx(brute(per_token, mask, how))


@FAST
@given(SEEDS, HOW)
def test_padding_and_batch_order_do_not_matter(seed: int, how: str):
    per_token, mask = padded(seed)
    expected = aggregate(per_token, mask, how, **budget(how))
    wider = torch.nn.functional.pad(per_token, (2, 3, 0, 2), value=torch.nan)
    wider_mask = torch.nn.functional.pad(mask, (2, 3, 0, 2))
    torch.testing.assert_close(aggregate(wider, wider_mask, how, **budget(how)), expected)
    order = torch.randperm(len(mask), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(aggregate(per_token[order], mask[order], how, **budget(how)), expected)


@FAST
@given(SEEDS, HOW)
def test_packed_tokens_give_the_number_of_padded_ones(seed: int, how: str):
    per_token, mask = padded(seed)
    lengths = mask.sum(-1)
    weights = token_weights(lengths, how=how, **budget(how)).repeat_interleave(lengths)
    packed = (weights * per_token[mask]).sum()
    torch.testing.assert_close(packed, aggregate(per_token, mask, how, **budget(how)), rtol=1e-6, atol=1e-6)


@FAST
@given(SEEDS, HOW, st.integers(1, 4))
def test_micro_batches_sum_to_the_whole_in_value_and_gradient(seed: int, how: str, split: int):
    per_token, mask = padded(seed)
    per_token.requires_grad_()
    whole = aggregate(per_token, mask, how, **budget(how))
    total = whole_count(mask, how)
    for count in (total, total.double(), int(total)):
        parts = [
            aggregate(rows, live, how, **budget(how), total=count)
            for rows, live in zip(per_token.split(split), mask.split(split), strict=True)
        ]
        torch.testing.assert_close(torch.stack(parts).sum(), whole)
    (expected,) = torch.autograd.grad(whole, per_token)
    (actual,) = torch.autograd.grad(torch.stack(parts).sum(), per_token)
    torch.testing.assert_close(actual, expected)


@FAST
@given(SEEDS, HOW)
def test_masked_slots_leak_neither_forward_nor_backward(seed: int, how: str):
    per_token, mask = padded(seed)
    poisoned = per_token.masked_fill(~mask, torch.nan).requires_grad_()
    loss = aggregate(poisoned, mask, how, **budget(how))
    torch.testing.assert_close(loss, aggregate(per_token, mask, how, **budget(how)))
    (gradient,) = torch.autograd.grad(loss, poisoned)
    weights = token_weights(mask.sum(-1), how=how, **budget(how)).double()
    torch.testing.assert_close(gradient, weights[:, None] * mask, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("how", ["token_mean", "sequence_mean", "constant"])
def test_a_batch_without_live_tokens_gives_zero_with_a_graph(how: str):
    per_token = torch.full((2, 3), torch.nan, requires_grad=True)
    loss = aggregate(per_token, torch.zeros(2, 3, dtype=torch.bool), how, **budget(how))
    assert loss.item() == 0.0
    loss.backward()
    assert per_token.grad is not None
    assert (per_token.grad == 0).all()


def test_equal_lengths_make_token_and_sequence_means_agree():
    per_token, _ = padded(3)
    mask = torch.ones_like(per_token, dtype=torch.bool)
    expected = per_token.mean()
    torch.testing.assert_close(aggregate(per_token, mask, "token_mean"), expected)
    torch.testing.assert_close(aggregate(per_token, mask, "sequence_mean"), expected)
    torch.testing.assert_close(aggregate(per_token, mask, "constant", constant=6), expected)


def test_half_precision_is_summed_in_single():
    per_token = torch.ones(4, 300, dtype=torch.bfloat16)
    mask = torch.ones(4, 300, dtype=torch.bool)
    mask[:, 257:] = False
    loss = aggregate(per_token, mask, "token_mean")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, torch.tensor(1.0))
    double = aggregate(per_token.double(), mask, "token_mean")
    torch.testing.assert_close(double, torch.tensor(1.0, dtype=torch.float64), rtol=1e-14, atol=0.0)


def test_segment_sum_worked_by_hand():
    values = torch.tensor([1.0, 2.0, 4.0, 8.0])
    assert segment_sum(values, torch.tensor([0, 2, 0, 2]), 4).tolist() == [5.0, 0.0, 10.0, 0.0]
    assert segment_sum(values[:0], torch.zeros(0, dtype=torch.int64), 2).tolist() == [0.0, 0.0]


@FAST
@given(SEEDS)
def test_segment_sum_equals_the_loop_in_any_order(seed: int):
    per_token, mask = padded(seed)
    lengths = mask.sum(-1)
    segments = torch.arange(len(lengths)).repeat_interleave(lengths)
    values = per_token[mask].requires_grad_()
    sums = segment_sum(values, segments, len(lengths))
    expected = [
        sum(float(x) for x, m in zip(row, live, strict=True) if m) for row, live in zip(per_token, mask, strict=True)
    ]
    assert sums.tolist() == pytest.approx(expected)
    torch.testing.assert_close(sums.sum(), values.sum())
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(segment_sum(values[order], segments[order], len(lengths)), sums)
    upstream = torch.arange(5.0, dtype=torch.float64)
    assert torch.equal(torch.autograd.grad((upstream * sums).sum(), values)[0], upstream[segments])


def test_segment_sum_of_half_precision_counts_beyond_256():
    ones = torch.ones(1000, dtype=torch.bfloat16)
    sums = segment_sum(ones, torch.zeros(1000, dtype=torch.int64), 1)
    assert sums.dtype == torch.float32
    assert sums.tolist() == [1000.0]


def test_gradients():
    per_token, mask = padded(4)
    for how in ("token_mean", "sequence_mean", "constant"):
        assert torch.autograd.gradcheck(
            lambda x, how=how: aggregate(x, mask, how, **budget(how)), (per_token.requires_grad_(),)
        )


def test_bad_input_is_named():
    lengths = torch.tensor([2, 8])
    with pytest.raises(ValueError, match="constant is None, expected a positive number"):
        token_weights(lengths, how="constant")
    with pytest.raises(ValueError, match="constant is 0, expected a positive number"):
        token_weights(lengths, how="constant", constant=0)
    with pytest.raises(ValueError, match="constant is 5 with how='token_mean', expected None"):
        token_weights(lengths, how="token_mean", constant=5)
    with pytest.raises(ValueError, match="total is -1"):
        token_weights(lengths, how="token_mean", total=-1)
    with pytest.raises(ValueError, match="how is 'mean', expected 'token_mean'"):
        inspect.unwrap(token_weights)(lengths, how="mean")
    with pytest.raises(ValueError, match=r"segments has shape \(2,\), expected \(3,\) as values"):
        inspect.unwrap(segment_sum)(torch.zeros(3), torch.zeros(2, dtype=torch.int64), 1)
    with pytest.raises(ValueError, match="count is -1, expected a number of sequences"):
        segment_sum(torch.zeros(3), torch.zeros(3, dtype=torch.int64), -1)
    unchecked = inspect.unwrap(aggregate)
    with pytest.raises(ValueError, match=r"mask has shape \(2,\), expected \(2, 3\)"):
        unchecked(torch.zeros(2, 3), torch.ones(2, dtype=torch.bool), "token_mean")
    with pytest.raises(TypeError, match=r"mask has dtype torch\.float32, expected torch.bool"):
        unchecked(torch.zeros(2, 3), torch.ones(2, 3), "token_mean")
