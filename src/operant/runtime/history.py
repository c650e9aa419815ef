"""Checkpoints in regular intervals of training, for time travel, and hashes of states: `History`.

The saved states depend only on the consumed budget, not on time, so a run that was killed and resumed saves the same
ones as an uninterrupted run. They are not used to resume, and may be deleted at any time.
"""

import logging
import shutil
from collections.abc import Set
from typing import Literal

from operant.runtime.checkpoints import CheckpointError, NonFiniteError
from operant.runtime.encoding import digest, size_in_bytes
from operant.runtime.learner import Learner
from operant.runtime.metrics import RecordWriter, read_records, rewind
from operant.runtime.run import Run

logger = logging.getLogger(__name__)

Keep = int | Literal["auto", "all", "none"]
"""Values of `operant.runtime.settings.Settings.keep_checkpoints`."""

PARTS = 20
"""Default number of saved states per budget."""
MOST_BYTES = 2 << 20
"""Maximum size in bytes of the tensors of a state that is saved by default."""
MOST_HASHED = 256 << 20
"""Maximum size in bytes of the tensors of a state that is hashed by default: 1 GiB takes one to three seconds."""


class History:
    """Saved states of a run.

    Args:
        run: the run, whose settings determine which states are saved.
        budget: budget per seed.
    """

    def __init__(self, run: Run, budget: int) -> None:
        self._run, self._keep = run, run.settings.keep_checkpoints
        self._every = interval(self._keep, budget)
        self._writer: RecordWriter | None = None
        self._known: Set[int] = frozenset()

    def note(self, learner: Learner, before: int | None) -> None:
        """Save the state of a learner and its hash, if due and not too large; a failed write causes a warning.

        Args:
            learner: learner after an update, or before the first one.
            before: budget used before the update; None before the first one.
        """
        consumed = learner.consumed
        due = consumed == 0 if before is None else bool(self._every) and before // self._every < consumed // self._every
        if not self._every or not due:
            return
        try:
            self._write(learner)
        except (OSError, CheckpointError, NonFiniteError) as error:
            logger.warning("the state at %d is not saved in %s (%s)", consumed, self._run.history.folder, error)
            shutil.rmtree(self._run.history.quarantine, ignore_errors=True)

    def _write(self, learner: Learner) -> None:
        state, folder = learner.state_dict(), self._run.history.folder
        size = size_in_bytes(state)
        if size > MOST_HASHED and self._keep == "auto":
            return
        folder.mkdir(exist_ok=True)
        if self._writer is None:
            self._known = hashes(self._run).keys()  # a run that was killed before its first checkpoint begins again
            self._writer = RecordWriter(self._run.hashes_path)
        if learner.consumed not in self._known:
            self._writer.write({"consumed": learner.consumed, "sha256": digest(state)})
        if size <= MOST_BYTES or self._keep != "auto":
            self._run.history.save(state, learner.consumed)

    def close(self) -> None:
        """Close the file of hashes."""
        if self._writer is not None:
            self._writer.close()


def interval(keep: Keep, budget: int) -> int:
    """Return the budget between saved states: the first update at or after each multiple is saved. 0: none."""
    if keep == "none":
        return 0
    return 1 if keep == "all" else max(1, budget // (PARTS if keep == "auto" else keep))


def forget_later(run: Run, consumed: int) -> None:
    """Remove saved states after a consumed budget, which a resumed run saves again."""
    run.history.drop(after=consumed)
    rewind(run.hashes_path, consumed)


def hashes(run: Run) -> dict[int, str]:
    """Return the SHA-256 of the states of a run, by consumed budget; later records override earlier ones."""
    records = read_records(run.hashes_path)
    return {int(record["consumed"]): str(record["sha256"]) for record in records if "sha256" in record}
