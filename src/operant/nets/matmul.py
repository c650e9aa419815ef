"""Matrix products of perceptrons, at the precision of `set_precision`, or that PyTorch is set to.

PyTorch multiplies 32-bit numbers with MKL, which uses AVX512 only on Intel's processors. On others whose units have
512 bits, large products use oneDNN, PyTorch's library for convolutions: up to twice as fast and as exact, but it adds
in another order.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from operant.nets.tracing import tracing

LEAST_SIDE, LEAST_WORK = 64, 2**22
"""Products with a shorter side, or fewer multiplications, stay in 32 bits: rounding costs what it saves."""

LEAST_FOR_ONEDNN = 2**21
"""Products of fewer multiplications, those of all seeds together, stay with MKL: a call of oneDNN takes longer."""

LEAST_ALONE = 2**14
"""Size of a matrix from which a separate call of oneDNN takes less time than a copy."""


class _Own:
    """The precision of products here, if PyTorch is set to another."""

    precision: str | None = None


def set_precision(precision: str, device: torch.device, *, stacked: bool = True) -> None:
    """Set the precision of the products of networks here, and of PyTorch's.

    On a processor that multiplies bfloat16 numbers and has no matrix units (AMX), PyTorch stays at `highest` where that
    is `medium`: it would take 32 bits in any case, and 12 microseconds more for every small product.

    Args:
        precision: `highest`, `high` or `medium`.
        device: device of the networks.
        stacked: whether they use the products here, not modules of PyTorch.
    """
    own = (
        stacked and precision == "medium" and device.type == "cpu" and multiplies_bfloat16() and not _has_matrix_units()
    )
    _Own.precision = precision if own else None
    torch.set_float32_matmul_precision("highest" if own else precision)


def precision() -> str:
    """Return the precision of products here."""
    if _Own.precision is not None:
        return _Own.precision
    if tracing():  # which cannot take the lock
        return torch.get_float32_matmul_precision()
    with _OneDNN.lock:  # while another thread uses oneDNN, PyTorch raises an error
        return torch.get_float32_matmul_precision()


def product(
    left: Tensor,
    right: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float = 1,
    out: Tensor | None = None,
    like: Sequence[int] | None = None,
) -> Tensor:
    """Return `left @ right`, or `scale * (bias + left @ right)`.

    At the precision `medium`, processors that multiply bfloat16 numbers multiply these, rounded from both sides, add in
    32 bits, and round the sums. PyTorch by itself does so only with matrix units (AMX). oneDNN is not used with
    autograd.

    Args:
        left: float32 `[S, M, K]`.
        right: float32 `[S, K, N]`.
        bias: `[S, 1, N]` or `[S, M, N]`.
        scale: factor of the sum with the bias.
        out: buffer for the result.
        like: shape of `left` that decides which library multiplies. None: its own.
    """
    numbers = left.numel() if like is None else prod(like)
    large = numbers * right.shape[2] >= LEAST_FOR_ONEDNN and left.device.type == "cpu"
    rounded = large and rounds(left, right, like)
    graph = large and torch.is_grad_enabled() and (left.requires_grad or right.requires_grad)
    if not rounded and (not large or graph or not halves_vectors()):
        if bias is None:
            return torch.bmm(left, right, out=out)
        return torch.baddbmm(bias, left, right, beta=scale, alpha=scale, out=out)
    if not rounded and not (out is None and tracing()):
        return _by_onednn(left, right, out, bias=bias, scale=scale)
    # A compiled program would use MKL for PyTorch's product, and so gets an operator of oneDNN's.
    found = torch.bmm(left.bfloat16(), right.bfloat16()) if rounded else torch.ops.operant.product(left, right)
    if bias is not None:
        return torch.add(bias if scale == 1 else bias * scale, found, alpha=scale, out=out)
    return found.to(left.dtype) if out is None else out.copy_(found)


def rounds(left: Tensor, right: Tensor, like: Sequence[int] | None = None) -> bool:
    """Return whether `product` multiplies these as bfloat16."""
    if precision() != "medium" or left.device.type != "cpu" or not multiplies_bfloat16():
        return False
    rows, inner, columns = *(like or left.shape)[1:], right.shape[2]
    return min(rows, inner, columns) >= LEAST_SIDE and rows * inner * columns >= LEAST_WORK


class _OneDNN:
    """Make PyTorch use oneDNN for products: it does if they may be rounded to bfloat16.

    oneDNN rounds only with matrix units, which `halves_vectors` rules out. The setting is one of the whole process, so
    that threads take turns. Products of autograd in other threads may use oneDNN meanwhile, which is as exact.
    """

    lock = RLock()
    matmul: Any = torch.backends.mkldnn.matmul  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownVariableType]

    def __enter__(self) -> None:
        self.lock.acquire()
        self.before, self.matmul.fp32_precision = self.matmul.fp32_precision, "bf16"

    def __exit__(self, *_: object) -> None:
        self.matmul.fp32_precision = self.before
        self.lock.release()


def _by_onednn(
    left: Tensor, right: Tensor, out: Tensor | None = None, *, bias: Tensor | None = None, scale: float = 1
) -> Tensor:
    """Return `left @ right`, or `scale * (bias + left @ right)`.

    oneDNN needs contiguous matrices and copies others, such as weights between other parameters. Large ones are
    multiplied one by one.
    """
    operands, factors = (left, right), {}
    together, alone = torch.bmm, torch.mm
    if bias is not None:
        operands, factors = (bias, left, right), {"beta": scale, "alpha": scale}
        together, alone = torch.baddbmm, torch.addmm
    apart = len(right) > 1 and not (right.is_contiguous() or right.mT.is_contiguous())
    with _OneDNN():
        if not apart or right[0].numel() < LEAST_ALONE:
            return together(*operands, **factors, out=out)
        total = left.new_empty(*left.shape[:2], right.shape[2]) if out is None else out
        for row, matrix in enumerate(total):
            alone(*(operand[row] for operand in operands), **factors, out=matrix)
        return total


_library: Any = torch.library.Library("operant", "FRAGMENT")
_library.define("product(Tensor left, Tensor right) -> Tensor")
_library.impl("product", _by_onednn, "CPU")
_library.impl("product", torch.bmm, "Meta")


@cache
def halves_vectors() -> bool:
    """Return whether MKL uses half of this processor's vector width: that of Zen 5 and later, in products of 512 bits.

    Zen 4 has AVX512, too, but multiplies 512 bits in two halves, where MKL is as fast: oneDNN took 1.18 times as long
    for 64 x 256 x 256, and 0.96 for 512 x 256 x 256. Of the two, only Zen 5 has AVX-VNNI. Products of oneDNN are tested
    once, and must be exact up to rounding.
    """
    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # newer than 2.11
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    wide = capabilities.get("avx512_f", False) and capabilities.get("avx_vnni", False)
    idle = wide and "Intel" not in capabilities.get("cpu_name", "Intel")
    return libraries and idle and not _has_matrix_units() and _onednn_is_exact()


def _onednn_is_exact() -> bool:
    thirds = torch.full((1, 128, 128), 1 / 3)
    return bool((_by_onednn(thirds, thirds) - 128 / 9).abs().max() < 1e-4)


@cache
def multiplies_bfloat16() -> bool:
    """Return whether this processor has bfloat16 instructions (AVX512-BF16 or AMX)."""
    return torch.cpu._is_avx512_bf16_supported() or _has_matrix_units()  # pyright: ignore[reportPrivateUsage]


@cache
def _has_matrix_units() -> bool:
    return torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]
