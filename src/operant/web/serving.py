"""The server: address, messages, and shutdown."""

import asyncio
import logging
import os
import secrets
import sys
import threading
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import uvicorn

from operant.runtime.http_server import Protocol, Server, listen
from operant.web.app import make_app
from operant.web.documentation import find_documentation
from operant.web.safety import LOOPBACK, Hosts

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Options:
    """Options of the server.

    Attributes:
        host: name or address to listen on. Others than this machine's own need a token, which is generated.
        port: the port; 0 for any free one.
        runs: the folder of runs, which may be missing.
        browser: whether to open the page in a browser.
        page: path of the page, such as `"/labels"`, with an optional fragment.
        documentation: address of the documentation, or folder of a built site, which is served under `/docs/`; empty:
            the address that the package names, if it names one.
    """

    host: str = "127.0.0.1"
    port: int = 8421
    runs: Path = Path("runs")
    browser: bool = True
    page: str = "/"
    documentation: str = ""


def serve(options: Options, announce: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        options: of the server.
        announce: called with the address once it responds.

    Raises:
        ValueError: the port is in use or not allowed, the host is not of this machine, or the documentation is
            neither an address nor the folder of a site.
    """
    documentation = find_documentation(options.documentation)
    listening = listen(options.host, options.port)
    port = listening.getsockname()[1]
    shown = f"[{options.host}]" if ":" in options.host else options.host
    token = None if shown in LOOPBACK else secrets.token_urlsafe(32)
    app = make_app(options.runs.absolute(), Hosts(options.host, port), token, documentation)
    config = uvicorn.Config(
        app,
        http=Protocol,
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
        asyncio.run(Server(config, app.end).serve(sockets=[listening]))


def _open(address: str) -> None:
    """Open the page, unless the only browser is for terminals, which would take over this one."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
