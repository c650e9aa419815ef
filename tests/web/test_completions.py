import base64
import json

import numpy as np
import pytest

from operant.language.grpo import GRPOConfig
from operant.runtime.generations import keep_samples
from operant.runtime.ledger import Ledger, Visit, keep_ledgers
from operant.runtime.run import Run
from operant.runtime.settings import Settings
from operant.web import completions
from operant.web.workers import NotFoundError
from web.folders import make_run  # type: ignore[import-not-found]


def ledger(consumed, seed):
    return Ledger(
        consumed=consumed,
        seed=seed,
        group=2,
        steps=1,
        loss={"losses/policy": 0.125},
        prompts=["1+1="],
        answers=[{"prompt": 0, "text": "2", "reward": 1.0, "counts": True}],
        pieces=["2"],
        visits=[Visit(0, 0, 0, 1)],
        columns={
            "piece": np.array([0], np.int32),
            "clipped": np.array([1], np.uint8),
            "policy": np.array([-0.5], np.float32),
        },
        rest={"tokens": 3, "policy": 0.625},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder: a run with ledgers and samples of two seeds, a language model without these, and a table."""
    path = tmp_path_factory.mktemp("web") / "runs"
    make_run(path / "table", [[0.1]])
    settings = Settings(algorithm="grpo", task="arithmetic", seeds=(3, 4), budget=20)
    run = Run.create(path / "words", settings, GRPOConfig(), command=["operant", "train"])
    Run.create(path / "silent", settings, GRPOConfig(), command=["operant", "train"])
    keep_ledgers(run.path, [ledger(at, seed) for at in (10, 20) for seed in (3, 4)])
    for at in (0, 10):
        sample = {"seed": 3, "reward": 0.5, "truncated": False, "temperature": 0.0, "version": at // 5}
        rows = [{**sample, "prompt": p, "completion": c} for p, c in (("1+1=", "2"), ("1+1=", "<b>3"), ("2+2=", "4"))]
        keep_samples(run, at, rows)
    return path


def test_runs_with_answers_are_listed(folder):
    assert completions.index(folder) == {"runs": ["words"]}
    assert completions.index(folder / "nothing") == {"runs": []}


def test_every_step_is_there(folder):
    found = completions.steps(folder, "words")
    assert found["steps"]["training"] == [{"consumed": at, "seed": seed} for at in (10, 20) for seed in (3, 4)]
    assert found["steps"]["held-out"] == [{"consumed": 0, "seed": 3}, {"consumed": 10, "seed": 3}]
    assert found["command"] == f"operant show {folder / 'words'}"
    assert found["note"] == ""


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [("sft", "does not sample completions"), ("dpo", "pairs of complete answers"), ("rlhf", "at every evaluation")],
)
def test_missing_training_batches_are_explained(tmp_path, algorithm, reason):
    settings = Settings(algorithm=algorithm, task="arithmetic", seeds=(0,), budget=20)
    Run.create(tmp_path / "run", settings, GRPOConfig(), command=["operant", "train"])
    assert reason in completions.steps(tmp_path, "run")["note"]


def test_a_batch_has_its_columns_and_what_they_sum_to(folder):
    found = completions.batch(folder, "words", "training", 20, 4)
    assert (found["consumed"], found["seed"], found["visits"]) == (20, 4, [(0, 0, 0, 1)])
    assert np.frombuffer(base64.b64decode(found["columns"]["policy"]), "<f4").tolist() == [-0.5]
    assert np.frombuffer(base64.b64decode(found["columns"]["clipped"]), "u1").tolist() == [1]
    assert found["sums"] == {"policy": 0.125}
    json.dumps(found, allow_nan=False)


def test_held_out_answers_come_by_prompt(folder):
    found = completions.batch(folder, "words", "held-out", 10, 3)
    assert found["prompts"] == ["1+1=", "2+2="]
    assert [(a["prompt"], a["text"], a["reward"]) for a in found["answers"]] == [
        (0, "2", 0.5),
        (0, "<b>3", 0.5),
        (1, "4", 0.5),
    ]
    assert {answer["version"] for answer in found["answers"]} == {2}


@pytest.mark.parametrize(
    "asked",
    [
        ("words", "training", 11, 3),
        ("words", "training", "../../x", 3),
        ("words", "held-out", 10, 4),
        ("words", "elsewhere", 10, 3),
        ("../words", "training", 10, 3),
        ("table", "training", 10, 3),
    ],
    ids=str,
)
def test_missing_batches_are_not_found(folder, asked):
    with pytest.raises(NotFoundError):
        completions.batch(folder, *asked)


def test_a_page_asks_for_it(ask):
    assert ask("completions/index") == (200, {"runs": []})
    assert ask("completions/steps", run="nothing")[0] == 404
