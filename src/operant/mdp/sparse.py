"""Typed names for the used parts of `scipy.sparse`, which has no type hints."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol, cast, overload

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # pyright: ignore[reportMissingTypeStubs] - SciPy has none
from scipy.sparse import csgraph  # pyright: ignore[reportMissingTypeStubs]
from scipy.sparse import linalg as sparse_linalg  # pyright: ignore[reportMissingTypeStubs]

__all__ = [
    "Factors",
    "Sparse",
    "breadth_first_order",
    "connected_components",
    "csc_matrix",
    "csr_array",
    "csr_matrix",
    "eye_array",
    "issparse",
    "reverse_cuthill_mckee",
    "splu",
    "vstack",
]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Indices = NDArray[np.signedinteger[Any]]
"""Indices of 32 bits if these are enough, otherwise of 64."""


class Sparse(Protocol):
    """A sparse matrix, by rows or by columns.

    Attributes:
        data: `[n]`, the entries.
        indices: `[n]`, column or row of each entry.
        indptr: start index of each row, or each column.
    """

    data: Floats
    indices: Indices
    indptr: Indices

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and columns."""
        ...

    @overload
    def __matmul__(self, other: "Sparse", /) -> "Sparse": ...
    @overload
    def __matmul__(self, other: Floats, /) -> Floats: ...
    def __rmatmul__(self, other: NDArray[Any], /) -> NDArray[Any]: ...
    def __rmul__(self, other: float, /) -> "Sparse": ...
    def __add__(self, other: "Sparse", /) -> "Sparse": ...
    def __sub__(self, other: "Sparse", /) -> "Sparse": ...

    @overload
    def __getitem__(self, key: tuple[Indices, Indices], /) -> Floats: ...
    @overload
    def __getitem__(self, key: tuple[slice, Bools], /) -> "Sparse": ...
    @overload
    def __getitem__(self, key: Indices, /) -> "Sparse": ...

    def sum(self, *, axis: Literal[0, 1]) -> Floats:
        """Return the sum of each column, or of each row."""
        ...

    def nonzero(self) -> tuple[Indices, Indices]:
        """Return the rows and the columns of the entries that are not 0."""
        ...

    def tocsc(self) -> "Sparse":
        """Return the same matrix by columns."""
        ...

    def eliminate_zeros(self) -> None:
        """Remove entries that are 0, in place."""
        ...

    def sum_duplicates(self) -> None:
        """Add entries at the same position, in place."""
        ...

    def check_format(self, *, full_check: bool) -> None:
        """Raise ValueError if indices are out of range."""
        ...


class Factors(Protocol):
    """An LU factorization."""

    def solve(self, right: Floats, trans: Literal["N", "T"] = "N") -> Floats:
        """Solve the linear system, or the transposed one."""
        ...


Given = Sparse | Floats | tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | tuple[NDArray[Any], tuple[Indices, Indices]]
"""A matrix, or `(data, indices, indptr)`, or `(data, (rows, columns))`."""


class _Make(Protocol):
    def __call__(self, data: Given, /, *, shape: tuple[int, int] | None = None) -> Sparse: ...


class _BreadthFirstOrder(Protocol):
    def __call__(self, graph: Sparse, start: int, /, *, return_predecessors: Literal[False]) -> Indices: ...


class _ReverseCuthillMcKee(Protocol):
    def __call__(self, graph: Sparse, /, *, symmetric_mode: bool) -> Indices: ...


class _ConnectedComponents(Protocol):
    def __call__(self, graph: Sparse, /, *, connection: Literal["weak", "strong"]) -> tuple[int, Indices]: ...


csr_array = cast(_Make, sparse.csr_array)
"""A matrix by rows."""

csr_matrix = cast(_Make, sparse.csr_matrix)
"""A matrix by rows, in SciPy's older form."""

csc_matrix = cast(_Make, sparse.csc_matrix)
"""A matrix by columns, in SciPy's older form."""

eye_array = cast(Callable[[int], Sparse], sparse.eye_array)  # pyright: ignore[reportUnknownMemberType]
"""The identity matrix of a given size."""

issparse = cast(Callable[[object], bool], sparse.issparse)  # pyright: ignore[reportUnknownMemberType]
"""Whether an object is a sparse matrix."""

vstack = cast(Callable[[Sequence[Any]], Sparse], sparse.vstack)  # pyright: ignore[reportUnknownMemberType]
"""Vertically stacked matrices, sparse or dense."""

splu = cast(Callable[[Sparse], Factors], sparse_linalg.splu)  # pyright: ignore[reportUnknownMemberType]
"""The LU factorization of a square matrix by columns."""

breadth_first_order = cast(_BreadthFirstOrder, csgraph.breadth_first_order)  # pyright: ignore[reportUnknownMemberType]
"""The nodes of a graph that can be reached from one, nearest first."""

connected_components = cast(_ConnectedComponents, csgraph.connected_components)  # pyright: ignore[reportUnknownMemberType]
"""The number of components of a graph, and that of each node."""

reverse_cuthill_mckee = cast(_ReverseCuthillMcKee, csgraph.reverse_cuthill_mckee)  # pyright: ignore[reportUnknownMemberType]
"""An order of the nodes of a graph in which neighbors are close to each other."""
