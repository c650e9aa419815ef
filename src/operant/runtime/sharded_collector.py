"""Collection of experience in environments divided into shards: `ShardedCollector`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from operant.envs import BatchEnv, TensorEnv
from operant.nets import Agreement
from operant.runtime.rollouts import Act, Collector, Decision, Play, Rollout, joined
from operant.runtime.shards import Shards
from operant.state import MissingError, State, StateError, load_part


class ShardedCollector:
    """Collector of the shards of this process; rollouts of all processes are gathered.

    Args:
        envs: one flat batch of `[S, N / K]` environments for each shard of this process (`Shards.mine`).
        seeds: number of seeds S.
        shards: the K shards.

    Attributes:
        collectors: one collector for each batch in `envs`.
        rows: number of environments N per seed in all shards.
    """

    def __init__(self, envs: Sequence[BatchEnv], *, seeds: int, shards: Shards) -> None:
        self.shards = shards
        self.collectors = [Collector(env, seeds=seeds) for env in envs]
        self.rows = self.collectors[0].rows * shards.count
        tensors = [env for env in envs if isinstance(env, TensorEnv)]
        self._joint = Joint(self.collectors, tensors) if len(tensors) == len(envs) > 1 else None
        self._agreement = Agreement()

    def collect(self, steps: int, act: Callable[[slice], Act], stacked: Callable[[], Act] | None = None) -> Rollout:
        """Take `steps` steps in every environment.

        Args:
            steps: number of steps T.
            act: function from a shard's slice of the N environments per seed to its policy.
            stacked: function that returns a policy for the K' shards of this process together, treated as further
                seeds: from observations `[S * K', N / K, ...]`. It takes K' times fewer calls, and is used if it
                changes no bit, which is verified in the first steps (see `operant.nets.Agreement`).
        """
        acts = [act(self.shards.rows(number, self.rows)) for number in self.shards.mine]
        together = stacked() if stacked is not None and len(acts) > 1 and not self._agreement.differs else None
        obs = torch.cat([collector.obs for collector in self.collectors], 1)

        def decide(obs: Tensor, t: int) -> Decision:
            return self._decide(obs, t, acts, together)

        parts = self._joint.play(obs, steps, decide) if self._joint else self._play(obs, steps, decide)
        own = [vars(collector.rollout(**part)) for collector, part in zip(self.collectors, parts, strict=True)]
        return joined(self.shards.gather(own))

    def _decide(self, obs: Tensor, t: int, acts: Sequence[Act], stacked: Act | None) -> Decision:
        """Return the policy outputs for observations `[S, K' * N / K, ...]` of the shards of this process.

        Kernels may depend on strides and alignment, so every policy gets the same ones in any process.
        """
        together = list[Tensor]()
        if stacked is not None and not self._agreement.differs:
            kept, actions = stacked(obs.reshape(len(obs) * len(acts), -1, *obs.shape[2:]).contiguous(), t)
            together = [column.reshape(*obs.shape[:2], *column.shape[2:]) for column in (*kept, actions)]
            if self._agreement.certain:
                return tuple(together[:-1]), together[-1]
        parts = [part.clone(memory_format=torch.contiguous_format) for part in obs.chunk(len(acts), 1)]
        decisions = [act(part, t) for act, part in zip(acts, parts, strict=True)]
        apart = [torch.cat(column, 1) for column in zip(*((*kept, own) for kept, own in decisions), strict=True)]
        if together:
            self._agreement.compare(together, apart)
        return tuple(apart[:-1]), apart[-1]

    def _play(self, obs: Tensor, steps: int, act: Act) -> list[dict[str, Any]]:
        """Take `steps` steps in the environments of each shard, and return arguments of `Collector.rollout`."""
        plays = [Play(collector, collector.obs) for collector in self.collectors]
        for t in range(steps):
            kept, actions = act(obs, t)
            columns = [column.chunk(len(plays), 1) for column in (*kept, actions)]
            for play, parts in zip(plays, zip(*columns, strict=True), strict=True):
                play.step(parts[:-1], parts[-1])
            obs = torch.cat([play.obs for play in plays], 1)
        return [play.finish() for play in plays]

    def state_dict(self) -> State:
        """Return the states of all shards, from all processes."""
        if self._joint:
            self._joint.store()
        return {"shards": self.shards.gather([collector.state_dict() for collector in self.collectors])}

    def load_state_dict(self, state: State) -> None:
        """Continue the episodes of a saved state.

        Raises:
            StateError: the number of shards differs.
        """
        if "shards" not in state:
            raise MissingError("shards", "is missing")
        saved = state["shards"]
        if len(saved) != self.shards.count:
            raise StateError("shards", f"has {len(saved)} parts, expected {self.shards.count}")
        for number, collector in zip(self.shards.mine, self.collectors, strict=True):
            load_part(collector, {f"shards.{number}": saved[number]}, f"shards.{number}")
        if self._joint:
            self._joint.restore()


class Joint:
    """Tensor environments of several shards, stepped together.

    Between `restore` and `store` the states of the single environments are out of date.

    Args:
        collectors: collectors of the environments, with equal numbers of them.
        envs: flat batches of `[S, n]` environments, one per collector.
    """

    def __init__(self, collectors: Sequence[Collector], envs: Sequence[TensorEnv]) -> None:
        self.collectors, self.envs, self.seeds = collectors, envs, collectors[0].seeds
        self.all = envs[0].resized(sum(env.rows for env in envs))
        self.restore()
        self.collector = Collector(self.all, seeds=self.seeds, features=collectors[0].features)

    def play(self, obs: Tensor, steps: int, act: Act) -> list[dict[str, Any]]:
        """Take `steps` steps from observations `[S, K' * n, ...]`, and return arguments of `Collector.rollout`."""
        played, count = self.collector.play(obs, steps, act), len(self.envs)
        kept = list(zip(*(column.chunk(count, 2) for column in played.pop("kept")), strict=True))
        last, told = played.pop("last_obs").chunk(count, 1), played.pop("infos")
        infos = [[_by_row(partial(self._part, number), each) for each in told] for number in range(count)]
        chunks = {name: value.chunk(count, 2) for name, value in played.items() if isinstance(value, Tensor)}
        own = [{name: parts[number] for name, parts in chunks.items()} for number in range(count)]
        return [{**played, **own[k], "kept": kept[k], "last_obs": last[k], "infos": infos[k]} for k in range(count)]

    def store(self) -> None:
        """Copy the joint state to the environments of each shard."""
        state = self.all.state_dict()
        for number, env in enumerate(self.envs):
            env.load_state_dict(_by_row(partial(self._part, number), state))

    def restore(self) -> None:
        """Copy the states of the shards to the joint state."""
        states = [env.state_dict() for env in self.envs]
        self.all.load_state_dict(_by_row(self._whole, *states))

    def _whole(self, *parts: Tensor) -> Tensor:
        """Join tensors `[..., S * n]` of the shards to `[..., S * K' * n]`."""
        *others, rows = parts[0].shape
        return torch.cat([part.view(*others, self.seeds, -1) for part in parts], -1).view(*others, rows * len(parts))

    def _part(self, number: int, rows: Tensor) -> Tensor:
        """Return the part of a shard in a tensor `[..., S * K' * n]`."""
        *others, _ = rows.shape
        return rows.view(*others, self.seeds, len(self.envs), -1)[..., number, :].reshape(*others, -1)


def _by_row(function: Callable[..., Tensor], *states: Mapping[str, Any]) -> dict[str, Any]:
    """Apply a function to all tensors with rows in the states; other entries are copied from the first state."""
    found = dict[str, Any]()
    for name, first in states[0].items():
        values = [state[name] for state in states]
        if isinstance(first, Mapping):
            found[name] = _by_row(function, *values)
        else:
            found[name] = function(*values) if isinstance(first, Tensor) and first.dim() else first
    return found
