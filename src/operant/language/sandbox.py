"""Isolation of functions that may hang or crash: `Sandbox`.

A worker is a separate process that exchanges lines of JSON over pipes; with a host (`operant.hosts`), it runs next to
an actor. A worker that exceeds its time limit is killed with all its child processes (on Linux also those that left its
session, such as daemons), and the next call starts a new one. Replies contain the id of their call. No alarm signal is
used in this process, so calls work from any thread. A sandbox protects against mistakes, not against malicious code:
the function has all permissions of the user.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import uuid
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from operant import doors, hosts
from operant.language import sandbox_worker
from operant.language.remote_worker import RemoteWorker

_FILE = str(Path(sandbox_worker.__file__).resolve())


MEMORY = 4 << 30
"""Default memory limit of a worker in bytes; importing torch takes half a gigabyte."""

_MARK = "OPERANT_SANDBOX"
"""Environment variable that identifies all processes of a worker."""


class SandboxError(RuntimeError):
    """Raised if the function cannot be loaded, raises an exception or returns a result that JSON cannot represent.

    The message contains exception and location. The cause contains the traceback of the worker.
    """


class LoadError(SandboxError):
    """Raised if the function cannot be loaded: its file fails, or has no such function."""


class _RemoteTraceback(Exception):  # noqa: N818 - represents an exception in another process
    """Exception in a worker, with its traceback."""

    def __str__(self) -> str:
        """Return the traceback."""
        return f"\n{self.args[0]}"


class Sandbox:
    """Runs a function in worker processes, with a time limit per call.

    Arguments and results are JSON values: None, booleans, numbers, strings, lists and dictionaries with string keys.
    Results may also contain arrays and tensors, which are converted to lists. Coroutines are awaited by the worker.

    Args:
        target: `path/to/file.py:function` or `package.module:function`.
        seconds: time limit of a call, excluding loading of the function.
        workers: number of processes and of parallel calls.
        memory: memory limit of a worker in bytes (RLIMIT_DATA), if the system supports it (Linux); None: no limit.
        start_seconds: time limit of loading the function, including imports.

    Raises:
        ValueError: an argument is out of its range, or `target` has another form.
    """

    def __init__(
        self,
        target: str,
        *,
        seconds: float = 10.0,
        workers: int = 1,
        memory: int | None = MEMORY,
        start_seconds: float = 120.0,
    ) -> None:
        for name, value in (("seconds", seconds), ("start_seconds", start_seconds)):
            if not 0 < value < float("inf"):
                raise ValueError(f"{name} must be positive and finite, got {value}")
        if workers < 1:
            raise ValueError(f"workers must be at least 1, got {workers}")
        if memory is not None and memory < 1:
            raise ValueError(f"memory must be a positive number of bytes, or None for no limit, got {memory}")
        self.target = _checked(target)
        self._seconds = seconds
        host, given = hosts.current(), (self.target, memory or 0, seconds, start_seconds)
        slots = [
            SandboxWorker(*given) if host is None else RemoteWorker(host, SandboxWorker, *given) for _ in range(workers)
        ]
        self._idle: queue.LifoQueue[SandboxWorker | RemoteWorker] = queue.LifoQueue()
        for slot in slots:
            self._idle.put(slot)
        self._workers = workers
        self._finalize = weakref.finalize(self, _kill_all, slots)  # also when the interpreter exits

    def start(self) -> None:
        """Start one worker, to detect errors in the file before the first call.

        Raises:
            LoadError: the function cannot be loaded.
        """
        self._open()
        slot = self._idle.get()
        try:
            slot.ready()
        finally:
            self._idle.put(slot)

    def call(self, *args: Any, fallback: Any = None, **kwargs: Any) -> Any:
        """Call the function.

        Args:
            *args: positional arguments of the function.
            fallback: result if the worker hangs, dies or runs out of memory, which causes a warning.
            **kwargs: keyword arguments of the function.

        Raises:
            SandboxError: the function raises an exception.
            TypeError: an argument is not a JSON value.
        """
        result, problem = self._attempt(args, kwargs, fallback)
        self._warn([problem])
        return result

    def map(self, calls: Sequence[tuple[Any, ...]], *, fallback: Any = None) -> list[Any]:
        """Call the function once per tuple of arguments, in all workers, and return the results in order.

        Args:
            calls: positional arguments of each call; each call has its own time limit.
            fallback: as in `call`.

        Raises:
            SandboxError: the function raises an exception.
            TypeError: an argument is not a JSON value.
        """
        with ThreadPoolExecutor(self._workers) as pool:
            outcomes = list(pool.map(partial(self._attempt, kwargs={}, fallback=fallback), calls))
        self._warn([problem for _, problem in outcomes])
        return [result for result, _ in outcomes]

    def calls(self, given: Sequence[dict[str, Any]], *, fallbacks: Sequence[Any]) -> list[Any]:
        """Call the function once per set of keyword arguments, in all workers, and return the results in order.

        Args:
            given: keyword arguments of each call; each call has its own time limit.
            fallbacks: fallback of each call.

        Raises:
            SandboxError: the function raises an exception.
            TypeError: an argument is not a JSON value.
        """
        with ThreadPoolExecutor(self._workers) as pool:
            outcomes = list(pool.map(lambda *pair: self._attempt((), *pair), given, fallbacks))
        self._warn([problem for _, problem in outcomes])
        return [result for result, _ in outcomes]

    def close(self) -> None:
        """Kill the workers. Repeated calls are safe; a closed sandbox rejects calls."""
        self._finalize()

    def __enter__(self) -> "Sandbox":
        """Return the sandbox."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the sandbox."""
        self.close()

    def _open(self) -> None:
        if not self._finalize.alive:
            raise ValueError(f"the sandbox of {self.target} is closed")

    def _attempt(self, args: tuple[Any, ...], kwargs: dict[str, Any], fallback: Any) -> tuple[Any, str | None]:
        """Return the result of a call, or the fallback and a description of the failure."""
        self._open()
        call = {"args": args, "kwargs": kwargs, "seconds": self._seconds}
        json.dumps(call)  # detects invalid arguments before a worker is taken
        slot = self._idle.get()
        try:
            self._open()  # it may have been closed meanwhile
            reply, problem = slot.attempt(call)
        finally:
            self._idle.put(slot)
        if problem is not None:
            return fallback, problem
        if "invalid" in reply:
            raise SandboxError(f"{self.target} {reply['invalid']}")
        if "error" in reply:
            raise SandboxError(f"{self.target} raised {reply['error']}") from _RemoteTraceback(reply["traceback"])
        return reply["result"], None

    def _warn(self, problems: Sequence[str | None]) -> None:
        failures = [problem for problem in problems if problem]
        if failures:
            more = f" ({len(failures)} such calls)" if len(failures) > 1 else ""
            message = f"{self.target} {failures[0]}; the call counts as unanswered{more}"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


