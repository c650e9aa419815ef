"""Worker process of `operant.envs.worker_pool.WorkerPool`: `serve`, and its environments: `Groups`."""

import math
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NamedTuple, cast

import gymnasium
import numpy as np
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate
from numpy.typing import NDArray

from operant.envs.base import is_mapping
from operant.envs.infos import scalars
from operant.envs.workers import place

PATIENCE = 10.0
"""Seconds after which an idle worker checks whether its parent is alive."""

_ALIGNMENT = 64
"""Alignment of arrays in shared memory, in bytes."""

_loads = cast(Callable[[Any], Any], ForkingPickler.loads)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - a function, which typeshed lacks


class Answer(NamedTuple):
    """A worker's reply to a command.

    Attributes:
        value: the result.
        error: error raised by an environment, instead of a result.
        row: index of that environment in the worker.
        place: its line that raised the error, if known (`operant.envs.workers.place`).
    """

    value: Any = None
    error: Exception | None = None
    row: int = 0
    place: str = ""


class Made(NamedTuple):
    """Description of a worker's environments.

    Attributes:
        spaces: observation space and action space.
        metadata: metadata of the environment class.
    """

    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]]
    metadata: dict[str, Any]


class Stepped(NamedTuple):
    """Result of a step of `n` environments.

    Attributes:
        rewards: rewards, float64 `[n]`.
        terminations: terminations, `[n]`.
        truncations: truncations, `[n]`.
        infos: index and infos of each environment whose episode ended with infos.
        obs: observations; None if memory is shared.
    """

    rewards: NDArray[np.float64]
    terminations: NDArray[np.bool_]
    truncations: NDArray[np.bool_]
    infos: list[tuple[int, dict[str, float]]]
    obs: Any = None


