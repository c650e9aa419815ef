"""Functions of PyTorch that its own annotations leave open, with types: the same ones under a typed name."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

integers = cast(Callable[[Tensor], list[int]], Tensor.tolist)  # pyright: ignore[reportUnknownMemberType]
"""The numbers of a tensor of integers `[n]`, as Python's own."""

rows_of_integers = cast(Callable[[Tensor], list[list[int]]], Tensor.tolist)  # pyright: ignore[reportUnknownMemberType]
"""The numbers of a tensor of integers `[rows, n]`, as Python's own."""

floats = cast(Callable[[Tensor], list[float]], Tensor.tolist)  # pyright: ignore[reportUnknownMemberType]
"""The numbers of a tensor of floating point numbers `[n]`, as Python's own."""

rows_of_floats = cast(Callable[[Tensor], list[list[float]]], Tensor.tolist)  # pyright: ignore[reportUnknownMemberType]
"""The numbers of a tensor of floating point numbers `[rows, n]`, as Python's own."""

booleans = cast(Callable[[Tensor], list[bool]], Tensor.tolist)  # pyright: ignore[reportUnknownMemberType]
"""The truth values of a tensor `[n]`, as Python's own."""

nested = cast(Callable[[Tensor], Any], Tensor.tolist)  # pyright: ignore[reportUnknownMemberType]
"""The numbers of a tensor of any shape, as Python's own in lists within lists."""

from_numpy = cast(Callable[[NDArray[Any]], Tensor], torch.from_numpy)  # pyright: ignore[reportUnknownMemberType]
"""A tensor that shares the memory of an array."""

in_shared_memory = cast(Callable[[Tensor], Tensor], Tensor.share_memory_)
"""The same tensor, its memory moved to where other processes can share it."""

unique = cast(Callable[[Tensor], Tensor], Tensor.unique)  # pyright: ignore[reportUnknownMemberType]
"""The different numbers of a tensor, in order."""

split = cast(Callable[[Tensor, Sequence[int]], tuple[Tensor, ...]], Tensor.split)  # pyright: ignore[reportUnknownMemberType]
"""The parts of some lengths of a tensor, along its first dimension."""

backpropagate = cast(Callable[[Tensor], None], Tensor.backward)  # pyright: ignore[reportUnknownMemberType]
"""Add the gradient of a scalar to those of the parameters that it depends on."""

fork_rng = cast(Callable[..., AbstractContextManager[None]], torch.random.fork_rng)  # pyright: ignore[reportUnknownMemberType]
"""A context that restores the global random generators."""

ndtri = cast(Callable[[Tensor], Tensor], torch.special.ndtri)  # pyright: ignore[reportUnknownMemberType]
"""The quantiles of the standard normal distribution."""


class _SparseRows(Protocol):
    def __call__(
        self, starts: Tensor, columns: Tensor, values: Tensor, size: tuple[int, int], /, *, check_invariants: bool
    ) -> Tensor: ...


sparse_csr_tensor = cast(_SparseRows, torch.sparse_csr_tensor)  # pyright: ignore[reportUnknownMemberType]
"""A sparse matrix by rows."""


class LeastSquares(NamedTuple):
    """What `linalg.lstsq` returns."""

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


class Linalg(Protocol):
    """The functions of `torch.linalg` that operant uses."""

    def cholesky(self, matrix: Tensor, /) -> Tensor:
        """Return the lower triangular factor of positive definite matrices."""
        ...

    def eigh(self, matrix: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues of symmetric matrices, in ascending order, and the eigenvectors."""
        ...

    def inv(self, matrix: Tensor, /) -> Tensor:
        """Return the inverses of matrices."""
        ...

    def lstsq(self, matrix: Tensor, right: Tensor, /) -> LeastSquares:
        """Return the solutions of least squares."""
        ...

    def qr(self, matrix: Tensor, /) -> tuple[Tensor, Tensor]:
        """Return orthogonal bases of the columns of matrices, and the triangular factors."""
        ...

    def solve(self, matrix: Tensor, right: Tensor, /) -> Tensor:
        """Return the solutions of systems of linear equations."""
        ...

    def vector_norm(self, vectors: Tensor, /, *, dim: int | None = None) -> Tensor:
        """Return Euclidean norms over a dimension, or that of all numbers."""
        ...


linalg = cast(Linalg, torch.linalg)
"""`torch.linalg`."""
