"""The web app: pages, static files, and access to worker processes.

Pages share one shell (`static/index.html`) and have one JavaScript module each. Files are looked up by name among the
files of the package; requests are never treated as paths.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from operant import __version__
from operant.web.documentation import PREFIX, Documentation
from operant.web.documentation_site import TYPES, Site
from operant.web.live import Streams
from operant.web.safety import Guard, Hosts
from operant.web.taxonomy import taxonomy
from operant.web.workers import Worker

STATIC = Path(__file__).parent / "static"
"""Static files of the pages."""
PAGES = ("/", "/runs", "/completions", "/chat", "/labels", "/explorables", "/map")
"""URL paths of the pages."""
BODY_SECONDS = 30.0
"""Time limit for the body of a request, in seconds."""
NOWHERE = Documentation()
"""Documentation with unknown location."""


@dataclass(frozen=True)
class Workers:
    """Worker processes by purpose.

    Attributes:
        library: reads runs, with little memory.
        computing: runs solvers, learners, plots and comparisons.
        labels: stores preference labels.
        travel: holds the open run of time travel.
        chat: holds loaded language models.
    """

    library: Worker
    computing: Worker
    labels: Worker
    travel: Worker
    chat: Worker

    def of(self, name: str) -> Worker:
        """Return the worker that runs a function, by name."""
        package = name.partition(".")[0]
        if package in ("playground", "explorables") or name == "runs.compare":
            return self.computing
        own = {"labels": self.labels, "travel": self.travel, "chat": self.chat}
        return own.get(package, self.library)

    async def close(self) -> None:
        """Stop the processes."""
        for worker in (self.library, self.computing, self.labels, self.travel, self.chat):
            await worker.close()


def make_app(runs: Path, hosts: Hosts, token: str | None = None, documentation: Documentation = NOWHERE) -> Guard:
    """Create the app.

    Args:
        runs: folder of runs, which need not exist.
        hosts: allowed host names of requests.
        token: token required in requests. Default: no token.
        documentation: location of the documentation.
    """
    streams = Streams(runs)
    workers = Workers(*(Worker(runs) for _ in range(5)))
    site = Site(documentation.folder)
    files = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        first = asyncio.create_task(
            workers.library.call("runs.index", {})
        )  # starts the worker while the browser starts
        yield
        first.cancel()
        streams.end()
        await workers.close()

    routes = [
        Route("/", _first(workers), methods=["GET"]),
        *(Route(page, _shell, methods=["GET"]) for page in PAGES[1:]),
        Route("/static/{name:path}", _file(files), methods=["GET"]),
        Route("/media/{run:path}/{name}", _medium(workers), methods=["GET"]),
        Route(PREFIX.rstrip("/"), site.answer, methods=["GET"]),
        Route(f"{PREFIX}{{name:path}}", site.answer, methods=["GET"]),
        Route("/events", streams.answer, methods=["GET"]),
        Route("/api/about", _about(runs, documentation.address), methods=["POST"]),
        Route("/api/map", _map, methods=["POST"]),
        Route("/api/{package}/{function}", _call(workers), methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes, lifespan=lifespan), hosts, token, end=streams.end)


async def _shell(_: Request) -> Response:
    return _response(STATIC / "index.html")


def _first(workers: Workers) -> Any:
    waking = set[asyncio.Task[Any]]()

    async def answer(request: Request) -> Response:
        """Serve the shell of the playground, and start its worker while the browser starts."""
        task = asyncio.create_task(workers.computing.call("playground.presets", {}))
        waking.add(task)
        task.add_done_callback(waking.discard)
        return await _shell(request)

    return answer


def _file(files: Mapping[str, Path]) -> Any:
    async def answer(request: Request) -> Response:
        path = files.get(request.path_params["name"])
        return _nothing() if path is None else _response(path)

    return answer


def _medium(workers: Workers) -> Any:
    async def answer(request: Request) -> Response:
        """Serve an image or video of a run, found by the worker."""
        status, body = await workers.library.call("runs.medium", dict(request.path_params))
        return _response(Path(json.loads(body)["path"])) if status == 200 else _nothing()

    return answer


def _about(runs: Path, documentation: str) -> Any:
    async def answer(_: Request) -> Response:
        facts = {"version": __version__, "runs": str(runs), "found": runs.is_dir(), "documentation": documentation}
        return JSONResponse(facts)

    return answer


async def _map(_: Request) -> Response:
    return JSONResponse(taxonomy())


def _call(workers: Workers) -> Any:
    async def answer(request: Request) -> Response:
        name = f"{request.path_params['package']}.{request.path_params['function']}"
        try:
            arguments = json.loads(await asyncio.wait_for(request.body(), BODY_SECONDS) or b"{}")
        except (ValueError, RecursionError):
            arguments = None
        except TimeoutError:
            return JSONResponse({"error": f"the body took longer than {BODY_SECONDS:g} seconds"}, 408)
        except ClientDisconnect:
            return _nothing()
        if not isinstance(arguments, dict):  # the keys of a JSON object are strings
            return JSONResponse({"error": "the body must be a JSON object"}, 400)
        if name == "runs.medium":  # returns a path, which is for the server only
            return _nothing()
        status, body = await workers.of(name).call(name, cast(dict[str, Any], arguments))
        return Response(body, status, {"cache-control": "no-store"}, "application/json")

    return answer


def _response(path: Path) -> Response:
    return FileResponse(path, media_type=TYPES[path.suffix], headers={"cache-control": "no-cache"})


def _nothing() -> Response:
    return PlainTextResponse("not found\n", 404)
