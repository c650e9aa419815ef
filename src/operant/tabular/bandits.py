"""Bandits: `S` seeds with `K` arms each, and their regret.

Regret is the expected loss from not pulling the best arm: `Σ_t (μ* - μ_{a_t})`. For any method that is
consistent on all problems it grows at least like `C ln T`, with the constant of `lai_robbins`. Strategies are in
`operant.tabular.strategies` and `operant.tabular.thompson`, the arms of a task in `operant.tabular.bandit_factory`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from operant.mdp.bellman_kernels import Index
from operant.runtime.bounds import PositiveInt, require
from operant.runtime.learner import Metrics
from operant.state import Resumable
from operant.streams import seed_sequence
from operant.tabular.formulas import moved
from operant.tabular.numba_config import compiled
from operant.tabular.player import Player, shares
from operant.tabular.random import StreamStates, below, normal, stream_states, uniform
from operant.tabular.simulator import UNLIMITED
from operant.tensors import from_numpy

Floats = NDArray[np.float64]


class Arms(NamedTuple):
    """The problems of `S` seeds.

    Attributes:
        means: `[S, K]`.
        best: `[S]`, the largest mean.
        bernoulli: whether rewards are Bernoulli; otherwise they are normal.
        noise: standard deviation of normal rewards.
    """

    means: Floats
    best: Floats
    bernoulli: bool
    noise: float

    @classmethod
    def paying_one(cls, probabilities: ArrayLike, seeds: int = 1) -> Self:
        """Return Bernoulli arms.

        Args:
            probabilities: probabilities of reward 1, `[K]` for all seeds or `[S, K]`.
            seeds: S, if all seeds have the same arms.

        Raises:
            ValueError: if a number is outside [0, 1].
        """
        means = _rows(probabilities, seeds)
        wrong = ~((means >= 0.0) & (means <= 1.0))
        if wrong.any():
            raise ValueError(f"probabilities must be in [0, 1], got {_first(means, wrong)}")
        return cls(means, means.max(axis=1), bernoulli=True, noise=0.0)

    @classmethod
    def normal(cls, means: ArrayLike, seeds: int = 1, *, noise: float = 1.0) -> Self:
        """Return arms with normal rewards around their means, `[K]` or `[S, K]`.

        Raises:
            ValueError: if a mean is NaN or Inf, or the standard deviation `noise` is negative, NaN or Inf.
        """
        table = _rows(means, seeds)
        if not np.isfinite(table).all():
            raise ValueError(f"means must be finite, got {_first(table, ~np.isfinite(table))}")
        if not 0.0 <= noise < np.inf:
            raise ValueError(f"noise must be finite and not negative, got {noise}")
        return cls(table, table.max(axis=1), bernoulli=False, noise=float(noise))

    @classmethod
    def testbed(cls, seeds: Sequence[int], arms: int = 10, *, center: float = 0.0) -> Self:
        """Return the k-armed testbed: a separate problem for each seed, with normally distributed means.

        Args:
            seeds: one per problem.
            arms: K.
            center: mean of the means; their standard deviation, and that of rewards, is 1 (Sutton and Barto 2018, 2.3).
        """
        generators = [np.random.Generator(np.random.PCG64(seed_sequence(seed, "arms"))) for seed in seeds]
        return cls.normal(np.stack([center + generator.standard_normal(arms) for generator in generators]))


def _first(table: Floats, wrong: NDArray[np.bool_]) -> str:
    """Name the first of the wrong numbers of arms `[S, K]`."""
    i, k = np.argwhere(wrong)[0]
    return f"{table[i, k]:g} for arm {k} of problem {i}"


def _rows(values: ArrayLike, seeds: int) -> Floats:
    table = np.array(values, np.float64, ndmin=1)
    if table.ndim == 1:
        table = np.repeat(table[None], seeds, axis=0)
    if table.ndim != 2 or table.size == 0:
        raise ValueError(f"arms must be [K] or [S, K] with at least one arm, got shape {table.shape}")
    return table


class Pulls(NamedTuple):
    """Statistics of `S` seeds.

    Attributes:
        counts: `[S, K]`, number of pulls of each arm.
        estimates: `[S, K]`, estimated means; probabilities of a gradient bandit.
        scores: `[S, K]`, scores that select the next arm.
        clock: `[S]`, number of pulls so far.
        mean: `[S]`, mean of all rewards so far.
        regret: `[S]`, regret so far.
        reward: `[S]`, sum of rewards since the last report.
        best: `[S]`, number of pulls of the best arm since the last report.
        payments: uint64 `[S]`, random streams of the rewards.
        rng: uint64 `[S]`, random streams of the strategy.
    """

    counts: NDArray[np.int64]
    estimates: Floats
    scores: Floats
    clock: NDArray[np.int64]
    mean: Floats
    regret: Floats
    reward: Floats
    best: NDArray[np.int64]
    payments: StreamStates
    rng: StreamStates

    @classmethod
    def new(cls, seeds: Sequence[int], arms: int, initial: float) -> Self:
        """Return the initial statistics; all estimates are `initial`."""
        shape, count = (len(seeds), arms), len(seeds)
        return cls(
            counts=np.zeros(shape, np.int64),
            estimates=np.full(shape, initial, np.float64),
            scores=np.zeros(shape),
            clock=np.zeros(count, np.int64),
            mean=np.zeros(count),
            regret=np.zeros(count),
            reward=np.zeros(count),
            best=np.zeros(count, np.int64),
            payments=stream_states(seeds, "arms pay"),
            rng=stream_states(seeds, "policy"),
        )


@compiled
def pull(arms: Arms, pulls: Pulls, i: int, arm: Index) -> float:
    """Pull an arm, count the pull and return the reward; the caller updates estimates."""
    mean = arms.means[i, arm]
    if arms.bernoulli:
        reward = 1.0 if uniform(pulls.payments, i) < mean else 0.0
    else:
        reward = mean + arms.noise * normal(pulls.payments, i)
    pulls.counts[i, arm] += 1
    pulls.clock[i] += 1
    pulls.mean[i] = moved(pulls.mean[i], reward, 1.0 / pulls.clock[i])
    pulls.reward[i] += reward
    pulls.regret[i] += arms.best[i] - mean
    if mean == arms.best[i]:
        pulls.best[i] += 1
    return reward


@compiled
def pull_and_average(arms: Arms, pulls: Pulls, i: int, arm: Index, step_size: float) -> None:
    """Pull an arm and update its estimate, by a step size or, if that is 0, to the mean of its rewards."""
    reward = pull(arms, pulls, i, arm)
    share = step_size if step_size > 0.0 else 1.0 / pulls.counts[i, arm]
    pulls.estimates[i, arm] = moved(pulls.estimates[i, arm], reward, share)


@compiled
def top_arm(values: Floats, rng: StreamStates, i: int) -> int:
    """Return the arm with the largest of the values `[K]`; ties are broken at random."""
    arm, ties = 0, 1
    for k in range(1, len(values)):
        if values[k] > values[arm]:
            arm, ties = k, 1
        elif values[k] == values[arm]:
            ties += 1
    left = below(rng, i, ties) if ties > 1 else 0
    for k in range(arm, len(values)):
        if values[k] == values[arm]:
            if left == 0:
                return k
            left -= 1
    return arm


@dataclass(frozen=True)
class StrategyConfig:
    """Hyperparameters of all strategies."""

    steps_per_iteration: PositiveInt = 100
    """Number of pulls per seed and iteration. It affects only how often metrics are reported."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self)


