import json
import os
import shutil
from dataclasses import dataclass

import pytest

from operant.catalog import ALGORITHMS, Algorithm
from operant.runtime.inputs import (
    Input,
    changes,
    digest,
    locate,
    located,
    outside_of,
    pinned,
    records_of,
    refreshed,
)
from operant.runtime.run import Run, RunError
from operant.runtime.settings import Settings


@dataclass(frozen=True)
class Config:
    dataset: str = ""
    model: str = "tiny"
    rewards: tuple[str, ...] = ()


SETTINGS = Settings("sft", "lines")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Return a working folder with a data set, a file with rewards and a model."""
    folder = tmp_path / "home"
    (folder / "model").mkdir(parents=True)
    (folder / "data.jsonl").write_text("{}\n")
    (folder / "reward.py").write_text("def score(): ...\n")
    (folder / "model" / "weights").write_bytes(b"0")
    monkeypatch.chdir(folder)
    return folder


def make(folder, **config):
    whole, found = pinned(Config(**config), ["dataset", "model"])
    return Run.create(folder, SETTINGS, whole, inputs=found)


def test_paths_become_absolute_and_names_stay(home):
    config, found = pinned(
        Config(dataset="data.jsonl", model="owner/name", rewards=("exact", "reward.py:score", "none.py:score")),
        ["dataset", "model"],
    )
    assert config.dataset == str(home / "data.jsonl")
    assert config.model == "owner/name"
    assert config.rewards == ("exact", f"{home / 'reward.py'}:score", "none.py:score")
    assert [(given.name, given.path) for given in found] == [
        ("dataset", home / "data.jsonl"),
        ("rewards", home / "reward.py"),
    ]


def test_a_folder_with_the_name_of_a_verifier_is_no_reward(home):
    (home / "exact").mkdir()
    assert pinned(Config(rewards=("exact",)), ["dataset"]) == (Config(rewards=("exact",)), [])


def test_a_run_reports_changed_inputs(home, tmp_path, monkeypatch, caplog):
    run = make("run", dataset="data.jsonl", model="model", rewards=("reward.py:score",))
    monkeypatch.chdir(tmp_path)
    run.require_inputs()
    assert Run.open(run.path).config(Config).dataset == str(home / "data.jsonl")
    (home / "data.jsonl").write_text("{1}")
    (home / "model" / "weights").write_bytes(b"1")
    (home / "reward.py").unlink()
    with pytest.raises(RunError, match=r"since 3 of its inputs changed .*--accept-changes.*accept_changes=True"):
        run.require_inputs()
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        f"dataset {home / 'data.jsonl'} has changed",
        f"model {home / 'model'} has changed",
        f"rewards {home / 'reward.py'} is missing",
    ]
    run.require_inputs(["init"])
    run.require_inputs(accept=True)
    run.keep_inputs()
    with pytest.raises(RunError, match="since 1 of its inputs changed"):
        run.require_inputs()


def test_a_new_timestamp_is_no_change(home):
    run = make("run", dataset="data.jsonl")
    os.utime(home / "data.jsonl", (0, 0))
    run.require_inputs()


def test_a_renamed_folder_within_an_input_is_a_change(home):
    (home / "model" / "train").mkdir()
    (home / "model" / "train" / "rows").write_text("1")
    run = make("run", model="model")
    run.require_inputs()
    (home / "model" / "train").rename(home / "model" / "test")
    assert changes(run.facts()["inputs"], run.path) == [f"model {home / 'model'} has changed"]
    (home / "model" / "test").rename(home / "model" / "train")
    earlier = [record | {"stamp": "of an earlier version"} for record in run.facts()["inputs"]]
    assert not changes(earlier, run.path)


def test_inputs_that_moved_with_the_run_are_found(home, tmp_path):
    run = make("runs/one", dataset="data.jsonl", rewards=("reward.py:score",))
    moved = tmp_path / "elsewhere"
    home.rename(moved)
    again = Run.open(moved / "runs" / "one")
    again.require_inputs()
    assert again.config(Config) == Config(str(moved / "data.jsonl"), "tiny", (f"{moved / 'reward.py'}:score",))
    assert run.path.name == "one"


def test_inputs_of_a_run_that_moved_twice_are_found(home, tmp_path):
    found = [Input.of("task", home / "data.jsonl"), Input.of("rewards", home / "reward.py")]
    task, reward = str(home / "data.jsonl"), f"{home / 'reward.py'}:score"
    Run.create(home / "run", Settings("sft", task), Config(rewards=(reward,)), inputs=found)
    for place in ("second", "third"):
        home = home.rename(tmp_path / place)
        run = Run.open(home / "run")
        run.keep_settings()
        if place == "second":
            run.keep_inputs()
        (tmp_path / "home").mkdir(exist_ok=True)
        (tmp_path / "home" / "reward.py").write_text("something else")
        again = Run.open(home / "run")
        again.require_inputs()
        assert again.settings.task == str(home / "data.jsonl")
        assert again.config(Config).rewards == (f"{home / 'reward.py'}:score",)


def test_of_two_files_the_unchanged_one_is_used_and_that_next_to_the_run_first(home, tmp_path, caplog):
    make("runs/one", dataset="data.jsonl")
    shutil.copytree(home, tmp_path / "copy")
    copied = tmp_path / "copy" / "data.jsonl"
    run = Run.open(tmp_path / "copy" / "runs" / "one")
    assert run.config(Config).dataset == str(copied)
    assert not caplog.records
    copied.write_text("changed")
    assert run.config(Config).dataset == str(home / "data.jsonl")
    run.require_inputs()
    assert [r.getMessage() for r in caplog.records] == [
        f"{copied} is another file than the one that the run has recorded: {home / 'data.jsonl'} is used, whose "
        "contents are those of the record"
    ]


def test_a_run_that_moved_alone_keeps_working(home, tmp_path):
    run = make("runs/one", dataset="data.jsonl")
    shutil.move(run.path, tmp_path / "two")
    again = Run.open(tmp_path / "two")
    again.require_inputs()
    assert again.config(Config).dataset == str(home / "data.jsonl")


def test_a_task_that_is_a_file_is_found_from_everywhere(home):
    given = Input.of("task", home / "data.jsonl", fills="dataset")
    run = Run.create("run", SETTINGS, Config(), inputs=[given])
    assert run.config(Config).dataset == str(home / "data.jsonl")
    assert Run.open("run").config(Config).dataset == str(home / "data.jsonl")


def test_older_runs_have_none(home):
    run = make("run", dataset="data.jsonl")
    facts = run.facts()
    del facts["inputs"]
    (run.path / "run.json").write_text(json.dumps(facts))
    assert records_of(run.path) == []
    run.require_inputs()


def test_of_a_run_what_it_has_learned_counts(home):
    begun = make("begun", model="model")
    manifest = begun.checkpoints.folder / "step_000000000001" / "manifest.json"
    manifest.parent.mkdir()
    manifest.write_text("1")
    before = digest(begun.path)
    begun.metrics_path.write_text("{}\n")
    assert digest(begun.path) == before
    (home / "model" / "weights").write_bytes(b"1")
    other = digest(begun.path)
    assert other != before
    manifest.write_text("2")
    assert digest(begun.path) not in (before, other)


def test_inputs_of_the_start_may_be_removed_later(home):
    run = Run.create("run", SETTINGS, Config(), inputs=[Input.of("init", home / "model", at_start=True)])
    shutil.rmtree(home / "model")
    run.require_inputs()


def test_an_unreadable_input_has_changed(home):
    records = [Input.of("dataset", home / "data.jsonl").record(home)]
    (home / "data.jsonl").unlink()
    os.mkfifo(home / "data.jsonl")
    assert "cannot be read: it is not a regular file" in changes(records, home)[0]


def test_records_are_refreshed_and_located(home):
    record = Input.of("dataset", home / "data.jsonl").record(home)
    (home / "data.jsonl").write_text("new")
    (again,) = refreshed([record], home)
    assert changes([again], home) == []
    assert locate(again, home) == home / "data.jsonl"
    assert located({"dataset": "other"}, [again], home) == {"dataset": "other"}


def test_every_field_may_name_something_in_a_file(home):
    @dataclass(frozen=True)
    class Own:
        objective: str = "clip"
        bounds: tuple[float, ...] = (1.0,)
        wrappers: tuple[str, ...] = ()

    config, found = pinned(Own(objective="reward.py:score", wrappers=("reward.py:A(scale=2)", "reward.py:B", "m:C")))
    file = str(home / "reward.py")
    assert config == Own(f"{file}:score", (1.0,), (f"{file}:A(scale=2)", f"{file}:B", "m:C"))
    assert [given.name for given in found] == ["objective", "wrappers"]
    assert pinned(Own(objective="none.py:score")) == (Own(objective="none.py:score"), [])


def test_an_outside_algorithm_is_reported_with_the_present_path_of_its_file(home, tmp_path):
    entry = Algorithm(
        **{"name": f"{home / 'reward.py'}:A", "module": str(home / "reward.py"), "config": "B", "learner": "A"},
        **{"title": "A", "package": "control", "family": "none", "on_policy": True, "idea": "A.", "paper": "none"},
    )
    found = [Input.of("algorithm", home / "reward.py")]
    Run.create(home / "runs" / "a", Settings(entry.name, "x"), Config(), inputs=found, outside=entry)
    shutil.move(home, tmp_path / "moved")
    run = Run.open(tmp_path / "moved" / "runs" / "a")
    assert run.settings.algorithm == run.entry.name == f"{tmp_path / 'moved' / 'reward.py'}:A"
    assert run.entry.module == str(tmp_path / "moved" / "reward.py")
    assert outside_of(home) is None


def test_run_json_names_no_code(home):
    """A reader of `config.toml` knows all code of a run."""
    run = make("run")
    (run.path / "evil.py:Net").touch()
    (run.path / "evil.py").touch()
    gone = {"path": "/none/evil.py", "relative": "evil.py", "sha256": "0", "at_start": True}
    records = [
        {"name": "a", **gone},
        {"name": "b", **gone, "path": "/none/evil.py:Net", "fills": "model"},
        {"name": "c", **gone, "path": "tiny", "relative": "evil.py:Net"},
        {"name": "d", **gone, "path": "sft", "relative": "evil.py:Net"},
        {"name": "e", **gone, "path": str(home / "data.jsonl"), "fills": "dataset"},
    ]
    (found,) = [entry for entry in ALGORITHMS if entry.name == "sft"]
    outside = found.facts() | {"config": "/none/evil.py:Config"}
    run._update(lambda facts: facts.update(inputs=records, algorithm=outside))
    table = (run.path / "config.toml").read_text()
    (run.path / "config.toml").write_text(table.replace('model = "tiny"', 'model = ""'))
    again = Run.open(run.path)
    assert again.entry == found
    assert again.settings == SETTINGS
    assert again.config(Config) == Config(dataset=str(home / "data.jsonl"), model="")