def observation_buffers(space: gymnasium.Space[Any], rows: int, buffer: memoryview | None) -> tuple[int, Any]:
    """Return the size in bytes of the observations of `rows` environments, and arrays for them in a buffer.

    Args:
        space: space of one observation.
        rows: number of environments, B.
        buffer: memory of the arrays; None: only compute the size.
    """
    end = 0

    def array(shape: int | Sequence[int], dtype: Any = None) -> Any:
        nonlocal end
        start, dtype = end, np.dtype(dtype or np.float64)
        whole = tuple(np.atleast_1d(shape))
        end += -(-math.prod(whole) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        return None if buffer is None else np.ndarray(whole, dtype, buffer=buffer, offset=start)

    arrays = create_empty_array(space, rows, fn=array)
    return end, arrays


def part(arrays: Any, first: int, rows: int) -> Any:
    """Return the view of `rows` environments, starting at `first`, in a tree of arrays."""
    if is_mapping(arrays):
        return {key: part(value, first, rows) for key, value in arrays.items()}
    if isinstance(arrays, tuple):
        return tuple(part(value, first, rows) for value in cast(tuple[Any, ...], arrays))
    return arrays[first : first + rows]


@dataclass
class _Group:
    """A group of environments in a worker."""

    envs: list[gymnasium.Env[Any, Any]] = field(default_factory=list[gymnasium.Env[Any, Any]])
    obs: list[Any] = field(default_factory=list[Any])
    out: Any = None
    memory: SharedMemory | None = None
    row: int = 0
    """Index of the last environment in use."""

    def make(self, maker: bytes, rows: int) -> Made:
        make = _loads(maker).fn
        for self.row in range(rows):
            self.envs.append(make())
        found = [(env.observation_space, env.action_space) for env in self.envs]
        for spaces in found:
            if spaces != found[0]:
                raise RuntimeError(f"all rows must have the same spaces, but one has {spaces}, and others {found[0]}")
        self.obs = [None] * rows
        return Made(found[0], dict(self.envs[0].metadata))

    def share(self, name: str | None, rows: int, first: int) -> None:
        env = self.envs[0]
        self._actions = batch_space(env.action_space, len(self.envs))
        if name is None:
            self.out = create_empty_array(env.observation_space, len(self.envs))
            return
        self.memory = SharedMemory(name=name)
        _, arrays = observation_buffers(env.observation_space, rows, self.memory.buf)
        self.out = part(arrays, first, len(self.envs))

    def reset(self, *starts: tuple[int, int, dict[str, Any]]) -> Any:
        for self.row, seed, options in starts:
            self.obs[self.row], _ = self.envs[self.row].reset(seed=seed, options=options or None)
        return self._write()

    def step(self, actions: Any, skipped: NDArray[np.bool_] | None) -> Stepped:
        count = len(self.envs)
        rewards, flags = np.zeros(count), np.zeros((2, count), np.bool_)
        infos: list[tuple[int, dict[str, float]]] = []
        for row, action in enumerate(iterate(self._actions, actions)):
            if skipped is not None and skipped[row]:
                continue
            self.row = row
            self.obs[row], rewards[row], terminated, truncated, info = self.envs[row].step(action)
            flags[0, row], flags[1, row] = terminated, truncated
            if info and (terminated or truncated):
                infos.append((row, scalars(info)))
        return Stepped(rewards, flags[0], flags[1], infos, self._write())

    repeat = step
    """Step of a replayed episode, which the replaced worker had already taken."""

    def _write(self) -> Any:
        """Write the first observations of environments that were reset; return them unless memory is shared."""
        if all(obs is not None for obs in self.obs):
            concatenate(self.envs[0].observation_space, self.obs, self.out)
        else:
            for row, obs in enumerate(self.obs):
                if obs is not None:
                    concatenate(self.envs[0].observation_space, [obs], part(self.out, row, 1))
        return self.out if self.memory is None else None

    def close(self) -> None:
        self.out = None
        for env in self.envs:
            env.close()
        if self.memory is not None:
            self.memory.close()


class Groups:
    """Groups of environments in a worker."""

    def __init__(self) -> None:
        self._groups: dict[int, _Group] = {}

    def do(self, command: str, number: int, payload: Any) -> Answer:
        """Execute a command of a group; "drop" closes the group."""
        if command == "drop":
            if number in self._groups:
                self._groups.pop(number).close()
            return Answer()
        group = self._groups.setdefault(number, _Group())
        try:
            return Answer(getattr(group, command)(*payload))
        except Exception as error:
            return Answer(error=sendable(error), row=group.row, place=place(error))

    def close(self) -> None:
        """Close all environments."""
        for group in self._groups.values():
            group.close()


def serve(pipe: Connection, inherited: Sequence[Connection]) -> None:
    """Execute commands until the stop command, or until the parent process ends.

    Args:
        pipe: pipe with commands `(serial number, command, number of the group, payload)`.
        inherited: inherited pipe ends of the parent process, to be closed.
    """
    for connection in inherited:
        connection.close()
    renew_global_generators()
    lonely = ignoring_signals()
    groups = Groups()
    try:
        while (question := _question(pipe, lonely)) is not None:
            serial, command, number, payload = question
            answer = groups.do(command, number, payload)
            if command != "drop":
                pipe.send((serial, answer))
    except (EOFError, OSError):
        return  # the parent has ended
    finally:
        groups.close()


def renew_global_generators() -> None:
    """Give the global random generators of a process states of its own, which a fork copies from its parent.

    Environments that draw from them are not reproducible, but independent of those in other processes.
    """
    random.seed()
    np.random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()


def ignoring_signals() -> Callable[[], bool]:
    """Ignore signals, which the parent handles, and return a function that checks whether the parent has ended."""
    parent, asked_to_end = os.getppid(), False

    def end_when_idle(*_: Any) -> None:
        nonlocal asked_to_end
        asked_to_end = True

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGUSR1"):  # signals may be sent to the whole process group, whose parent saves its state
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), end_when_idle)
    return lambda: asked_to_end or os.getppid() != parent


def _question(pipe: Connection, lonely: Callable[[], bool]) -> tuple[int, str, int, Any] | None:
    """Return the next command, or None if there are no more."""
    while not pipe.poll(PATIENCE):
        if lonely():
            return None
    question = pipe.recv()
    return None if question[1] == "stop" else question


def sendable(error: Exception) -> Exception:
    """Return an error with its traceback as a note, converted to RuntimeError if it cannot be pickled."""
    try:
        _loads(ForkingPickler.dumps(error))
        sent = error
    except Exception:
        sent = RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(f"In a worker process:\n{traceback.format_exc()}")
    return sent
