"""Worker processes of the web app, which separate computation from the server.

The server stays small and responsive. A computation that takes too long is killed with its process, and the next call
starts a new one. A request is a line of JSON; a response is a status, a length and JSON (`operant.web.worker`).
"""

import asyncio
import json
import logging
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

HEADER = struct.Struct(">HQ")
"""Binary header of a response: status and length."""
DEADLINE = 120.0
"""Time limit of a call in seconds; the first call on a machine compiles kernels."""
IDLE = 90.0
"""Seconds without a call after which a process ends; a process with torch uses 200 MB or more."""


class NotFoundError(LookupError):
    """The requested object does not exist; the message contains its name."""


class Worker:
    """Process that computes calls one after another. The first call starts it; it ends when idle.

    Args:
        runs: folder of runs.
        deadline: time limit of a call in seconds.
        idle: seconds without a call after which the process ends.
    """

    def __init__(self, runs: Path, *, deadline: float = DEADLINE, idle: float = IDLE) -> None:
        self._runs, self._deadline, self._idle = runs, deadline, idle
        self._rest: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def call(self, function: str, arguments: Mapping[str, Any]) -> tuple[int, bytes]:
        """Call a function, and return the HTTP status and JSON.

        Args:
            function: name in `operant.web.worker.FUNCTIONS`.
            arguments: keyword arguments of the function.
        """
        async with self._lock:
            if self._rest is not None:
                self._rest.cancel()
            try:
                return await asyncio.wait_for(self._exchange(function, arguments), self._deadline)
            except TimeoutError:
                await self._kill()
                return 503, _error(f"the computation was stopped after {self._deadline:g} seconds: request less")
            except (OSError, asyncio.IncompleteReadError) as error:
                await self._kill()
                logger.warning("the worker process ended in %s: %r", function, error)
                return 503, _error("the worker process ended; the next request starts a new one")
            except BaseException:  # the response would be mistaken for that of the next call
                await self._kill()
                raise
            finally:
                self._rest = asyncio.create_task(self._end_later())

    async def _end_later(self) -> None:
        await asyncio.sleep(self._idle)
        self._rest = None  # not canceled from here on, so that the process is stopped completely
        async with self._lock:
            await self._end()

    async def _exchange(self, function: str, arguments: Mapping[str, Any]) -> tuple[int, bytes]:
        process = await self._started()
        assert process.stdin is not None  # noqa: S101 - a pipe
        assert process.stdout is not None  # noqa: S101 - a pipe
        process.stdin.write(json.dumps([function, arguments]).encode() + b"\n")
        await process.stdin.drain()
        status, length = HEADER.unpack(await process.stdout.readexactly(HEADER.size))
        return status, await process.stdout.readexactly(length)

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "operant.web.worker", str(self._runs)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must reach only the server, which stops this process
            )
        return self._process

    async def close(self) -> None:
        """Stop the process if it is running."""
        if self._rest is not None:
            self._rest.cancel()
        await self._end()

    async def _end(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), 1.0)
        await self._kill()

    async def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self._process = None


def _error(message: str) -> bytes:
    return json.dumps({"error": message}).encode()
