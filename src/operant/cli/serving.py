"""`operant serve`; without heavy imports, so that the page opens immediately."""

import os
from pathlib import Path

from operant.cli.flags import Parser
from operant.cli.output import require_extra, say

PORT = 8421
KEY = "TINKER_API_KEY"
"""Environment variable with the key of a service."""


def serve(arguments: list[str]) -> int:
    """Serve the web app until Ctrl-C."""
    parser = Parser(
        "operant serve",
        description="Open the web app on this machine: the playground, runs, completions, chat, labels, a map.",
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"port; 0: any free one (default: {PORT})")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="folder of the runs (default: runs)")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; other machines reach all but the default, and need the printed token",
    )
    parser.add_argument(
        "--docs",
        default="",
        metavar="FOLDER|ADDRESS",
        help="where links to the documentation lead: to the site that `make docs` has built in a folder, which is "
        "served too, or to an address",
    )
    parser.add_argument(
        "--train",
        metavar="RUN|MODEL",
        help="serve the Tinker API for this language model, instead of the web app: loops for that API "
        "train and sample here",
    )
    parser.add_argument(
        "--states", type=Path, default=Path("states"), metavar="FOLDER", help="where --train saves (default: states)"
    )
    options = parser.parse_args(arguments)
    if options.train is not None:
        return start_training(options.train, options.states, options.port, host=options.host)
    if options.runs is not None and not options.runs.is_dir():
        raise ValueError(f"there is no folder {options.runs}; pass the folder of your runs with --runs")
    browser = not options.no_browser
    return start(options.runs or Path("runs"), options.port, host=options.host, browser=browser, docs=options.docs)


def start(
    runs: Path, port: int, *, host: str = "127.0.0.1", browser: bool = True, page: str = "/", docs: str = ""
) -> int:
    """Serve until Ctrl-C, and return an exit status.

    Args:
        runs: the folder of runs.
        port: the port, 0 for any free one.
        host: the address.
        browser: whether to open a page.
        page: which page.
        docs: address of the documentation, or folder of a built site; empty: the address that the package names.

    Raises:
        ModuleNotFoundError: the extra `web` is not installed.
        ValueError: the port is in use, or the documentation is neither an address nor the folder of a site.
    """
    require_extra("web", "the web app", ["starlette", "uvicorn"])
    from operant.web.serving import Options, serve

    def announce(address: str) -> None:
        print(address, flush=True)
        if "?token=" in address:
            say("other machines can reach this server: whoever has this address can read the runs and label")
        say("Ctrl-C stops it")

    serve(Options(host=host, port=port, runs=runs, browser=browser, page=page, documentation=docs), announce)
    say("stopped")
    return 0


def start_training(model: str, states: Path, port: int, *, host: str = "127.0.0.1") -> int:
    """Serve the Tinker API until Ctrl-C, and return an exit status.

    Args:
        model: folder of a run, a folder or hub name of a model, or a built-in one.
        states: folder of saved states.
        port: the port, 0 for any free one.
        host: the address.

    Raises:
        ModuleNotFoundError: an extra is not installed.
        ValueError: there is no such model, the key is invalid, or the port is in use.
    """
    require_extra("web", "a service", ["starlette", "uvicorn"])
    require_extra("language", "a language model", ["transformers", "tokenizers", "peft"])
    require_extra("tinker", "the Tinker API", ["tinker"])
    from operant.scale.service import Service
    from operant.scale.tinker_server import PREFIX, new_key, serve
    from operant.scale.trainer import named

    key = os.environ.get(KEY) or new_key()
    if not key.startswith(PREFIX):
        raise ValueError(f"{KEY} must begin with {PREFIX!r}, as the SDK requires; unset it for a new one")

    def announce(address: str) -> None:
        print(address, flush=True)
        say(f"clients need: export TINKER_BASE_URL={address} {KEY}={key}")
        say("Ctrl-C stops it")

    serve(Service(named(model), states), host=host, port=port, key=key, announce=announce)
    say("stopped")
    return 0
