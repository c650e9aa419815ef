"""A batch in K logical shards, computed alike by one process or by several: `Shards`.

Floating-point sums depend on their order, and a matrix product on its shape. Here both are part of the configuration:
each shard is collected and differentiated by itself, whichever process does it, and the results are added in one fixed
tree. So the number of processes changes no bit of what is learned, and a checkpoint knows nothing of it.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from operant.runtime.learner import Learner
from operant.state import State


class Group(Protocol):
    """The processes of a run, which take the same steps; the first one leads, and alone writes.

    Attributes:
        rank: place of this process.
        size: how many there are.
    """

    rank: int
    size: int

    def gather(self, states: Sequence[State], count: int) -> list[State]:
        """Return the states of all `count` shards in their order, given those of this process."""
        ...

    def gather_tensors(self, tensors: Tensor, count: int) -> Tensor:
        """Return the tensors `[K, ...]` of all `count` shards in their order, given those of this process."""
        ...

    def lead(self, run: str, budget: int, learner: Learner) -> None:
        """Have the others follow: whatever the learner of this process does, theirs do, too.

        Args:
            run: the folder that they make theirs from.
            budget: of each seed.
            learner: as it is in the beginning, or what loads a state next.
        """
        ...


class Alone:
    """The group of one process."""

    rank, size = 0, 1

    def gather(self, states: Sequence[State], count: int) -> list[State]:
        """Return the states."""
        return list(states)

    def gather_tensors(self, tensors: Tensor, count: int) -> Tensor:
        """Return the tensors."""
        return tensors

    def lead(self, run: str, budget: int, learner: Learner) -> None:
        """There is nobody to lead."""


_group: ContextVar[Group] = ContextVar("group", default=Alone())  # noqa: B039 - it has no state


def group() -> Group:
    """Return the group of processes that this one belongs to."""
    return _group.get()


@contextmanager
def within(processes: Group) -> Generator[Group]:
    """Let this process belong to a group."""
    former = _group.set(processes)
    try:
        yield processes
    finally:
        _group.reset(former)


class Batch(Protocol):
    """Samples `[S, M, ...]` of S seeds.

    Attributes:
        weights: `[S, M]`, 0 where a sample does not count; None when every sample counts.
    """

    @property
    def weights(self) -> Tensor | None: ...  # noqa: D102

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the samples with `function` applied to every tensor."""
        ...


B = TypeVar("B", bound=Batch)


def share(count: int, rank: int, size: int) -> range:
    """Return the shards of one process: consecutive ones, as equally as it goes."""
    return range(rank * count // size, (rank + 1) * count // size)


def total(parts: Tensor) -> Tensor:
    """Return the sum over the first dimension, added pairwise in a tree that depends on its length alone."""
    while len(parts) > 1:
        even = len(parts) // 2 * 2
        parts = torch.cat((parts[0:even:2] + parts[1:even:2], parts[even:]))
    return parts[0]


@dataclass(frozen=True)
class Shards:
    """The K shards of every batch of a run, of which each process computes some.

    Attributes:
        count: K.
        group: the processes.

    Raises:
        ValueError: there are more processes than shards.
    """

    count: int = 1
    group: Group = field(default_factory=group)

    def __post_init__(self) -> None:
        if self.group.size > self.count:
            raise ValueError(
                f"{self.group.size} processes need at least as many shards, but the run has {self.count}: give it "
                f"--shards {self.group.size} when it is made, or take fewer processes"
            )

    @property
    def mine(self) -> range:
        """The shards of this process."""
        return share(self.count, self.group.rank, self.group.size)

    def require_even(self, **sizes: int) -> None:
        """Check that each of several things can be divided equally.

        Raises:
            ValueError: one cannot; the message names it.
        """
        for name, size in sizes.items():
            if size % self.count:
                raise ValueError(
                    f"{self.count} shards must divide {name}, which is {size}: take others, or fewer shards"
                )

    def rows(self, number: int, rows: int) -> slice:
        """Return which of `rows` rows are in a shard."""
        return slice(number * rows // self.count, (number + 1) * rows // self.count)

    def gather(self, states: Sequence[State]) -> list[State]:
        """Return the states of all shards, given those of `mine`."""
        return self.group.gather(states, self.count)

    def mean(
        self, function: Callable[[B], tuple[Tensor, Sequence[Tensor]]], batch: B
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the mean of a function over the samples of a batch, shard by shard.

        Args:
            function: the mean over the samples of a shard: a gradient `[S, P]`, and further numbers `[S]`.
            batch: M samples a seed, a multiple of K.
        """
        if self.count == 1:
            return function(batch)
        own = [function(batch.map(partial(self._part, number))) for number in self.mine]
        rows = [torch.cat((gradient, *(column.unsqueeze(1) for column in numbers)), dim=1) for gradient, numbers in own]
        means = self.group.gather_tensors(torch.stack(rows), self.count)
        mean = total(means * self._shares(batch.weights, means).unsqueeze(2))
        size = own[0][0].shape[1]
        return mean[:, :size], mean[:, size:].unbind(1)

    def _part(self, number: int, tensor: Tensor) -> Tensor:
        return tensor[:, self.rows(number, tensor.shape[1])]

    def _shares(self, weights: Tensor | None, like: Tensor) -> Tensor:
        """Return the weight of each shard among all, `[K, S or 1]`."""
        if weights is None:
            return like.new_full((self.count, 1), 1.0 / self.count)
        sums = weights.view(len(weights), self.count, -1).sum(2).t()
        return sums / sums.sum(0).clamp(min=1e-8)
