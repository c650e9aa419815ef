"""Calls of vector environments with detailed errors, and a time limit for Gymnasium's `AsyncVectorEnv`."""

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

from operant.errors import ExplainedError

DEADLINE = 120.0
"""Default time limit in seconds for a reply of a worker."""

CLOSING = 5.0
"""Time limit in seconds for closing environments, or the time limit of replies if that is shorter."""


_RETURNS = {"reset": "(observation, info)", "step": "(observation, reward, terminated, truncated, info)"}
"""Return values of environment methods in Gymnasium's interface."""


class EnvError(ExplainedError, RuntimeError):
    """Raised if an environment raises an error in `reset` or `step`."""


class WorkerError(ExplainedError, RuntimeError):
    """Raised if a worker process dies, hangs, or fails without an error."""


class Workers:
    """Calls methods of a vector environment, and reports dead or hanging workers.

    Args:
        env: any vector environment; the time limit applies to `AsyncVectorEnv`, possibly in wrappers.
        task: name in messages.
        deadline: time limit in seconds for a reply.

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
            # Its step() and reset() wait without a limit, and a limit cannot be passed through wrappers.
            self._workers._poll_pipe_envs = (  # pyright: ignore[reportPrivateUsage]
                lambda timeout=None: poll(deadline if timeout is None else timeout)
            )
            errors.get = partial(errors.get, timeout=min(CLOSING, deadline))

    def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the vector environment.

        Raises:
            EnvError: the environment raised an error, which is the cause of this one.
            WorkerError: a worker died, exceeded the time limit, or failed without an error.
        """
        try:
            return function(*args, **kwargs)
        except (EnvError, WorkerError):  # raised by a pool, already detailed
            raise
        except (Exception, SystemExit) as error:  # an environment that calls sys.exit must not end training silently
            raise self._explained(error, function.__name__) from error

    def _explained(self, error: BaseException, call: str) -> RuntimeError:
        """Return a detailed error for an error of `reset` or `step`."""
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
        """Close the vector environment, and kill workers that do not end in time."""
        workers = self._workers
        if workers is not None:
            self._dismiss(workers)
            # Otherwise Gymnasium waits for the reply of a lost worker.
            workers._state = AsyncState.DEFAULT  # pyright: ignore[reportPrivateUsage]
            workers.close(terminate=True)
        self._env.close()

    def _dismiss(self, workers: AsyncVectorEnv) -> None:
        for pipe in _pipes(workers):
            if pipe is not None and not pipe.closed:
                with suppress(OSError):  # the worker is dead
                    pipe.send(("close", None))
        until = time.monotonic() + min(CLOSING, self._deadline)
        for process in workers.processes:
            process.join(max(0.0, until - time.monotonic()))
            process.kill()  # which also ends a stopped one


def _pipes(workers: AsyncVectorEnv) -> Sequence[Connection | None]:
    """Return the pipes to worker processes; Gymnasium replaces that of a failed environment by None."""
    return workers.parent_pipes


def require_positive(deadline: float) -> None:
    """Raise ValueError unless a time limit is a positive number."""
    if not deadline > 0:
        raise ValueError(f"deadline must be a positive number of seconds, got {deadline}")


def env_error(task: str, call: str, error: BaseException, rows: Iterable[int] = (), *, at: str = "") -> EnvError:
    """Return a detailed error for an error raised by `reset` or `step` of an environment.

    Args:
        task: name of the environment.
        call: name of the method.
        error: raised error.
        rows: indices of the environments, if known.
        at: `place` of an error of another process, which has no traceback here.
    """
    failed = _listed(rows)
    where = f" in environments {failed}" if failed else ""
    found = EnvError(
        f"{task}: {call}() of the environment raised {type(error).__name__}{where}: {str(error).rstrip('.')}"
        f"{at or place(error) or _contract(call, error)}. "
        "Fix the environment; if training had begun, `operant resume` continues from the last checkpoint"
    )
    found.__cause__ = error
    return found


def _contract(call: str, error: BaseException) -> str:
    """Return the part of Gymnasium's interface that was probably violated; empty if unknown."""
    said = str(error)
    if call in _RETURNS and ("to unpack" in said or "has no attribute 'items'" in said):  # the latter of an info
        return f": {call}() must return {_RETURNS[call]}"
    if "array element with a sequence" in said and call == "step":
        return ": the reward that step() returns must be a number"
    return ""


def _silent(pipes: Sequence[Connection | None]) -> str:
    return _listed(row for row, pipe in enumerate(pipes) if pipe is not None and not pipe.poll(0))


def _dead(processes: Sequence[Any]) -> str:
    """Return the processes that have ended with their exit codes, after a pipe was closed."""
    ending = multiprocessing.connection.wait([process.sentinel for process in processes], timeout=CLOSING)
    for process in processes:
        if process.sentinel in ending:
            _await_code(process)
    codes = {row: process.exitcode for row, process in enumerate(processes)}
    return _listed(f"{row} (exit code {code})" for row, code in codes.items() if code is not None) or "unknown"


def _await_code(process: Any) -> None:
    """Wait for a limited time for the exit code of a process that closed its pipes."""
    until = time.monotonic() + CLOSING
    while process.exitcode is None and time.monotonic() < until:
        time.sleep(0.01)


def exit_code(process: Any) -> int | None:
    """Return the exit code of a process that closed its pipes; None if it does not end in time."""
    _await_code(process)
    return process.exitcode


def place(error: BaseException) -> str:
    """Return the line of the environment that raised an error, if known."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = ("site-packages", sysconfig.get_path("stdlib"), str(Path(__file__).resolve().parents[1]))
    generated = "<string>", "__init__"  # of a dataclass
    frames = [frame for frame in frames if (frame.filename, frame.name) != generated]
    own = [frame for frame in frames if not any(part in frame.filename for part in foreign)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _listed(rows: Iterable[object]) -> str:
    return ", ".join(map(str, rows))


def _lost(task: str, rows: str, error: Exception) -> WorkerError:
    return WorkerError(
        f"{task} lost the worker processes of environments {rows}: {error!r}. A negative exit code is the signal "
        "that killed the worker; -9 often means that the machine ran out of memory"
    )
