import dataclasses
import json

import pytest
import torch

from operant.runtime import history
from operant.runtime.checkpoints import load
from operant.runtime.encoding import digest
from operant.runtime.history import MOST_BYTES, History, hashes, interval
from operant.runtime.metrics import read_records
from operant.runtime.run import Run
from operant.runtime.run_folders import prune
from operant.runtime.settings import Settings
from operant.runtime.training import resume_from, train
from runtime.test_training import Config, final_bytes, stop_after
from runtime.tiny import Regression


def make(path, keep, budget=400):
    settings = Settings("regression", "line", seeds=(0, 1), budget=budget, keep_checkpoints=keep)
    return Run.create(path, settings, Config())


def quiet(learner, run, **options):
    return train(
        learner, run, **({"budget": run.settings.budget, "progress": "silent", "evaluate_every": 1000} | options)
    )


def kept(run):
    return [int(path.name.removeprefix("step_")) for path in run.history.paths()]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [("none", 0), ("all", 1), ("auto", 50), (10, 100), (1, 1000), (4000, 1)],
)
def test_the_interval_is_a_part_of_the_budget(keep, expected):
    assert interval(keep, 1000) == expected


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (4, [0, 100, 200, 300, 400]),
        (3, [0, 140, 270, 400]),  # parts of 133: the first update that reaches 133, 266 and 399
        ("none", []),
        ("all", list(range(0, 401, 10))),
        ("auto", list(range(0, 401, 20))),
    ],
)
def test_states_are_kept_after_each_part_of_the_budget(tmp_path, keep, expected):
    run = make(tmp_path / "run", keep)
    quiet(Regression(), run)
    assert kept(run) == expected
    assert sorted(hashes(run)) == expected
    assert len(run.checkpoints.paths()) <= 2


def test_the_history_contains_the_state_of_each_update(tmp_path):
    run = make(tmp_path / "run", 4)
    quiet(Regression(), run)
    learner = Regression()
    while learner.consumed < 300:
        learner.iterate()
    path = run.history.folder / "step_000000000300"
    assert digest(load(path)) == digest(learner.state_dict()) == hashes(run)[300]
    learner.iterate()
    assert digest(learner.state_dict()) != hashes(run)[300]


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 1000.0])
@pytest.mark.parametrize("updates", [3, 10, 17, 33])
def test_a_resumed_run_keeps_what_an_uninterrupted_one_keeps(tmp_path, updates, checkpoint_seconds):
    whole, parts = make(tmp_path / "whole", 3), make(tmp_path / "parts", 3)
    quiet(Regression(), whole)
    quiet(Regression(), parts, interrupted=stop_after(updates), checkpoint_seconds=checkpoint_seconds)
    learner = Regression()
    assert resume_from(parts, learner)
    quiet(learner, parts)
    assert kept(parts) == kept(whole)
    assert hashes(parts) == hashes(whole)
    for path in whole.history.paths():
        files = {file.name: file.read_bytes() for file in path.iterdir()}
        assert files == {file.name: file.read_bytes() for file in (parts.history.folder / path.name).iterdir()}
    assert final_bytes(parts) == final_bytes(whole)


def test_later_states_are_removed_on_resume_and_written_again(tmp_path):
    run = make(tmp_path / "run", 4)
    quiet(Regression(), run, interrupted=stop_after(12))  # its last checkpoint is at 120
    before = hashes(run)
    path = run.history.save(Regression().state_dict(), 320)  # as if a process had continued and been killed
    learner = Regression()
    resume_from(run, learner)
    assert not path.exists()
    assert kept(run) == [0, 100]
    quiet(learner, run)
    assert kept(run) == [0, 100, 200, 300, 400]
    assert before.items() <= hashes(run).items()


def test_large_states_are_hashed_and_not_kept_unless_asked_for(tmp_path):
    size = MOST_BYTES // 4 // 2
    for keep, expected in (("auto", []), (2, [0, 20, 40])):
        run = make(tmp_path / str(keep), keep, budget=40)
        quiet(Regression(size=size), run)
        assert kept(run) == expected
        assert {0, 20, 40} <= set(hashes(run))


def test_states_that_take_seconds_are_hashed_only_if_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(history, "MOST_HASHED", MOST_BYTES)
    for keep, expected in (("auto", set()), (2, {0, 20, 40})):
        run = make(tmp_path / str(keep), keep, budget=40)
        quiet(Regression(size=MOST_BYTES // 4), run)
        assert set(hashes(run)) == set(kept(run)) == expected


def test_a_state_that_cannot_be_kept_is_warned_of_and_training_ends_well(tmp_path, caplog):
    run = make(tmp_path / "run", 4)
    run.history.folder.write_text("a file", encoding="utf-8")
    assert quiet(Regression(), run).consumed == 400
    assert "the state at 100 is not saved in" in caplog.text


def test_states_with_nan_are_not_kept(tmp_path, caplog):
    class Sick(Regression):
        def iterate(self):
            metrics = super().iterate()
            if self.consumed == 100:
                self.momentum[0, 0] = torch.nan
            if self.consumed == 110:
                self.momentum.zero_()
                self.weight.zero_()
            return metrics

    run = make(tmp_path / "run", 4)
    quiet(Sick(), run)
    assert kept(run) == [0, 200, 300, 400]
    assert "NaN or Inf" in caplog.text
    assert not run.history.quarantine.exists()


def test_pruning_takes_them_away(tmp_path):
    run = make(tmp_path / "run", 4)
    quiet(Regression(), run)
    assert prune(run) > 0
    assert kept(run) == []
    assert run.checkpoints.latest()[1] == 400


def test_the_hash_of_a_state_is_that_of_its_contents():
    state = {"a": torch.tensor([1.0, 2.0]), "b": [1, None, "x"], "c": {"d": torch.tensor([], dtype=torch.bool)}}
    expected = digest(state)
    assert expected == digest({"c": state["c"], "b": (1, None, "x"), "a": state["a"].clone()})
    for change in (
        {"a": torch.tensor([1.0, 3.0])},
        {"a": torch.tensor([1.0, 2.0], dtype=torch.float64)},
        {"a": torch.tensor([[1.0, 2.0]])},
        {"a": torch.tensor([1.0, 2.0]).view(torch.int32)},
        {"b": [1, None, "y"]},
        {"b": [1.0, None, "x"]},
    ):
        assert digest(state | change) != expected
    assert digest({"a": torch.tensor(2.5, dtype=torch.bfloat16)}) != digest({"a": torch.tensor(2.5)})


@pytest.mark.parametrize("value", [0, -3, True, "some", 1.5])
def test_the_setting_is_checked(value):
    with pytest.raises(ValueError, match="keep_checkpoints must be auto, all, none or at least 1"):
        Settings("regression", "line", keep_checkpoints=value)


@pytest.mark.parametrize("value", ["auto", "all", "none", 7])
def test_the_setting_is_written_and_read(tmp_path, value):
    run = make(tmp_path / "run", value)
    assert Run.open(run.path).settings.keep_checkpoints == value
    json.dumps(dataclasses.asdict(run.settings))


def test_a_run_that_was_killed_before_its_first_checkpoint_has_no_hash_twice(tmp_path):
    run, learner = make(tmp_path / "run", "all"), Regression()
    for _ in range(2):
        history = History(run, 400)
        history.note(learner, None)
        history.close()
    assert [record["consumed"] for record in read_records(run.hashes_path)] == [0]
