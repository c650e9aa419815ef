"""Checkpoints along the training of a run, to go back to, and the hashes of states there: `History`.

Which states are kept depends on the budget used alone, and not on time, so that a run that was killed and resumed keeps
the same ones as a run that was not. They do not serve a resume, and may be deleted at any time.
"""

import logging
import shutil
from typing import Literal

from operant.runtime.checkpoints import CheckpointError, NonFiniteError
from operant.runtime.encoding import digest, flatten
from operant.runtime.learner import Learner
from operant.runtime.metrics import RecordWriter, read_records, rewind
from operant.runtime.run import Run

logger = logging.getLogger(__name__)

Keep = int | Literal["auto", "all", "none"]
"""What `operant.runtime.settings.Settings.keep_checkpoints` may be."""

PARTS = 20
"""Of the budget, after each of which a state is kept by default."""
MOST_BYTES = 2 << 20
"""Of the tensors of a state that is kept by default."""


class History:
    """The states along a run.

    Args:
        run: whose settings say which states are kept.
        budget: of each seed.
    """

    def __init__(self, run: Run, budget: int) -> None:
        self._run, self._keep = run, run.settings.keep_checkpoints
        self._every = interval(self._keep, budget)
        self._writer: RecordWriter | None = None

    def note(self, learner: Learner, before: int | None) -> None:
        """Keep the state of a learner, and its hash, if that is due; a failure is only warned about.

        Args:
            learner: after an update, or before the first one.
            before: the budget used before the update; None before the first one.
        """
        consumed = learner.consumed
        due = consumed == 0 if before is None else bool(self._every) and before // self._every < consumed // self._every
        if not self._every or not due:
            return
        try:
            self._write(learner)
        except (OSError, CheckpointError, NonFiniteError) as error:
            logger.warning("the state at %d is not kept in %s (%s)", consumed, self._run.history.folder, error)
            shutil.rmtree(self._run.history.quarantine, ignore_errors=True)

    def _write(self, learner: Learner) -> None:
        state, folder = learner.state_dict(), self._run.history.folder
        folder.mkdir(exist_ok=True)
        if self._writer is None:
            self._writer = RecordWriter(self._run.hashes_path)
        self._writer.write({"consumed": learner.consumed, "sha256": digest(state)})
        small = sum(tensor.nbytes for tensor in flatten(state)[1].values()) <= MOST_BYTES
        if small or self._keep != "auto":
            self._run.history.save(state, learner.consumed)

    def close(self) -> None:
        """Close the file of hashes."""
        if self._writer is not None:
            self._writer.close()


def interval(keep: Keep, budget: int) -> int:
    """Return the budget between two states that are kept: the first update that reaches a multiple is. 0: none is."""
    if keep == "none":
        return 0
    return 1 if keep == "all" else max(1, budget // (PARTS if keep == "auto" else keep))


def forget_later(run: Run, consumed: int) -> None:
    """Remove what is kept of states later than a budget used; a resumed run keeps it again."""
    run.history.drop(after=consumed)
    rewind(run.hashes_path, consumed)


def hashes(run: Run) -> dict[int, str]:
    """Return the SHA-256 of the states along a run, by the budget used; a later record counts."""
    records = read_records(run.hashes_path)
    return {int(record["consumed"]): str(record["sha256"]) for record in records if "sha256" in record}
