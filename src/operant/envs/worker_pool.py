"""Pool of workers for Gymnasium environments, shared by training and evaluations: `WorkerPool`."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, Literal, get_args

import gymnasium
import numpy as np
from gymnasium.vector.utils import CloudpickleWrapper

from operant import hosts
from operant.cores import allowed_cores
from operant.envs.pool_workers import Lost, ProcessWorker, RemoteWorker, Worker
from operant.envs.pooled_env import PooledVectorEnv
from operant.envs.worker_process import Answer
from operant.envs.workers import CLOSING, DEADLINE, WorkerError, env_error, require_positive

logger = logging.getLogger(__name__)

LostWorkers = Literal["end", "restart", "replay"]

ATTEMPTS = 3
"""Maximum number of restarts of a worker without a reply to a step; then training fails."""


class WorkerPool:
    """Processes that run environments; with a host (`operant.hosts`), actors.

    They start with the first environments and end with `close`; environments may be added and removed, so that the same
    processes serve training and all evaluations.

    Args:
        workers: maximum number of processes; 0: one per available core. Use more if environments wait for something
            other than the processor (a remote simulator, the network).
        deadline: time limit in seconds for one reply of a worker: a step, a reset, or creation of its environments.
        lost_workers: behavior if a worker dies or exceeds the time limit of a step or reset: "end" raises
            `WorkerError`; "restart" starts a new worker, whose environments start new episodes; "replay" starts a new
            worker and replays the episodes up to the lost step, which changes no result if environments are
            deterministic given their reset seeds.

    Attributes:
        restarts: number of replaced workers.

    Raises:
        ValueError: a value is out of range.
    """

    def __init__(self, workers: int = 0, *, deadline: float = DEADLINE, lost_workers: LostWorkers = "end") -> None:
        require_positive(deadline)
        if workers < 0:
            raise ValueError(f"num_workers must be at least 0, got {workers}")
        if lost_workers not in get_args(LostWorkers):
            raise ValueError(f"lost_workers must be 'end', 'restart' or 'replay', got {lost_workers!r}")
        self.deadline, self.lost_workers, self.restarts = deadline, lost_workers, 0
        self._most = workers or allowed_cores()
        self._host = hosts.current()
        self._workers: list[Worker] = []
        self._envs: dict[int, PooledVectorEnv] = {}
        self._serial = 0
        self._broken: Exception | None = None
        self._closed = False

    @property
    def processes(self) -> list[Any]:
        """The running processes on this machine."""
        return [worker.process for worker in self._local]

    @property
    def _local(self) -> list[ProcessWorker]:
        return [worker for worker in self._workers if isinstance(worker, ProcessWorker)]

    @property
    def shares_memory(self) -> bool:
        """Whether the workers share memory with this process."""
        return self._host is None

    def make(self, make: Callable[[], gymnasium.Env[Any, Any]], rows: int, *, task: str) -> PooledVectorEnv:
        """Create `rows` environments in the workers.

        Args:
            make: function that creates one; it is sent to the workers by cloudpickle.
            rows: number of environments, B.
            task: name in messages.

        Raises:
            WorkerError: a worker died, or exceeded the time limit.
            RuntimeError: the environments have different spaces.
            Exception: any error of creating an environment.
        """
        while len(self._workers) < min(rows, self._most):
            self._workers.append(self._start())
        places = np.array_split(np.arange(rows), min(rows, self._most))
        self._serial += 1
        env = PooledVectorEnv(self, self._serial, _pickled(make), places, task)
        self._envs[env.number] = env
        try:
            self._make_all(env)
            env.open()
        except BaseException:
            env.close()
            raise
        return env

    def forget(self, env: PooledVectorEnv) -> None:
        """Close environments in the workers, without waiting."""
        self._envs.pop(env.number, None)
        for worker in self._workers:
            worker.send(0, "drop", env.number, None)

    def ask(
        self, env: PooledVectorEnv, command: str, payloads: Mapping[int, Any]
    ) -> tuple[dict[int, Any], dict[int, Lost]]:
        """Send a command to workers, and wait for all replies.

        Args:
            env: the environments.
            command: command to execute.
            payloads: arguments, by the index of the worker.

        Returns:
            The replies, and the lost workers.

        Raises:
            EnvError: an environment raised an error.
        """
        if self._broken is not None:
            raise self._broken
        answers, lost = self._exchange(env, command, payloads)
        failed = {index: answer.error for index, answer in answers.items() if answer.error is not None}
        if failed and command != "make":
            rows = sorted({env.places[index][answers[index].row] for index in failed})
            index, error = next(iter(failed.items()))
            raise env_error(env.task, command, error, rows, at=answers[index].place)
        if failed:
            raise next(iter(failed.values()))
        if command == "step":  # all other commands are repeated when a lost worker is replaced
            for index in answers:
                self._workers[index].restarts = 0
        return {index: answer.value for index, answer in answers.items()}, lost

    def _exchange(
        self, env: PooledVectorEnv, command: str, payloads: Mapping[int, Any]
    ) -> tuple[dict[int, Answer], dict[int, Lost]]:
        self._serial += 1
        answers: dict[int, Answer] = {}
        lost: dict[int, Lost] = {}
        for index, payload in payloads.items():
            failure = self._workers[index].send(self._serial, command, env.number, payload)
            if failure is not None:
                lost[index] = failure
        until = time.monotonic() + self.deadline
        for index in [index for index in payloads if index not in lost]:
            answer = self._workers[index].answer(self._serial, until)
            if isinstance(answer, Lost):
                lost[index] = answer
            else:
                answers[index] = answer
        return answers, lost

    def _make_all(self, env: PooledVectorEnv) -> None:
        """Create the environments of all workers, replacing lost workers."""
        lost = self._make(env, range(len(env.places)))
        late = [index for index, why in lost.items() if why.error is None]
        if late:
            self._fail(
                f"{env.task}: the worker processes of environments {env.rows_of(late)} have not created them within "
                f"{self.deadline:g} seconds. If they are slow, raise the time limit (--worker-seconds); otherwise "
                "the constructor hangs"
            )
        if lost and self.lost_workers == "end":
            self._fail(_dead(env, lost))
        if lost:
            self.replace(env, lost)

    def _make(self, env: PooledVectorEnv, indices: Sequence[int]) -> dict[int, Lost]:
        """Create the environments of some workers, and return the lost workers."""
        made, lost = self.ask(env, "make", {index: (env.maker, len(env.places[index])) for index in indices})
        env.made.update(made)
        return lost

    def replace(self, env: PooledVectorEnv, lost: Mapping[int, Lost]) -> None:
        """Replace lost workers and their environments, or raise an error, depending on `lost_workers`.

        Raises:
            WorkerError: `lost_workers` is "end", or a worker was lost too often in a row.
        """
        late = [index for index, why in lost.items() if why.error is None]
        what = (
            _dead(env, {index: why for index, why in lost.items() if why.error is not None})
            if len(late) < len(lost)
            else (
                f"{env.task}: the worker processes of environments {env.rows_of(late)} have not replied for "
                f"{self.deadline:g} seconds. If the environment is that slow, raise the deadline "
                "(--worker-seconds); otherwise it hangs"
            )
        )
        if self.lost_workers == "end":
            self._fail(f"{what}. `operant resume` continues from the last checkpoint")
        for index in lost:
            self._replace(index, what)
        logger.warning(
            "%s. It was replaced, and its environments %s (replacement %d in this run)",
            what,
            "start new episodes" if self.lost_workers == "restart" else "replayed their episodes",
            self.restarts,
        )

    def _replace(self, index: int, what: str) -> None:
        attempts = self._workers[index].restarts
        replaced = False
        while not replaced:
            attempts += 1
            if attempts > ATTEMPTS:
                self._fail(f"{what}. It was replaced {ATTEMPTS} times and lost each time before a step")
            self._workers[index].end(0)
            self._workers[index] = self._start()
            self._workers[index].restarts = attempts
            self.restarts += 1
            affected = [env for env in self._envs.values() if index < len(env.places)]
            replaced = all(self._prepare(env, index) for env in affected)

    def _prepare(self, env: PooledVectorEnv, index: int) -> bool:
        """Create the environments of a replaced worker, and return whether it was not lost again."""
        if self._make(env, [index]) or env.share([index]):
            return False
        if self.lost_workers == "replay":
            return env.replay(index)
        env.interrupt(index)
        return True

    def _fail(self, what: str) -> None:
        self._broken = WorkerError(what)
        raise self._broken

    def _start(self) -> Worker:
        if self._host is not None:
            return RemoteWorker(self._host)
        return ProcessWorker(f"operant-worker-{len(self._workers)}", self._local)

    def close(self) -> None:
        """End the workers, and kill those that do not end in time. Can be called twice."""
        if self._closed:
            return
        self._closed = True
        self._broken = RuntimeError("the worker processes are closed")
        for env in list(self._envs.values()):
            env.close()
        for worker in self._workers:
            worker.stop()
        until = time.monotonic() + min(CLOSING, self.deadline)
        for worker in self._workers:
            worker.end(max(0.0, until - time.monotonic()))


def pooled(
    make: Callable[[], gymnasium.Env[Any, Any]],
    rows: int,
    *,
    task: str,
    deadline: float,
    pool: WorkerPool | None = None,
) -> PooledVectorEnv:
    """Create `rows` environments in the workers of a pool; without a pool, in workers that end with them.

    Raises:
        Exception: see `WorkerPool.make`.
    """
    if pool is not None:
        return pool.make(make, rows, task=task)
    own = WorkerPool(deadline=deadline)
    try:
        env = own.make(make, rows, task=task)
    except BaseException:
        own.close()
        raise
    env.owns_pool = True
    return env


def _dead(env: PooledVectorEnv, lost: Mapping[int, Lost]) -> str:
    named = "; ".join(f"{env.rows_of([index])} ({why})" for index, why in lost.items())
    return (
        f"{env.task} lost the worker processes of environments {named}. A negative exit code is the signal that "
        "killed the worker; -9 often means that the machine ran out of memory"
    )


def _pickled(make: Callable[[], Any]) -> bytes:
    return bytes(ForkingPickler.dumps(CloudpickleWrapper(make)))  # pyright: ignore[reportAttributeAccessIssue] - exists
