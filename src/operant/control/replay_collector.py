"""What off-policy methods learn from: `Experience`, environments and the replay buffer of what happened in them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from operant import doors, ops, streams
from operant.control.agent import require_rows
from operant.envs import BatchEnv, Tree, begins_anew, learned, start
from operant.runtime.bounds import PositiveFloat, require
from operant.runtime.episode_index import EpisodeIndex, Relabel
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import DROPPED
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Collector
from operant.runtime.transitions import Transitions
from operant.runtime.weights import Weights
from operant.state import DeclaredState, State

Act = Callable[[Tensor, int], Tensor]
"""`act(obs [S, N, D], t) -> actions [S, N, ...]`, in the units of the learner."""


STRATEGIES = ("none", "future", "final", "episode")
"""What `hindsight` may be by name."""

HINDSIGHT = "operant.explore.hindsight:Hindsight"
"""What relabels; by its name, since that package builds on this one."""


@dataclass(frozen=True)
class ReplayConfig:
    """What learners from replay share in tasks with goals, and where rewards are bounded."""

    hindsight: str = "none"
    """Which goal takes the place of the desired one in transitions drawn from replay: one achieved later in the episode
    (future), last (final), or anywhere in it (episode); a function of yours, path/to/file.py:name; none: they stay."""
    hindsight_ratio: PositiveFloat = 4.0
    """How many transitions are relabeled for each that stays as it is (the paper's k). Higher shows more successes."""
    reward_range: tuple[float, float] | None = None
    """Least and greatest reward of a step, where they are known, such as -1 0: targets are clipped to the returns that
    these allow, which keeps values from running away; None: no clipping."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self, hindsight=doors.choices(STRATEGIES, self.hindsight, "operant.hindsight"))
        low, high = self.reward_range or (0.0, 0.0)
        if low > high:
            raise ValueError(f"reward_range must be the least reward and the greatest, got {self.reward_range}")

    def target_range(self, gamma: float) -> tuple[float, float]:
        """Return between which numbers targets of a discount are clipped."""
        return (
            (-torch.inf, torch.inf) if self.reward_range is None else ops.return_range(*self.reward_range, gamma=gamma)
        )


class Experience(DeclaredState):
    """The environments of `S` seeds with `N` rows each, and a replay buffer of their transitions.

    Args:
        env: `S * N` rows, made with the same seeds.
        seeds: one non-negative integer for each of the S runs; each owns its streams of random numbers.
        rows: N.
        capacity: transitions of one seed that are kept.
        to_env: turns the learner's actions into the environment's.
        random: draws actions `[steps, N, ...]` of one seed in the learner's units, to begin with.
        config: says whether transitions are relabeled with hindsight.
        extras: gives what else to remember of so many steps by name, `[T, S, N, ...]`, as extra tensors of the replay.

    Attributes:
        collector: holds the environments.
        replay: the buffer.
        relabel: changes transitions that are drawn, in the light of their episodes; None: they stay as they are.
        episodes: where episodes lie in the buffer.

    Raises:
        ValueError: the environment has not `S * N` rows.
    """

    STATE = ("collector", "replay", "first_streams", "sample_streams")

    def __init__(
        self,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        rows: int,
        capacity: int,
        to_env: Callable[[Tensor], Tensor],
        random: Callable[[tuple[int, ...], torch.Generator], Tensor],
        config: ReplayConfig = ReplayConfig(),
        extras: Callable[[int], Mapping[str, Tensor]] = lambda steps: {},
    ) -> None:
        require_rows(env, seeds, rows)
        start(env, seeds)
        self.collector = Collector(env, seeds=len(seeds))
        self.replay = Replay(seeds=len(seeds), rows=rows, capacity=capacity, device=env.device)
        self.rows, self.to_env, self.random, self.extras = rows, to_env, random, extras
        self.relabel: Relabel | None = None
        if config.hindsight != "none":
            make = doors.load(HINDSIGHT, expected="the class that relabels")
            self.relabel = make(env, self.collector.features, strategy=config.hindsight, ratio=config.hindsight_ratio)
        self.episodes = EpisodeIndex(self.replay)
        self.first_streams = streams.of_seeds(seeds, "first actions", device=env.device)
        self.sample_streams = streams.of_seeds(seeds, "replay", device=env.device)

    def explore(self, steps: int) -> Metrics:
        """Take `steps` steps of random actions in every environment."""
        drawn = streams.draw(self.first_streams, lambda stream: self.random((steps, self.rows), stream), dim=1)
        return self.collect(steps, lambda _, t: drawn[t])

    def collect(self, steps: int, act: Act) -> Metrics:
        """Take `steps` steps in every environment, remember them, and return what episodes ended.

        Transitions with a number that is not finite are left out, and counted.
        """

        def keep(obs: Tensor, t: int) -> tuple[tuple[Tensor], Tensor]:
            actions = act(obs, t)
            return (actions,), self.to_env(actions)

        rollout = self.collector.collect(steps, keep)
        rollout = replace(rollout, extras={**rollout.extras, **self.extras(steps)})
        dropped = self.replay.add(rollout, *rollout.kept)
        return {**rollout.metrics, DROPPED: dropped}

    def sample(self, samples: int, *, gamma: float, n: int = 1) -> Transitions:
        """Return `samples` transitions of each seed, drawn uniformly (see `take`)."""
        return self.take(self.replay.draw(samples, self.sample_streams), gamma=gamma, n=n)

    def take(self, index: Tensor, *, gamma: float, n: int = 1) -> Transitions:
        """Return the transitions at the places `index [S, M]` (see `Replay.take`), relabeled where that is asked for.

        Raises:
            ValueError: windows of several steps are to be relabeled.
        """
        batch = self.replay.take(index, gamma=gamma, n=n)
        if self.relabel is None:
            return batch
        if n > 1:
            raise ValueError(
                f"single transitions can be relabeled, and not windows of several: set n_step to 1, got {n}"
            )
        return self.relabel(batch, self.episodes.of(index), self.sample_streams)

    def read(self, obs: Tree) -> Tensor:
        """Turn observations `[S, N, ...]` as the environment gives them into what the networks look at."""
        return self.collector.features.by_seed(obs)

    @property
    def learned(self) -> Weights:
        """What wrappers of the environments have learned."""
        return learned(self.collector.env)

    def close(self) -> None:
        """Close the environments."""
        self.collector.env.close()

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where the state was taken, or with new episodes (`operant.envs.begins_anew`)."""
        super().load_state_dict(state)
        self.episodes = EpisodeIndex(self.replay)
        if begins_anew(self.collector.env):
            self.replay.cut()
