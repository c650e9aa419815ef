"""Calls of vector environments with explained errors, and a deadline for Gymnasium's `AsyncVectorEnv`."""

import multiprocessing
import multiprocessing.connection
import queue
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any, cast

from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

DEADLINE = 120.0
"""Default number of seconds that a worker may take for one reply."""

CLOSING = 5.0
"""Seconds that workers have to close their environments, if the deadline is not shorter; then they are killed."""


_RETURNS = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}
"""The results of an environment's methods in Gymnasium's interface."""


class EnvError(RuntimeError):
    """An environment raised an error when it was reset or stepped."""


class WorkerError(RuntimeError):
    """A worker process died, hangs, or failed without an error."""


class Workers:
    """Calls a vector environment, and names dead or hanging workers if it does not reply.

    Args:
        env: any vector environment; the deadline applies to an `AsyncVectorEnv`, also in wrappers.
        task: name in messages.
        deadline: seconds that the workers may take for one reply.

    Raises:
        ValueError: the deadline is not positive.
    """

    def __init__(self, env: VectorEnv, *, task: str, deadline: float) -> None:
        require_positive(deadline)
        self._env, self._task, self._deadline = env, task, deadline
        workers = env.unwrapped
        self._workers = workers if isinstance(workers, AsyncVectorEnv) else None
        if self._workers is not None:
            poll = self._workers._poll_pipe_envs  # pyright: ignore[reportPrivateUsage] - nothing public waits
            errors = cast("Queue[Any]", self._workers.error_queue)  # pyright: ignore[reportUnknownMemberType]
            # Its step() and reset() wait without a limit, and a limit cannot be handed through wrappers.
            self._workers._poll_pipe_envs = (  # pyright: ignore[reportPrivateUsage]
                lambda timeout=None: poll(deadline if timeout is None else timeout)
            )
            errors.get = partial(errors.get, timeout=min(CLOSING, deadline))

    def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the vector environment.

        Raises:
            EnvError: the environment raised an error, which is the cause of this one.
            WorkerError: a worker died, missed the deadline, or failed without an error.
        """
        try:
            return function(*args, **kwargs)
        except (EnvError, WorkerError):  # of a pool, already explained
            raise
        except (Exception, SystemExit) as error:  # an environment that exits must not end the training without a word
            raise self._explained(error, function.__name__) from error

    def _explained(self, error: BaseException, call: str) -> RuntimeError:
        """Return the explained error of `reset` or `step`."""
        pipes = _pipes(self._workers) if self._workers is not None else ()
        if self._workers is not None and isinstance(error, multiprocessing.TimeoutError):
            return WorkerError(
                f"{self._task}: the worker processes of environments {_silent(pipes)} have not replied for "
                f"{self._deadline:g} seconds. If the environment is that slow, raise the deadline; otherwise it hangs. "
                "`operant resume` continues from the last checkpoint"
            )
        if self._workers is not None and isinstance(error, queue.Empty):
            return WorkerError(
                f"{self._task}: the environment of a worker process raised an error that cannot be pickled and "
                "shown here: see its output above. Raise one that can"
            )
        failed = [row for row, pipe in enumerate(pipes) if pipe is None]
        if self._workers is not None and not failed and isinstance(error, EOFError | ConnectionError):
            return _lost(self._task, _dead(self._workers.processes), error)
        return env_error(self._task, call, error, failed)

    def close(self) -> None:
        """Close the vector environment; workers that do not end in time are killed."""
        workers = self._workers
        if workers is not None:
            self._dismiss(workers)
            # Else Gymnasium waits for the answer of a lost worker.
            workers._state = AsyncState.DEFAULT  # pyright: ignore[reportPrivateUsage]
            workers.close(terminate=True)
        self._env.close()

    def _dismiss(self, workers: AsyncVectorEnv) -> None:
        for pipe in _pipes(workers):
            if pipe is not None and not pipe.closed:
                with suppress(OSError):  # of a worker that is dead
                    pipe.send(("close", None))
        until = time.monotonic() + min(CLOSING, self._deadline)
        for process in workers.processes:
            process.join(max(0.0, until - time.monotonic()))
            process.kill()  # which also ends a stopped one


def _pipes(workers: AsyncVectorEnv) -> Sequence[Connection | None]:
    """Return the pipes to worker processes; Gymnasium puts None for one whose environment failed."""
    return workers.parent_pipes


def require_positive(deadline: float) -> None:
    """Raise ValueError if a deadline is not a positive number."""
    if not deadline > 0:
        raise ValueError(f"deadline must be a positive number of seconds, got {deadline}")


def env_error(task: str, call: str, error: BaseException, rows: Iterable[int] = ()) -> EnvError:
    """Return the explained error of `reset` or `step` of an environment, with the original as its cause.

    Args:
        task: name of the environment.
        call: the called method.
        error: the raised error.
        rows: of the environments, if known.
    """
    failed = _listed(rows)
    where = f" in environments {failed}" if failed else ""
    found = EnvError(
        f"{task}: {call}() of the environment raised {type(error).__name__}{where}: {str(error).rstrip('.')}"
        f"{place(error) or _contract(call, error)}. "
        "Fix the environment; `operant resume` then continues from the last checkpoint, if there is one"
    )
    found.__cause__ = error
    return found


def _contract(call: str, error: BaseException) -> str:
    """Return the part of Gymnasium's interface that an error points to; empty if there is none."""
    said = str(error)
    if call in _RETURNS and ("to unpack" in said or "has no attribute 'items'" in said):  # the latter of an info
        return f": {call}() must return {_RETURNS[call]}"
    if "array element with a sequence" in said and call == "step":
        return ": the reward that step() returns must be a number"
    return ""


def _silent(pipes: Sequence[Connection | None]) -> str:
    return _listed(row for row, pipe in enumerate(pipes) if pipe is not None and not pipe.poll(0))


def _dead(processes: Sequence[Any]) -> str:
    """Return the ended processes, after one has closed its pipes, which precedes its exit code."""
    ending = multiprocessing.connection.wait([process.sentinel for process in processes], timeout=CLOSING)
    for process in processes:
        if process.sentinel in ending:
            _await_code(process)
    codes = {row: process.exitcode for row, process in enumerate(processes)}
    return _listed(f"{row} (exit code {code})" for row, code in codes.items() if code is not None) or "unknown"


def _await_code(process: Any) -> None:
    """Wait for a limited time for the exit code of a process that has closed its pipes; a join might wait forever."""
    until = time.monotonic() + CLOSING
    while process.exitcode is None and time.monotonic() < until:
        time.sleep(0.01)


def exit_code(process: Any) -> int | None:
    """Return the exit code of a process that has closed its pipes; None if it has not ended in time."""
    _await_code(process)
    return process.exitcode


def place(error: BaseException) -> str:
    """Return the line of the environment that raised an error, if known."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = ("site-packages", sysconfig.get_path("stdlib"), str(Path(__file__).resolve().parents[1]))
    own = [frame for frame in frames if not any(part in frame.filename for part in foreign)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _listed(rows: Iterable[object]) -> str:
    return ", ".join(map(str, rows))


def _lost(task: str, rows: str, error: Exception) -> WorkerError:
    return WorkerError(
        f"{task} lost the worker processes of environments {rows}: {error!r}. A negative exit code is the signal "
        "that killed the worker; -9 often means that the machine ran out of memory"
    )
