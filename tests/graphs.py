"""CUDA graphs on the CPU: what `torch.cuda.graph` records is recorded and replayed operation by operation."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from operant.nets import cuda_graphs


class Recorder(TorchDispatchMode):
    """Stands for `torch.cuda.CUDAGraph`: replaying reads and writes the memory that recording did."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self.before: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run an operation, and remember it with those of its results that are new memory."""
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
        """Run the operations again on what is in memory now."""
        for function, args, kwargs, new in self.operations:
            results = function(*args, **kwargs)
            for held, result in zip(new, tensors(results) if new else (), strict=True):
                held.copy_(result)


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a tree."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@contextmanager
def record(recorder: Recorder, stream: Any) -> Iterator[None]:
    """Stand for `torch.cuda.graph`: what is recorded has not happened."""
    with recorder:
        yield
    for tensor, held in reversed(recorder.before):
        tensor.copy_(held)


def emulate(monkeypatch: Any) -> None:
    """Let `operant.nets.Graph` record on the CPU, which has no streams."""
    monkeypatch.setattr(cuda_graphs, "beside", nullcontext)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Recorder)
    monkeypatch.setattr(torch.cuda, "graph", record)
