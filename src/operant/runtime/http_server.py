"""HTTP server with a quiet shutdown: `Server`, `Protocol`, `listen` (extra: `web`)."""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

BACKLOG = 128
"""Maximum number of connections waiting to be accepted."""
PATIENCE = 20.0
"""Time limit in seconds for receiving a request."""


class Server(uvicorn.Server):
    """Server that stops on Ctrl-C and SIGTERM without re-raising the signals.

    Args:
        config: configuration of uvicorn.
        end: function that ends open responses, such as streams. Default: nothing.
    """

    def __init__(self, config: uvicorn.Config, end: Callable[[], object] = lambda: None) -> None:
        super().__init__(config)
        self._end = end

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Stop the server on signals."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            if sys.platform == "win32":  # its event loops do not support signal handlers
                signal.signal(number, lambda *_: self._stop())
            else:
                loop.add_signal_handler(number, self._stop)
        yield

    def _stop(self) -> None:
        self._end()
        self.force_exit = self.should_exit
        self.should_exit = True


class Protocol(H11Protocol):
    """HTTP protocol that closes connections without a complete request, which would block others."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Restart the timeout for an incomplete request."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        super().connection_lost(exc)
        if self._deadline is not None:
            self._deadline.cancel()

    def _watch(self) -> None:
        """Start the timeout, unless a request is complete."""
        if self._deadline is None:
            self._deadline = self.loop.call_later(PATIENCE, self._give_up)
        elif self._answers():
            self._deadline.cancel()
            self._deadline = None

    def _answers(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    def _give_up(self) -> None:
        self._deadline = None
        if not self._answers() and not self.transport.is_closing():
            self.transport.close()


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        ValueError: the address or port cannot be used.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be from 0 to 65535, got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ValueError(f"{host or repr(host)} is not an address of this machine: {error.strerror}") from error
    listening = socket.socket(family, kind, protocol)
    if os.name == "posix":
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ValueError(f"port {port} is in use: choose another one with --port, or --port 0 for any") from error
        raise ValueError(f"cannot listen on {host}, port {port}: {error.strerror}") from error
    return listening
