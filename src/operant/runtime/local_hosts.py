"""Hosts on this machine (`operant.hosts`): actors in processes, `ProcessHost`, or in this process, `InlineHost`."""

import multiprocessing
import queue
import threading
from concurrent.futures import Future
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

from operant.envs.worker_process import ignoring_signals, renew_global_generators, sendable

IDLE = 1.0
"""Interval in seconds at which an idle process checks whether it must end."""


def start_method() -> str:
    """Return the fastest start method of processes that share no state with this one."""
    return "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"


class LocalReply:
    """See `operant.hosts.Reply`."""

    def __init__(self, future: "Future[Any]") -> None:
        self._future = future

    def done(self) -> bool:
        """See `operant.hosts.Reply`."""
        return self._future.done()

    def result(self, seconds: float | None = None) -> Any:
        """See `operant.hosts.Reply`."""
        return self._future.result(seconds)


class InlineActor:
    """An object in this process (see `operant.hosts.Actor`), whose calls are synchronous."""

    def __init__(self, kind: type, *args: Any) -> None:
        self._object = kind(*args)

    def call(self, method: str, *args: Any) -> LocalReply:
        """See `operant.hosts.Actor`."""
        future: Future[Any] = Future()
        try:
            future.set_result(getattr(self._object, method)(*args))
        except Exception as error:
            future.set_exception(error)
        return LocalReply(future)

    def kill(self) -> None:
        """Do nothing: there is no process."""


class InlineHost:
    """Factory of actors in this process (see `operant.hosts.Host`)."""

    def actor(self, kind: type, *args: Any, threads: int = 1) -> InlineActor:
        """See `operant.hosts.Host`."""
        return InlineActor(kind, *args)


class ProcessActor:
    """An object in a process on this machine (see `operant.hosts.Actor`), with a thread that exchanges messages.

    Attributes:
        process: process of the object.
    """

    def __init__(self, context: Any, kind: type, *args: Any) -> None:
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, kind, args), daemon=True)
        self.process.start()
        theirs.close()
        # A process is waited for by one thread at a time: of two, the slower one reads no exit code, and says 255.
        self._waiting = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Future[Any], str, Any] | None] = queue.SimpleQueue()
        threading.Thread(target=self._exchange, name="actor", daemon=True).start()

    def call(self, method: str, *args: Any) -> LocalReply:
        """See `operant.hosts.Actor`."""
        future: Future[Any] = Future()
        self._calls.put((future, method, args))
        return LocalReply(future)

    def _exchange(self) -> None:
        """Send calls one after another, and wait for the results."""
        while (task := self._calls.get()) is not None:
            future, *call = task
            try:
                self._pipe.send(call)
                value, failed = self._pipe.recv()
            except (EOFError, OSError) as error:
                lost = ConnectionError(f"process {self.process.pid} ended with exit code {self._exit_code(1.0)}")
                lost.__cause__ = error
                value, failed = lost, True
            except Exception as error:  # the call cannot be pickled
                value, failed = error, True
            if failed:
                future.set_exception(value)
            else:
                future.set_result(value)
        self._pipe.close()

    def _exit_code(self, seconds: float | None = None) -> int | None:
        """Wait until the process has ended, for the given time at most, and return its exit code."""
        with self._waiting:
            self.process.join(seconds)
            return self.process.exitcode

    def kill(self) -> None:
        """See `operant.hosts.Actor`."""
        self.process.kill()  # SIGKILL also ends a stopped process
        self._exit_code()
        self._calls.put(None)


class ProcessHost:
    """Factory of actors in processes on this machine, which end with this process (see `operant.hosts.Host`)."""

    def actor(self, kind: type, *args: Any, threads: int = 1) -> ProcessActor:
        """See `operant.hosts.Host`; calls are executed one by one.

        Raises:
            ValueError: `threads` is not 1.
        """
        if threads != 1:
            raise ValueError(f"threads must be 1 for a process on this machine, got {threads}")
        # A fork server that has imported the class starts processes quickly.
        context = multiprocessing.get_context(start_method())
        context.set_forkserver_preload([__name__, kind.__module__])
        return ProcessActor(context, kind, *args)


def _serve(pipe: Connection, kind: type, args: tuple[Any, ...]) -> None:
    """Create an object and call its methods, until the pipe is closed or the process must end."""
    renew_global_generators()
    asked_to_end = ignoring_signals()
    made: Any = None
    try:
        while True:
            while not pipe.poll(IDLE):
                if asked_to_end():
                    return
            method, values = pipe.recv()
            try:
                made = kind(*args) if made is None else made
                answer = ForkingPickler.dumps((getattr(made, method)(*values), False))
            except Exception as error:
                answer = ForkingPickler.dumps((sendable(error), True))
            pipe.send_bytes(answer)
    except (EOFError, OSError):
        return  # the other process has ended
