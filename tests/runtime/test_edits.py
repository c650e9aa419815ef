"""Edits of config.toml between sessions: asked about, recorded, and impossible for the seeds."""

import json

import pytest

import operant
from operant.runtime.edits import HASH
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


@pytest.mark.parametrize("attempt", [operant.load, operant.resume])
def test_seeds_are_those_of_the_training(run, attempt):
    edit(run, "seeds = [\n    1,\n]", "seeds = [\n    7,\n]")
    with pytest.raises(RunError, match=r"has the seeds \[7\], but the run was trained with \[1\]"):
        attempt(run.path, **({"accept_changes": True}))
