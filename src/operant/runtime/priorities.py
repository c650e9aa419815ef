"""Sum trees for prioritized experience replay: `Priorities`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from operant.state import DeclaredState

FAN = 64
"""Number of children per node: for 262 144 slots the tree has 3 levels instead of 18 of a binary tree."""


class Priorities(DeclaredState):
    """Sum trees over the priorities of `capacity` slots for each of `S` seeds (Schaul et al. 2016, section 3.3).

    Level 0 of a tree has the priorities `p^α`; every other node is the sum of its 64 children. Sampling descends from
    the root by cumulative sums; updates propagate upwards. All seeds and samples are processed together, and sums are
    recomputed from the children, so errors do not accumulate.

    Args:
        seeds: number of seeds, S.
        capacity: number of slots per seed.
        alpha: exponent of priorities: 0 samples uniformly, 1 proportionally to the priorities.
        epsilon: constant added to absolute errors, so that transitions with error 0 can be sampled again.
        least: minimum priority before the exponent; 1 gives LAP (Fujimoto et al. 2020, arXiv:2007.06049, eq. 8).
        device: device of the trees.

    Attributes:
        levels: levels from the priorities to the root, `[S, n]` each, in float64.
        largest: maximum priority `p^α` so far, which new transitions get, `[S]`.

    Raises:
        ValueError: `capacity` is not positive, `alpha` is not in [0, 1], `epsilon` is not positive, or `least` is
            negative.
    """

    STATE = ("levels", "largest")

    def __init__(
        self,
        *,
        seeds: int,
        capacity: int,
        alpha: float,
        epsilon: float = 1e-6,
        least: float = 0.0,
        device: str | torch.device = "cpu",
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, got {capacity}")
        if not (0.0 <= alpha <= 1.0 and epsilon > 0.0):
            raise ValueError(f"alpha must be in [0, 1] and epsilon positive, got {alpha} and {epsilon}")
        if not least >= 0.0:
            raise ValueError(f"least must be at least 0, got {least}")
        self.alpha, self.epsilon, self.least = alpha, epsilon, least
        self.levels: list[Tensor] = []
        width = capacity
        while not self.levels or width > 1:
            blocks = -(-width // FAN)
            self.levels.append(torch.zeros(seeds, blocks * FAN, dtype=torch.float64, device=device))
            width = blocks
        self.largest = torch.ones(seeds, dtype=torch.float64, device=device)

    def insert(self, places: Tensor, valid: Tensor) -> None:
        """Assign the maximum priority so far to new transitions, and priority 0 to invalid ones.

        Args:
            places: slots of the transitions, the same for every seed, `[n]`.
            valid: mask of the valid transitions, bool `[S, n]`.
        """
        index = places.expand(len(self.largest), -1)
        self._write(index, self.largest.unsqueeze(1) * valid)

    def update(self, index: Tensor, errors: Tensor) -> None:
        """Set the priorities of transitions to `max(|error| + epsilon, least)^α`; NaN and Inf are ignored.

        Args:
            index: slots, `[S, M]`; for repeated slots, one of the errors is used.
            errors: temporal-difference errors, `[S, M]`.
        """
        priorities = (errors.double().abs() + self.epsilon).clamp(min=self.least).pow(self.alpha)
        old = self.levels[0].gather(1, index)
        kept = ~priorities.isfinite() | (old == 0.0)  # the priority of invalid transitions remains 0
        priorities = torch.where(kept, old, priorities)
        torch.maximum(self.largest, priorities.amax(1), out=self.largest)
        self._write(index, priorities)

    def _write(self, index: Tensor, priorities: Tensor) -> None:
        self.levels[0].scatter_(1, index, priorities)
        for children, parents in zip(self.levels[:-1], self.levels[1:], strict=True):
            index = index.div(FAN, rounding_mode="floor")
            parents.scatter_(1, index, self._children(children, index).sum(-1))

    def _children(self, level: Tensor, parents: Tensor) -> Tensor:
        """Return the children `[S, M, 64]` of the nodes `parents [S, M]` of the level above."""
        blocks = level.view(len(level), -1, FAN)
        return blocks.gather(1, parents.unsqueeze(-1).expand(-1, -1, FAN))

    def draw(self, samples: int, streams: Sequence[torch.Generator], *, otherwise: int = 0) -> tuple[Tensor, Tensor]:
        """Draw `samples` slots per seed by stratified sampling.

        Args:
            samples: number of samples per seed, M.
            streams: one generator per seed.
            otherwise: slot for seeds without priorities, which has the probability 0.

        Returns:
            Slots `[S, M]`, and their probabilities `[S, M]`.
        """
        device = self.largest.device
        uniform = torch.stack(
            [torch.rand(samples, generator=stream, device=device, dtype=torch.float64) for stream in streams]
        )
        total = self.levels[-1].sum(1, keepdim=True)
        left = (uniform + torch.arange(samples, device=device)) / samples * total
        left.masked_fill_(total == 0.0, -1.0)  # leads to slot 0, and not beyond the last one
        index = torch.zeros_like(left, dtype=torch.int64)
        for level in reversed(self.levels):
            sums = self._children(level, index).cumsum(-1)
            # Because of rounding, the number may slightly exceed the sum of the children.
            left = torch.minimum(left, sums[..., -1] * (1.0 - 1e-12)).unsqueeze(-1)
            child = (sums <= left).sum(-1, keepdim=True).clamp_(max=FAN - 1)
            before = sums.gather(-1, (child - 1).clamp_(min=0)).masked_fill_(child == 0, 0.0)
            left = (left - before).squeeze(-1)
            index = index * FAN + child.squeeze(-1)
        index.masked_fill_(total == 0.0, otherwise)
        return index, self.levels[0].gather(1, index) / total.clamp(min=1e-300)
