"""Environments in the workers of a pool, as one vector environment: `PooledVectorEnv`."""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any, cast

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array
from numpy.typing import NDArray

from operant.envs.base import is_mapping
from operant.envs.infos import gather
from operant.envs.pool_workers import Lost
from operant.envs.spaces import ObservationFormat
from operant.envs.worker_process import Made, Stepped, observation_buffers, part
from operant.envs.workers import WorkerError

if TYPE_CHECKING:
    from operant.envs.worker_pool import WorkerPool


class PooledVectorEnv(VectorEnv[Any, Any, Any]):
    """Vector environment of `B` environments in the workers of a pool, without autoreset; created by `WorkerPool.make`.

    If episodes of lost workers are replayed, losses have no effect. Otherwise, `info["lost"]` `[B]` of a step marks the
    environments whose worker was lost: their episodes are truncated, their step is invalid, and they must be reset like
    ended ones.

    Attributes:
        pool: pool of the workers.
        number: number of this group of environments in the pool.
        maker: pickled function that creates one environment.
        places: indices of the environments of each worker.
        task: name in messages.
        made: description of each worker's environments.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 - as Gymnasium declares it
    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]

    def __init__(
        self, pool: "WorkerPool", number: int, maker: bytes, places: list[NDArray[np.int64]], task: str
    ) -> None:
        self.pool, self.number, self.maker, self.places, self.task = pool, number, maker, places, task
        self.num_envs = sum(map(len, places))
        self.made = dict[int, Made]()
        self._memory: SharedMemory | None = None
        self._gone = np.zeros(self.num_envs, np.bool_)
        self._obs: Any = None
        self._starts: list[tuple[int, dict[str, Any]] | None] = [None] * self.num_envs
        self._age = np.zeros(self.num_envs, np.int64)
        self._log: deque[Any] = deque()
        self.owns_pool = False

    def open(self) -> None:
        """Check the environments of the workers, and allocate shared memory for observations."""
        common = self.made[0]
        for index, other in self.made.items():
            if other.spaces != common.spaces:
                ours, others = other.spaces, common.spaces
                row = self.places[index][0]
                raise RuntimeError(f"all rows must have the same spaces, but row {row} has {ours}, and others {others}")
        self.single_observation_space, self.single_action_space = common.spaces
        self.metadata = common.metadata | type(self).metadata
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        ObservationFormat.of(
            self.single_observation_space, torch.device("cpu")
        )  # raises an error for spaces without arrays
        if self.pool.shares_memory:
            size, _ = observation_buffers(self.single_observation_space, self.num_envs, None)
            self._memory = SharedMemory(create=True, size=max(1, size))
            _, self._obs = observation_buffers(self.single_observation_space, self.num_envs, self._memory.buf)
        else:
            self._obs = create_empty_array(self.single_observation_space, self.num_envs)
        lost = self.share(range(len(self.places)))
        if lost:
            self.pool.replace(self, lost)

    def share(self, indices: Sequence[int]) -> dict[int, Lost]:
        """Send workers the shared memory for observations, if any, and return the lost workers."""
        name = None if self._memory is None else self._memory.name
        facts = {i: (name, self.num_envs, int(self.places[i][0])) for i in indices}
        return self.pool.ask(self, "share", facts)[1]

    def interrupt(self, index: int) -> None:
        """Mark the episodes of a worker's environments as lost."""
        self._gone[self.places[index]] = True

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start episodes of the environments in `options["reset_mask"]`, or of all, with one seed each."""
        others = dict(options or {})
        mask = others.pop("reset_mask", np.ones(self.num_envs, np.bool_))
        asked = [index for index, rows in enumerate(self.places) if mask[rows].any()]
        while asked:
            starts = {i: [(k, seed[row], others) for k, row in enumerate(self.places[i]) if mask[row]] for i in asked}
            answers, lost = self.pool.ask(self, "reset", starts)
            if lost:
                self.pool.replace(self, lost)
            self._receive(answers)
            asked = list(lost)
        self._gone[mask] = False
        for row in np.flatnonzero(mask):
            self._starts[row], self._age[row] = (seed[row], others), 0
        while len(self._log) > self._age.max():
            self._log.popleft()
        return self._obs, {}

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Apply one action per environment."""
        gone = self._gone.copy()
        payloads = {
            index: (actions[rows[0] : rows[-1] + 1], gone[rows] if gone[rows].any() else None)
            for index, rows in enumerate(self.places)
        }
        answers, lost = self.pool.ask(self, "step", payloads)
        while lost:
            self.pool.replace(self, lost)
            if self.pool.lost_workers != "replay":
                break
            more, lost = self.pool.ask(self, "step", {index: payloads[index] for index in lost})
            answers |= more
        self._receive({index: answer.obs for index, answer in answers.items()})
        if self.pool.lost_workers == "replay":
            self._log.append(np.array(actions))
            self._age += 1
        rewards = np.zeros(self.num_envs)
        terminations, truncations = np.zeros((2, self.num_envs), np.bool_)
        infos: list[Any] = [None] * self.num_envs if any(answer.infos for answer in answers.values()) else []
        for index, answer in answers.items():
            stepped: Stepped = answer
            first, end = self.places[index][0], self.places[index][-1] + 1
            rewards[first:end], terminations[first:end] = stepped.rewards, stepped.terminations
            truncations[first:end] = stepped.truncations
            for row, info in stepped.infos:
                infos[first + row] = info
        info: dict[str, Any] = gather(infos)
        gone |= self._gone  # just lost
        if gone.any():
            self._gone |= gone
            rewards[gone], terminations[gone], truncations[gone] = 0.0, False, True
            info["lost"] = gone
        return self._obs, rewards, terminations, truncations, info

    def replay(self, index: int) -> bool:
        """Replay the current episodes of a replaced worker, and return whether it was not lost again.

        Raises:
            WorkerError: the replayed episodes differ, so the environments are not deterministic given their seeds.
        """
        rows = self.places[index]
        first = int(rows[0])
        starts = [(k, *start) for k, start in enumerate(self._starts[first : first + len(rows)]) if start is not None]
        if not starts:
            return True
        before = None if self.pool.shares_memory else deepcopy(part(self._obs, first, len(rows)))
        answers, lost = self.pool.ask(self, "reset", {index: starts})
        obs, differs = answers.get(index), False
        for past in range(int(self._age[rows].max())):
            if lost:
                return False
            skipped = self._age[rows] <= past
            begins = len(self._log) - self._age[rows] + past
            actions = np.stack(
                [self._log[min(t, len(self._log) - 1)][row] for t, row in zip(begins, rows, strict=True)]
            )
            answers, lost = self.pool.ask(self, "repeat", {index: (actions, skipped)})
            if not lost:
                stepped: Stepped = answers[index]
                ended = (stepped.terminations | stepped.truncations) & (self._age[rows] > past + 1)
                obs, differs = stepped.obs, differs or bool(ended.any())
        if lost:
            return False
        if differs or (before is not None and not _equal(before, obs)):
            raise WorkerError(
                f"{self.task}: environments {self.rows_of([index])} of a replaced worker, replayed from the same seeds "
                "with the same actions, differ: they are not deterministic. Let them draw random numbers only from "
                "self.np_random, or start new episodes (--lost-workers restart)"
            )
        return True

    def _receive(self, obs: Mapping[int, Any]) -> None:
        """Copy the observations of workers that do not share memory."""
        if not self.pool.shares_memory:
            for index, found in obs.items():
                rows = self.places[index]
                _write(found, part(self._obs, int(rows[0]), len(rows)))

    def rows_of(self, indices: Sequence[int]) -> str:
        """Return the indices of the environments of some workers, for messages."""
        return ", ".join(str(row) for index in indices for row in self.places[index])

    def close(self, **_: Any) -> None:
        """Close the environments, and the pool if it belongs to them."""
        if self.closed:
            return
        self.closed = True
        self.pool.forget(self)
        self._obs = None
        if self._memory is not None:
            self._memory.unlink()
            with suppress(BufferError):  # observations are still in use; their owner frees the memory
                self._memory.close()
        if self.owns_pool:
            self.pool.close()


def _write(source: Any, target: Any) -> None:
    """Copy a tree of arrays."""
    if is_mapping(source):
        for key, value in source.items():
            _write(value, target[key])
    elif isinstance(source, tuple):
        for value, place in zip(cast(tuple[Any, ...], source), target, strict=True):
            _write(value, place)
    else:
        target[...] = source


def _equal(left: Any, right: Any) -> bool:
    """Return whether two trees of arrays are equal; NaN equals NaN."""
    if is_mapping(left):
        return all(_equal(value, right[key]) for key, value in left.items())
    if isinstance(left, tuple):
        return all(_equal(*pair) for pair in zip(cast(tuple[Any, ...], left), right, strict=True))
    return np.array_equal(left, right, equal_nan=left.dtype.kind in "fc")