Kernel = Callable[[Arms, Pulls, Any, int], None]
"""Kernel of a strategy, `(arms, pulls, rule, steps)`: every seed pulls `steps` arms."""


class BanditLearner(Resumable):
    """Bandit learners of `S` seeds.

    A subclass defines its kernel `run(arms, pulls, rule, steps)`, in which every seed pulls `steps` arms.

    Args:
        config: configuration of the strategy; `steps_per_iteration` are the pulls of one iteration.
        arms: the problems.
        seeds: one non-negative integer per problem; each has its own random streams.
        budget: pulls per seed; the last iteration is shortened accordingly.

    Attributes:
        learns_values: whether it has `values`.
        learns_action_values: whether it has `q`.
        consumed: pulls per seed.
        pulls: the statistics.
        device: device of actions and observations, the CPU.

    Raises:
        ValueError: if the numbers of problems and seeds differ, or the strategy does not support these rewards.
    """

    STATE = ("consumed", "pulls")
    CATALOG: ClassVar[Mapping[str, Any]] = {"package": "tabular", "family": "bandit", "actions": ("discrete",)}

    config: Any
    FOR_NORMAL_REWARDS: ClassVar[str] = "another strategy, such as ucb1"
    run: ClassVar[Kernel]
    learns_values: ClassVar[bool] = True
    learns_action_values: ClassVar[bool] = True
    device = torch.device("cpu")

    def __init__(self, config: StrategyConfig, arms: Arms, *, seeds: Sequence[int], budget: int = UNLIMITED) -> None:
        if arms.means.shape[0] != len(seeds):
            raise ValueError(f"{len(seeds)} seeds need the same number of problems, got {arms.means.shape[0]}")
        if budget < 1:
            raise ValueError(f"budget must be at least 1 pull, got {budget}")
        self.config, self.arms, self.seeds, self.budget, self.consumed = config, arms, list(seeds), budget, 0
        if self.needs_bernoulli() and not arms.bernoulli:
            raise ValueError(
                f"{self.called()} is for Bernoulli rewards of 0 or 1, but these are normal: use "
                f"{self.FOR_NORMAL_REWARDS}, or a task such as operant/BernoulliBandit-v0"
            )
        self.rule: Any = self.make_rule()
        self.pulls = Pulls.new(self.seeds, arms.means.shape[1], self.initial_estimate())
        self._player = Player(self)

    def called(self) -> str:
        """Return the name of the strategy for messages."""
        return type(self).__name__

    def needs_bernoulli(self) -> bool:
        """Return whether rewards must be Bernoulli."""
        return False

    def make_rule(self) -> Any:
        """Return the kernel's constants."""
        return self.config.rule()

    def initial_estimate(self) -> float:
        """Return the initial estimate of every arm."""
        return 0.0

    def kernel(self) -> Kernel:
        """Return the kernel."""
        return type(self).run

    def preferences(self) -> Floats:
        """Return the scores `[S, K]` whose maximum is the greedy arm; by default the estimates."""
        return self.pulls.estimates

    @property
    def q(self) -> Floats:
        """Estimated means of the arms, `[S, 1, K]`.

        Raises:
            AttributeError: if the strategy estimates none.
        """
        if not self.learns_action_values:
            raise AttributeError(f"{self.called()} estimates no values of arms: it learns a policy")
        return self.pulls.estimates[:, None]

    @property
    def values(self) -> Floats:
        """Estimated mean of the greedy arm, `[S, 1]`."""
        return np.take_along_axis(self.q[:, 0], self.preferences().argmax(axis=1)[:, None], axis=1)

    def policy(self) -> Floats:
        """Return the greedy policies `[S, 1, K]`; tied arms share the probability equally."""
        preferences = self.preferences()
        return shares(preferences == preferences.max(axis=1, keepdims=True))[:, None]

    def probabilities(self, states: NDArray[np.int64], *, exploring: bool = False) -> Floats:
        """Return the greedy policies for observations `[S, N]`, `[S, N, K]`.

        `exploring` has no effect, because exploration depends on the statistics.
        """
        return np.repeat(self.policy(), states.shape[1], axis=1)

    def act(self, obs: Any, hidden_state: Any, noise: Tensor | None) -> tuple[Tensor, None]:
        """Select arms for observations `[S, N]`, which are uninformative (see `operant.runtime.learner.Policy`)."""
        return self._player.act(obs, hidden_state, noise)

    def describe(self, obs: Any, hidden_state: Any) -> Mapping[str, Tensor]:
        """Return the greedy policies and the estimated means, if any (see `operant.runtime.learner.Describing`)."""
        shape = (*obs.shape[:2], -1)
        outputs = {"probabilities": self.policy()} | ({"q": self.q} if self.learns_action_values else {})
        return {name: from_numpy(np.array(values)).expand(shape) for name, values in outputs.items()}

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Return the random numbers in [0, 1) that break ties in `act`, `[rows]` of one seed."""
        return self._player.noise(rows, generator)

    @cached_property
    def constants(self) -> Floats:
        """Return the constants `[S]` of Lai and Robbins."""
        return lai_robbins(self.arms)

    def iterate(self) -> Metrics:
        """Pull `config.steps_per_iteration` arms of every seed, and report their metrics.

        These are the regret, the mean reward and the share of best arms. The regret is that of all pulls so far, and is
        reported with the Lai-Robbins bound `C ln T`.
        """
        steps = max(1, min(self.config.steps_per_iteration, self.budget - self.consumed))
        self.kernel()(self.arms, self.pulls, self.rule, steps)
        self.consumed += steps
        reports = {
            "bandit/regret": self.pulls.regret.copy(),
            "bandit/lai_robbins": self.constants * np.log(self.consumed),
            "bandit/reward": self.pulls.reward / steps,
            "bandit/best_arm": self.pulls.best / steps,
        }
        self.pulls.reward[:], self.pulls.best[:] = 0.0, 0
        return {name: from_numpy(values) for name, values in reports.items()}

    def close(self) -> None:
        """Do nothing: bandits hold no resources."""


@compiled
def bernoulli_kl(p: float, q: float) -> float:
    """Return KL(Bernoulli(p) ‖ Bernoulli(q)) in nats, for q in (0, 1)."""
    left = p * np.log(p / q) if p > 0.0 else 0.0
    return left + ((1.0 - p) * np.log((1.0 - p) / (1.0 - q)) if p < 1.0 else 0.0)


def lai_robbins(arms: Arms) -> Floats:
    """Return the constant `C` of the lower bound of regret, `C ln T` (Lai and Robbins 1985).

    `C = Σ_a (μ* - μ_a) / KL(arm a ‖ best arm)` over the suboptimal arms. It bounds the slope of the regret over ln T
    asymptotically; at a finite T the regret can be lower.

    Returns:
        `[S]`; an arm adds 0 if the best arm always has reward 1, because a single 0 distinguishes them.
    """
    constants = np.zeros(len(arms.best))
    for i, best in enumerate(arms.best):
        for mean in arms.means[i][arms.means[i] < best]:
            if not arms.bernoulli:
                divergence = (best - mean) ** 2 / (2.0 * arms.noise**2) if arms.noise > 0.0 else np.inf
            else:
                divergence = np.inf if best == 1.0 else bernoulli_kl(mean, best)
            constants[i] += (best - mean) / divergence
    return constants
