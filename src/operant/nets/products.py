"""Matrix products of perceptrons, at the precision of `set_precision`, or that PyTorch is set to."""

from functools import cache

import torch
from torch import Tensor

LEAST_SIDE, LEAST_WORK = 64, 2**22
"""Products with a shorter side, or fewer multiplications, stay in 32 bits: to round costs what it would save."""


class _Own:
    """The precision of products here where PyTorch is set to another one."""

    precision: str | None = None


def set_precision(precision: str, device: torch.device, *, stacked: bool = True) -> None:
    """Compute the products of networks here, and PyTorch all others, at a precision from now on.

    On a processor that multiplies bfloat16 numbers and has no matrix units (AMX), PyTorch stays at `highest` where that
    is `medium`: it would take 32 bits in any case, and 12 microseconds more for every small product.

    Args:
        precision: `highest`, `high` or `medium`.
        device: where the networks compute.
        stacked: whether they are those here, and not modules of PyTorch.
    """
    own = (
        stacked and precision == "medium" and device.type == "cpu" and multiplies_bfloat16() and not _has_matrix_units()
    )
    _Own.precision = precision if own else None
    torch.set_float32_matmul_precision("highest" if own else precision)


def precision() -> str:
    """Return the precision of products here."""
    return _Own.precision or torch.get_float32_matmul_precision()


def product(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """Return `left [S, M, K] @ right [S, K, N]`.

    At the precision `medium`, processors that multiply bfloat16 numbers multiply these, rounded from both sides, add in
    32 bits, and round the sums. PyTorch by itself does so only with matrix units (AMX).

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
    if precision() != "medium" or left.device.type != "cpu" or not multiplies_bfloat16():
        return False
    rows, inner, columns = *left.shape[1:], right.shape[2]
    return min(rows, inner, columns) >= LEAST_SIDE and rows * inner * columns >= LEAST_WORK


@cache
def multiplies_bfloat16() -> bool:
    """Say whether this processor has instructions for it (AVX512-BF16 or AMX)."""
    return torch.cpu._is_avx512_bf16_supported() or _has_matrix_units()


@cache
def _has_matrix_units() -> bool:
    return torch.cpu._is_amx_tile_supported()
