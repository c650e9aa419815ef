"""HTTP server of the web app."""

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
        host: host name or IP address to listen on. Addresses that other machines can reach require a generated token.
        port: port; 0 for any free port.
        runs: folder of runs, which need not exist.
        browser: whether to open the page in a browser.
        page: URL path of the page, such as `"/labels"`, with an optional fragment.
        documentation: URL of the documentation, or folder of a built site, which is served under `/docs/`. Default: the
            URL in the metadata of the package.
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
        options: options of the server.
        announce: function called with the URL when the server accepts connections, which it answers soon.

    Raises:
        ValueError: the port is in use or not allowed, the host is not an address of this machine, or the documentation
            is neither a URL nor a folder of a site.
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
    with listening:
        announce(address)
        if options.browser:
            _open(address)
        asyncio.run(Server(config, app.end).serve(sockets=[listening]))


def _open(address: str) -> None:
    """Open the page, unless the only browser is a text browser, which would occupy this terminal."""
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
