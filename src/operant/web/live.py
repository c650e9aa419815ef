"""Live updates of runs by server-sent events (HTML standard, section 9.2).

An event contains the sizes of the complete lines in the files of the runs, in bytes. They are also its id, so that a
page continues from there after a disconnect (`Last-Event-ID`).
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from operant.web.folders import folder_of
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
            folders = [folder_of(self._runs, name) for name in names]
        except NotFoundError as error:
            return PlainTextResponse(f"{error}\n", 404)
        if self.open >= MOST_STREAMS:
            return PlainTextResponse(f"{MOST_STREAMS} pages already follow runs: close one\n", 503)
        known = offsets_of(request.headers.get("last-event-id", ""), len(names))
        headers = {"cache-control": "no-store"}
        return _Stream(self, self._events(folders, file, known), media_type="text/event-stream", headers=headers)

    async def _events(self, folders: Sequence[Path], file: str, known: list[int] | None) -> AsyncIterator[bytes]:
        """Yield an event when the files have new complete lines, and when the list of runs may have changed."""
        listed, silent = self._listing(folders), 0.0
        yield b"retry: 2000\n\n"
        while not self._ended:
            found = [whole_bytes(folder / file) for folder in folders]
            now = self._listing(folders)
            if now != listed:
                yield b"event: list\ndata: {}\n\n"
            if found != known:
                yield event(found)
            elif now == listed:
                silent += SECONDS
                if silent >= SILENCE:
                    yield b":\n\n"
                    silent = 0.0
            known, listed = found, now
            await asyncio.sleep(SECONDS)

    def _listing(self, folders: Sequence[Path]) -> list[int]:
        """Return a value that changes when runs are added or deleted, or when training starts or ends."""
        return [_changed(self._runs), *(_changed(folder / "run.json") for folder in folders)]


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
    """Return the size of the complete lines of a file in bytes; 0 if it does not exist."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            end = size
            while end > 0:
                begin = max(0, end - _TAIL)
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
