"""Collection of experience in environments divided among shards: `ShardedCollector`."""

from collections.abc import Callable, Sequence
from typing import Any

from operant.envs import BatchEnv
from operant.runtime.rollouts import Act, Collector, Rollout, joined
from operant.runtime.shards import Shards
from operant.state import MissingError, State, StateError, load_part


class ShardedCollector:
    """The collectors of the shards of this process; together the processes gather all rollouts.

    Args:
        envs: one batch `[S, N / K]`, flat, for each shard of this process (`Shards.mine`).
        seeds: S.
        shards: K of them.

    Attributes:
        collectors: one for each of `envs`.
    """

    def __init__(self, envs: Sequence[BatchEnv], *, seeds: int, shards: Shards) -> None:
        self.shards = shards
        self.collectors = [Collector(env, seeds=seeds) for env in envs]

    def collect(self, steps: int, act: Callable[[slice], Act]) -> Rollout:
        """Take `steps` steps in every environment.

        Args:
            steps: T.
            act: returns the policy of a shard, given its slice of the N environments of a seed.
        """
        own: list[dict[str, Any]] = []
        for number, collector in zip(self.shards.mine, self.collectors, strict=True):
            rows = self.shards.rows(number, collector.rows * self.shards.count)
            own.append(vars(collector.collect(steps, act(rows))))
        return joined(self.shards.gather(own))

    def state_dict(self) -> State:
        """Return the states of all shards, from all processes."""
        return {"shards": self.shards.gather([collector.state_dict() for collector in self.collectors])}

    def load_state_dict(self, state: State) -> None:
        """Continue in the middle of the episodes of a saved state.

        Raises:
            StateError: the number of shards differs.
        """
        if "shards" not in state:
            raise MissingError("shards", "is missing")
        saved = state["shards"]
        if len(saved) != self.shards.count:
            raise StateError("shards", f"has {len(saved)} parts but {self.shards.count} are needed")
        for number, collector in zip(self.shards.mine, self.collectors, strict=True):
            load_part(collector, {f"shards.{number}": saved[number]}, f"shards.{number}")
