"""Emulation of CUDA graphs on the CPU, which records and replays single operations: `emulate`."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from operant.nets import cuda_graphs


class Recorder(TorchDispatchMode):
    """Replacement of `torch.cuda.CUDAGraph`: replaying reads and writes the same memory as recording."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run an operation, and store it with its results that are newly allocated."""
        kwargs = kwargs or {}
        given = tensors((args, kwargs))
        if function._schema.is_mutable:
            self.before += [(tensor, tensor.clone()) for tensor in given]
        results = function(*args, **kwargs)
        known = {tensor.untyped_storage().data_ptr() for tensor in given}
        new = [tensor for tensor in tensors(results) if tensor.untyped_storage().data_ptr() not in known]
        self.operations.append((function, args, kwargs, new))
        return results

    def replay(self) -> None:
        """Run the operations again on the current contents of the memory."""
        for function, args, kwargs, new in self.operations:
            results = function(*args, **kwargs)
            for held, result in zip(new, tensors(results) if new else (), strict=True):
                held.copy_(result)


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a tree."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@contextmanager
def record(recorder: Recorder, stream: Any) -> Iterator[None]:
    """Replace `torch.cuda.graph`: recorded operations have no effect until they are replayed."""
    with recorder:
        yield
    for tensor, held in reversed(recorder.before):
        tensor.copy_(held)


def emulate(monkeypatch: Any) -> None:
    """Make `operant.nets.Graph` record on the CPU, which has no streams."""
    monkeypatch.setattr(cuda_graphs, "beside", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorder)
    monkeypatch.setattr(torch.cuda, "graph", record)
