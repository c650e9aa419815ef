"""The server: where it listens, what it says, and how it ends."""

import asyncio
import errno
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from operant.web.app import make_app
from operant.web.safety import LOOPBACK, Hosts

logger = logging.getLogger(__name__)

BACKLOG = 128


@dataclass(frozen=True)
class Options:
    """How to serve.

    Attributes:
        host: the name or address to listen on. Anything but this machine's own needs a token, which is made.
        port: the port; 0 for one that is free.
        runs: the folder of runs, which need not exist.
        browser: whether to open the page in a browser.
        page: which one, such as `"/labels"`, with a fragment if need be.
    """

    host: str = "127.0.0.1"
    port: int = 8421
    runs: Path = Path("runs")
    browser: bool = True
    page: str = "/"


def serve(options: Options, announce: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        options: how.
        announce: told the address once it answers.

    Raises:
        ValueError: the port is in use or not allowed, or the host is none of this machine.
    """
    listening = _listen(options.host, options.port)
    port = listening.getsockname()[1]
    shown = f"[{options.host}]" if ":" in options.host else options.host
    token = None if shown in LOOPBACK else secrets.token_urlsafe(32)
    app = make_app(options.runs.absolute(), Hosts(options.host, port), token)
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        server_header=False,
        ws="none",
        limit_concurrency=200,
        timeout_graceful_shutdown=2,
        timeout_keep_alive=30,
    )
    path, _, fragment = options.page.partition("#")
    address = f"http://{shown}:{port}{path}{f'?token={token}' if token else ''}{f'#{fragment}' if fragment else ''}"
    announce(address)
    if options.browser:
        _open(address)
    with listening:
        asyncio.run(_Server(config, app.end).serve(sockets=[listening]))


class _Server(uvicorn.Server):
    """Ends at Ctrl-C and SIGTERM, and does not pass them on: to be stopped is how it is meant to end.

    Args:
        config: of uvicorn.
        end: ends what would go on answering for ever.
    """

    def __init__(self, config: uvicorn.Config, end: Callable[[], object]) -> None:
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


def _listen(host: str, port: int) -> socket.socket:
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


def _open(address: str) -> None:
    """Open the page, unless only a browser for terminals could: it would take this one."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
