"""Log of the warnings of a run in `warnings.jsonl`: `keeping`."""

import contextlib
import logging
import warnings
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from operant.envs.checks import saying_once
from operant.runtime import evaluation
from operant.runtime.metrics import RecordWriter


class Keeper(logging.Handler):
    """Logging handler that collects warnings of operant and Python, and writes them once attached to a run."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._waiting: list[dict[str, Any]] = []
        self._path: Path | None = None
        self._writing = False

    def attach(self, folder: Path) -> None:
        """Write earlier and future warnings to `warnings.jsonl` in the folder of a run."""
        self._path = folder / "warnings.jsonl"
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self._write(record)

    def keep(self, source: str, text: str) -> None:
        """Save a warning.

        Args:
            source: name of the logger, or category of the warning.
            text: text of the warning.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._write({"time": time, "source": source, "text": text})

    def emit(self, record: logging.LogRecord) -> None:
        """Save log records, and show them if there is no other handler, as Python does without handlers."""
        self.keep(record.name, record.getMessage())
        last = logging.lastResort
        if last is not None and not _shown_elsewhere(record.name, self):
            last.handle(record)

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


_active: list[Keeper] = []


@contextlib.contextmanager
def keeping(folder: Path | None = None) -> Generator[Keeper]:
    """Save the warnings within a block; nested blocks share one handler.

    Args:
        folder: folder of the run. Default: the block calls `Keeper.attach` once it has created a run.
    """
    if _active:
        yield _active[-1]
        return
    keeper, logger, show = Keeper(), logging.getLogger("operant"), warnings.showwarning

    def kept(message: Any, category: type[Warning], *rest: Any, **named: Any) -> None:
        keeper.keep(category.__name__, str(message))
        show(message, category, *rest, **named)

    if folder is not None:
        keeper.attach(folder)
    _active.append(keeper)
    logger.addHandler(keeper)
    warnings.showwarning = kept
    try:
        with saying_once(evaluation.logger):
            yield keeper
    finally:
        if warnings.showwarning is kept:
            warnings.showwarning = show
        logger.removeHandler(keeper)
        _active.pop()


def _shown_elsewhere(name: str, keeper: Keeper) -> bool:
    """Return whether a handler other than `keeper` handles the records of a logger."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not keeper for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
