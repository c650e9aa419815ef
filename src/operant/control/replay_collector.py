"""Collectors of off-policy methods: `Experience`, environments and the replay buffer of their transitions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from operant import doors, ops, streams
from operant.control.agent import require_apart, require_rows
from operant.envs import BatchEnv, Features, Tree, begins_anew, learned, start
from operant.runtime.bounds import PositiveFloat, require
from operant.runtime.episode_index import EpisodeIndex, Relabel
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import DROPPED
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Act as KeepingAct
from operant.runtime.rollouts import Collector, Rollout
from operant.runtime.sharded_collector import ShardedCollector
from operant.runtime.shards import Shards
from operant.runtime.transitions import Transitions
from operant.runtime.weights import Weights
from operant.state import DeclaredState, State

Act = Callable[[Tensor, int, slice], Tensor]
"""`act(obs [S, n, D], t, envs) -> actions [S, n, ...]`, in the units of the learner; `envs` is the slice of the N
environments of each seed that the observations are of: all, but with several shards those of one. For the shards of
this process together (see `ShardedCollector.collect`) they are all of its environments, `[S * K', n, ...]`."""


STRATEGIES = ("none", "future", "final", "episode")
"""Strategies of hindsight experience replay."""

HINDSIGHT = "operant.explore.hindsight:Hindsight"
"""Class of the relabeling; by name, because its package imports this one."""


@dataclass(frozen=True)
class ReplayConfig:
    """Options of learners with a replay buffer for tasks with goals and bounded rewards."""

    hindsight: str = "none"
    """Replacement of the desired goal in sampled transitions: a goal achieved later in the episode (future), at its end
    (final), or anywhere in it (episode); a custom function, path/to/file.py:name; or none: no relabeling."""
    hindsight_ratio: PositiveFloat = 4.0
    """Number of relabeled transitions per original one (k in the paper). More mean more successes."""
    reward_range: tuple[float, float] | None = None
    """Minimum and maximum reward of a step, if known, such as -1 0. Targets are clipped to the possible returns, which
    prevents divergence of values; None: no clipping."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self, hindsight=doors.choices(STRATEGIES, self.hindsight, "operant.hindsight"))
        low, high = self.reward_range or (0.0, 0.0)
        if low > high:
            raise ValueError(f"reward_range must be the minimum and maximum reward, got {self.reward_range}")

    def target_range(self, gamma: float) -> tuple[float, float]:
        """Return the bounds of targets for a discount."""
        return (
            (-torch.inf, torch.inf) if self.reward_range is None else ops.return_range(*self.reward_range, gamma=gamma)
        )


