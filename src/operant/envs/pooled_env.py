"""Environments in the workers of a pool, as one vector environment: `PooledVectorEnv`."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from operant.envs.infos import gather
from operant.envs.spaces import ObservationFormat
from operant.envs.worker_process import Made, Stepped, observation_buffers

if TYPE_CHECKING:
    from operant.envs.worker_pool import WorkerPool


class PooledVectorEnv(VectorEnv[Any, Any, Any]):
    """`B` environments in the workers of a pool, without autoreset. Made by `WorkerPool.make`.

    If `info` of a step has `lost` `[B]`, the worker of some environments was lost: their episodes are truncated, and
    their step has no meaning. Reset them like ended episodes.

    Attributes:
        pool: whose workers hold the environments.
        number: of these environments in the pool.
        maker: function that makes one, pickled.
        places: environments of each worker.
        task: name in messages.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 - as Gymnasium declares it
    single_observation_space: gymnasium.Space[Any]
    single_action_space: gymnasium.Space[Any]

    def __init__(
        self, pool: "WorkerPool", number: int, maker: bytes, places: list[NDArray[np.int64]], task: str
    ) -> None:
        self.pool, self.number, self.maker, self.places, self.task = pool, number, maker, places, task
        self.num_envs = sum(map(len, places))
        self._memory: SharedMemory | None = None
        self._gone = np.zeros(self.num_envs, np.bool_)
        self._obs: Any = None
        self.owns_pool = False

    def open(self, made: Mapping[int, Made]) -> None:
        """Check the workers' environments, and share memory for observations with them."""
        common = made[0]
        for index, other in made.items():
            if other.spaces != common.spaces:
                ours, others = other.spaces, common.spaces
                row = self.places[index][0]
                raise RuntimeError(f"all rows must have the same spaces, but row {row} has {ours}, and others {others}")
        self.single_observation_space, self.single_action_space = common.spaces
        self.metadata = common.metadata | type(self).metadata
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        ObservationFormat.of(self.single_observation_space, torch.device("cpu"))  # raises for spaces without arrays
        size, _ = observation_buffers(self.single_observation_space, self.num_envs, None)
        self._memory = SharedMemory(create=True, size=max(1, size))
        _, self._obs = observation_buffers(self.single_observation_space, self.num_envs, self._memory.buf)
        self.share(range(len(self.places)))

    def share(self, indices: Sequence[int]) -> None:
        """Send workers the shared memory for observations."""
        assert self._memory is not None  # noqa: S101 - open() has made it
        facts = {i: (self._memory.name, self.num_envs, int(self.places[i][0])) for i in indices}
        _, lost = self.pool.ask(self, "share", facts)
        if lost:
            self.pool.replace(self, lost)

    def interrupt(self, index: int) -> None:
        """Mark the episodes of a worker's environments as lost."""
        self._gone[self.places[index]] = True

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start episodes where `options["reset_mask"]` is true, or of all, from one seed each."""
        mask = np.ones(self.num_envs, np.bool_) if not options else options["reset_mask"]
        asked = [index for index, rows in enumerate(self.places) if mask[rows].any()]
        while asked:
            seeds = {i: [(k, seed[row]) for k, row in enumerate(self.places[i]) if mask[row]] for i in asked}
            _, lost = self.pool.ask(self, "reset", seeds)
            if lost:
                self.pool.replace(self, lost)
            asked = list(lost)
        self._gone[mask] = False
        return self._obs, {}

    def step(
        self, actions: Any
    ) -> tuple[Any, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Apply one action each."""
        gone = self._gone.copy()
        payloads = {
            index: (actions[rows[0] : rows[-1] + 1], gone[rows] if gone[rows].any() else None)
            for index, rows in enumerate(self.places)
        }
        answers, lost = self.pool.ask(self, "step", payloads)
        if lost:
            self.pool.replace(self, lost)
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

    def rows_of(self, indices: Sequence[int]) -> str:
        """Return the environments of some workers, for messages."""
        return ", ".join(str(row) for index in indices for row in self.places[index])

    def close(self, **_: Any) -> None:
        """Close the environments, and their own pool if any."""
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
