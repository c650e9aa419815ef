"""Warnings are kept in the folder of the run that they are about, in `warnings.jsonl`: `keeping`."""

import contextlib
import logging
import warnings
from collections.abc import Generator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from operant.envs.checks import saying_once
from operant.runtime.metrics import RecordWriter


class Keeper(logging.Handler):
    """Takes the warnings of operant and of Python, and writes them as soon as it knows where to."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._waiting: list[dict[str, Any]] = []
        self._path: Path | None = None
        self._writing = False

    def attach(self, folder: Path) -> None:
        """Write to `warnings.jsonl` in the folder of a run from now on, beginning with what came before."""
        self._path = folder / "warnings.jsonl"
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            self._write(record)

    def keep(self, source: str, text: str) -> None:
        """Keep a warning.

        Args:
            source: the logger or the kind of warning.
            text: what it says.
        """
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self._write({"time": time, "source": source, "text": text})

    def emit(self, record: logging.LogRecord) -> None:
        """Keep what is logged, and show it where nobody else would, as Python does without any handler."""
        self.keep(record.name, record.getMessage())
        last = logging.lastResort
        if last is not None and not _shown_elsewhere(record.name, self):
            last.handle(record)

    def _write(self, record: dict[str, Any]) -> None:
        if self._path is None:
            self._waiting.append(record)
        elif not self._writing:  # what goes wrong in writing is warned of, too
            self._writing = True
            try:
                with contextlib.suppress(OSError), contextlib.closing(RecordWriter(self._path)) as writer:
                    writer.write(record)
            finally:
                self._writing = False


_active: list[Keeper] = []


@contextlib.contextmanager
def keeping(folder: Path | None = None) -> Generator[Keeper]:
    """Keep what is warned of in the block; blocks within share one keeper.

    Args:
        folder: of the run; None: it is made in the block, and `Keeper.attach` is called then.
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
        with saying_once():
            yield keeper
    finally:
        if warnings.showwarning is kept:
            warnings.showwarning = show
        logger.removeHandler(keeper)
        _active.pop()


def _shown_elsewhere(name: str, keeper: Keeper) -> bool:
    """Tell whether another handler than `keeper` takes what the logger of that name says."""
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(handler is not keeper for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
