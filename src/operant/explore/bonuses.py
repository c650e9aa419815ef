"""Exploration bonuses from visit counts, over the run or within an episode."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor

from operant import streams
from operant.catalog.bonuses import LASTING_WEIGHT
from operant.envs import BatchEnv
from operant.explore.bonus import CHANNEL, Bonus
from operant.runtime.bounds import require


class _Visits(Bonus, ABC):
    """Bonus `1 / sqrt(n)`, where `n` counts the visits of the run to the cell of an observation."""

    STATE = (*Bonus.STATE, "counts")
    LEARNED = ("counts",)

    def _make_counts(self, cells: int) -> None:
        self.counts = torch.zeros(self.shape[0], cells, device=self.device)

    @abstractmethod
    def place(self, seen: Tensor) -> Tensor:
        """Return the cells `[S, N]` of observations `seen [S, N, D]`."""

    def novelty(self, seen: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        """Count all visits, then return bonuses; simultaneous visits to a cell get the same bonus."""
        cells = self.place(seen)
        self.counts.scatter_add_(1, cells, valid.float())
        return self.counts.gather(1, cells).clamp_(min=1).rsqrt()


class Counts(_Visits):
    """Bonus `1 / sqrt(n)` for the n-th visit of a state (Strehl and Littman 2008, MBIE-EB); for discrete states.

    Raises:
        ValueError: if the observations are not those of a Discrete space.
    """

    def start(self, seeds: Sequence[int]) -> None:
        """Create empty counts."""
        super().start(seeds)
        space = self.observation_space
        if not isinstance(space, spaces.Discrete):
            raise ValueError(f"exact counts need Discrete observations, got {space}: use HashedCounts (--bonus hashed)")
        self._make_counts(int(space.n))

    def place(self, seen: Tensor) -> Tensor:
        """Return the state indices, whose one-hot vectors are the features."""
        return seen.argmax(-1)


class HashedCounts(_Visits):
    """Bonus `1 / sqrt(n)` for the n-th visit of a hash: the signs of random projections (Tang et al. 2017, SimHash).

    "#Exploration: a study of count-based exploration for deep reinforcement learning", arXiv:1611.04717, equation 2.
    Observations with similar directions share a hash.

    Args:
        env: the wrapped environment.
        channel: as in `Bonus`.
        bits: projections, from 1 to 24. More distinguish more observations; the table has `2**bits` counts per seed.
        mixed: as in `Bonus`.
        gamma: as in `Bonus`.
    """

    STATE = (*_Visits.STATE, "projection")
    LEARNED = ("counts", "projection")

    def __init__(
        self,
        env: BatchEnv,
        channel: str = CHANNEL,
        *,
        bits: int = 16,
        mixed: float = 0.0,
        gamma: float | None = None,
    ) -> None:
        self.bits = bits
        require(self, bits="an integer in [1, 24]")
        super().__init__(env, channel, mixed=mixed, gamma=gamma)

    def start(self, seeds: Sequence[int]) -> None:
        """Sample the projections of each seed."""
        super().start(seeds)
        self._make_counts(2**self.bits)
        size = math.prod(self.features.shape)
        draws = [torch.randn(size, self.bits, generator=streams.torch_generator(seed, "hash")) for seed in seeds]
        self.projection = torch.stack(draws).to(self.device)

    def place(self, seen: Tensor) -> Tensor:
        """Return the signs of the projections as a number."""
        signs = (torch.bmm(seen, self.projection) > 0).long()
        return (signs << torch.arange(self.bits, device=self.device)).sum(-1)


class Episodic(Bonus):
    """Bonus 1 for the first visit of an observation in an episode, and 0 for later ones.

    Episodic novelty suits environments in which episodes have little in common, novelty over the run environments in
    which they have much in common (Henaff et al. 2023, "A study of global and episodic bonuses for exploration in
    contextual MDPs", arXiv:2306.03236). Observations are identified by a 64-bit fingerprint, and the `capacity` latest
    new ones of an episode are stored. Each episode starts with an empty store, after a termination as after a
    truncation, and its first observation counts as visited.

    Args:
        env: the wrapped environment.
        channel: as in `Bonus`.
        capacity: stored observations, at least 1.
        mixed: as in `Bonus`.
        gamma: as in `Bonus`.
    """

    STATE = (*Bonus.STATE, "memory", "known")
    weight = LASTING_WEIGHT
    episodic = True

    def __init__(
        self,
        env: BatchEnv,
        channel: str = CHANNEL,
        *,
        capacity: int = 512,
        mixed: float = 0.0,
        gamma: float | None = None,
    ) -> None:
        self.capacity = capacity
        require(self, capacity="an integer in [1, inf)")
        super().__init__(env, channel, mixed=mixed, gamma=gamma)

    def start(self, seeds: Sequence[int]) -> None:
        """Start with an empty store."""
        super().start(seeds)
        self.memory = torch.zeros(*self.shape, self.capacity, dtype=torch.int64, device=self.device)
        self.known = torch.zeros(self.shape, dtype=torch.int64, device=self.device)
        stream = streams.torch_generator(0, "fingerprint")
        size, limit = math.prod(self.features.shape), 2**62
        self._factors = torch.randint(-limit, limit, (size,), generator=stream).to(self.device) * 2 + 1

    def _fingerprint(self, seen: Tensor) -> Tensor:
        """Return a fingerprint `[S, N]` of the bits of `seen`; zeros of both signs are equal."""
        return ((seen + 0.0).view(torch.int32).long() * self._factors).sum(-1)

    def begin(self, seen: Tensor, rows: Tensor) -> None:
        """Store only the first observation."""
        self.known.masked_fill_(rows, 0)
        self._remember(self._fingerprint(seen), rows)

    def _remember(self, prints: Tensor, rows: Tensor) -> None:
        slot = (self.known % self.capacity).unsqueeze(-1)
        stored = torch.where(rows, prints, self.memory.gather(-1, slot).squeeze(-1))
        self.memory.scatter_(-1, slot, stored.unsqueeze(-1))
        self.known += rows

    def novelty(self, seen: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        """Return 1 for observations that are not stored, and store them."""
        prints = self._fingerprint(seen)
        filled = torch.arange(self.capacity, device=self.device) < self.known.unsqueeze(-1)
        new = ~((self.memory == prints.unsqueeze(-1)) & filled).any(-1) & valid
        self._remember(prints, new)
        return new.float()
