"""Edits of config.toml between sessions: asked about, recorded, and impossible for the seeds."""

import errno
import json

import pytest

import operant
from operant.runtime.edits import HASH
from operant.runtime.files import replace_durably
from operant.runtime.run import Run, RunError

TINY = {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1, "hidden_sizes": (4,)}


@pytest.fixture
def run(tmp_path):
    values = {**TINY, "evaluate_episodes": 1, "progress": "silent"}
    return operant.train("ppo", "CartPole-v1", seeds=[1], budget=16, run=tmp_path / "run", **values).run


def edit(run, before, after):
    file = run.path / "config.toml"
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))


def sessions(run):
    return json.loads((run.path / "run.json").read_text())["sessions"]


def test_an_edited_configuration_is_accepted_only_on_request_and_recorded(run):
    edit(run, "gamma = 0.99\n", "gamma = 0.5\n")
    with pytest.raises(RunError, match=r"config\.toml has changed since the last session.*--accept-changes"):
        operant.resume(run.path, budget=32, progress="silent")
    assert len(sessions(run)) == 1
    operant.resume(run.path, budget=32, progress="silent", accept_changes=True)
    assert [session.get("config_edited", False) for session in sessions(run)] == [False, True]
    operant.resume(run.path, budget=48, progress="silent")  # the file that operant wrote is not edited
    operant.resume(run.path, progress="silent")
    assert [session.get("config_edited", False) for session in sessions(run)] == [False, True, False, False]


def test_a_renamed_run_and_runs_of_earlier_versions_resume(run):
    renamed = run.path.rename(run.path.with_name("renamed"))
    operant.resume(renamed, budget=32, progress="silent")
    facts = json.loads((renamed / "run.json").read_text())
    for session in facts["sessions"]:
        del session[HASH]
    (renamed / "run.json").write_text(json.dumps(facts))
    edit(Run.open(renamed), "gamma = 0.99\n", "gamma = 0.5\n")
    operant.resume(renamed, progress="silent")


def test_every_session_keeps_the_hash_of_its_own_configuration(run):
    (first,) = [session[HASH] for session in sessions(run)]
    operant.resume(run.path, budget=32, progress="silent")
    before, now = [session[HASH] for session in sessions(run)]
    assert first == before != now
    facts = json.loads((run.path / "run.json").read_text())
    assert not [name for name in facts if "pending" in name]


@pytest.mark.parametrize("file", ["run.json", "config.toml"])
@pytest.mark.parametrize("written", [False, True])
def test_a_crash_while_a_budget_is_changed_is_no_edit(run, monkeypatch, file, written):
    def crash(path, data):
        if path.name != file or written:
            replace_durably(path, data)
        if path.name == file:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("operant.runtime.run.replace_durably", crash)
        with pytest.raises(RunError, match="No space left"):
            operant.resume(run.path, budget=32, progress="silent")
        budget = Run.open(run.path).settings.budget
        assert budget == (32 if (file, written) == ("config.toml", True) else 16)
        with pytest.raises(RunError, match="No space left"):
            operant.resume(run.path, budget=budget + 32, progress="silent")
    budget = Run.open(run.path).settings.budget
    assert operant.resume(run.path, progress="silent").run.settings.budget == budget
    edit(run, "gamma = 0.99\n", "gamma = 0.5\n")
    with pytest.raises(RunError, match=r"config\.toml has changed"):
        operant.resume(run.path, progress="silent")


@pytest.mark.parametrize("attempt", [operant.load, operant.resume])
def test_seeds_are_those_of_the_training(run, attempt):
    edit(run, "seeds = [\n    1,\n]", "seeds = [\n    7,\n]")
    with pytest.raises(RunError, match=r"has the seeds \[7\], but the run was trained with \[1\]"):
        attempt(run.path, **({"accept_changes": True}))
