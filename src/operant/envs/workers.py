"""Environments in worker processes, Gymnasium's `AsyncVectorEnv`, that are never waited for without a deadline."""

import multiprocessing
import multiprocessing.connection
import queue
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import gymnasium
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState, _async_worker
from gymnasium.vector.utils import CloudpickleWrapper

DEADLINE = 120.0
"""Seconds that a worker may take for one answer, by default."""

CLOSING = 5.0
"""Seconds that workers have to close their environments, if the deadline is not shorter; then they are killed."""


class EnvError(RuntimeError):
    """An environment raised an error when it was reset or stepped."""


class WorkerError(RuntimeError):
    """A worker process died, hangs, or failed and could not say how."""


class Workers:
    """Asks a vector environment, and names the workers that died or hang if it does not answer.

    Args:
        env: any vector environment; the watch is over those that are an `AsyncVectorEnv` or wrap one.
        task: what the messages call it.
        deadline: seconds that the workers may take for one answer.

    Raises:
        ValueError: the deadline is not positive.
    """

    def __init__(self, env: VectorEnv, *, task: str, deadline: float) -> None:
        _require_positive(deadline)
        self._env, self._task, self._deadline = env, task, deadline
        workers = env.unwrapped
        self._workers = workers if isinstance(workers, AsyncVectorEnv) else None
        if self._workers is not None:
            poll, errors = self._workers._poll_pipe_envs, self._workers.error_queue
            # Its step() and reset() wait without a limit, and a limit cannot be handed through wrappers.
            self._workers._poll_pipe_envs = lambda timeout=None: poll(deadline if timeout is None else timeout)
            errors.get = partial(errors.get, timeout=min(CLOSING, deadline))

    def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the vector environment.

        Raises:
            EnvError: the environment raised an error, which is the cause of this one.
            WorkerError: a worker died, did not answer before the deadline, or failed and could not say how.
        """
        try:
            return function(*args, **kwargs)
        except Exception as error:
            raise self._explained(error, function.__name__) from error

    def _explained(self, error: Exception, call: str) -> RuntimeError:
        """Return what an error in `reset` or `step` means."""
        pipes = self._workers.parent_pipes if self._workers is not None else []
        if self._workers is not None and isinstance(error, multiprocessing.TimeoutError):
            return WorkerError(
                f"{self._task}: the worker processes of rows {_silent(pipes)} have not answered for "
                f"{self._deadline:g} seconds. If the environment is that slow, raise the deadline; otherwise it hangs. "
                "`operant resume` goes on from the last checkpoint"
            )
        if self._workers is not None and isinstance(error, queue.Empty):
            return WorkerError(
                f"{self._task}: the environment of a worker process raised an error that cannot be pickled, and so "
                "not be shown here: what it printed above says why. Let it raise one that can"
            )
        failed = _listed(row for row, pipe in enumerate(pipes) if pipe is None)
        if self._workers is not None and not failed and isinstance(error, EOFError | ConnectionError):
            return _lost(self._task, _dead(self._workers.processes), error)
        where = f" in rows {failed}" if failed else ""
        return EnvError(
            f"{self._task}: {call}() of the environment raised {type(error).__name__}{where}: {error}{_place(error)}. "
            "Mend the environment; `operant resume` then goes on from the last checkpoint, if there is one yet"
        )

    def close(self) -> None:
        """Close the vector environment; workers that do not end in time are killed."""
        workers = self._workers
        if workers is not None:
            self._dismiss(workers)
            workers._state = AsyncState.DEFAULT  # else Gymnasium waits for the answer of a lost worker
            workers.close(terminate=True)
        self._env.close()

    def _dismiss(self, workers: AsyncVectorEnv) -> None:
        for pipe in workers.parent_pipes:
            if pipe is not None and not pipe.closed:
                with suppress(OSError):  # of a worker that is dead
                    pipe.send(("close", None))
        until = time.monotonic() + min(CLOSING, self._deadline)
        for process in workers.processes:
            process.join(max(0.0, until - time.monotonic()))
            process.kill()  # which also ends a stopped one


class IsolatedVectorEnv(AsyncVectorEnv):
    """Rows of one environment, each made in a process of its own before a deadline; whoever steps it resets them.

    Gymnasium makes one environment in this process to learn its spaces. Here that happens in a process, too, which
    ends before the workers start.

    Args:
        make: makes the environment of a row.
        rows: B.
        task: what the messages call it.
        deadline: seconds that making an environment may take.

    Raises:
        ValueError: the deadline is not positive.
        WorkerError: a process died or was not ready before the deadline.
        RuntimeError: a row has other spaces than the others.
        Exception: what making an environment raises.
    """

    def __init__(self, make: Callable[[], gymnasium.Env], rows: int, *, task: str, deadline: float) -> None:
        _require_positive(deadline)
        self._task, self._deadline = task, deadline
        blueprint = _Blueprint(make, _sketch(make, rows, task, deadline))
        try:
            super().__init__(
                [blueprint] * rows,  # pyright: ignore[reportArgumentType] - its sketch is all that Gymnasium looks at
                copy=False,
                autoreset_mode=AutoresetMode.DISABLED,
                worker=_work,
            )
        except BaseException:
            for process in getattr(self, "processes", []):
                if process.pid is not None:
                    _end(process)
            self.closed = True
            raise

    def _check_spaces(self) -> None:
        """Wait until the workers have made their environments; they compare the spaces themselves."""
        try:
            if not self._poll_pipe_envs(self._deadline):
                raise _late(self._task, _silent(self.parent_pipes), self._deadline)
            self._raise_if_errors([pipe.recv()[1] for pipe in self.parent_pipes])
        except (EOFError, ConnectionError) as error:
            raise _lost(self._task, _dead(self.processes), error) from error


@dataclass(frozen=True)
class _Sketch:
    """What Gymnasium asks of an environment before the workers make theirs."""

    metadata: dict[str, Any]
    render_mode: str | None
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


@dataclass(frozen=True)
class _Blueprint:
    """How a worker makes its environment, and, when called, what that will be like."""

    make: Callable[[], gymnasium.Env]
    sketch: _Sketch

    def __call__(self) -> _Sketch:
        return self.sketch


def _sketch(make: Callable[[], gymnasium.Env], rows: int, task: str, deadline: float) -> _Sketch:
    """Return what an environment is like that is made in another process, on behalf of all rows."""
    answers, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.Process(target=_draw, args=(CloudpickleWrapper(make), theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not answers.poll(deadline):
            raise _late(task, _listed(range(rows)), deadline)
        answer = answers.recv()
        process.join(min(CLOSING, deadline))
    except EOFError as error:
        _await_code(process)
        raise _lost(task, _listed(f"{row} (exit code {process.exitcode})" for row in range(rows)), error) from error
    finally:
        _end(process)
        answers.close()
    if isinstance(answer, Exception):
        raise answer
    return answer


def _draw(make: CloudpickleWrapper, pipe: Connection) -> None:
    """Make an environment and send its sketch, or the error that making it raised."""
    try:
        env = make()
    except Exception as error:
        pipe.send(_sendable(error))
        return
    pipe.send(_Sketch(dict(env.metadata), env.render_mode, env.observation_space, env.action_space))
    env.close()


def _work(index: int, made: Any, pipe: Connection, *rest: Any) -> None:
    """Make the environment of a row, say whether that went well, and go on as Gymnasium's worker."""
    blueprint: _Blueprint = made.fn
    _, _, errors, *_ = rest
    try:
        env = blueprint.make()
        ours, common = ((it.observation_space, it.action_space) for it in (env, blueprint.sketch))
        if ours != common:
            raise RuntimeError(f"all rows must have the same spaces, but row {index} has {ours}, and others {common}")
    except Exception as error:
        sent = _sendable(error)
        errors.put((index, type(sent), sent, traceback.format_exc()))
        pipe.send((None, False))
        return
    pipe.send((None, True))
    _async_worker(index, lambda: env, pipe, *rest)


