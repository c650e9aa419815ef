"""Actors with a copy of the policy that collect rollouts, in this or other processes: `RolloutWorkers`.

A call sends an actor the current parameters, and returns a rollout, with the version of the parameters, and the state
of the actor. A lost worker can therefore be replaced, checkpoints need no further messages, and the rollouts of an
actor do not depend on its location.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from operant import hosts
from operant.envs import WorkerError
from operant.hosts import Host, Reply
from operant.nets import precision, set_precision
from operant.runtime.encoding import flatten, unflatten
from operant.runtime.local_hosts import InlineHost, ProcessHost
from operant.state import MissingError, State, StateError
from operant.tensors import from_numpy

logger = logging.getLogger(__name__)

ATTEMPTS = 3
"""Maximum number of consecutive replacements of a lost worker; then training fails."""

STARTING = 120.0
"""Time limit in seconds for the start of a worker, in addition to the time limit of its first reply."""

CLOSING = 5.0
"""Time limit in seconds for closing environments, after which workers are killed."""

Message = tuple[Any, Mapping[str, NDArray[Any]]]
"""A state, serialized for another process."""


class RolloutActor(Protocol):
    """An actor with its own environments."""

    def collect(self, parameters: Tensor) -> State:
        """Collect a rollout of the policy with the given parameters."""
        ...

    def state_dict(self) -> State:
        """Return the state of environments and random streams."""
        ...

    def load_state_dict(self, state: State) -> Any:
        """Restore a state exactly."""
        ...

    def close(self) -> None:
        """Close the environments."""
        ...


@runtime_checkable
class RolloutWorkersConfig(Protocol):
    """A configuration with rollout workers."""

    @property
    def num_actors(self) -> int:
        """Number of actors."""
        ...

    @property
    def workers(self) -> int:
        """Number of worker processes; 0: actors are in this process."""
        ...


class Collected(NamedTuple):
    """A rollout of an actor.

    Attributes:
        actor: index of the actor.
        version: version of the parameters.
        rollout: rollout.
    """

    actor: int
    version: int
    rollout: State


class RolloutWorker:
    """Actors in a worker process; each is created at its first call.

    Args:
        makers: functions that create the actors.
        threads: number of CPU threads, which can change the last bits of results.
        precision: precision of matrix products (`operant.nets.set_precision`).
    """

    def __init__(self, makers: Sequence[Callable[[], RolloutActor]], threads: int, precision: str) -> None:
        torch.set_num_threads(threads)
        set_precision(precision, torch.device("cpu"))
        self._makers = makers
        self._actors: dict[int, RolloutActor] = {}

    def collect(
        self, number: int, state: Message | None, version: int, parameters: Message
    ) -> tuple[int, Message, Message]:
        """Collect a rollout with one actor.

        Args:
            number: index of the actor.
            state: state to restore before; None: continue with the current one.
            version: version of the parameters.
            parameters: parameters of the policy.

        Returns:
            The version, the rollout and the state of the actor.
        """
        if number not in self._actors:
            self._actors[number] = self._makers[number]()
        actor = self._actors[number]
        if state is not None:
            actor.load_state_dict(_unpacked(state))
        rollout = actor.collect(_unpacked(parameters)["parameters"])
        return version, _packed(rollout), _packed(actor.state_dict())

    def close(self) -> None:
        """Close the environments."""
        for actor in self._actors.values():
            actor.close()


class RolloutWorkers:
    """Actors of a learner, distributed over worker processes on this machine or a host (`operant.hosts`).

    A lost worker is replaced; its actors continue from their last states, and repeat lost rollouts.

    Args:
        makers: functions that create the actors; with workers, they must be importable in another process.
        workers: number of processes; 0: actors are in this process.
        deadline: time limit in seconds for a rollout.
        device: device of the rollouts.

    Attributes:
        lost: number of workers that were replaced.
    """

    def __init__(
        self,
        makers: Sequence[Callable[[], RolloutActor]],
        *,
        workers: int,
        deadline: float,
        device: str | torch.device = "cpu",
    ) -> None:
        self._makers, self._deadline, self._device = list(makers), deadline, device
        self._host: Host = (hosts.current() or ProcessHost()) if workers else InlineHost()
        self._workers: list[hosts.Actor | None] = [None] * max(workers, 1)
        self._started, self._heard = [False] * len(self._workers), [0.0] * len(self._workers)
        self._losses, self.lost = [0] * len(self._workers), 0
        self._states: list[State | None] = [None] * len(self._makers)
        self._kept: set[int] = set()  # actors whose worker has their latest state
        self._pending: dict[int, Reply] = {}  # by index of the actor, in the order of their start
        self._published: tuple[int, Message] | None = None

    @property
    def idle(self) -> list[int]:
        """Indices of the actors without a rollout in progress."""
        return [number for number in range(len(self._makers)) if number not in self._pending]

    def publish(self, version: int, parameters: Tensor) -> None:
        """Set the parameters for the following rollouts, and their version."""
        self._published = version, _packed({"parameters": parameters})

    def start(self, numbers: Sequence[int]) -> None:
        """Start a rollout of each given idle actor, without waiting."""
        for number in numbers:
            self._send(number)

    def take(self, number: int | None = None) -> Collected:
        """Wait for a rollout, and return it.

        Args:
            number: index of its actor; None: among finished actors, the one that was started first.

        Raises:
            WorkerError: a worker was lost too often in a row.
            Exception: any exception raised by an environment.
        """
        while True:
            found = self._finished(list(self._pending) if number is None else [number])
            worker = self._worker_of(found)
            try:
                version, rollout, state = self._pending[found].result()
            except ConnectionError as error:
                self._replace(worker, str(error))
                continue
            del self._pending[found]
            self._kept.add(found)
            self._states[found] = _unpacked(state)
            self._started[worker], self._losses[worker], self._heard[worker] = True, 0, time.monotonic()
            return Collected(found, version, _unpacked(rollout, self._device))

    def _finished(self, numbers: Sequence[int]) -> int:
        """Wait until an actor has finished or is lost, and return its index."""
        pause = 0.1 if len(numbers) == 1 else 0.001
        while True:
            for number in numbers:
                if self._pending[number].done():
                    return number
            with suppress(TimeoutError, ConnectionError):
                self._pending[numbers[0]].result(pause)
            for worker in {self._worker_of(number) for number in numbers}:
                limit = self._deadline + (0.0 if self._started[worker] else STARTING)
                if time.monotonic() - self._heard[worker] > limit:
                    self._replace(worker, f"no reply for {limit:g} seconds")

    def _worker_of(self, number: int) -> int:
        return number % len(self._workers)

    def _send(self, number: int) -> None:
        assert self._published is not None  # noqa: S101 - parameters are published first
        place, state = self._worker_of(number), None if number in self._kept else self._states[number]
        worker = self._workers[place]
        if worker is None:
            worker = self._workers[place] = self._host.actor(
                RolloutWorker, self._makers, torch.get_num_threads(), precision()
            )
            self._started[place] = False
        if all(self._worker_of(other) != place for other in self._pending if other != number):
            self._heard[place] = time.monotonic()
        version, parameters = self._published
        call = number, None if state is None else _packed(state), version, parameters
        self._pending[number] = worker.call("collect", *call)

    def _replace(self, worker: int, why: str) -> None:
        """Replace a worker, and repeat its unfinished rollouts.

        Raises:
            WorkerError: the worker was lost too often in a row.
        """
        actors = [number for number in range(len(self._makers)) if self._worker_of(number) == worker]
        what = f"worker {worker} with actors {', '.join(map(str, actors))} is lost ({why})"
        self.lost += 1
        self._losses[worker] += 1
        self._drop(worker)
        if self._losses[worker] > ATTEMPTS:
            raise WorkerError(
                f"{what}, {ATTEMPTS + 1} times in a row. If a rollout takes that long, raise `deadline`; "
                "`operant resume` continues from the last checkpoint"
            )
        logger.warning("%s. A new one repeats its unfinished rollouts", what)
        self._kept.difference_update(actors)
        self._heard[worker] = time.monotonic()
        self.start([number for number in self._pending if number in actors])

    def _drop(self, place: int) -> None:
        worker = self._workers[place]
        if worker is not None:
            worker.kill()
        self._workers[place] = None

    def close(self) -> None:
        """End the workers, and kill those that do not end in time. Can be called twice."""
        until = time.monotonic() + min(CLOSING, self._deadline)
        closing = [worker.call("close") for worker in self._workers if worker is not None]
        for reply in closing:
            with suppress(TimeoutError, ConnectionError):
                reply.result(max(0.0, until - time.monotonic()))
        for place in range(len(self._workers)):
            self._drop(place)
        self._kept.clear()
        self._pending.clear()

    def state_dict(self) -> State:
        """Return the states of all actors after their latest rollouts; None before the first one."""
        return {"actors": list(self._states)}

    def load_state_dict(self, state: State) -> None:
        """Restore the states of the actors, and drop rollouts in progress.

        Raises:
            StateError: the number of actors differs.
        """
        if "actors" not in state:
            raise MissingError("actors", "is missing")
        saved = state["actors"]
        if len(saved) != len(self._makers):
            raise StateError("actors", f"has {len(saved)} parts but {len(self._makers)} are needed")
        self.close()
        self._states = list(saved)


def _packed(state: State) -> Message:
    """Serialize a state for another process, with copies of its tensors."""
    structure, tensors = flatten(state)
    return structure, {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}


def _unpacked(message: Message, device: str | torch.device = "cpu") -> State:
    structure, arrays = message
    tensors = {  # arrays from a host may be read-only
        name: from_numpy(array if array.flags.writeable else array.copy()).to(device) for name, array in arrays.items()
    }
    return unflatten(structure, tensors)
