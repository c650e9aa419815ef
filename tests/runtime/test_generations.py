import logging
import math

from operant.runtime.generations import keep_samples, latest_samples
from operant.runtime.metrics import read_records
from operant.runtime.run import Run
from operant.runtime.settings import Settings


def sample(text):
    return {"seed": 0, "prompt": "1+1=", "completion": text, "reward": 1.0, "truncated": False}


def test_samples_are_kept_and_the_latest_are_found(tmp_path):
    run = Run.create(tmp_path / "run", Settings("sft", "arithmetic"), Settings("a", "b"))
    assert latest_samples(run) == []
    keep_samples(run, 10, [sample("2"), sample("3")])
    keep_samples(run, 20, [])
    assert [s["completion"] for s in latest_samples(run)] == ["2", "3"]
    keep_samples(run, 20, [sample("4\n\x1b")])
    assert latest_samples(run) == [{"consumed": 20, **sample("4\n\x1b")}]
    assert [r["consumed"] for r in read_records(run.samples_path)] == [10, 10, 20]


def test_an_answer_that_is_the_word_nan_is_a_text(tmp_path):
    run = Run.create(tmp_path / "run", Settings("sft", "arithmetic"), Settings("a", "b"))
    keep_samples(run, 10, [{**sample("NaN"), "reward": math.inf}])
    assert latest_samples(run) == [{"consumed": 10, **sample("NaN"), "reward": math.inf}]


def test_a_folder_that_cannot_be_written_does_not_stop_training(tmp_path, caplog):
    run = Run.create(tmp_path / "run", Settings("sft", "arithmetic"), Settings("a", "b"))
    run.samples_path.mkdir()
    with caplog.at_level(logging.WARNING):
        keep_samples(run, 10, [sample("2")])
    assert "samples could not be written" in caplog.text
