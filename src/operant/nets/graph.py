"""Functions of tensors on a CUDA device as CUDA graphs: `Graph`."""

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

R = TypeVar("R")


class Graph(Generic[R]):
    """A function of tensors on a CUDA device whose kernels are launched as one.

    To launch a small kernel takes longer than to run it. For arguments of the same shapes the first call runs the
    function as it is, and with it what libraries do at their first use; the second records its kernels; from then on a
    call copies its arguments to where the recorded ones lie and launches the recording. Results are copies.

    The function may read and write tensors that are not among its arguments as long as they stay the same objects; it
    must not look at numbers, draw random ones, or leave new tensors behind. Where one that it reads is replaced by
    another, `forget` what was recorded.

    Args:
        function: of tensors, which it is given contiguous and on the device; its results are tensors, or trees of them.
        device: the CUDA device.
    """

    def __init__(self, function: Callable[..., R], device: torch.device) -> None:
        self.function, self.device = function, device
        self.forget()

    def forget(self) -> None:
        """Record anew at the next calls."""
        self._recordings: dict[tuple[torch.Size, ...], _Recording[R]] = {}

    def __call__(self, *tensors: Tensor) -> R:
        """Return what the function returns."""
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes not in self._recordings:
            self._recordings[shapes] = _Recording(self.function, tensors, self.device)
        return self._recordings[shapes](tensors)


class _Recording(Generic[R]):
    """A function for arguments of some shapes, not yet recorded."""

    def __init__(self, function: Callable[..., R], tensors: tuple[Tensor, ...], device: torch.device) -> None:
        self.function = function
        self.inputs = [torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for tensor in tensors]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0

    def __call__(self, tensors: tuple[Tensor, ...]) -> R:
        torch._foreach_copy_(self.inputs, tensors)  # pyright: ignore[reportPrivateImportUsage]
        self.calls += 1
        if self.calls == 1:
            return _copy(self.function(*self.inputs))
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.results = self.function(*self.inputs)
        self.graph.replay()
        return _copy(self.results)


def _copy(results: R) -> R:
    return pytree.tree_map_only(Tensor, Tensor.clone, results)
