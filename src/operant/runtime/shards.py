"""A batch in K logical shards, with equal results on one process or several: `Shards`.

Floating-point sums depend on their order, and a matrix product on its shape. Here both are part of the configuration:
each shard is collected and differentiated separately, by any process, and the results are added in one fixed tree. So
the number of processes changes no bit of the result, and checkpoints do not depend on it.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, Self, TypeVar

import torch
from torch import Tensor

from operant.runtime.learner import Learner
from operant.state import State


class Group(Protocol):
    """The processes of a run, which take the same steps; only the first one leads and writes.

    Attributes:
        rank: index of this process.
        size: number of processes.
        sharded: whether each process has a part of a language model (`--shard`), in place of all of it.
    """

    rank: int
    size: int
    sharded: bool

    def gather(self, states: Sequence[State], count: int) -> list[State]:
        """Return the states of all `count` shards in their order, given those of this process."""
        ...

    def gather_tensors(self, tensors: Tensor, count: int) -> Tensor:
        """Return the tensors `[K, ...]` of all `count` shards in their order, given those of this process."""
        ...

    def lead(self, run: str, budget: int, learner: Learner) -> None:
        """Make the other processes repeat the calls of this process's learner.

        Args:
            run: the folder from which they build their learners.
            budget: of each seed.
            learner: in its initial state, or about to load one.
        """
        ...


class Alone:
    """The group of one process."""

    rank, size, sharded = 0, 1, False

    def gather(self, states: Sequence[State], count: int) -> list[State]:
        """Return the states."""
        return list(states)

    def gather_tensors(self, tensors: Tensor, count: int) -> Tensor:
        """Return the tensors."""
        return tensors

    def lead(self, run: str, budget: int, learner: Learner) -> None:
        """Do nothing: there are no other processes."""


_group: ContextVar[Group] = ContextVar("group", default=Alone())  # noqa: B039 - it has no state


def group() -> Group:
    """Return the group of processes that this one belongs to."""
    return _group.get()


@contextmanager
def within(processes: Group) -> Generator[Group]:
    """Set the group of this process."""
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
T = TypeVar("T")
Mean = Callable[[B], tuple[Tensor, Sequence[Tensor]]]
"""Returns means over samples: a gradient `[S, P]`, and further numbers `[S]`."""


ENOUGH = 10_000
"""Equal numbers, other than 0, after which two computations count as the same."""


@dataclass
class Agreement:
    """Whether a faster computation gives the same bits as another one, by comparing their results.

    Kernels differ by shape and processor, and two that add in another order round most of their results alike: some
    equal numbers are no proof. So the results are compared until `ENOUGH` numbers were equal, and never again after a
    difference.

    Attributes:
        equal: how many numbers were.
        differs: whether some number was not.
    """

    equal: int = 0
    differs: bool = False

    @property
    def certain(self) -> bool:
        """Whether the faster computation alone is enough."""
        return not self.differs and self.equal >= ENOUGH

    def compare(self, faster: Sequence[Tensor], other: Sequence[Tensor]) -> None:
        """Compare the results of both."""
        self.differs = not all(map(torch.equal, faster, other))
        self.equal += sum(int(result.count_nonzero()) for result in other)


def share(count: int, rank: int, size: int) -> range:
    """Return the shards of one process: consecutive and nearly equal in number."""
    return range(rank * count // size, (rank + 1) * count // size)


def total(parts: Tensor) -> Tensor:
    """Return the sum over the first dimension, added pairwise in a tree that depends only on its length."""
    while len(parts) > 1:
        even = len(parts) // 2 * 2
        pairs = parts[0:even:2] + parts[1:even:2]
        parts = torch.cat((pairs, parts[even:])) if even < len(parts) else pairs
    return parts[0]


def _table(numbers: Sequence[Tensor], gradient: Tensor) -> Tensor:
    """Return Q numbers `[S]` as `[S, Q]`."""
    return torch.stack([*numbers], dim=1) if numbers else gradient[:, :0]


@dataclass(frozen=True)
class Shards:
    """The K shards of every batch of a run, divided among the processes.

    Attributes:
        count: K.
        group: the processes.

    Raises:
        ValueError: there are more processes than shards.
    """

    count: int = 1
    group: Group = field(default_factory=group)
    _stacks: dict[Hashable, Agreement] = field(default_factory=dict[Hashable, Agreement], compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.group.size > self.count:
            raise ValueError(
                f"{self.group.size} processes need at least as many shards, but the run has {self.count}: give it "
                f"--shards {self.group.size} when it is made, or use fewer processes"
            )

    @property
    def mine(self) -> range:
        """The shards of this process."""
        return share(self.count, self.group.rank, self.group.size)

    def require_even(self, **sizes: int) -> None:
        """Check that several sizes can be divided equally.

        Raises:
            ValueError: one cannot; the message names it.
        """
        for name, size in sizes.items():
            if size % self.count:
                raise ValueError(
                    f"{self.count} shards must divide {name}, which is {size}: change it, or use fewer shards"
                )

    def rows(self, number: int, rows: int) -> slice:
        """Return the slice of `rows` rows in a shard."""
        return slice(number * rows // self.count, (number + 1) * rows // self.count)

    def own_rows(self, rows: int) -> slice:
        """Return the slice of `rows` rows in the shards of this process."""
        return slice(self.rows(self.mine[0], rows).start, self.rows(self.mine[-1], rows).stop)

    def gather(self, states: Sequence[State]) -> list[State]:
        """Return the states of all shards, given those of `mine`."""
        return self.group.gather(states, self.count)

    def gather_tensors(self, tensors: Tensor) -> Tensor:
        """Return the tensors `[K, ...]` of all shards, given those of `mine`."""
        return self.group.gather_tensors(tensors, self.count)

    def map(self, function: Callable[[T], Any], items: Sequence[T]) -> list[Any]:
        """Return a function's result for every item; each process computes those of its shards.

        Args:
            function: returns tensors, numbers, and lists of them (see `operant.state.State`).
            items: consecutive ones belong to the same shard.
        """
        if self.count == 1:
            return [function(item) for item in items]
        own = [{"results": [function(item) for item in items[self.rows(k, len(items))]]} for k in self.mine]
        return [result for state in self.gather(own) for result in state["results"]]

    def mean(
        self, function: Mean[B], batch: B, stacked: Mean[B] | None = None, kind: Hashable = None
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the mean of a function over the samples of a batch, shard by shard.

        Args:
            function: the mean over the samples of a shard: a gradient `[S, P]`, and further numbers `[S]`.
            batch: M samples per seed, a multiple of K.
            stacked: the same for the K' shards of this process together, each treated as further seeds: from
                samples `[S * K', M / K, ...]` to `[S * K', P]` and `[S * K']`. It takes K' times fewer calls, and is
                used if it changes no bit, which is tested with the first batches of every kind (see `Agreement`).
            kind: distinguishes functions with different computations.
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
        """Return the same of one call."""
        gradient, numbers = stacked(batch.map(lambda tensor: self._part(tensor, self.mine)))
        return self._by_shard(gradient), self._by_shard(_table(numbers, gradient))

    def _by_shard(self, rows: Tensor) -> Tensor:
        """Return `[S * K', ...]` as `[K', S, ...]`."""
        count = len(self.mine)
        return rows.reshape(len(rows) // count, count, *rows.shape[1:]).transpose(0, 1)

    def _part(self, tensor: Tensor, shards: Sequence[int]) -> Tensor:
        """Return the samples `[S * K', M / K, ...]` of K' consecutive shards of `[S, M, ...]`."""
        size = tensor.shape[1] // self.count
        if len(shards) < self.count:
            tensor = tensor[:, shards[0] * size : (shards[-1] + 1) * size]
        return tensor.reshape(-1, size, *tensor.shape[2:])

    def _shares(self, weights: Tensor) -> Tensor:
        """Return the weight of each shard among all, `[K, S]`."""
        sums = weights.view(len(weights), self.count, -1).sum(2).t()
        return sums / sums.sum(0).clamp(min=1e-8)
