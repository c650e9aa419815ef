r"""Aggregation of per-token losses of sequences of different lengths.

The three aggregations differ in the weight of a token of sequence b, which has `|o_b|` unmasked tokens:

* token_mean, `1 / Σ_i |o_i|`: all tokens of the batch have equal weight (DAPO, Yu et al. 2025, arXiv 2503.14476,
  equation 8).
* sequence_mean, `1 / (B |o_b|)`: all sequences have equal weight, so tokens of long sequences count less (GRPO, Shao et
  al. 2024, arXiv 2402.03300, equation 3).
* constant, `1 / (B constant)`: all tokens have equal weight, independent of the lengths (Dr. GRPO, Liu et al. 2025,
  arXiv 2503.20783).

If a filter drops whole sequences (truncated answers), token_mean excludes their tokens. With sequence_mean and
constant, B is `total` if given: if it includes the dropped sequences, as in TRL's losses grpo and dr_grpo, the filter
does not change the weights of the others.

A loss is `(weights * per_element).sum()`. If an update is split into micro-batches or over ranks, pass the count over
all of them as `total`; the *sum* of the parts is then the loss of the whole batch. If a framework averages gradients
over ranks, multiply by the number of ranks.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from operant.ops.shapes import require_shape

Aggregation = Literal["token_mean", "sequence_mean", "constant"]


def token_weights(
    lengths: Int[Tensor, " B"],
    *,
    how: Aggregation,
    total: int | Int[Tensor, ""] | Float[Tensor, ""] | None = None,
    constant: int | None = None,
) -> Float[Tensor, " B"]:
    r"""Compute the weight of each token of each sequence.

    For packed tokens `[n]`, repeat it: `weights.repeat_interleave(lengths)`.

    Args:
        lengths: `[B]` number of unmasked tokens of each sequence.
        how: token_mean, sequence_mean or constant.
        total: count over all micro-batches and ranks of the update: of unmasked tokens for token_mean, of sequences
            otherwise. None counts this batch only, without empty sequences (those dropped by a filter).
        constant: divisor for `how="constant"`, such as the maximum completion length.

    Returns:
        `[B]` weights, float32; 0 for an empty sequence.

    Raises:
        ValueError: if `how` is unknown, `constant` is missing, not positive or given for another `how`, or a
            numeric `total` is negative.
    """
    return _weights(lengths, torch.float32, how, total, constant)


def aggregate(
    per_token: Float[Tensor, "B L"],
    mask: Bool[Tensor, "B L"],
    how: Aggregation,
    *,
    total: int | Int[Tensor, ""] | Float[Tensor, ""] | None = None,
    constant: int | None = None,
) -> Float[Tensor, ""]:
    r"""Compute the weighted sum of a padded batch of per-token losses.

    Masked entries are replaced by 0, not multiplied by 0, so NaN in them affects neither the result nor the gradient
    with respect to `per_token`. NaN in earlier derivatives (such as that of an overflowing `exp`) would still
    propagate, so compute losses of unmasked tokens only. A batch without unmasked tokens gives a differentiable 0, so
    that every rank can call `backward`.

    Args:
        per_token: `[B, L]` losses.
        mask: `[B, L]` true where a token counts.
        how: token_mean, sequence_mean or constant.
        total: as in `token_weights`.
        constant: as in `token_weights`.

    Returns:
        The loss, a scalar; float32 or wider.

    Raises:
        ValueError: as `token_weights`, and if the shapes differ.
        TypeError: if the mask is not a bool tensor.
    """
    require_shape(per_token.shape, "per_token", mask=mask)
    if mask.dtype != torch.bool:
        raise TypeError(f"mask has dtype {mask.dtype}, expected torch.bool: pass mask.bool()")
    dtype = torch.promote_types(per_token.dtype, torch.float32)
    weights = _weights(mask.sum(-1), dtype, how, total, constant)
    sums = per_token.masked_fill(~mask, 0.0).sum(-1, dtype=dtype)
    return (weights * sums).sum()


def segment_sum(values: Float[Tensor, " m"], segments: Int[Tensor, " m"], count: int) -> Float[Tensor, " count"]:
    r"""Sum flat values, one per unmasked token, over each sequence, e.g. for the log-probability of an answer.

    Differentiable. Half precision is summed in float32: in bfloat16 a sum of ones stops at 256.

    Args:
        values: `[m]`, one per unmasked token.
        segments: `[m]` the sequence of each token, in 0 to `count - 1`, in any order.
        count: number of sequences.

    Returns:
        `[count]` sums, float32 or wider; 0 for a sequence without tokens.

    Raises:
        ValueError: if shapes differ or `count` is negative.
    """
    require_shape(values.shape, "values", segments=segments)
    if count < 0:
        raise ValueError(f"count is {count}, expected a number of sequences")
    dtype = torch.promote_types(values.dtype, torch.float32)
    return values.new_zeros(count, dtype=dtype).index_add(0, segments, values.to(dtype))


def _weights(lengths: Tensor, dtype: torch.dtype, how: str, total: int | Tensor | None, constant: int | None) -> Tensor:
    share = _share(lengths, how, constant)
    live = lengths > 0
    if total is None:
        total = lengths.sum() if how == "token_mean" else live.sum()
    elif not isinstance(total, Tensor) and total < 0:
        raise ValueError(f"total is {total}, expected the number of tokens or sequences of the whole update")
    denominators = torch.as_tensor(total, dtype=dtype, device=lengths.device) * share
    return torch.where(live, denominators, torch.inf).reciprocal()


def _share(lengths: Tensor, how: str, constant: int | None) -> int | Tensor:
    """Return the divisor of a token's weight, apart from the total."""
    if how == "constant":
        if constant is None or constant <= 0:
            raise ValueError(f"constant is {constant}, expected a positive number of tokens with how='constant'")
        return constant
    if constant is not None:
        raise ValueError(f"constant is {constant} with how={how!r}, expected None: only how='constant' divides by it")
    if how == "sequence_mean":
        return lengths
    if how == "token_mean":
        return 1
    raise ValueError(f"how is {how!r}, expected 'token_mean', 'sequence_mean' or 'constant'")
