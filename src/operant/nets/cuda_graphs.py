"""Functions of tensors on a CUDA device as CUDA graphs: `Graph`."""

from collections import defaultdict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
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
        self.function, self.device = function, device
        self.inputs = [torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for tensor in tensors]
        self.graph: torch.cuda.CUDAGraph | None = None
        self.calls = 0

    def __call__(self, tensors: tuple[Tensor, ...]) -> R:
        self._take_in(tensors)
        self.calls += 1
        if self.calls == 1:
            with beside(self.device):
                results = self.function(*self.inputs)
            return _copy(results)
        if self.graph is None:
            graph = torch.cuda.CUDAGraph()
            with beside(self.device) as stream, torch.cuda.graph(graph, stream=stream):
                self.results = self.function(*self.inputs)
            self.graph = graph
        self.graph.replay()
        return _copy(self.results)

    def _take_in(self, tensors: tuple[Tensor, ...]) -> None:
        """Copy arguments to where the recorded ones lie: numbers of the host one by one, others of a type together."""
        kinds: defaultdict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for held, tensor in zip(self.inputs, tensors, strict=True):
            if tensor.device.type == "cpu" and not tensor.dim():
                held.fill_(tensor.item())  # to copy it would wait for the device
            else:
                for column, each in zip(kinds[held.dtype], (held, tensor), strict=True):
                    column.append(each)
        for column, given in kinds.values():
            torch._foreach_copy_(column, given)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


@contextmanager
def beside(device: torch.device) -> Generator[torch.cuda.Stream]:
    """Work on a stream of its own on a device, which takes turns with the current one.

    Recording is not possible on the default stream, and what a library does at its first use on a stream, on that one.
    """
    with torch.cuda.device(device):
        current, stream = torch.cuda.current_stream(), _stream(torch.cuda.current_device())
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                yield stream
        finally:
            current.wait_stream(stream)


@cache
def _stream(index: int) -> torch.cuda.Stream:
    """Return the stream for recordings on a device; every stream more would cost libraries a workspace."""
    return torch.cuda.Stream(index)


def _copy(results: R) -> R:
    return pytree.tree_map_only(Tensor, Tensor.clone, results)