class SandboxWorker:
    """A worker process, which is replaced after a failure.

    Args:
        target: function to run.
        memory: memory limit of the process in bytes; 0: none.
        seconds: time limit of a call.
        start_seconds: time limit of loading the function.
    """

    def __init__(self, target: str, memory: int, seconds: float, start_seconds: float) -> None:
        self._target, self._seconds, self._start_seconds = target, seconds, start_seconds
        self._command = [sys.executable, "-P", _FILE, target, str(memory)]
        self._process: subprocess.Popen[str] | None = None
        self._talker: threading.Thread | None = None
        self._owner = os.getpid()
        self._calls = 0
        self._mark = ""

    def _alive(self) -> bool:
        if self._process is not None and self._process.poll() is not None:
            self._forget()  # it died between two calls, neither of which caused it
            _sweep(self._mark)
        return self._process is not None

    def ready(self) -> None:
        """Ensure that the process is running.

        Raises:
            LoadError: the function cannot be loaded.
        """
        if self._alive():
            return
        self._start()
        reply, problem = self._exchange(None, self._start_seconds)
        if problem is not None:
            raise SandboxError(f"{self._target} {problem}")
        if "error" in reply:
            self.kill()
            message = f"{self._target} cannot be loaded: {reply['error']}"
            raise LoadError(message) from _RemoteTraceback(reply["traceback"])

    def attempt(self, call: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
        """Send a call and return its reply; on failure kill the process and return a description."""
        self.ready()
        return self._exchange(call, self._seconds)

    def _start(self) -> None:
        """Start a process; its first reply reports whether the function is loaded."""
        self._calls, self._mark = 0, uuid.uuid4().hex
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and worker
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", _MARK: self._mark},
        )

    def _exchange(self, call: dict[str, Any] | None, seconds: float) -> tuple[dict[str, Any], str | None]:
        """Send a call, unless it is None, and return its reply; on failure kill the process."""
        box: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._calls += call is not None
        line = None if call is None else json.dumps({"id": self._calls, **call})
        # In a separate thread, since reads and blocked writes of pipes have no time limit.
        self._talker = threading.Thread(target=_talk, args=(self._process, line, self._calls, box), daemon=True)
        self._talker.start()
        try:
            reply = box.get(timeout=seconds)
        except queue.Empty:
            self.kill()
            return {}, f"did not answer within {seconds:g} seconds and was stopped"
        except BaseException:  # after an interrupt, the reply must not be taken for that of the next call
            self.kill()
            raise
        if reply is None:
            code = self.kill()
            meaning = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return {}, f"died ({meaning})"
        if "memory" in reply:
            self.kill()
            return {}, reply["memory"]
        return reply, None

    def kill(self) -> int:
        """Kill the process and all its child processes, and return its exit code."""
        process = self._process
        if process is None or self._owner != os.getpid():
            return 0
        if process.returncode is None:  # not reaped yet: its number cannot be reused
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL) if hasattr(os, "killpg") else process.kill()
        code = process.wait()
        self._forget()
        _sweep(self._mark)
        return code

    def _forget(self) -> None:
        process, talker = self._process, self._talker
        self._process = self._talker = None
        if talker is not None:
            talker.join(timeout=1.0)
            if talker.is_alive():  # something outside the group holds the pipe; closing it would wait for that
                return
        for pipe in (process.stdin, process.stdout) if process is not None else ():
            with contextlib.suppress(OSError):  # the last output may still be in the buffer
                pipe.close()  # pyright: ignore[reportOptionalMemberAccess]


