import contextlib

from operant.runtime.evaluation import Evaluation
from operant.runtime.run import Run
from operant.runtime.settings import Settings
from operant.runtime.training_files import TrainingFiles
from runtime.test_training import Config


def test_an_evaluation_at_0_is_one(tmp_path):
    run = Run.create(tmp_path / "run", Settings("regression", "line"), Config())
    evaluation = Evaluation.of([[1.0]])
    with contextlib.closing(TrainingFiles(run, 0, 100)) as files:
        assert files.evaluated is None
        files.record({"consumed": 10, "reward": 0.5, "time/seconds": 2.0})
        files.evaluation({"consumed": 0} | evaluation.record(), evaluation)
    with contextlib.closing(TrainingFiles(run, 10, 100)) as files:
        assert files.evaluated == 0
        assert files.course.start.evaluation == evaluation
        assert (files.course.rewards, files.seconds_before) == ([0.5], 2.0)


def test_without_a_run_what_was_consumed_counts_as_evaluated():
    assert TrainingFiles(None, 0, 100).evaluated is None
    assert TrainingFiles(None, 30, 100).evaluated == 30


def test_a_run_without_empty_folders_continues(tmp_path):
    run = Run.create(tmp_path / "run", Settings("regression", "line"), Config())
    run.evaluations_path.parent.rmdir()  # as in a copy by git
    evaluation = Evaluation.of([[1.0]])
    with contextlib.closing(TrainingFiles(run, 0, 100)) as files:
        files.evaluation({"consumed": 0} | evaluation.record(), evaluation)
    assert run.evaluations_path.is_file()
