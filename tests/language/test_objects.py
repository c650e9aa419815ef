"""Python objects instead of the names on the command line: environments, rows, rewards, models."""

import functools
import json
from pathlib import Path

import gymnasium
import numpy as np
import pandas as pd
import pytest
import torch

import operant
from operant import doors
from operant.language.configs import ModelOptions
from operant.language.models import load as load_model
from operant.language.objects import stored
from operant.runtime.files import sha256
from operant.runtime.run import RunError

ROWS = [{"prompt": f"{i}+{j}=", "completion": str(i + j), "answer": str(i + j)} for i in range(5) for j in range(5)]
QUIET = {"progress": "silent"}
TINY = {"budget": 4, "prompts_per_batch": 2, "num_generations": 2, "held_out": 3, **QUIET}


class Count(gymnasium.Env):
    """Environment that observes the number of steps and rewards the second action."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size=3):
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.array([self.steps], np.float32), float(action), self.steps == self.size, False, {}


def equal(one, other):
    return torch.equal(*(trained.experiment.learner.agent.parameters for trained in (one, other)))


def test_an_environment_from_a_lambda_is_the_same_as_from_its_class(tmp_path):
    values = {"budget": 64, "num_envs": 2, "num_steps": 8, **QUIET}
    made = operant.train("a2c", lambda: Count(4), run=tmp_path / "made", **values)
    named = operant.train("a2c", env=Count, env_kwargs={"size": 4}, run=tmp_path / "named", **values)
    assert equal(made, named)
    assert named.run.resolved().get("objects") is None
    (name,) = made.run.resolved()["objects"]
    assert "test_objects.py, line" in made.run.resolved()["objects"][name]
    assert len(repr(made)) < 300


def test_an_object_without_a_file_must_be_given_again_in_another_process(tmp_path, monkeypatch):
    values = {"num_envs": 2, "num_steps": 8, **QUIET}
    whole = operant.train("a2c", lambda: Count(4), budget=128, run=tmp_path / "whole", **values)
    half = operant.train("a2c", lambda: Count(4), budget=64, run=tmp_path / "half", **values)
    (name,) = half.run.resolved()["objects"]
    for known in ("_held", "_prefixes"):
        monkeypatch.setattr(f"operant.doors.objects.{known}", {})
    for call in (operant.load, operant.resume):
        with pytest.raises(ValueError, match=rf"object:{name} was passed as a Python object.*objects="):
            call(tmp_path / "half")
    resumed = operant.resume(tmp_path / "half", budget=128, objects={name: lambda: Count(4)}, **QUIET)
    assert resumed.experiment.learner.consumed == whole.experiment.learner.consumed
    assert operant.load(tmp_path / "half").evaluate(5).episodes == 5


@pytest.mark.parametrize(
    ("task", "env_kwargs"),
    [
        (gymnasium.spec("CartPole-v1"), {}),
        (gymnasium.make("CartPole-v1", max_episode_steps=20), {"max_episode_steps": 20}),
    ],
)
def test_registered_environments_are_noted_by_name(task, env_kwargs, tmp_path):
    settings = operant.train("a2c", task, budget=200, run=tmp_path / "run", **QUIET).run.settings
    assert settings.task == "CartPole-v1"
    assert dict(settings.env_kwargs) == env_kwargs


def test_rows_are_saved_once_with_the_run(tmp_path):
    for run in ("one", "two"):
        trained = operant.train("sft", dataset=ROWS[:20], eval_dataset=ROWS[20:], run=tmp_path / run, budget=8, **QUIET)
        assert trained.evaluate().episodes == 5
    files = sorted((tmp_path / "objects").iterdir())
    assert [file.name.split("-")[0] for file in files] == ["dataset", "eval_dataset"]
    assert [json.loads(line) for line in files[0].read_text().splitlines()] == ROWS[:20]
    assert files[0].stem.endswith(sha256(files[0])[:16])
    assert operant.load(tmp_path / "two").evaluate().mean == trained.evaluate().mean
    files[0].write_text("")
    with pytest.raises(RunError, match="has changed"):
        operant.load(tmp_path / "one")


def test_tables_of_pandas_may_have_arrays_and_missing_cells(tmp_path):
    rows = [{"prompt": "a", "completions": ["b", "c"], "ranks": [1, 2]}]
    pd.DataFrame(rows).to_parquet(tmp_path / "ranked.parquet")
    ranked = pd.read_parquet(tmp_path / "ranked.parquet")
    assert isinstance(ranked["ranks"][0], np.ndarray)
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    tables = {
        "ranked": (ranked, rows),
        "messages": (pd.DataFrame({"messages": [np.array(talk, dtype=object)]}), [{"messages": talk}]),
        "missing": (
            pd.DataFrame([ROWS[0], ROWS[1] | {"level": 3}]),
            [ROWS[0] | {"level": None}, ROWS[1] | {"level": 3}],
        ),
    }
    for name, (table, expected) in tables.items():
        path = Path(stored(table, {}, tmp_path / name)[1]["dataset"])
        assert [json.loads(line) for line in path.read_text().splitlines()] == expected
    with pytest.raises(ValueError, match="examples both as task and as dataset"):
        stored(ranked, {"dataset": ranked}, tmp_path)


def test_reward_functions_of_any_kind(tmp_path):
    asked = []

    def counted(completions, answer, **_):
        asked.append(len(completions))
        return [float(text == right) for text, right in zip(completions, answer, strict=True)]

    partly = functools.partial(lambda k, completions, **_: [float(len(text) < k) for text in completions], 3)
    trained = operant.train("grpo", ROWS, rewards=[counted, partly], run=tmp_path / "run", **TINY)
    assert sum(asked) >= 4
    assert len(trained.run.resolved()["objects"]) == 2
    assert trained.run.settings.task == "dataset"


def test_a_model_is_kept_with_its_tokenizer(tmp_path):
    model = load_model(ModelOptions(), seed=3)
    values = {"model": model.network, "rewards": ["exact"], **TINY}
    with pytest.raises(ValueError, match="needs its tokenizer"):
        operant.train("grpo", ROWS, run=tmp_path / "run", **values)
    with pytest.raises(ValueError, match="tokenizer needs a model object"):
        operant.train("grpo", ROWS, run=tmp_path / "run", **values | {"model": "tiny", "tokenizer": model.tokenizer})
    trained = operant.train("grpo", ROWS, run=tmp_path / "run", processing_class=model.tokenizer, **values)
    folder = next((tmp_path / "objects").glob("model-*"))
    assert (folder / "model.safetensors").exists()
    assert trained.run.config(operant.catalog.find("grpo").config_class).model == str(folder)


@pytest.mark.parametrize(
    ("algorithm", "task", "values", "message"),
    [
        ("ppo", None, {}, r"needs a task to train on"),
        ("ppo", "CartPole-v1", {"env": "CartPole-v1"}, r"there are two tasks"),
        ("ppo", 7, {}, r"7 is not a task: pass the name"),
        ("ppo", Count(), {}, r"is not a task: pass the name"),
        ("sft", [{"prompt": "a", "completion": {1}}], {}, r"row 1 cannot be saved with the run.*set"),
        ("sft", [{(1, 2): "a"}], {}, r"row 1 cannot be saved with the run: keys must be str"),
        (
            "sft",
            [ROWS[0], ROWS[1] | {"margin": [float("nan")]}],
            {},
            r"row 2 cannot be saved with the run: .*column 'margin' with the value \[nan\]\).*None for missing values",
        ),
        ("sft", None, {"dataset": []}, r"dataset has no rows, expected at least 1"),
        ("sft", [{"question": "a"}], {}, r"the rows have the columns \['question'\]"),
        ("sft", ROWS, {"eval_dataset": [{"question": "a"}]}, r"the rows have the columns \['question'\]"),
        ("grpo", ROWS, {"model": 3}, r"model is of type int, expected a model of transformers"),
        ("sft", ROWS, {"dataset": ROWS}, r"examples both as task and as dataset"),
        ("sft", "arithmetic", {"eval_dataset": ROWS}, r"needs a training dataset; arithmetic generates its own"),
        ("grpo", "arithmetic", {"model": 3}, r"model is of type int, expected a model of transformers"),
    ],
)
def test_invalid_values_are_rejected(algorithm, task, values, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        operant.train(algorithm, task, run=tmp_path / "run", **values)
    assert not (tmp_path / "run").exists()
    if algorithm == "sft" and task != "arithmetic":
        assert not (tmp_path / "objects").exists()


def test_one_object_has_one_name():
    def thing():
        pass

    assert doors.named([thing, thing]) == [doors.hold(thing)] * 2
    assert doors.hold(thing) != doors.hold(lambda: None)


def test_a_loaded_run_is_scored_in_its_own_environment(tmp_path, monkeypatch):
    values = {"budget": 64, "num_envs": 2, "num_steps": 8, **QUIET}
    makers = {"one": lambda: Count(1), "ten": lambda: Count(10)}
    for name, maker in makers.items():  # as by separate processes
        monkeypatch.setattr("operant.doors.objects._held", {})
        operant.train("a2c", maker, run=tmp_path / name, **values)
    monkeypatch.setattr("operant.doors.objects._prefixes", {})
    with pytest.raises(ValueError, match="object:lambda_1 was passed as a Python object"):
        operant.load(tmp_path / "one")
    one, ten = (operant.load(tmp_path / name, objects={"lambda_1": maker}) for name, maker in makers.items())
    assert [max(trained.evaluate(2).lengths) for trained in (one, ten)] == [1, 10]
    assert max(operant.load(tmp_path / "one").evaluate(2).lengths) == 1
    assert max(operant.resume(tmp_path / "one", budget=128, **QUIET).evaluate(2).lengths) == 1
    assert one.run.open(one.run.path).settings.task == "object:lambda_1"
    with pytest.raises(ValueError, match="needs no object 'nope'; it needs lambda_1"):
        operant.load(tmp_path / "one", objects={"nope": 1})


@pytest.mark.parametrize("algorithm", ["grpo", "rlhf"])
def test_an_objective_with_other_parameters_is_rejected(algorithm, tmp_path):
    with pytest.raises(ValueError, match=r"objective .* cannot be called: too many positional arguments; expected a"):
        operant.train(
            algorithm,
            dataset=ROWS,
            rewards="exact",
            num_minibatches=1,
            objective=lambda batch: batch,
            run=tmp_path / "run",
            **TINY,
        )
    assert not (tmp_path / "run").exists()