def _talk(
    process: "subprocess.Popen[str]", line: str | None, call: int, box: "queue.SimpleQueue[dict[str, Any] | None]"
) -> None:
    """Send a line, and put the reply to the call into the queue; None if the process died."""
    assert process.stdin is not None  # noqa: S101 - `start` creates both pipes
    assert process.stdout is not None  # noqa: S101 - see above
    reply = None
    with contextlib.suppress(OSError, json.JSONDecodeError):  # the process died
        if line is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        while text := process.stdout.readline():
            reply = json.loads(text)
            if reply.get("id") == call:
                break
            reply = None  # the late answer to another call
    box.put(reply)


def _sweep(mark: str) -> None:
    """Kill every process with a worker's environment variable, in any session (Linux)."""
    wanted, found = f"{_MARK}={mark}".encode(), True
    for _ in range(10):  # a process may start another one during the search
        if not found or not mark:
            return
        found = False
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended, or belongs to another user
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
                    found = True


def _kill_all(workers: "Sequence[SandboxWorker | RemoteWorker]") -> None:
    for worker in workers:
        worker.kill()


def _checked(target: str) -> str:
    """Return the target with the absolute path of its file.

    Raises:
        ValueError: its form is invalid, or there is no such file.
    """
    place = doors.place_of(target)
    if place is None or "." in place.name:
        raise ValueError(f"expected path/to/file.py:function or package.module:function, got {target!r}")
    if place.path is not None and not place.path.is_file():
        raise ValueError(doors.absence(place.path, place.name))
    return str(place)
