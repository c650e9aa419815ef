"""How a training ended: `Outcome`."""

from dataclasses import dataclass
from pathlib import Path

from operant.runtime.evaluation import Evaluation
from operant.runtime.signals import EXIT_REQUEUE


@dataclass(frozen=True)
class Outcome:
    """How a training ended.

    Attributes:
        consumed: budget used, per seed.
        interrupted: whether it was stopped before the end.
        evaluation: the latest one of this session, if there was one.
        checkpoint: the latest one, if the run is on disk.
        seconds: of training in this session, without evaluations and checkpoints.
        steps_per_second: budget units per second in this session, all seeds together; NaN if nothing was trained.
        lost_records: metrics and evaluations that could not be written.
        missed_checkpoints: checkpoints that could not be written.
        report_error: error of `report`, after which it was not called again; empty: none.
        stopped_by: the callback that ended training before its budget was used; empty: none.
        callback_errors: errors of callbacks, after which they were not called again.
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
        """Exit status of the process: 75 (run again to continue) after an interruption, 1 after a bad score."""
        return EXIT_REQUEUE if self.interrupted else int(bool(self.evaluation and self.evaluation.fault()))
