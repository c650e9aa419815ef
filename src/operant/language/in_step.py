"""Batches of processes that share a sharded model, whose passes need all processes: `InStep`.

This module does not import `torch.distributed`, which takes seconds; `operant.language.sharded` does.
"""

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Protocol, TypeVar, cast

from torch import Tensor

from operant.runtime.shards import Group, Shards

T = TypeVar("T")


class ModelGroup(Group, Protocol):
    """Processes that share sharded models.

    Attributes:
        models: sharded models of this process, in the same order in every process.
    """

    models: list[Any]

    def mesh(self, kind: str) -> Any:
        """Return the device mesh of the processes, for a device type such as `cuda`."""
        ...

    def announce(self, model: int, method: str) -> None:
        """Make the other processes call a method of a model, unless all processes make the same call anyway."""
        ...

    def together(self) -> bool:
        """Whether all processes currently make the same calls."""
        ...

    def busy(self, model: int = -1) -> int:
        """Return the largest number of a model that a process currently passes tokens through; -1: none.

        Args:
            model: number of the model of this process; -1: none.
        """
        ...

    def add_up(self, tensor: Tensor) -> None:
        """Sum a tensor over all processes, in place."""
        ...


class InStep(Shards):
    """Shards of batches, one per process, whose passes through sharded models are synchronized."""

    def turns(self, items: Sequence[T]) -> list[tuple[T, bool]]:
        """Return the items of this process, padded to the same number in all processes, and whether each counts.

        Args:
            items: items of all processes; those of a process are consecutive.
        """
        if not items:
            return []
        cuts = [self.rows(number, len(items)) for number in range(self.count)]
        own, most = items[cuts[self.group.rank]], max(cut.stop - cut.start for cut in cuts)
        return [(item, True) for item in own] + [((own or items)[-1], False)] * (most - len(own))

    def map(self, function: Callable[[T], Any], items: Sequence[T]) -> list[Any]:
        """Apply a function to every item; each process computes those of its shard."""
        found = [(function(item), counts) for item, counts in self.turns(items)]
        states = self.gather([{"results": [result for result, counts in found if counts]}])
        return [result for state in states for result in state["results"]]

    @contextlib.contextmanager
    def uneven(self) -> Generator[None]:
        """Allow the processes different numbers of passes without gradients, all through the same sharded model."""
        with _all(model.announced() for model in self.models.models):
            yield
        while (number := self.models.busy()) >= 0:
            self.models.models[number].attend()

    def silent(self) -> contextlib.AbstractContextManager[None]:
        """Set the gradients of all passes through sharded models to 0."""
        return _all(model.silent() for model in self.models.models)

    @property
    def models(self) -> ModelGroup:
        """The group of processes."""
        return cast(ModelGroup, self.group)


@contextlib.contextmanager
def _all(contexts: Iterable[contextlib.AbstractContextManager[None]]) -> Generator[None]:
    """Enter several contexts."""
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def is_sharded(value: Tensor) -> bool:
    """Return whether a tensor is sharded, a `DTensor`."""
    return hasattr(value, "full_tensor")