def _sendable(error: Exception) -> Exception:
    """Return an error with the place where it was raised; one of the same text if it cannot be pickled."""
    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))  # pyright: ignore[reportAttributeAccessIssue] - a function
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"In a worker process:\n{traceback.format_exc()}")
    return error


def _end(process: Any) -> None:
    process.kill()  # which also ends a stopped one
    process.join()


def _require_positive(deadline: float) -> None:
    if not deadline > 0:
        raise ValueError(f"deadline must be a positive number of seconds, got {deadline}")


def _silent(pipes: Sequence[Connection | None]) -> str:
    return _listed(row for row, pipe in enumerate(pipes) if pipe is not None and not pipe.poll(0))


def _dead(processes: Sequence[Any]) -> str:
    """Return which processes have ended, after one has closed its pipes: that comes before its exit code."""
    ending = multiprocessing.connection.wait([process.sentinel for process in processes], timeout=CLOSING)
    for process in processes:
        if process.sentinel in ending:
            _await_code(process)
    codes = {row: process.exitcode for row, process in enumerate(processes)}
    return _listed(f"{row} (exit code {code})" for row, code in codes.items() if code is not None) or "unknown"


def _await_code(process: Any) -> None:
    """Wait until a process that has closed its pipes has an exit code, for a while; to join it might wait for ever."""
    until = time.monotonic() + CLOSING
    while process.exitcode is None and time.monotonic() < until:
        time.sleep(0.01)


def _place(error: Exception) -> str:
    """Say in which line of the environment an error was raised, where that is known."""
    frames = traceback.extract_tb(error.__traceback__)
    foreign = ("site-packages", sysconfig.get_path("stdlib"), __file__)
    own = [frame for frame in frames if not any(part in frame.filename for part in foreign)]
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def _listed(rows: Iterable[object]) -> str:
    return ", ".join(map(str, rows))


def _late(task: str, rows: str, deadline: float) -> WorkerError:
    return WorkerError(
        f"{task}: the worker processes of rows {rows} have not made their environments within {deadline:g} seconds. "
        "If that takes so long, raise the deadline (--worker-seconds); otherwise the constructor hangs"
    )


def _lost(task: str, rows: str, error: Exception) -> WorkerError:
    return WorkerError(
        f"{task} lost the worker processes of rows {rows}: {error!r}. A negative exit code is the signal that killed "
        "the worker; -9 often means that the machine ran out of memory"
    )
