"""Batches of processes that share models, whose passes need all of them: `InStep`.

This module imports nothing of `torch.distributed`, which takes seconds; `operant.language.sharded` does.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar, cast

from torch import Tensor

from operant.runtime.shards import Group, Shards

T = TypeVar("T")


class ModelGroup(Group, Protocol):
    """Processes that share models.

    Attributes:
        models: sharded models of this process, in the same order as in the others.
    """

    models: list[Any]

    def mesh(self, kind: str) -> Any:
        """Return the devices of the processes, of a kind such as `cuda`."""
        ...

    def announce(self, model: int, method: str) -> None:
        """Let the others call a method of a model, unless all processes make the same call already."""
        ...

    def together(self) -> bool:
        """Whether all processes make the same call."""
        ...

    def some(self, busy: bool) -> bool:
        """Return whether any process is busy."""
        ...

    def add_up(self, tensor: Tensor) -> None:
        """Add a tensor of all processes, in place."""
        ...


class InStep(Shards):
    """Batches in one shard for each process, whose passes through sharded models run in step."""

    def turns(self, items: Sequence[T]) -> list[tuple[T, bool]]:
        """Return the items of this process, and whether each counts: as many as of any other process.

        Args:
            items: of all processes, consecutive ones of the same.
        """
        if not items:
            return []
        cuts = [self.rows(number, len(items)) for number in range(self.count)]
        own, most = items[cuts[self.group.rank]], max(cut.stop - cut.start for cut in cuts)
        return [(item, True) for item in own] + [((own or items)[-1], False)] * (most - len(own))

    def map(self, function: Callable[[T], Any], items: Sequence[T]) -> list[Any]:
        """Return a function's result for every item; each process computes those of its shard."""
        found = [(function(item), counts) for item, counts in self.turns(items)]
        states = self.gather([{"results": [result for result, counts in found if counts]}])
        return [result for state in states for result in state["results"]]

    @contextlib.contextmanager
    def silent(self) -> Generator[None]:
        """Set the gradients of all passes through sharded models to 0."""
        with contextlib.ExitStack() as stack:
            for model in self.models.models:
                stack.enter_context(model.silent())
            yield

    @property
    def models(self) -> ModelGroup:
        """The processes."""
        return cast(ModelGroup, self.group)


def is_sharded(value: Tensor) -> bool:
    """Return whether a tensor is the part of this process, a `DTensor`."""
    return hasattr(value, "full_tensor")
