"""Actors with a copy of the policy that collect rollouts, in this process or elsewhere: `RolloutWorkers`.

A call brings an actor the current parameters. It returns a rollout, tagged with their version, and its own state: so
another worker continues where one was lost, a checkpoint needs no further messages, and where actors are changes no bit
of what each of them collects.
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
"""Replacements of a worker that is lost again and again; then training ends."""

STARTING = 120.0
"""Seconds that a worker may take to start, in addition to the deadline of its first reply."""

CLOSING = 5.0
"""Seconds that workers have to close their environments; then they are killed."""

Message = tuple[Any, Mapping[str, NDArray[Any]]]
"""A state on the way between processes."""


class RolloutActor(Protocol):
    """Acts in environments of its own."""

    def collect(self, parameters: Tensor) -> State:
        """Return a rollout of the policy with these parameters."""
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
    """A configuration of actors in workers."""

    @property
    def num_actors(self) -> int:
        """Number of actors."""
        ...

    @property
    def workers(self) -> int:
        """Number of other processes that share them; 0: they are in this one."""
        ...


class Collected(NamedTuple):
    """A rollout of an actor.

    Attributes:
        actor: its number.
        version: of the parameters.
        rollout: what it returned.
    """

    actor: int
    version: int
    rollout: State


class RolloutWorker:
    """The actors of a worker, in its process; each is made when it is first called.

    Args:
        makers: of all actors, by number.
        threads: for its arithmetic: their number can change bits.
        precision: of products (`operant.nets.set_precision`).
    """

    def __init__(self, makers: Sequence[Callable[[], RolloutActor]], threads: int, precision: str) -> None:
        torch.set_num_threads(threads)
        set_precision(precision, torch.device("cpu"))
        self._makers = makers
        self._actors: dict[int, RolloutActor] = {}

    def collect(
        self, number: int, state: Message | None, version: int, parameters: Message
    ) -> tuple[int, Message, Message]:
        """Let an actor collect a rollout.

        Args:
            number: of the actor.
            state: to restore before; None: it continues.
            version: of the parameters.
            parameters: those of the policy.

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
    """The actors of a learner, divided among worker processes of this machine or of a host (`operant.hosts`).

    A lost worker is replaced: its actors continue from their last states, and repeat what was lost.

    Args:
        makers: of the actors; with workers, they must be importable in another process.
        workers: number of processes; 0: the actors are in this one.
        deadline: seconds that a worker may take for one rollout.
        device: of the rollouts.

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
        self._kept: set[int] = set()  # actors that are in their worker, in their latest state
        self._pending: dict[int, Reply] = {}  # by the number of the actor, in the order of their start
        self._published: tuple[int, Message] | None = None

    @property
    def idle(self) -> list[int]:
        """The actors that collect nothing."""
        return [number for number in range(len(self._makers)) if number not in self._pending]

    def publish(self, version: int, parameters: Tensor) -> None:
        """Set the parameters with which rollouts are collected from now on, and their version."""
        self._published = version, _packed({"parameters": parameters})

    def start(self, numbers: Sequence[int]) -> None:
        """Let idle actors collect a rollout each, without waiting for it."""
        for number in numbers:
            self._send(number)

    def take(self, number: int | None = None) -> Collected:
        """Wait for a rollout, and return it.

        Args:
            number: of its actor; None: the one that was started first, among those that are finished.

        Raises:
            WorkerError: a worker is lost again and again.
            Exception: raised by an environment.
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
        """Wait until an actor has finished, or has been lost, and return its number."""
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
        assert self._published is not None  # noqa: S101 - parameters come first
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
        """Replace a worker, and repeat the rollouts that it did not finish.

        Raises:
            WorkerError: it was lost too often.
        """
        actors = [number for number in range(len(self._makers)) if self._worker_of(number) == worker]
        what = f"worker {worker} with the actors {', '.join(map(str, actors))} is lost ({why})"
        self.lost += 1
        self._losses[worker] += 1
        self._drop(worker)
        if self._losses[worker] > ATTEMPTS:
            raise WorkerError(
                f"{what}, for the {ATTEMPTS + 1}. time in a row. If a rollout takes that long, raise `deadline`; "
                "`operant resume` continues from the last checkpoint"
            )
        logger.warning("%s. Another one repeats what it did not finish", what)
        self._kept.difference_update(actors)
        self._heard[worker] = time.monotonic()
        self.start([number for number in self._pending if number in actors])

    def _drop(self, place: int) -> None:
        worker = self._workers[place]
        if worker is not None:
            worker.kill()
        self._workers[place] = None

    def close(self) -> None:
        """End the workers; those that do not end in time are killed. Can be called twice."""
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
        """Return the states of all actors after their latest rollouts, None before the first. None is in progress."""
        return {"actors": list(self._states)}

    def load_state_dict(self, state: State) -> None:
        """Let the actors continue from saved states. What they are collecting is lost.

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
    """Return a state for another process, with copies of its tensors."""
    structure, tensors = flatten(state)
    return structure, {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}


def _unpacked(message: Message, device: str | torch.device = "cpu") -> State:
    structure, arrays = message
    tensors = {  # a host may lend arrays that cannot be written to
        name: from_numpy(array if array.flags.writeable else array.copy()).to(device) for name, array in arrays.items()
    }
    return unflatten(structure, tensors)
