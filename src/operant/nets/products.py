"""Matrix products of perceptrons, at the precision that torch is set to."""

from functools import cache

import torch
from torch import Tensor

LEAST_SIDE, LEAST_WORK = 64, 2**22
"""Products with a shorter side, or fewer multiplications, stay in 32 bits: to round costs what it would save."""


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `left [S, M, K] @ right [S, K, N]`.

    After `torch.set_float32_matmul_precision("medium")`, processors that multiply bfloat16 numbers multiply these,
    rounded from both sides, add in 32 bits, and round the sums. PyTorch by itself does so only with matrix units (AMX),
    and takes 32 bits where there are none.

    Args:
        left: float32.
        right: float32.
        out: memory for the result.
    """
    if not rounds(left, right):
        return torch.bmm(left, right, out=out)
    rounded = torch.bmm(left.bfloat16(), right.bfloat16())
    return rounded.float() if out is None else out.copy_(rounded)


def affine(bias: Tensor, left: Tensor, right: Tensor, *, scale: float = 1, out: Tensor | None = None) -> Tensor:
    """Return `scale * (bias + left @ right)`, the product as `product` has it.

    Args:
        bias: `[S, 1, N]` or `[S, M, N]`.
        left: `[S, M, K]`.
        right: `[S, K, N]`.
        scale: factor of the sum.
        out: memory for the result.
    """
    if not rounds(left, right):
        return torch.baddbmm(bias, left, right, beta=scale, alpha=scale, out=out)
    rounded = torch.bmm(left.bfloat16(), right.bfloat16())
    return torch.add(bias if scale == 1 else bias * scale, rounded, alpha=scale, out=out)


def rounds(left: Tensor, right: Tensor) -> bool:
    """Say whether `product` multiplies these as bfloat16 numbers."""
    if torch.get_float32_matmul_precision() != "medium" or left.device.type != "cpu" or not multiplies_bfloat16():
        return False
    rows, inner, columns = *left.shape[1:], right.shape[2]
    return min(rows, inner, columns) >= LEAST_SIDE and rows * inner * columns >= LEAST_WORK


@cache
def multiplies_bfloat16() -> bool:
    """Say whether this processor has instructions for it (AVX512-BF16 or AMX)."""
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
