"""Interface to workers outside this machine, such as on a cluster: `Host`, `within`.

By default, workers of environments and of reward functions are processes on this machine. If a host is set, they are
its actors instead. An actor is an object in a separate process, possibly on another machine; its methods are called by
messages. Results do not depend on where workers run.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Reply(Protocol):
    """Result of a remote call, like a future."""

    def done(self) -> bool:
        """Return whether the result has arrived or the call has failed."""
        ...

    def result(self, seconds: float | None = None) -> Any:
        """Wait for the result and return it.

        Args:
            seconds: timeout; None: no limit.

        Raises:
            TimeoutError: the result has not arrived in time.
            ConnectionError: the actor is lost: its process was killed, or its machine is unavailable.
            Exception: any exception raised by the method.
        """
        ...


class Actor(Protocol):
    """An object in a separate process."""

    def call(self, method: str, *args: Any) -> Reply:
        """Call a method without waiting for its result. Calls are executed in order."""
        ...

    def kill(self) -> None:
        """End the process. Repeated calls are safe."""
        ...


class Host(Protocol):
    """Factory of actors."""

    def actor(self, kind: type, *args: Any, threads: int = 1) -> Actor:
        """Create an object in a separate process, without waiting for it.

        Args:
            kind: class of the object, in operant; the other process imports it by name.
            *args: arguments of its constructor.
            threads: number of calls that may run in parallel; with more than one, their order is undefined.
        """
        ...


_host: ContextVar[Host | None] = ContextVar("host", default=None)


def current() -> Host | None:
    """Return the current host of workers; None if they are processes on this machine."""
    return _host.get()


@contextmanager
def within(host: Host) -> Generator[Host]:
    """Return a context manager that sets the host of workers created in the block."""
    previous = _host.set(host)
    try:
        yield host
    finally:
        _host.reset(previous)
