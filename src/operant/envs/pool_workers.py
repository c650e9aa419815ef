"""The workers of a `WorkerPool`: processes of this machine, or actors of a host: `ProcessWorker`, `RemoteWorker`."""

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
"""Seconds that an actor may take to start, in addition to the deadline of its first reply."""


@dataclass(frozen=True)
class Lost:
    """Why a worker did not reply.

    Attributes:
        exit_code: of its process, if it ended and is known.
        error: of the connection; None if it missed the deadline.
    """

    exit_code: int | None
    error: Exception | None = None

    def __str__(self) -> str:
        if self.error is None:
            return "no answer"
        return str(self.error) if self.exit_code is None else f"exit code {self.exit_code}"


class Worker(Protocol):
    """A process with environments.

    Attributes:
        restarts: its starts since its last reply to a step.
    """

    restarts: int

    def send(self, serial: int, command: str, number: int, payload: Any) -> Lost | None:
        """Send a command, and return why that is impossible, if it is.

        Args:
            serial: number of the command; 0: without a reply.
            command: method of a group of environments; "drop" closes the group.
            number: of the group.
            payload: arguments.
        """
        ...

    def answer(self, serial: int, until: float) -> Answer | Lost:
        """Return the reply to the latest command.

        Args:
            serial: of the command.
            until: the latest moment, by `time.monotonic`.
        """
        ...

    def stop(self) -> None:
        """Ask it to close its environments and end."""
        ...

    def end(self, seconds: float) -> None:
        """Wait for its end for a limited time, and kill it."""
        ...


class ProcessWorker:
    """A process of this machine, and this end of its pipe (see `Worker`).

    Args:
        name: of the process.
        others: workers whose pipes a forked process inherits, and would keep open.
    """

    def __init__(self, name: str, others: Sequence["ProcessWorker"]) -> None:
        resource_tracker.ensure_running()  # one for all, which tracks shared memory
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
        """See `Worker`. Replies to older commands are skipped."""
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
    """An actor of a host (see `Worker`). Its observations arrive in its replies."""

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
