"""Outcome of training: `Outcome`."""

from dataclasses import dataclass
from pathlib import Path

from operant.runtime.evaluation import Evaluation
from operant.runtime.signals import EXIT_REQUEUE


@dataclass(frozen=True)
class Outcome:
    """Outcome of training.

    Attributes:
        consumed: budget used per seed.
        interrupted: whether training was interrupted.
        evaluation: last evaluation of this session, if any.
        checkpoint: latest checkpoint, if the run is on disk.
        seconds: training time in this session in seconds, without evaluations and checkpoints.
        steps_per_second: budget units per second in this session, over all seeds; NaN if nothing was trained.
        lost_records: number of metrics and evaluations that could not be written.
        missed_checkpoints: number of checkpoints that could not be written.
        report_error: error that disabled `report`; empty: none.
        stopped_by: name of the callback that stopped training; empty: none.
        callback_errors: errors that disabled callbacks.
    """

    consumed: int
    interrupted: bool
    evaluation: Evaluation | None
    checkpoint: Path | None
    seconds: float
    steps_per_second: float
    lost_records: int
    missed_checkpoints: int
    report_error: str = ""
    stopped_by: str = ""
    callback_errors: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Exit status of the process: 75 after an interruption (can be resumed), 1 if a score is NaN, otherwise 0."""
        return EXIT_REQUEUE if self.interrupted else int(bool(self.evaluation and self.evaluation.fault()))
