import json
import os
import re
import shutil
from contextlib import closing
from pathlib import Path

import pytest
import torch

from operant.control import PPOConfig
from operant.runtime.comparison import evaluations, learning_curve, metric_curve
from operant.runtime.evaluation import Evaluation
from operant.runtime.inputs import Input
from operant.runtime.metrics import RecordWriter
from operant.runtime.metrics_window import SUCCESS_RATE
from operant.runtime.run import Run, RunError
from operant.runtime.run_folders import (
    delete,
    entries,
    entry_of,
    inputs_in,
    is_held,
    merge,
    prune,
    remove_deleted,
    rename,
    size,
    users_of,
)
from operant.runtime.settings import Settings


@pytest.fixture
def make_run(tmp_path):
    def make(name, seeds=(0, 1), scores=(1.0, 2.0), points=(50, 100), inputs=(), **config):
        settings = Settings("ppo", "CartPole-v1", seeds=seeds, budget=100)
        run = Run.create(tmp_path / name, settings, PPOConfig(**config), inputs=inputs)
        with closing(RecordWriter(run.evaluations_path)) as writer:
            for consumed in points:
                table = [[score * consumed, 0.0] for score in scores]
                found = Evaluation.of(table, [3.0] * len(scores), {SUCCESS_RATE: [0.5] * len(scores)})
                writer.write({"consumed": consumed, **found.record()})
        return run

    return make


def test_the_summary_of_a_run_in_a_list(make_run, tmp_path):
    run = make_run("one")
    run.checkpoints.save({"x": torch.ones(3)}, 40)
    run.end_session("interrupted", 40)
    (tmp_path / "notes").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.toml").write_text("[")
    (entry,), (fault,) = entries(tmp_path)
    assert "broken" in fault
    assert (entry.path, entry.algorithm, entry.task, entry.seeds) == (run.path, "ppo", "CartPole-v1", (0, 1))
    assert (entry.state, entry.score, entry.consumed, entry.budget) == ("interrupted", 75.0, 100, 100)
    assert entry.unit == "environment steps"
    assert entry.bytes == sum(path.stat().st_size for path in run.path.rglob("*") if path.is_file())
    assert entry_of(make_run("two", points=())).score is None


@pytest.mark.parametrize("file", ["run.json", "eval/evaluations.jsonl"])
def test_damaged_or_newer_runs_do_not_hide_the_others(make_run, tmp_path, file):
    for name in ("one", "two", "three"):
        make_run(name)
    (tmp_path / "two" / file).write_text('{"consumed": "much"}\n')
    (tmp_path / "zero").mkdir()
    (tmp_path / "zero" / "config.toml").write_text("[")
    found, faults = entries(tmp_path)
    assert [entry.path.name for entry in found] == ["one", "three"]
    assert [Path(file).name in fault or "zero" in fault for fault in faults] == [True, True]


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.toml", ('"ppo"', '"newer"'), "two cannot be listed: no algorithm is called 'newer'"),
        ("run.json", ('"sessions": [', '"sessions": [1, '), r"'sessions' must be a list of JSON objects, got 1 in it"),
        ("eval/evaluations.jsonl", ('"consumed": 50', '"consumed": "Infinity"'), "non-negative integer, got inf"),
    ],
)
def test_any_fault_of_a_run_is_one_of_its_own(make_run, tmp_path, file, change, message):
    for name in ("one", "two"):
        make_run(name)
    changed = tmp_path / "two" / file
    text = changed.read_text()
    assert change[0] in text
    changed.write_text(text.replace(*change))
    found, (fault,) = entries(tmp_path)
    assert [entry.path.name for entry in found] == ["one"]
    assert str(tmp_path / "two") in fault
    assert re.search(message, fault)


def test_a_run_without_sessions_is_listed(make_run):
    run = make_run("one")
    facts = json.loads((run.path / "run.json").read_text())
    (run.path / "run.json").write_text(json.dumps({**facts, "sessions": []}))
    assert entry_of(run).state == "unfinished"


