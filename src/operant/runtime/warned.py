"""Log of the warnings of a run in `warnings.jsonl`: `keeping`."""

import contextlib
import logging
import threading
import warnings
from collections.abc import Callable, Generator
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from operant.envs.checks import saying_once
from operant.runtime import evaluation
from operant.runtime.metrics import RecordWriter

P = ParamSpec("P")
R = TypeVar("R")


class Keeper:
    """Collects the warnings of operant and Python, and writes them once attached to a run."""

    def __init__(self) -> None:
        self._waiting: list[dict[str, Any]] = []
        self._path: Path | None = None
        self._writing = False

    def attach(self, folder: Path) -> None:
        """Write earlier and future warnings to `warnings.jsonl` in the folder of a run."""
        self._path = folder / _NAME
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self._write(record)

    def is_of(self, folder: Path | None) -> bool:
        """Return whether it is attached to the folder of a run."""
        return folder is not None and self._path == folder / _NAME

    def keep(self, source: str, text: str) -> None:
        """Save a warning.

        Args:
            source: name of the logger, or category of the warning.
            text: text of the warning.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._write({"time": time, "source": source, "text": text})

    def _write(self, record: dict[str, Any]) -> None:
        if self._path is None:
            self._waiting.append(record)
        elif not self._writing:  # failures to write are warnings, too
            self._writing = True
            try:
                with contextlib.suppress(OSError), contextlib.closing(RecordWriter(self._path)) as writer:
                    writer.write(record)
            finally:
                self._writing = False


class _Router(logging.Handler):
    """Passes log records and warnings of Python to the runs that they belong to, while there are any."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._logger, self._guard, self._show = logging.getLogger("operant"), threading.Lock(), warnings.showwarning
        self._keepers: list[Keeper] = []

    def add(self, keeper: Keeper) -> None:
        with self._guard:
            if not self._keepers:
                self._logger.addHandler(self)
                if warnings.showwarning != self._shown:
                    self._show, warnings.showwarning = warnings.showwarning, self._shown
            self._keepers.append(keeper)

    def remove(self, keeper: Keeper) -> None:
        with self._guard:
            self._keepers.remove(keeper)
            if not self._keepers:
                self._logger.removeHandler(self)
                if warnings.showwarning == self._shown:
                    warnings.showwarning = self._show

    def emit(self, record: logging.LogRecord) -> None:
        """Save log records, and show them if there is no other handler, as Python does without handlers."""
        self._keep(record.name, record.getMessage())
        last = logging.lastResort
        if last is not None and not _shown_elsewhere(record.name, self):
            last.handle(record)

    def _shown(self, message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
        self._keep(category.__name__, str(message))
        self._show(message, category, *rest, **named)

    def _keep(self, source: str, text: str) -> None:
        own = _current.get()
        for keeper in [keeper for keeper in self._keepers if own is None or keeper is own]:
            keeper.keep(source, text)


_NAME = "warnings.jsonl"
_current: ContextVar[Keeper | None] = ContextVar("keeper", default=None)
_router = _Router()


@contextlib.contextmanager
def keeping(folder: Path | None = None) -> Generator[Keeper]:
    """Save the warnings within a block; a nested block of the same folder shares the keeper.

    Warnings of other threads are those of every run in progress, unless the threads run a `bound` function or have a
    block of their own.

    Args:
        folder: folder of the run. Default: the block calls `Keeper.attach` once it has created a run.
    """
    current = _current.get()
    if current is not None and current.is_of(folder):
        yield current
        return
    keeper = Keeper()
    if folder is not None:
        keeper.attach(folder)
    token = _current.set(keeper)
    _router.add(keeper)
    try:
        with saying_once(evaluation.logger):
            yield keeper
    finally:
        _router.remove(keeper)
        _current.reset(token)


def bound(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function whose warnings are those of the current run, also if another thread calls it."""
    keeper = _current.get()

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        token = _current.set(keeper)
        try:
            return function(*arguments, **named)
        finally:
            _current.reset(token)

    return call


def _shown_elsewhere(name: str, router: _Router) -> bool:
    """Return whether a handler other than `router` handles the records of a logger."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not router for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
