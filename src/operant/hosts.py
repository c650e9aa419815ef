"""A place for work outside this process, such as a cluster: `Host`, `within`.

Worker processes of environments and of reward functions are processes of this machine, unless a host is set, whose
actors then take their place. An actor is an object in a process of its own, somewhere; its methods are called with
messages. Where work runs changes no result.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class Reply(Protocol):
    """The result of a call, once it arrives."""

    def done(self) -> bool:
        """Return whether it has arrived, or never will."""
        ...

    def result(self, seconds: float | None = None) -> Any:
        """Wait for the result and return it.

        Args:
            seconds: the longest wait; None: no limit.

        Raises:
            TimeoutError: it has not arrived in time.
            ConnectionError: the actor is lost: its process was killed, or its machine is gone.
            Exception: raised by the method.
        """
        ...


class Actor(Protocol):
    """An object in a process of its own."""

    def call(self, method: str, *args: Any) -> Reply:
        """Call a method, without waiting for it. Calls are executed in order."""
        ...

    def kill(self) -> None:
        """End the process. Repeated calls are safe."""
        ...


class Host(Protocol):
    """Makes actors."""

    def actor(self, kind: type, *args: Any, threads: int = 1) -> Actor:
        """Make an object in a process of its own, without waiting for it.

        Args:
            kind: a class of operant, which the other process imports by name.
            *args: of its constructor.
            threads: calls that may run in parallel; with several, they have no order.
        """
        ...


_host: ContextVar[Host | None] = ContextVar("host", default=None)


def current() -> Host | None:
    """Return the host of workers; None: they are processes of this machine."""
    return _host.get()


@contextmanager
def within(host: Host) -> Generator[Host]:
    """Set the host of workers that are made in the block."""
    former = _host.set(host)
    try:
        yield host
    finally:
        _host.reset(former)
