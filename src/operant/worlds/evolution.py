"""CMA-ES (Hansen & Ostermeier 2001) for each of `S` seeds, by the package `cma`, with exact resume and without pickle.

A strategy is a function of its random numbers and of the fitness values. So its state consists of its start and all
fitness values: loading runs its generations again, which takes some milliseconds each.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from operant import streams
from operant.runtime.cma_es import Strategy, require_cma, strategy_of
from operant.state import DeclaredState, State
from operant.tensors import from_numpy


class Evolution(DeclaredState):
    """A population of vectors for each of `S` seeds, whose fitness is maximized.

    Args:
        seeds: one non-negative integer per population.
        population: number of candidates per generation.
        sigma: initial standard deviation.
        size: size of a candidate.

    Attributes:
        rounds: number of calls of `begin`.

    Raises:
        ModuleNotFoundError: if the package `cma` is not installed.
    """

    STATE = ("rounds", "start", "fitness")

    def __init__(self, *, seeds: Sequence[int], population: int, sigma: float, size: int) -> None:
        require_cma("world models need")
        self.seeds, self.population, self.sigma = list(seeds), population, sigma
        self.rounds = 0
        self.start = torch.zeros(len(seeds), size, dtype=torch.float64)
        self.fitness = torch.zeros(0, len(seeds), population, dtype=torch.float64)
        self._strategies: list[Strategy] = []
        self._asked: list[list[NDArray[np.float64]]] = []

    @property
    def generations(self) -> int:
        """Number of generations since `begin`."""
        return len(self.fitness)

    @property
    def mean(self) -> Tensor:
        """Means `[S, P]` of the distributions, which depend less on noise of the fitness than the candidates."""
        return from_numpy(np.stack([strategy.mean for strategy in self._strategies]))

    @property
    def spread(self) -> Tensor:
        """The step sizes σ `[S]`."""
        return torch.tensor([float(strategy.sigma) for strategy in self._strategies])

    def begin(self, start: Tensor) -> None:
        """Start over from mean vectors `[S, P]`."""
        self.rounds += 1
        self.start = start.detach().double().cpu().clone()
        self.fitness = self.fitness[:0]
        self._make()

    def ask(self) -> Tensor:
        """Return the candidates `[S, K, P]` of a generation, in double precision."""
        self._asked = [strategy.ask() for strategy in self._strategies]
        return from_numpy(np.array(self._asked))

    def tell(self, fitness: Tensor) -> None:
        """Update the strategies by the fitness `[S, K]` of the candidates; NaN counts as the minimum of its seed."""
        values = fitness.detach().double().cpu()
        worst = torch.where(values.isfinite(), values, torch.inf).amin(1, keepdim=True).nan_to_num(posinf=0.0)
        values = torch.where(values.isfinite(), values, worst)
        self.fitness = torch.cat((self.fitness, values.unsqueeze(0)))
        self._tell(values)

    def _tell(self, fitness: Tensor) -> None:
        for strategy, asked, told in zip(self._strategies, self._asked, fitness.numpy(), strict=True):
            strategy.tell(asked, (-told).tolist())

    def _make(self) -> None:
        """Create the strategies of this round in their initial state."""
        self._strategies = []
        for seed, start in zip(self.seeds, self.start.numpy(), strict=True):
            generator = np.random.Generator(np.random.PCG64(streams.seed_sequence(seed, "evolution", self.rounds)))
            self._strategies.append(strategy_of(start.copy(), self.sigma, generator, popsize=self.population))

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly, by running the generations of its round again."""
        self.fitness = self.fitness.new_zeros(len(state["fitness"]), *self.fitness.shape[1:])
        super().load_state_dict(state)
        self._strategies, self._asked = [], []
        if self.rounds:
            self._make()
            for told in self.fitness:
                self.ask()
                self._tell(told)
