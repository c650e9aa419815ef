"""Rows of tasks and data sets, and the rewards of answers to them."""

import json
from dataclasses import replace
from functools import partial

import pytest

from operant.language import tasks
from operant.language.data import ACCEPTS
from operant.language.datasets import MAX_COMPLETION, load_data, source_of
from operant.language.grpo import GRPOConfig
from operant.language.iterative import IterativeGRPOConfig
from operant.language.sft import SFTConfig
from operant.runtime.settings import Settings


def settings(task="reverse"):
    return Settings("sft", task, seeds=(0,), budget=32)


def test_rows_of_a_task():
    task = tasks.find("reverse")
    config = SFTConfig(train_examples=30, held_out=7)
    one, other = (load_data(settings(), config, ("prompt-completion",), seed=seed) for seed in (0, 1))
    assert len(one.train) == 30
    assert one.train == task.rows("train", 30, seed=0)
    assert one.train != other.train
    assert one.held_out == other.held_out, "every seed is scored on the same rows"
    assert not {row["prompt"] for row in one.train} & {row["prompt"] for row in one.held_out}
    assert one.max_tokens == task.max_completion_length
    assert one.limits == {"max_prompt_length": 512, "max_completion_length": task.max_completion_length}
    longer = load_data(settings(), SFTConfig(max_completion_length=77), ("prompt-completion",), seed=0)
    assert longer.max_tokens == 77


def test_rows_of_a_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": str(i), "completion": "x"}) for i in range(10)))
    one, other = (load_data(settings(str(path)), SFTConfig(held_out=4), ("prompt-completion",), seed=s) for s in (0, 1))
    assert (len(one.train), len(one.held_out)) == (8, 2), "at most a fifth is held out"
    assert one.held_out == other.held_out
    assert one.task is None
    assert one.max_tokens == MAX_COMPLETION
    assert one.reward_functions() is None


def test_a_task_next_to_a_data_set_is_named(tmp_path, caplog):
    path = tmp_path / "reverse.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": str(i), "completion": "x"}) for i in range(10)))
    config = SFTConfig(dataset=str(path))
    for task in ("reverse", "rows"):  # the stem of the file, which is the task if none is given, and no task
        load_data(settings(task), config, ("prompt-completion",), seed=0)
    assert not caplog.records
    load_data(settings("arithmetic:digits=3"), config, ("prompt-completion",), seed=0)
    assert f"The task arithmetic:digits=3 has no effect with dataset={path}: leave out one of them." in caplog.text


@pytest.mark.parametrize("shared", [0, 3])
def test_evaluation_rows_with_prompts_of_the_training_are_counted(tmp_path, caplog, shared):
    for name, start in (("train", 0), ("test", 10 - shared)):
        rows = [{"prompt": str(start + i), "completion": name} for i in range(10)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    config = SFTConfig(held_out=5, eval_dataset=str(tmp_path / "test.jsonl"))
    with caplog.at_level("WARNING"):
        load_data(settings(str(tmp_path / "train.jsonl")), config, ("prompt-completion",), seed=0)
    assert ("3 of 5 rows of eval_dataset have prompts of the training data" in caplog.text) == bool(shared)


@pytest.mark.parametrize(
    ("row", "accepted", "said"),
    [
        (
            {"prompt": "a", "text": "b"},
            ACCEPTS["sft"],
            "of the kind language-modeling, in which the columns prompt have",
        ),
        ({"prompt": "a", "text": "b"}, ACCEPTS["grpo"], ""),
        ({"prompt": "a", "completion": "b", "answer": "c"}, ACCEPTS["sft"], ""),
    ],
)
def test_columns_of_another_kind_are_named_once(tmp_path, caplog, row, accepted, said):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(row)] * 10))
    several = replace(settings(str(path)), seeds=(0, 1))
    for seed in (0, 1):
        load_data(several, SFTConfig(), accepted, seed=seed)
    assert caplog.text.count("have no effect") == bool(said)
    assert said in caplog.text


def test_rows_of_another_kind_are_rejected(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"}) + "\n")
    with pytest.raises(ValueError, match="preference"):
        load_data(settings(str(path)), SFTConfig(), ("prompt-completion",), seed=0)


def test_an_error_about_rows_says_whether_they_are_those_of_the_training(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": str(i), "completion": "x"}) for i in range(10)))
    data = load_data(settings(str(path)), SFTConfig(), ("prompt-completion",), seed=0)

    def fail(rows):
        raise ValueError(f"none of the {len(rows)} rows is usable")

    with pytest.raises(ValueError, match=r"^in the training examples, none of the 8 rows is usable$"):
        data.encode("training", fail)
    with pytest.raises(ValueError, match=r"^in the evaluation examples, none of the 2 rows is usable$"):
        data.encode("evaluation", fail)
    assert data.encode("evaluation", len) == 2


def test_a_task_that_there_is_not():
    with pytest.raises(ValueError, match="revers"):
        load_data(settings("revers"), SFTConfig(), ("prompt-completion",), seed=0)


def test_the_task_rewards_unless_others_are_asked_for():
    own = load_data(settings(), SFTConfig(), ("prompt-completion",), seed=0).reward_functions()
    assert len(own.names) == len(tasks.find("reverse").rewards)
    asked = GRPOConfig(rewards=("exact", "boxed"), reward_weights=(1.0, 0.5))
    rewards = load_data(settings(), asked, ("prompt-completion",), seed=0).reward_functions()
    assert rewards.weights == (1.0, 0.5)

    def extra(completions, **columns):
        return [0.0] * len(completions)

    rewards = load_data(settings(), GRPOConfig(rewards=("exact",)), ("prompt-completion",), seed=0).reward_functions(
        [extra]
    )
    assert rewards.names[-1] == "extra"


@pytest.mark.parametrize("config", [IterativeGRPOConfig, partial(GRPOConfig, supervision="process")])
def test_the_weight_of_a_reward_model_is_left_out_where_its_score_is_not_added(config):
    asked = config(rewards=("exact", "boxed"), reward_weights=(1.0, 0.5, 2.0), reward_model="RUN")
    assert load_data(settings(), asked, ("prompt-completion",), seed=0).reward_functions().weights == (1.0, 0.5)
    alone = config(reward_weights=(2.0,), reward_model="RUN")
    assert load_data(settings(), alone, ("prompt-completion",), seed=0).reward_functions().weights == (1.0,)


def test_a_data_set_goes_before_the_task():
    assert source_of(SFTConfig(), "reverse") == ""
    assert source_of(SFTConfig(), "sums.jsonl") == "sums.jsonl"
    assert source_of(SFTConfig(dataset="org/sums"), "reverse") == source_of(SFTConfig(dataset="org/sums"), "a.csv")
    assert source_of(SFTConfig(dataset="org/sums"), "a.csv") == "org/sums"


def test_a_column_that_a_reward_needs_is_missed_before_anything_is_sampled(tmp_path):
    (tmp_path / "own.py").write_text("def reward(completions, solution, **_):\n    return [0.0] * len(completions)\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("\n".join(json.dumps({"prompt": f"{i}=", "answer": str(i)}) for i in range(10)))
    config = GRPOConfig(dataset=str(rows), rewards=(f"{tmp_path / 'own.py'}:reward",))
    with pytest.raises(ValueError, match="reward needs the column 'solution', but the data has answer"):
        load_data(settings(), config, ("prompt-only",), seed=0).reward_functions()
