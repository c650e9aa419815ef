"""Samples from a replay buffer: single transitions, and sequences of steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

from torch import Tensor


@dataclass(frozen=True)
class TensorFields:
    """Base class of dataclasses whose fields are tensors, or None."""

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return a copy with `function` applied to every tensor."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: function(value) for name, value in values.items() if value is not None})


@dataclass(frozen=True)
class Transitions(TensorFields):
    """`M` n-step transitions for each of `S` seeds.

    Attributes:
        obs: observations, `[S, M, ...]`.
        actions: actions, `[S, M, ...]`.
        rewards: discounted rewards `Σ_{k<m} γ^k r_{t+k}` over the m <= n steps of the window, `[S, M]`.
        next_obs: true successor of the last step of the window, `[S, M, ...]`.
        terminated: whether the successor is terminal, bool `[S, M]`.
        discounts: bootstrap discount `γ^m`, `[S, M]`.
        weights: 0 for invalid samples (see `Replay.add`), else 1, `[S, M]`; None if all are 1.
        index: indices in the buffer, `[S, M]`.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    terminated: Tensor
    discounts: Tensor
    weights: Tensor | None
    index: Tensor

    def parts(self, count: int) -> list[Self]:
        """Split the samples of each seed into `count` minibatches of equal size, without copying."""
        columns: list[Sequence[Tensor | None]] = []
        for field in fields(self):
            value: Tensor | None = getattr(self, field.name)
            columns.append([None] * count if value is None else value.chunk(count, dim=1))
        return [type(self)(*row) for row in zip(*columns, strict=True)]  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Sequences:
    """`M` sequences of `L` consecutive steps for each of `S` seeds, which may extend over several episodes.

    Attributes:
        obs: observations, `[L, S, M, ...]`.
        actions: actions, `[L, S, M, ...]`.
        rewards: rewards, `[L, S, M]`.
        next_obs: true successor of each step, `[L, S, M, ...]`.
        terminated: whether the successor is terminal, bool `[L, S, M]`.
        truncated: whether the episode was truncated, bool `[L, S, M]`.
        is_first: whether the step starts an episode, or its predecessor is invalid or no longer stored, bool
            `[L, S, M]`.
        weights: 0 for invalid steps (see `Replay.add`), else 1, `[L, S, M]`; None if all are 1.
        extras: extra tensors of the steps by name, `[L, S, M, ...]`.
        index: indices of the first steps in the buffer, `[S, M]`.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    terminated: Tensor
    truncated: Tensor
    is_first: Tensor
    weights: Tensor | None
    extras: Mapping[str, Tensor]
    index: Tensor
