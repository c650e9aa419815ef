import contextlib
import logging
import resource

import pytest
import torch

from faults.trainer import make
from operant.runtime.checkpoints import CheckpointError, Checkpoints, load
from operant.runtime.metrics import RecordWriter, read_records
from operant.runtime.run import Run, RunError
from operant.runtime.training import resume_from, train
from runtime.tiny import Regression

LIMIT = 20_000


@contextlib.contextmanager
def full_disk(limit=LIMIT):
    """Set a limit of ``limit`` bytes to the size of files; the kernel then truncates writes and returns an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("big", [{"tensor": torch.zeros(10_000)}, {"text": "x" * 40_000}])
def test_a_checkpoint_that_does_not_fit_leaves_the_old_ones(tmp_path, big):
    checkpoints = Checkpoints(tmp_path)
    for n in (1, 2):
        checkpoints.save({"number": n}, n)
    with full_disk(), pytest.raises(OSError, match="File too large"):
        checkpoints.save(big, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000000000001", "step_000000000002"]
    assert load(checkpoints.latest()[0])["number"] == 2
    checkpoints.save(big, 3)
    assert checkpoints.latest()[1] == 3


def test_training_continues_and_catches_up(tmp_path, caplog):
    class Starved(Regression):
        """Learner with a full disk in iterations 3 and 4."""

        def iterate(self):
            soft = LIMIT if self.consumed in (20, 30) else hard
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            return super().iterate()

    run, hard = make(tmp_path / "run"), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    with full_disk(resource.getrlimit(resource.RLIMIT_FSIZE)[0]), caplog.at_level(logging.WARNING):
        outcome = train(Starved(size=2000), run, budget=60, checkpoint_seconds=0.0, progress="silent")
    assert outcome.missed_checkpoints == 2
    assert caplog.text.count("no checkpoint at") == 2
    assert run.checkpoints.latest() == (outcome.checkpoint, 60)


def test_three_misses_in_a_row_end_training_and_the_run_can_be_resumed(tmp_path):
    run = make(tmp_path / "run")
    train(Regression(size=2000), run, budget=20, checkpoint_seconds=0.0, progress="silent")
    learner = Regression(size=2000)
    resume_from(run, learner)
    with full_disk(), pytest.raises(CheckpointError, match=r"the state at 50 could not be saved .*File too large"):
        train(learner, run, budget=1000, checkpoint_seconds=0.0, progress="silent")
    learner = Regression(size=2000)
    assert resume_from(run, learner)
    assert learner.consumed == 20


def test_metrics_that_do_not_fit_are_counted(tmp_path, caplog):
    path = tmp_path / "metrics.jsonl"
    writer = RecordWriter(path)
    with full_disk(100), caplog.at_level(logging.WARNING):
        for n in range(20):
            writer.write({"consumed": n, "number": 0.5})
    fitted = len(read_records(path))
    assert fitted == 100 // len('{"consumed": 1, "number": 0.5}\n')
    assert writer.lost == 20 - fitted
    assert len(caplog.records) == 1
    writer.write({"consumed": 99})
    writer.close()
    assert [r["consumed"] for r in read_records(path)] == [*range(fitted), 99]


def test_lost_records_are_reported(tmp_path):
    run = make(tmp_path / "run")
    run.metrics_path.write_text('{"consumed": 0}\n' * 2000)
    with full_disk():
        outcome = train(Regression(), run, budget=100, checkpoint_seconds=0.0, progress="silent")
    assert outcome.lost_records == 10
    assert outcome.missed_checkpoints == 0


def test_a_run_that_does_not_fit_is_not_made(tmp_path):
    with full_disk(10), pytest.raises(RunError, match=r"cannot create the run folder .*File too large"):
        make(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_facts_that_do_not_fit_stay_as_they_were(tmp_path):
    run = make(tmp_path / "run")
    with full_disk(10), pytest.raises(RunError, match="File too large"):
        run.add_session(["x"], 0)
    assert len(Run.open(run.path).facts()["sessions"]) == 1
