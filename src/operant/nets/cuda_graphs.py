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
    """A function of tensors on a CUDA device, run as a CUDA graph.

    Launching a small kernel takes longer than running it. For each set of argument shapes, the first call runs the
    function eagerly, which initializes libraries; the second captures its kernels; later calls copy their arguments to
    the captured buffers and replay the graph. Results are copies.

    The function may read and write other tensors than its arguments, as long as they remain the same objects. It must
    not read values on the host, sample random numbers, or keep new tensors. If a tensor that it reads is replaced, call
    `forget`.

    Args:
        function: function of contiguous tensors on the device that returns tensors, or trees of them.
        device: the CUDA device.
    """

    def __init__(self, function: Callable[..., R], device: torch.device) -> None:
        self.function, self.device = function, device
        self.forget()

    def forget(self) -> None:
        """Capture again at the next calls."""
        self._recordings: dict[tuple[torch.Size, ...], _Recording[R]] = {}

    def __call__(self, *tensors: Tensor) -> R:
        """Return the function's result."""
        shapes = tuple(tensor.shape for tensor in tensors)
        if shapes not in self._recordings:
            self._recordings[shapes] = _Recording(self.function, tensors, self.device)
        return self._recordings[shapes](tensors)


class _Recording(Generic[R]):
    """A function for one set of argument shapes, captured at its second call."""

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
        """Copy arguments to the captured buffers: host numbers one by one, tensors of a dtype together."""
        kinds: defaultdict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = defaultdict(lambda: ([], []))
        for held, tensor in zip(self.inputs, tensors, strict=True):
            if tensor.device.type == "cpu" and not tensor.dim():
                held.fill_(tensor.item())  # a copy would synchronize with the device
            else:
                for column, each in zip(kinds[held.dtype], (held, tensor), strict=True):
                    column.append(each)
        for column, given in kinds.values():
            torch._foreach_copy_(column, given)  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]


@contextmanager
def beside(device: torch.device) -> Generator[torch.cuda.Stream]:
    """Run on a separate stream of a device, ordered with the current one.

    Capture is impossible on the default stream, and libraries initialize per stream.
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
    """Return the capture stream of a device; libraries would allocate a workspace for each additional stream."""
    return torch.cuda.Stream(index)


def _copy(results: R) -> R:
    return pytree.tree_map_only(Tensor, Tensor.clone, results)
