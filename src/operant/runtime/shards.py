"""Batches divided into K logical shards, with the same results for any number of processes: `Shards`.

Floating-point sums depend on the order, and matrix products on the shape. Here both are part of the configuration:
each shard is collected and differentiated separately, by any process, and results are added in a fixed tree. So
results and checkpoints are bitwise independent of the number of processes.
"""

import os
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from operant.nets import Agreement
from operant.runtime.learner import Learner
from operant.state import State


class Group(Protocol):
    """The processes of a run, which make the same calls; only the first one leads and writes files.

    Attributes:
        rank: index of this process.
        size: number of processes.
        sharded: whether each process holds only a part of a language model (`--fsdp`).
    """

    rank: int
    size: int
    sharded: bool

    def gather(self, states: Sequence[State], count: int) -> list[State]:
        """Return the states of all `count` shards in order, given those of this process."""
        ...

    def gather_tensors(self, tensors: Tensor, count: int) -> Tensor:
        """Return tensors `[K, ...]` of all `count` shards in order, given those of this process."""
        ...

    def lead(self, run: str, budget: int, learner: Learner) -> None:
        """Make the other processes repeat the calls of this process's learner.

        Args:
            run: folder of the run, from which the processes build their learners.
            budget: budget of each seed.
            learner: learner in its initial state, or before loading a state.
        """
        ...


class Alone:
    """The group of one process."""

    rank, size, sharded = 0, 1, False

    def gather(self, states: Sequence[State], count: int) -> list[State]:
        """Return the states unchanged."""
        return list(states)

    def gather_tensors(self, tensors: Tensor, count: int) -> Tensor:
        """Return the tensors unchanged."""
        return tensors

    def lead(self, run: str, budget: int, learner: Learner) -> None:
        """Do nothing: there are no other processes."""


_group: ContextVar[Group] = ContextVar("group", default=Alone())  # noqa: B039 - it has no state


def group() -> Group:
    """Return the group of processes of this process."""
    return _group.get()


def started() -> bool:
    """Return whether torchrun, or a compatible launcher, has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and {"RANK", "MASTER_ADDR"} <= os.environ.keys()


@contextmanager
def within(processes: Group) -> Generator[Group]:
    """Set the group of this process within a block."""
    former = _group.set(processes)
    try:
        yield processes
    finally:
        _group.reset(former)


class Batch(Protocol):
    """Samples `[S, M, ...]` of S seeds.

    Attributes:
        weights: weights `[S, M]`, 0 for ignored samples; None if every sample counts.
    """

    @property
    def weights(self) -> Tensor | None: ...  # noqa: D102

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply `function` to every tensor of the samples."""
        ...


B = TypeVar("B", bound=Batch)
T = TypeVar("T")
Mean = Callable[[B], tuple[Tensor, Sequence[Tensor]]]
"""Function that returns means over samples: a gradient `[S, P]`, and further numbers `[S]`."""


