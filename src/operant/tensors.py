"""Functions of PyTorch that its own annotations leave open, with types: the same ones under a typed name."""

from collections.abc import Callable
from typing import Any, cast

import torch
from numpy.typing import NDArray
from torch import Tensor

integers = cast(Callable[[Tensor], list[int]], Tensor.tolist)  # pyright: ignore[reportUnknownMemberType]
"""The numbers of a tensor of integers `[n]`, as Python's own."""

floats = cast(Callable[[Tensor], list[float]], Tensor.tolist)  # pyright: ignore[reportUnknownMemberType]
"""The numbers of a tensor of floating point numbers `[n]`, as Python's own."""

rows_of_floats = cast(Callable[[Tensor], list[list[float]]], Tensor.tolist)  # pyright: ignore[reportUnknownMemberType]
"""The numbers of a tensor of floating point numbers `[rows, n]`, as Python's own."""

from_numpy = cast(Callable[[NDArray[Any]], Tensor], torch.from_numpy)  # pyright: ignore[reportUnknownMemberType]
"""A tensor that shares the memory of an array."""

in_shared_memory = cast(Callable[[Tensor], Tensor], Tensor.share_memory_)
"""The same tensor, its memory moved to where other processes can share it."""

vector_norm = cast(Callable[..., Tensor], torch.linalg.vector_norm)  # pyright: ignore[reportUnknownMemberType]
"""The Euclidean norm over `dim`."""
