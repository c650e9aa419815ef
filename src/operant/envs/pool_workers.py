"""Workers of a `WorkerPool`: processes on this machine, or actors of a host: `ProcessWorker`, `RemoteWorker`."""

import multiprocessing
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, Protocol

from operant.envs.worker_process import Answer, Groups, serve
from operant.envs.workers import exit_code
from operant.hosts import Host, Reply

STARTING = 120.0
"""Time limit in seconds for the start of an actor, in addition to the time limit of its first reply."""


@dataclass(frozen=True)
class Lost:
    """Reason that a worker did not reply.

    Attributes:
        exit_code: exit code of its process, if known.
        error: error of the connection; None if the worker exceeded the time limit.
    """

    exit_code: int | None
    error: Exception | None = None

    def __str__(self) -> str:
        if self.error is None:
            return "no reply"
        return str(self.error) if self.exit_code is None else f"exit code {self.exit_code}"


class Worker(Protocol):
    """A worker with environments.

    Attributes:
        restarts: number of starts since its last reply to a step.
    """

    restarts: int

    def send(self, serial: int, command: str, number: int, payload: Any) -> Lost | None:
        """Send a command; return the reason if that fails.

        Args:
            serial: serial number of the command; 0: without a reply.
            command: method of a group of environments; "drop" closes the group.
            number: number of the group.
            payload: arguments.
        """
        ...

    def answer(self, serial: int, until: float) -> Answer | Lost:
        """Wait for the reply to the latest command.

        Args:
            serial: serial number of the command.
            until: time limit, by `time.monotonic`.
        """
        ...

    def stop(self) -> None:
        """Request the worker to close its environments and end."""
        ...

    def end(self, seconds: float) -> None:
        """Wait at most `seconds` for the end of the worker, then kill it."""
        ...


class ProcessWorker:
    """A process on this machine, connected by a pipe (see `Worker`).

    Args:
        name: name of the process.
        others: workers whose pipes a forked process inherits and must close.
    """

    def __init__(self, name: str, others: Sequence["ProcessWorker"]) -> None:
        resource_tracker.ensure_running()  # a single tracker of shared memory for all processes
        self.pipe, theirs = multiprocessing.Pipe()
        forked = multiprocessing.get_start_method() == "fork"
        inherited = [*(worker.pipe for worker in others), self.pipe] if forked else []
        self.process = multiprocessing.Process(target=serve, args=(theirs, inherited), name=name, daemon=True)
        self.process.start()
        theirs.close()
        self.restarts = 0

    def send(self, serial: int, command: str, number: int, payload: Any) -> Lost | None:
        """See `Worker`."""
        try:
            self.pipe.send((serial, command, number, payload))
        except OSError as error:
            return self._died(error)
        return None

    def answer(self, serial: int, until: float) -> Answer | Lost:
        """See `Worker`. Replies to earlier commands are skipped."""
        try:
            while self.pipe.poll(max(0.0, until - time.monotonic())):
                found, answer = self.pipe.recv()
                if found == serial:
                    return answer
        except (EOFError, OSError) as error:
            return self._died(error)
        return Lost(None)

    def _died(self, error: Exception) -> Lost:
        return Lost(exit_code(self.process), error)

    def stop(self) -> None:
        """See `Worker`."""
        self.send(0, "stop", 0, None)

    def end(self, seconds: float) -> None:
        """See `Worker`."""
        self.process.join(seconds)
        self.process.kill()  # SIGKILL also ends a stopped process
        self.process.join()
        self.pipe.close()


class RemoteWorker:
    """An actor of a host (see `Worker`). Observations are part of its replies."""

    def __init__(self, host: Host) -> None:
        self._actor = host.actor(Groups)
        self._reply: Reply | None = None
        self._started = False
        self.restarts = 0

    def send(self, serial: int, command: str, number: int, payload: Any) -> Lost | None:
        """See `Worker`."""
        reply = self._actor.call("do", command, number, payload)
        if serial:
            self._reply = reply
        return None

    def answer(self, serial: int, until: float) -> Answer | Lost:
        """See `Worker`."""
        assert self._reply is not None  # noqa: S101 - a command was sent
        seconds = max(0.0, until - time.monotonic()) + (0.0 if self._started else STARTING)
        try:
            found: Answer = self._reply.result(seconds)
        except TimeoutError:
            return Lost(None)
        except ConnectionError as error:
            return Lost(None, error)
        self._started = True
        return found

    def stop(self) -> None:
        """See `Worker`."""
        self._reply = self._actor.call("close")

    def end(self, seconds: float) -> None:
        """See `Worker`."""
        if self._reply is not None and seconds:
            with suppress(TimeoutError, ConnectionError):
                self._reply.result(seconds)
        self._actor.kill()
