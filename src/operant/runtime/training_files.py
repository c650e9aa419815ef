"""The files that training writes in the folder of a run: `TrainingFiles`."""

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
"""Metric of learners that reward their sampled answers."""


class TrainingFiles:
    """The run's files; does nothing without a run.

    Attributes:
        checkpoint: the latest one of this session.
        missed: checkpoints that could not be written.
        evaluated: budget consumed at the last evaluation; None before the first one.
        course: the evaluations so far.
        seconds_before: of training in the sessions before.
        history: of the states along the run; None if there is no run.

    Args:
        run: the run.
        consumed: budget used so far.
        budget: of each seed.
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
            self._records = RecordWriter(run.metrics_path)
            self._evaluations = RecordWriter(run.evaluations_path)
        except OSError as error:
            self.close()
            raise RunError(f"cannot write in {run.path}: {error.strerror}") from error

    @property
    def lost(self) -> int:
        """Metrics and evaluations that could not be written."""
        return sum(writer.lost for writer in (self._records, self._evaluations) if writer)

    def record(self, record: dict[str, Any]) -> None:
        """Write a record of metrics."""
        if self._records:
            self._records.write(record)

    def evaluation(self, record: dict[str, Any], evaluation: Evaluation) -> None:
        """Write an evaluation durably, and add it to the course."""
        self.evaluated = record["consumed"]
        self.course.points.append(Point(record["consumed"], evaluation))
        if self._evaluations:
            self._evaluations.write(record)
            self._evaluations.sync()

    def save(self, learner: Learner, *, last: bool = False) -> None:
        """Write a checkpoint; a failure is only warned about, unless it is the third in a row or the last one.

        Raises:
            CheckpointError: it is one of these.
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
                    f"the state at {learner.consumed} could not be saved ({error}); the latest good checkpoint is "
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
