"""Runs without checkpoints: which are new, which have lost them, and what their errors advise."""

import json
import re

import pytest
import torch

from operant.control import PPOConfig
from operant.runtime.missing_checkpoints import require
from operant.runtime.run import Run, RunError
from operant.runtime.settings import Settings


@pytest.fixture
def run(tmp_path):
    return Run.create(tmp_path / "run", Settings("ppo", "CartPole-v1"), PPOConfig())


def test_a_new_run_has_lost_nothing(run):
    require(run)


def test_the_newest_intact_state_is_named(run):
    run.note_checkpoint()
    with pytest.raises(RunError, match=r"checkpoints is empty, .* from a backup, or start a new run; training never"):
        require(run)
    run.checkpoints.folder.rmdir()
    spare, damaged = (run.history.save({"x": torch.ones(2)}, consumed) for consumed in (50, 60))
    (damaged / "state.json").write_text("{}")
    with pytest.raises(RunError, match=re.escape(f"continue from {spare} (move it to {run.checkpoints.folder}), or")):
        require(run)


def test_a_merged_run_names_its_parts(run):
    facts = run.facts()
    facts["resolved"]["merged"] = "one, two"
    (run.path / "run.json").write_text(json.dumps(facts))
    with pytest.raises(RunError, match=r"is merged from the evaluations of other runs, .* \(one, two\)"):
        require(run)
