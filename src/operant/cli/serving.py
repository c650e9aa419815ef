"""`operant serve`; without heavy imports, so that it starts immediately."""

import os
import re
from pathlib import Path

from operant.cli.flags import Parser, read_path
from operant.cli.output import require_extra, say

PORT = 8421
KEY = "TINKER_API_KEY"
"""Environment variable with the key of a service."""


def serve(arguments: list[str]) -> int:
    """Serve the web app until Ctrl-C."""
    parser = Parser(
        "operant serve",
        description="Start the web app on this machine: playground, runs, completions, chat, labels, algorithm map.",
    )
    parser.add_argument("--port", type=int, default=PORT, help=f"port; 0: any free one (default: {PORT})")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="folder of the runs (default: runs)")
    parser.add_argument("--no-browser", action="store_true", help="do not open the page")
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on (default: 127.0.0.1, this machine only); other machines need the printed token",
    )
    parser.add_argument(
        "--docs",
        type=_documentation,
        metavar="FOLDER|ADDRESS",
        help="target of links to the documentation: the folder of a site built by `make docs`, which is served, too, "
        "or a URL",
    )
    parser.add_argument(
        "--train",
        metavar="RUN|MODEL",
        help="serve the Tinker API for this language model instead of the web app, so that its clients train and "
        "sample on this machine",
    )
    parser.add_argument(
        "--states",
        type=Path,
        metavar="FOLDER",
        help="folder of the states saved by --train (default: states)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="device of --train, such as cuda:1; auto: a GPU if available, and the CPU for built-in models "
        "(default: auto)",
    )
    options = parser.parse_args(arguments)
    if options.train is not None:
        given = {"--runs": options.runs, "--docs": options.docs, "--no-browser": options.no_browser or None}
        if flag := next((flag for flag, value in given.items() if value is not None), None):
            raise ValueError(f"{flag} is for the web app, which --train replaces: leave out one of the two")
        states = options.states or Path("states")
        return start_training(options.train, states, options.port, host=options.host, device=options.device)
    if options.states is not None:
        raise ValueError("--states is for --train: leave it out; the runs of the web app are in the folder of --runs")
    if options.device != "auto":
        raise ValueError("--device is that of --train; the web app computes on the CPU, and a run on its own device")
    if options.runs is not None and not options.runs.is_dir():
        raise ValueError(f"there is no folder {options.runs}; pass the folder of your runs with --runs")
    runs, docs = options.runs or Path("runs"), options.docs or ""
    return start(runs, options.port, host=options.host, browser=not options.no_browser, docs=docs)


def _documentation(word: str) -> str:
    """Parse a URL, or the path of a folder."""
    return word if not word or "://" in word else str(read_path(word))


def start(
    runs: Path, port: int, *, host: str = "127.0.0.1", browser: bool = True, page: str = "/", docs: str = ""
) -> int:
    """Serve until Ctrl-C, and return an exit status.

    Args:
        runs: folder of the runs.
        port: port; 0: any free one.
        host: address to listen on.
        browser: whether to open the browser.
        page: page to open.
        docs: URL of the documentation, or folder of a built site; empty: the URL in the package's metadata.

    Raises:
        ModuleNotFoundError: the extra `web` is not installed.
        ValueError: the port is in use, or `docs` is neither a URL nor the folder of a site.
    """
    require_extra("web", "the web app", ["starlette", "uvicorn"])
    from operant.web.serving import Options, serve

    def announce(address: str) -> None:
        print(address, flush=True)
        if "?token=" in address:
            say("other machines can reach this server: anyone with this address can read the runs and add labels")
        say("Press Ctrl-C to stop")

    serve(Options(host=host, port=port, runs=runs, browser=browser, page=page, documentation=docs), announce)
    say("stopped")
    return 0


def start_training(model: str, states: Path, port: int, *, host: str = "127.0.0.1", device: str = "auto") -> int:
    """Serve the Tinker API until Ctrl-C, and return an exit status.

    Args:
        model: folder of a run, folder or Hub name of a model, or name of a built-in model.
        states: folder of saved states.
        port: port; 0: any free one.
        host: address to listen on.
        device: device of the computation; auto: a GPU if available, and the CPU for built-in models.

    Raises:
        ModuleNotFoundError: an extra is not installed.
        ValueError: there is no such model or device, the key is invalid, or the port is in use.
    """
    require_extra("web", "a service", ["starlette", "uvicorn"])
    require_extra("language", "a language model", ["transformers", "tokenizers", "peft"])
    require_extra("tinker", "the Tinker API", ["tinker"])
    from operant.scale.service import Service
    from operant.scale.tinker_server import PREFIX, new_key, serve
    from operant.scale.trainer import named, placed

    key = os.environ.get(KEY) or new_key()
    if not key.startswith(PREFIX):
        raise ValueError(f"{KEY} must begin with {PREFIX!r}, as the SDK requires; unset it to generate a new key")

    base = named(model)
    try:
        service = Service(base, states, device=placed(base, device))
    except ValueError as error:  # it names the flag of training
        raise ValueError(re.sub("^--model ", "--train ", str(error))) from error

    def announce(address: str) -> None:
        say(f"serves the model {service.name!r} on {service.device}")
        print(address, flush=True)
        say(f"clients need: export TINKER_BASE_URL={address} {KEY}={key}")
        say("Press Ctrl-C to stop")

    serve(service, host=host, port=port, key=key, announce=announce)
    say("stopped")
    return 0
