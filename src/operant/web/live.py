"""Live updates of runs by server-sent events (HTML standard, section 9.2).

An event contains the sizes of the complete lines in the files of the runs, in bytes. They are also its id, so that a
page continues from there after a disconnect (`Last-Event-ID`).
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from operant.runtime.files import require_regular
from operant.web.folders import folder_of, searched
from operant.web.workers import NotFoundError

MOST_STREAMS = 64
"""Maximum number of open streams; each page has one."""
MOST_FILES = 64
"""Maximum number of files per stream."""
SECONDS = 0.5
"""Interval in seconds between two checks of the files."""
SILENCE = 15.0
"""Seconds without events after which a comment keeps the connection alive, and detects closed pages."""
FILES: Mapping[str, str] = {"metrics": "metrics.jsonl", "evaluations": "eval/evaluations.jsonl"}
"""Names of files that can be followed."""
MOST_TAIL = 1 << 20
"""Maximum size in bytes of the end of a file in which the last complete line is searched."""
MOST_FOLDERS = 1000
"""Maximum number of folders that are checked for new runs."""
_TAIL = 1 << 16


class Streams:
    """Open event streams of a server.

    Args:
        runs: folder of runs.

    Attributes:
        open: number of open streams.
    """

    def __init__(self, runs: Path) -> None:
        self._runs, self._ended, self.open = runs, False, 0

    def end(self) -> None:
        """End all streams."""
        self._ended = True

    async def answer(self, request: Request) -> Response:
        """Follow the file `file` (one of `FILES`) of `runs` (comma-separated names)."""
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return PlainTextResponse("only pages of this server may request this\n", 403)
        names = [name for name in request.query_params.get("runs", "").split(",") if name]
        file = FILES.get(request.query_params.get("file", ""))
        if file is None or len(names) > MOST_FILES:
            message = f"file must be one of {', '.join(FILES)}, and runs at most {MOST_FILES} names\n"
            return PlainTextResponse(message, 400)
        try:
            folders = await asyncio.to_thread(lambda: [folder_of(self._runs, name) for name in names])
        except NotFoundError as error:
            return PlainTextResponse(f"{error}\n", 404)
        if self.open >= MOST_STREAMS:
            return PlainTextResponse(f"{MOST_STREAMS} pages already follow runs: close one\n", 503)
        known = offsets_of(request.headers.get("last-event-id", ""), len(names))
        headers = {"cache-control": "no-store"}
        return _Stream(self, self._events(folders, file, known), media_type="text/event-stream", headers=headers)

    async def _events(self, folders: Sequence[Path], file: str, known: list[int] | None) -> AsyncIterator[bytes]:
        """Yield an event when the files have new complete lines, and when the list of runs may have changed."""
        listing, silent = await asyncio.to_thread(_Listing, self._runs, folders), 0.0

        def poll() -> tuple[list[int], bool]:
            return [whole_bytes(folder / file) for folder in folders], listing.has_changed()

        yield b"retry: 2000\n\n"
        while not self._ended:
            found, is_changed = await asyncio.to_thread(poll)  # the file system may be slow
            if is_changed:
                yield b"event: list\ndata: {}\n\n"
            if found != known:
                yield event(found)
            elif not is_changed:
                silent += SECONDS
                if silent >= SILENCE:
                    yield b":\n\n"
                    silent = 0.0
            known = found
            await asyncio.sleep(SECONDS)


class _Listing:
    """Times of changes of the folders in which runs are searched, and of the states of some runs.

    Args:
        runs: folder of runs.
        folders: folders of the runs whose states matter.
    """

    def __init__(self, runs: Path, folders: Sequence[Path]) -> None:
        self._runs, self._states = runs, [folder / "run.json" for folder in folders]
        self._read()

    def _read(self) -> None:
        self._searched = [self._runs / name for name in islice(searched(self._runs), MOST_FOLDERS)]
        self._times = self._now()

    def _now(self) -> list[int]:
        return [_changed(path) for path in (*self._searched, *self._states)]

    def has_changed(self) -> bool:
        """Return whether runs were added or deleted, or training started or ended, since the last call."""
        if self._now() == self._times:
            return False
        self._read()
        return True


class _Stream(StreamingResponse):
    """Response that is counted as an open stream until it ends."""

    def __init__(self, streams: Streams, events: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(events, **options)
        self._streams = streams
        streams.open += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1


def event(offsets: Sequence[int]) -> bytes:
    """Return an event with the sizes of the complete lines of files."""
    return f"id: {'-'.join(map(str, offsets))}\ndata: {json.dumps({'bytes': list(offsets)})}\n\n".encode()


def offsets_of(text: str, count: int) -> list[int] | None:
    """Parse the id of an event with `count` files; None if it is invalid."""
    parts = text.split("-")
    fits = len(parts) == count and all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts)
    return [int(part) for part in parts] if fits else None


def whole_bytes(path: Path) -> int:
    """Return the size of the complete lines of a file in bytes.

    It is 0 if there is no regular file, or if the incomplete line at its end has more than `MOST_TAIL` bytes.
    """
    try:
        require_regular(path)
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            least = max(0, end - MOST_TAIL)
            while end > least:
                begin = max(least, end - _TAIL)
                file.seek(begin)
                place = file.read(end - begin).rfind(b"\n")
                if place >= 0:
                    return begin + place + 1
                end = begin
    except OSError:
        pass
    return 0


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
