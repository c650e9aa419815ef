"""Samples from a replay buffer: single transitions, and sequences of steps."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

from torch import Tensor


@dataclass(frozen=True)
class Transitions:
    """`M` transitions of each of `S` seeds, with n-step returns.

    Attributes:
        obs: `[S, M, ...]` observations.
        actions: `[S, M, ...]` actions.
        rewards: `[S, M]`, `Σ_{k<m} γ^k r_{t+k}` over the m <= n steps of the window.
        next_obs: `[S, M, ...]` the true successor of the window's last step.
        terminated: `[S, M]` bool, whether that is terminal.
        discounts: `[S, M]`, `γ^m`.
        weights: `[S, M]`, 0 for invalid samples (see `Replay.add`), else 1; None when all are 1.
        index: `[S, M]`, their positions in the buffer.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    terminated: Tensor
    discounts: Tensor
    weights: Tensor | None
    index: Tensor

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the transitions with `function` applied to every tensor."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: function(value) for name, value in values.items() if value is not None})

    def parts(self, count: int) -> list[Self]:
        """Split the samples of each seed into `count` minibatches of equal size, without a copy."""
        columns: list[Sequence[Tensor | None]] = []
        for field in fields(self):
            value: Tensor | None = getattr(self, field.name)
            columns.append([None] * count if value is None else value.chunk(count, dim=1))
        return [type(self)(*row) for row in zip(*columns, strict=True)]  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Sequences:
    """`L` steps in a row of one environment, `M` times for each of `S` seeds; they may run over ends of episodes.

    Attributes:
        obs: `[L, S, M, ...]` observations.
        actions: `[L, S, M, ...]` actions.
        rewards: `[L, S, M]`.
        next_obs: `[L, S, M, ...]` the true successor of each step.
        terminated: `[L, S, M]` bool, whether that is terminal.
        truncated: `[L, S, M]` bool, whether the episode was cut there.
        is_first: `[L, S, M]` bool, whether an episode begins with the step, or its predecessor is no longer stored.
        weights: `[L, S, M]`, 0 for invalid steps (see `Replay.add`), else 1; None when all are 1.
        extras: extra tensors of the steps by name, `[L, S, M, ...]`.
        index: `[S, M]`, their first positions in the buffer.
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
