"""Worker processes of Gymnasium's `AsyncVectorEnv` that are never waited for without a deadline."""

import multiprocessing
import multiprocessing.connection
from collections.abc import Callable
from typing import Any

from gymnasium.vector import AsyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

DEADLINE = 120.0
"""Seconds that a worker may take for one answer, by default."""


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
        if not deadline > 0:
            raise ValueError(f"deadline must be a positive number of seconds, got {deadline}")
        self._env, self._task, self._deadline = env, task, deadline
        self._failed = False
        workers = env.unwrapped
        self._workers = workers if isinstance(workers, AsyncVectorEnv) else None
        if self._workers is not None:
            poll = self._workers._poll_pipe_envs
            # Its step() and reset() wait without a limit, and a limit cannot be handed through wrappers.
            self._workers._poll_pipe_envs = lambda timeout=None: poll(deadline if timeout is None else timeout)

    def ask(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a method of the vector environment.

        Raises:
            RuntimeError: a worker died, or did not answer before the deadline.
        """
        try:
            return function(*args, **kwargs)
        except multiprocessing.TimeoutError as error:
            self._failed = True
            raise RuntimeError(
                f"{self._task}: the worker processes of rows {self._silent()} have not answered for "
                f"{self._deadline:g} seconds. If the environment is that slow, raise the deadline; otherwise it hangs. "
                "`operant resume` goes on from the last checkpoint"
            ) from error
        except (EOFError, ConnectionError) as error:
            self._failed = True
            raise RuntimeError(
                f"{self._task} lost the worker processes of rows {self._dead() or 'unknown'}: {error!r}. A negative "
                "exit code is the signal that killed the worker; -9 often means that the machine ran out of memory"
            ) from error

    def _silent(self) -> str:
        pipes = self._workers.parent_pipes if self._workers is not None else []
        return ", ".join(str(row) for row, pipe in enumerate(pipes) if not pipe.poll(0))

    def _dead(self) -> str:
        processes = self._workers.processes if self._workers is not None else []
        multiprocessing.connection.wait([process.sentinel for process in processes], timeout=1.0)
        return ", ".join(f"{row} (exit code {p.exitcode})" for row, p in enumerate(processes) if p.exitcode is not None)

    def close(self) -> None:
        """Close the vector environment, by force where a worker is dead or hangs."""
        workers = self._workers
        if workers is None or not (self._failed or any(p.exitcode is not None for p in workers.processes)):
            self._env.close()
            return
        workers._state = AsyncState.DEFAULT  # else Gymnasium waits for the answer of the lost worker
        for process in workers.processes:
            process.kill()  # which also ends a stopped one
        self._env.close(terminate=True)
