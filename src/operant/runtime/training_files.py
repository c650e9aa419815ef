"""Files that training writes into the folder of a run: `TrainingFiles`."""

import logging
from pathlib import Path
from typing import Any

from operant.runtime.checkpoints import CheckpointError
from operant.runtime.course import Course, Point
from operant.runtime.evaluation import Evaluation
from operant.runtime.history import History
from operant.runtime.learner import Learner
from operant.runtime.metrics import RecordWriter, read_records
from operant.runtime.run import Run, RunError

logger = logging.getLogger(__name__)

SAVE_ATTEMPTS = 3
REWARD = "reward"
"""Metric with the mean reward of sampled answers."""


class TrainingFiles:
    """Writer of a run's files; does nothing without a run.

    Attributes:
        checkpoint: latest checkpoint of this session.
        missed: number of checkpoints that could not be written.
        evaluated: budget used at the last evaluation; None before the first one.
        course: evaluations so far.
        seconds_before: training time of earlier sessions in seconds.
        history: saved states of the run; None without a run.

    Args:
        run: the run.
        consumed: budget used so far.
        budget: budget per seed.
    """

    def __init__(self, run: Run | None, consumed: int, budget: int):
        self.checkpoint: Path | None = None
        self.missed = 0
        self.evaluated: int | None = consumed or None
        self.course = Course()
        self.seconds_before = 0.0
        self._run = run
        self.history = None if run is None else History(run, budget)
        self._failures = 0
        self._records: RecordWriter | None = None
        self._evaluations: RecordWriter | None = None
        if run is None:
            return
        run.clean()
        evaluations = read_records(run.evaluations_path)
        self.evaluated = max((r.get("consumed", 0) for r in evaluations), default=None)
        self.course = Course.of_records(evaluations)
        records = read_records(run.metrics_path)
        self.seconds_before = max((r.get("time/seconds", 0.0) for r in records), default=0.0)
        for record in records:
            self.course.add_reward(record.get(REWARD))
        try:
            run.evaluations_path.parent.mkdir(exist_ok=True)  # copies by git lack empty folders
            self._records = RecordWriter(run.metrics_path)
            self._evaluations = RecordWriter(run.evaluations_path)
        except OSError as error:
            self.close()
            raise RunError(f"cannot write in {run.path}: {error.strerror}") from error

    @property
    def lost(self) -> int:
        """Number of metrics and evaluations that could not be written."""
        return sum(writer.lost for writer in (self._records, self._evaluations) if writer)

    def record(self, record: dict[str, Any]) -> None:
        """Write a record of metrics."""
        if self._records:
            self._records.write(record)

    def evaluation(self, record: dict[str, Any], evaluation: Evaluation) -> None:
        """Write an evaluation, flush it to disk, and add it to the course."""
        self.evaluated = record["consumed"]
        self.course.points.append(Point(record["consumed"], evaluation))
        if self._evaluations:
            self._evaluations.write(record)
            self._evaluations.sync()

    def save(self, learner: Learner, *, last: bool = False) -> None:
        """Write a checkpoint; a failure causes a warning.

        Raises:
            CheckpointError: writing failed for the third time in a row, or for the last checkpoint.
        """
        if self._run is None or self._records is None:
            return
        self._records.sync()
        try:
            first = self.checkpoint is None
            self.checkpoint = self._run.checkpoints.save(learner.state_dict(), learner.consumed)
            self._failures = 0
            if first:
                self._run.note_checkpoint()
        except (OSError, CheckpointError) as error:
            self.missed += 1
            self._failures += 1
            if last or self._failures >= SAVE_ATTEMPTS:
                raise CheckpointError(
                    f"the state at {learner.consumed} could not be saved ({error}); the latest valid checkpoint is "
                    f"{self.checkpoint or 'an earlier one, if any'}: free disk space and resume from it"
                ) from error
            logger.warning(
                "no checkpoint at %d (%s); training continues with the earlier ones", learner.consumed, error
            )

    def close(self) -> None:
        """Close the files."""
        if self.history:
            self.history.close()
        for writer in (self._records, self._evaluations):
            if writer:
                writer.close()