def test_a_size_is_that_of_the_files_that_remain(make_run, monkeypatch):
    run = make_run("one")
    expected = size(run)
    for name in ("a", "b"):
        (run.path / "checkpoints" / name).mkdir(parents=True)
        (run.path / "checkpoints" / name / "file").write_bytes(b"123")
    walk = os.walk

    def while_training(top):
        for folder, folders, names in walk(top):
            if {"a", "b"} <= set(folders):
                shutil.rmtree(run.path / "checkpoints" / "a")  # before it is entered
            if Path(folder).name == "b":
                shutil.rmtree(folder)  # after its files were listed
            yield folder, folders, names

    monkeypatch.setattr("os.walk", while_training)
    assert size(run) == expected


def test_nothing_is_done_to_a_run_that_is_trained(make_run, tmp_path):
    run, other = make_run("one"), Run.open(tmp_path / "one")
    assert (is_held(other), entry_of(other).state) == (False, "unfinished")
    with run.lock():
        assert (is_held(other), entry_of(other).state) == (True, "running")
        for change in (delete, prune, lambda run: rename(run, "two")):
            with pytest.raises(RunError, match="is being trained by process"):
                change(other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one"]


def test_rename_and_delete(make_run, tmp_path):
    run = make_run("one")
    make_run("taken")
    for name, message in (("taken", "already exists"), ("a b", "is not a valid name for a run"), ("../x", "is a path")):
        with pytest.raises(RunError, match=message):
            rename(run, name)
    moved = rename(run, "two")
    assert moved == tmp_path / "two"
    assert Run.open(moved).settings == run.settings
    delete(Run.open(moved))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["taken"]


@pytest.mark.skipif(os.name == "nt", reason="Windows cannot rename a folder with an open file")
@pytest.mark.parametrize("change", [delete, lambda run: rename(run, "two")])
def test_no_process_can_begin_to_train_a_run_that_is_moved(make_run, tmp_path, monkeypatch, change):
    run, other, moved = make_run("one"), Run.open(tmp_path / "one"), []
    move = Path.rename

    def while_another_begins(path, target):
        assert is_held(other)
        moved.append(path)
        return move(path, target)

    monkeypatch.setattr(Path, "rename", while_another_begins)
    change(run)
    assert moved == [tmp_path / "one"]
    assert not list(tmp_path.rglob("lock.holder"))


def test_the_rest_of_an_interrupted_deletion_is_removed(make_run, tmp_path, monkeypatch):
    run, total = make_run("one"), size(make_run("two"))
    (tmp_path / ".mine.removed").mkdir()
    (tmp_path / ".mine.removed" / "letter.txt").write_text("not a run")

    def killed(path, ignore_errors=False):
        if not ignore_errors:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            delete(Run.open(tmp_path / "two"))
    freed = remove_deleted(tmp_path)
    assert list(freed) == [tmp_path / ".two.removed"]
    assert freed[tmp_path / ".two.removed"] == total
    assert sorted(tmp_path.iterdir()) == [tmp_path / ".mine.removed", run.path]
    assert remove_deleted(tmp_path) == {}


def test_the_runs_that_need_a_run_are_named(make_run, tmp_path):
    teacher = make_run("teacher")
    make_run("began", inputs=[Input.of("init", teacher.path, at_start=True)])
    make_run("rewarded", inputs=[Input.of("reward_model", teacher.path)])
    assert users_of(teacher) == [tmp_path / "rewarded"]


def test_the_runs_that_need_a_run_through_a_link_are_named(make_run, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    needed = make_run("model")
    user = make_run("user", inputs=[Input.of("reward_model", tmp_path / "link" / "model")])
    assert users_of(needed) == [user.path]


def test_the_runs_that_need_a_run_that_was_moved_with_them_are_named(make_run, tmp_path):
    make_run("old/model")
    make_run("old/user", inputs=[Input.of("reward_model", tmp_path / "old" / "model")])
    (tmp_path / "old").rename(tmp_path / "new")
    assert users_of(Run.open(tmp_path / "new" / "model")) == [tmp_path / "new" / "user"]


def test_a_folder_that_cannot_be_read_does_not_hide_the_others(make_run, tmp_path, request):
    run = make_run("one")
    (tmp_path / "lost+found").mkdir(0o700)
    request.getfixturevalue("unprivileged")
    assert [found.path for found in entries(tmp_path)[0]] == [run.path]
    with pytest.raises(RunError, match=r"lost\+found is not the folder of a run: config\.toml: Permission denied"):
        Run.open(tmp_path / "lost+found")


def test_pruning_keeps_the_newest_good_checkpoint(make_run):
    run = make_run("one")
    for consumed in (10, 20, 30):
        run.checkpoints.save({"x": torch.full((1000,), float(consumed))}, consumed)
    newest = run.checkpoints.paths()[-1]
    (newest / "state.safetensors").write_bytes(b"torn")
    assert prune(run) > 0
    assert [path.name for path in run.checkpoints.paths()] == ["step_000000000020"]
    assert run.checkpoints.latest()[1] == 20
    assert prune(run) == 0


def test_pruning_a_run_without_checkpoints_keeps_its_history(make_run):
    run = make_run("one")
    run.history.save({"x": torch.zeros(1000)}, 10)
    assert prune(run) == 0
    assert len(run.history.paths()) == 1
    run.checkpoints.save({"x": torch.zeros(1000)}, 20)
    assert prune(run) > 0
    assert not run.history.paths()


def test_merged_runs_have_the_evaluations_of_all_seeds(make_run, tmp_path):
    parts = [make_run("one"), make_run("two", seeds=(7,), scores=(4.0,))]
    whole = merge(parts, tmp_path / "whole", ["x"])
    assert whole.settings.seeds == (0, 1, 7)
    assert whole.outcome() == ("finished", "")
    assert entry_of(Run.open(tmp_path / "whole")).state == "merged"
    assert learning_curve(whole).scores.tolist() == [[25.0, 50.0, 100.0], [50.0, 100.0, 200.0]]
    consumed, last = evaluations(whole)[-1]
    assert (consumed, last.mean, last.episodes, last.lengths) == (100, pytest.approx(350 / 3), 2, (3.0, 3.0, 3.0))
    assert last.success_rate == (0.5, 0.5, 0.5)
    facts = json.loads((tmp_path / "whole" / "run.json").read_text())
    assert facts["resolved"]["merged"] == f"{parts[0].path}, {parts[1].path}"
    with pytest.raises(RunError, match=r"whole is merged from the evaluations of other runs.*\(.*one, .*\)"):
        whole.latest_checkpoint()
    with pytest.raises(RunError, match="no metric 'rollout/episode_return'; merged runs contain evaluations only"):
        metric_curve(whole, "rollout/episode_return")


def test_runs_that_do_not_belong_together_are_not_merged(make_run, tmp_path):
    one = make_run("one")
    for other, message in (
        (make_run("seeds"), "seed 0 is in several"),
        (make_run("gamma", seeds=(5, 6), gamma=0.5), r"different configurations: gamma is 0.99 in one, 0.5 in gamma"),
        (make_run("points", seeds=(5, 6), points=(100,)), "one 2 times; points 1 times"),
    ):
        with pytest.raises(RunError, match=message):
            merge([one, other], tmp_path / "whole")
    with pytest.raises(RunError, match="at least two runs"):
        merge([one], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_runs_that_have_not_used_their_budget_are_not_merged(make_run, tmp_path):
    (tmp_path / "my runs").mkdir()
    one, other = make_run("one"), make_run("my runs/other", seeds=(5, 6), points=(50,))
    new = make_run("new", seeds=(7,), points=())
    message = r"at their budget of 100: other, new; before merging, run `operant resume '.*my runs/other'` and `.*new`$"
    with pytest.raises(RunError, match=message):
        merge([one, other, new], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_inputs_of_a_folder_are_read_once_for_all_runs(make_run, tmp_path):
    one, other = make_run("one"), make_run("two")
    user = make_run("user", inputs=[Input.of("init", one.path)])
    inputs = inputs_in(tmp_path)
    for records in (user.path, one.path):
        (records / "run.json").unlink()
    assert users_of(one, inputs) == [user.path]
    assert users_of(other, inputs) == []


def test_runs_are_not_merged_into_a_taken_folder(make_run, tmp_path):
    runs = [make_run("one"), make_run("two", seeds=(5, 6))]
    with pytest.raises(RunError, match=r"one already exists and is not empty: merge the runs into another folder$"):
        merge(runs, tmp_path / "one")
