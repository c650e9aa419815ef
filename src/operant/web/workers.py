"""Worker processes: separate computation from the server.

The server stays small and never waits; a computation that takes too long is killed with its process, and the next one
starts another. A request is a line of JSON, a response a status, a length and JSON (`operant.web.worker`).
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
"""Status and length of a response."""
DEADLINE = 120.0
"""Seconds that a call may take; the first one on a machine compiles kernels."""
IDLE = 90.0
"""Seconds without a call after which a process ends: one with torch in it takes 200 MB and more."""


class NotFoundError(LookupError):
    """The requested object does not exist; the message names it."""


class Worker:
    """A process that answers calls one after another; the first call starts it, and it ends when none comes.

    Args:
        runs: the folder of runs.
        deadline: seconds that a call may take.
        idle: seconds without a call after which the process ends.
    """

    def __init__(self, runs: Path, *, deadline: float = DEADLINE, idle: float = IDLE) -> None:
        self._runs, self._deadline, self._idle = runs, deadline, idle
        self._rest: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def call(self, function: str, arguments: Mapping[str, Any]) -> tuple[int, bytes]:
        """Return an HTTP status and JSON.

        Args:
            function: a name in `operant.web.worker.FUNCTIONS`.
            arguments: of the function, by name.
        """
        if self._rest is not None:
            self._rest.cancel()
        async with self._lock:
            try:
                return await asyncio.wait_for(self._exchange(function, arguments), self._deadline)
            except TimeoutError:
                await self._kill()
                return 503, _error(f"this took longer than {self._deadline:g} seconds and was stopped: request less")
            except (OSError, asyncio.IncompleteReadError) as error:
                await self._kill()
                logger.warning("the worker process has ended in %s: %r", function, error)
                return 503, _error("the worker process has ended; the next request starts another")
            except BaseException:  # abandoned: its answer would be mistaken for that of the next call
                await self._kill()
                raise
            finally:
                self._rest = asyncio.create_task(self._end_later())

    async def _end_later(self) -> None:
        await asyncio.sleep(self._idle)
        self._rest = None  # from here on it is not called off: a process is ended whole
        async with self._lock:
            await self._end()

    async def _exchange(self, function: str, arguments: Mapping[str, Any]) -> tuple[int, bytes]:
        process = await self._started()
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        assert process.stdout is not None  # noqa: S101 - as well
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
                start_new_session=True,  # Ctrl-C is for the server, which ends this process itself
            )
        return self._process

    async def close(self) -> None:
        """End the process, if there is one."""
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