def share(count: int, rank: int, size: int) -> range:
    """Return the shards of one process: consecutive and nearly equal in number."""
    return range(rank * count // size, (rank + 1) * count // size)


def total(parts: Tensor) -> Tensor:
    """Return the sum over the first dimension, added pairwise in a tree that depends only on the length."""
    while len(parts) > 1:
        even = len(parts) // 2 * 2
        pairs = parts[0:even:2] + parts[1:even:2]
        parts = torch.cat((pairs, parts[even:])) if even < len(parts) else pairs
    return parts[0]


def _table(numbers: Sequence[Tensor], gradient: Tensor) -> Tensor:
    """Stack Q numbers `[S]` to `[S, Q]`."""
    return torch.stack([*numbers], dim=1) if numbers else gradient[:, :0]


def require_shards(count: int, processes: int) -> None:
    """Check that every process has a shard.

    Raises:
        ValueError: there are more processes than shards.
    """
    if processes > count:
        raise ValueError(
            f"{processes} processes need at least as many shards, but the run has {count}: create it with "
            f"--shards {processes}, or use fewer processes"
        )


@dataclass(frozen=True)
class Shards:
    """The K shards of every batch of a run, divided among processes.

    Attributes:
        count: number of shards K.
        group: the processes.

    Raises:
        ValueError: there are more processes than shards.
    """

    count: int = 1
    group: Group = field(default_factory=group)
    _stacks: dict[Hashable, Agreement] = field(default_factory=dict[Hashable, Agreement], compare=False, repr=False)

    def __post_init__(self) -> None:
        require_shards(self.count, self.group.size)

    @property
    def mine(self) -> range:
        """The shards of this process."""
        return share(self.count, self.group.rank, self.group.size)

    def require_even(self, **sizes: int) -> None:
        """Check that sizes are divisible by the number of shards.

        Raises:
            ValueError: a size is not divisible; the message contains its name.
        """
        for name, size in sizes.items():
            if size % self.count:
                raise ValueError(
                    f"{name} must be divisible by the number of shards, got {size} and {self.count}: change one of them"
                )

    def rows(self, number: int, rows: int) -> slice:
        """Return the slice of a shard in `rows` rows."""
        return slice(number * rows // self.count, (number + 1) * rows // self.count)

    def own_rows(self, rows: int) -> slice:
        """Return the slice of the shards of this process in `rows` rows."""
        return slice(self.rows(self.mine[0], rows).start, self.rows(self.mine[-1], rows).stop)

    def gather(self, states: Sequence[State]) -> list[State]:
        """Return the states of all shards, given those of `mine`."""
        return self.group.gather(states, self.count)

    def gather_tensors(self, tensors: Tensor) -> Tensor:
        """Return tensors `[K, ...]` of all shards, given those of `mine`."""
        return self.group.gather_tensors(tensors, self.count)

    def map(self, function: Callable[[T], Any], items: Sequence[T]) -> list[Any]:
        """Return a function's results for all items; each process computes those of its shards.

        Args:
            function: function that returns tensors, numbers, and lists of them (see `operant.state.State`).
            items: items, of which consecutive ones belong to the same shard.
        """
        if self.count == 1:
            return [function(item) for item in items]
        own = [{"results": [function(item) for item in items[self.rows(k, len(items))]]} for k in self.mine]
        return [result for state in self.gather(own) for result in state["results"]]

    def mean(
        self, function: Mean[B], batch: B, stacked: Mean[B] | None = None, kind: Hashable = None
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the mean of a function over the samples of a batch, computed shard by shard.

        Args:
            function: function that returns means over the samples of a shard: a gradient `[S, P]`, and numbers `[S]`.
            batch: batch of M samples per seed, a multiple of K.
            stacked: the same function for the K' shards of this process together, treated as further seeds: from
                samples `[S * K', M / K, ...]` to `[S * K', P]` and `[S * K']`. It takes K' times fewer calls, and is
                used if it changes no bit, which is verified with the first batches of every kind (see `Agreement`).
            kind: name that distinguishes functions with different computations.
        """
        if self.count == 1:
            return function(batch)
        agreement = self._stacks.setdefault(kind, Agreement())
        if stacked is None or len(self.mine) == 1 or agreement.differs:
            own = self._one_by_one(function, batch)
        else:
            own = self._at_once(stacked, batch)
            if not agreement.certain:
                exact = self._one_by_one(function, batch)
                agreement.compare(own, exact)
                own = exact
        if self.group.size > 1:
            gathered = self.gather_tensors(torch.cat([*own], dim=2))
            own = gathered[..., : own[0].shape[2]], gathered[..., own[0].shape[2] :]
        shares = None if batch.weights is None else self._shares(batch.weights).unsqueeze(2)
        gradient, numbers = (total(part) / self.count if shares is None else total(part * shares) for part in own)
        return gradient, numbers.unbind(1)

    def _one_by_one(self, function: Mean[B], batch: B) -> tuple[Tensor, Tensor]:
        """Return gradients `[K', S, P]` and numbers `[K', S, Q]` of the shards of this process."""
        parts = [batch.map(lambda tensor, number=number: self._part(tensor, [number])) for number in self.mine]
        gradients, numbers = zip(*(function(part) for part in parts), strict=True)
        return torch.stack(gradients), torch.stack([_table(*row) for row in zip(numbers, gradients, strict=True)])

    def _at_once(self, stacked: Mean[B], batch: B) -> tuple[Tensor, Tensor]:
        """Return the results of `_one_by_one` from one call."""
        gradient, numbers = stacked(batch.map(lambda tensor: self._part(tensor, self.mine)))
        return self._by_shard(gradient), self._by_shard(_table(numbers, gradient))

    def _by_shard(self, rows: Tensor) -> Tensor:
        """Reshape `[S * K', ...]` to `[K', S, ...]`."""
        count = len(self.mine)
        return rows.reshape(len(rows) // count, count, *rows.shape[1:]).transpose(0, 1)

    def _part(self, tensor: Tensor, shards: Sequence[int]) -> Tensor:
        """Return samples `[S * K', M / K, ...]` of K' consecutive shards of `[S, M, ...]`."""
        size = tensor.shape[1] // self.count
        if len(shards) < self.count:
            tensor = tensor[:, shards[0] * size : (shards[-1] + 1) * size]
        return tensor.reshape(-1, size, *tensor.shape[2:])

    def _shares(self, weights: Tensor) -> Tensor:
        """Return the share of each shard in the total weight, `[K, S]`."""
        sums = weights.view(len(weights), self.count, -1).sum(2).t()
        return sums / sums.sum(0).clamp(min=1e-8)
