"""Errors of trials: one fails alone, several in a row end the search."""

import contextlib
import errno
import traceback
from pathlib import Path

from operant.runtime.checkpoints import NonFiniteError
from operant.runtime.run import TRAINING_NOTE
from operant.runtime.run_paths import RunError, location

LIMIT = 5
"""Number of trials in a row with unexpected errors that ends the search: their cause is not in the values."""

_LONGEST = 500
"""Maximum number of characters of a reason."""

_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
"""Errors of writing files."""


def concerns_folder(error: Exception) -> bool:
    """Return whether an error is not that of a trial: its run cannot be used, or files cannot be written."""
    return isinstance(error, RunError) or (isinstance(error, OSError) and error.errno in _WRITING)


class Failures:
    """Errors of the trials of one session of a search.

    Values that are invalid or diverge are expected in a search, and are not counted.
    """

    def __init__(self) -> None:
        self._row, self._last = 0, ""

    def add(self, error: Exception, folder: Path) -> str:
        """Count the error of a trial, and return the reason to record.

        Args:
            error: the error.
            folder: the run of the trial, where the traceback of an unexpected error is written.
        """
        if isinstance(error, ValueError | NonFiniteError):
            self.clear()
            return str(error)
        with contextlib.suppress(OSError):
            (folder / "traceback.txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        self._row += 1
        self._last = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST]
        return self._last

    def clear(self) -> None:
        """Note a trial without an unexpected error."""
        self._row = 0

    def require_few(self, study: Path) -> None:
        """Check that a trial among the last ones had no unexpected error.

        Args:
            study: folder of the study.

        Raises:
            RunError: `LIMIT` trials in a row had one.
        """
        if self._row >= LIMIT:
            error = RunError(
                f"{self._row} trials in a row failed, the last with {self._last}; their folders in "
                f"{location(study / 'trials')} have a traceback.txt: correct the cause, and continue with the next "
                f"trial by `operant tune {location(study)}`"
            )
            error.add_note(TRAINING_NOTE)
            raise error
