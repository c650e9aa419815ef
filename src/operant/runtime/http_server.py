"""A server on a socket of this machine with a quiet shutdown: `Server`, `listen` (extra: `web`)."""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

import uvicorn

BACKLOG = 128
"""Connections that may wait to be accepted."""


class Server(uvicorn.Server):
    """Ends at Ctrl-C and SIGTERM, and does not pass them on: to be stopped is how it is meant to end.

    Args:
        config: of uvicorn.
        end: ends answers that would not end by themselves. Default: there are none.
    """

    def __init__(self, config: uvicorn.Config, end: Callable[[], object] = lambda: None) -> None:
        super().__init__(config)
        self._end = end

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Turn the signals into the wish to exit."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            if sys.platform == "win32":  # whose loops take no signals
                signal.signal(number, lambda *_: self._stop())
            else:
                loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self._end()
        self.force_exit = self.should_exit
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ValueError: it cannot.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ValueError(f"{host} is no address of this machine: {error.strerror}") from error
    listening = socket.socket(family, kind, protocol)
    if os.name == "posix":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use; name another one with --port, or take --port 0") from error
        raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    return listening