class Experience(DeclaredState):
    """The environments of `S` seeds with N each, and the replay buffer of their transitions.

    Args:
        env: `S * N` environments with the same seeds; with several shards, those of this process.
        seeds: one non-negative integer per run; each has its own random streams.
        rows: N, environments per seed.
        capacity: transitions per seed in the buffer.
        to_env: function from the learner's actions to the environment's.
        random: function that samples initial actions `[steps, N, ...]` of one seed, in the learner's units.
        config: options of hindsight experience replay.
        extras: function of a number of steps that returns extra tensors to store, by name, `[T, S, N, ...]`.
        features: map from observations to network inputs. Default: `Features.of`.
        shards: division of the environments among processes. Every process has the whole buffer.

    Attributes:
        collector: collector of the environments; with several shards, of the first one in this process.
        rollouts: the same collector, or those of all shards.
        replay: the replay buffer.
        relabel: relabeling of sampled transitions from their episodes; None: no relabeling.
        episodes: positions of episodes in the buffer.

    Raises:
        ValueError: if there are not `S * N` environments, or a component needs all of them, but they are in several
            shards.
    """

    STATE = (("collector", "rollouts"), "replay", "first_streams", "sample_streams")

    def __init__(
        self,
        env: BatchEnv | Sequence[BatchEnv],
        *,
        seeds: Sequence[int],
        rows: int,
        capacity: int,
        to_env: Callable[[Tensor], Tensor],
        random: Callable[[tuple[int, ...], torch.Generator], Tensor],
        config: ReplayConfig = ReplayConfig(),
        extras: Callable[[int], Mapping[str, Tensor]] = lambda steps: {},
        features: Features | None = None,
        shards: Shards | None = None,
    ) -> None:
        self.envs, shards = list(env) if isinstance(env, Sequence) else [env], shards or Shards()
        for each in self.envs:
            require_rows(each, seeds, rows // shards.count)
            start(each, seeds)
        env = self.envs[0]
        self.rollouts: Collector | ShardedCollector
        if shards.count > 1:
            require_apart(env)
            self.rollouts = ShardedCollector(self.envs, seeds=len(seeds), shards=shards)
            self.collector = self.rollouts.collectors[0]
        else:
            self.rollouts = self.collector = Collector(env, seeds=len(seeds), features=features)
        self.replay = Replay(seeds=len(seeds), rows=rows, capacity=capacity, device=env.device)
        self.rows, self.to_env, self.random, self.extras = rows, to_env, random, extras
        self.relabel: Relabel | None = None
        self._check: Callable[[Rollout], None] | None = None
        if config.hindsight != "none":
            make = doors.load(HINDSIGHT, expected="the class of the relabeling")
            found = make(env, self.collector.features, strategy=config.hindsight, ratio=config.hindsight_ratio)
            self.relabel, self._check = found, found.check
        self.episodes = EpisodeIndex(self.replay)
        self.first_streams = streams.of_seeds(seeds, "first actions", device=env.device)
        self.sample_streams = streams.of_seeds(seeds, "replay", device=env.device)

    def explore(self, steps: int) -> Metrics:
        """Take `steps` steps of random actions in every environment."""
        drawn = streams.draw(self.first_streams, lambda stream: self.random((steps, self.rows), stream), dim=1)
        return self.collect(steps, lambda _, t, envs: drawn[t][:, envs])

    def collect(self, steps: int, act: Act, stacked: Callable[[], Act] | None = None) -> Metrics:
        """Take `steps` steps in every environment, store the transitions, and return the metrics of the rollout.

        Transitions with NaN or Inf are dropped and counted. With hindsight, the first rewards are compared with the
        computed ones.

        Args:
            steps: number of steps T.
            act: the policy.
            stacked: function that returns the policy of all shards of this process together.

        Raises:
            ValueError: if the first rewards differ from those that hindsight computes.
        """

        def keeping(envs: slice, act: Act = act) -> KeepingAct:
            def keep(obs: Tensor, t: int) -> tuple[tuple[Tensor], Tensor]:
                actions = act(obs, t, envs)
                return (actions,), self.to_env(actions)

            return keep

        if isinstance(self.rollouts, ShardedCollector):
            own = self.rollouts.shards.own_rows(self.rows)
            together = None if stacked is None else lambda: keeping(own, stacked())
            rollout = self.rollouts.collect(steps, keeping, together)
        else:
            rollout = self.rollouts.collect(steps, keeping(slice(None)))
        if self._check is not None and not self.replay.filled:
            self._check(rollout)
        rollout = replace(rollout, extras={**rollout.extras, **self.extras(steps)})
        dropped = self.replay.add(rollout, *rollout.kept)
        return {**rollout.metrics, DROPPED: dropped}

    def sample(self, samples: int, *, gamma: float, n: int = 1) -> Transitions:
        """Sample `samples` transitions per seed uniformly (see `take`)."""
        return self.take(self.replay.draw(samples, self.sample_streams), gamma=gamma, n=n)

    def take(self, index: Tensor, *, gamma: float, n: int = 1) -> Transitions:
        """Return the transitions at `index [S, M]` (see `Replay.take`), relabeled if configured.

        Raises:
            ValueError: if hindsight cannot relabel windows of several steps.
        """
        batch = self.replay.take(index, gamma=gamma, n=n)
        if self.relabel is None:
            return batch
        if n > 1:
            raise ValueError(f"hindsight relabels single transitions: set n_step to 1, got {n}")
        return self.relabel(batch, self.episodes.of(index), self.sample_streams)

    def read(self, obs: Tree) -> Tensor:
        """Convert raw observations `[S, N, ...]` to the inputs of the networks."""
        return self.collector.features.by_seed(obs)

    @property
    def learned(self) -> Weights:
        """The weights of wrappers of the environments."""
        return learned(self.collector.env)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly, or with new episodes (`operant.envs.begins_anew`)."""
        super().load_state_dict(state)
        self.episodes = EpisodeIndex(self.replay)
        if begins_anew(self.collector.env):
            self.replay.cut()
