"""Live changes of runs: server-sent events (HTML standard, section 9.2).

An event says how far the files of the runs have been written: their whole lines, in bytes. That is its id, too, so that
a page which was cut off continues from there (`Last-Event-ID`), and gets nothing twice.
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
"""At a time: each page has one."""
MOST_FILES = 64
"""Of one stream."""
SECONDS = 0.5
"""Between two looks at the files."""
SILENCE = 15.0
"""Seconds without events after which a comment shows that the stream is alive, and that the page is."""
FILES: Mapping[str, str] = {"metrics": "metrics.jsonl", "evaluations": "eval/evaluations.jsonl"}
"""What can be followed."""
_TAIL = 1 << 16


class Streams:
    """The streams of a server, which end with it.

    Args:
        runs: the folder of runs.

    Attributes:
        open: how many there are.
    """

    def __init__(self, runs: Path) -> None:
        self._runs, self._ended, self.open = runs, False, 0

    def end(self) -> None:
        """End all streams within a moment."""
        self._ended = True

    async def answer(self, request: Request) -> Response:
        """Follow `runs`, names with commas between, in `file`, one of `FILES`."""
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return PlainTextResponse("only pages of this server may ask for that\n", 403)
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
            return PlainTextResponse(f"{MOST_STREAMS} pages follow runs already: close one\n", 503)
        known = offsets_of(request.headers.get("last-event-id", ""), len(names))
        headers = {"cache-control": "no-store"}
        return _Stream(self, self._events(folders, file, known), media_type="text/event-stream", headers=headers)

    async def _events(self, folders: Sequence[Path], file: str, known: list[int] | None) -> AsyncIterator[bytes]:
        """Yield an event whenever the files have more whole lines, and one whenever the list of runs may differ."""
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
        """Return a value that changes when runs appear or vanish, or when their training starts or ends."""
        return [_changed(self._runs), *(_changed(folder / "run.json") for folder in folders)]


class _Stream(StreamingResponse):
    """A stream, which counts from when it is made until it ends."""

    def __init__(self, streams: Streams, events: AsyncIterator[bytes], **options: Any) -> None:
        super().__init__(events, **options)
        self._streams = streams
        streams.open += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._streams.open -= 1


def event(offsets: Sequence[int]) -> bytes:
    """Return an event that tells how far files have been written."""
    return f"id: {'-'.join(map(str, offsets))}\ndata: {json.dumps({'bytes': list(offsets)})}\n\n".encode()


def offsets_of(text: str, count: int) -> list[int] | None:
    """Return the numbers in the id of an event of this many files; None if it is none."""
    parts = text.split("-")
    fits = len(parts) == count and all(part.isascii() and part.isdecimal() and len(part) < 20 for part in parts)
    return [int(part) for part in parts] if fits else None


def whole_bytes(path: Path) -> int:
    """Return how many bytes of a file are whole lines; 0 if there is no file."""
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
