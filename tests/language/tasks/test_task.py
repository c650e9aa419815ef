import itertools

import numpy as np
import pytest

from operant.language import tasks
from operant.language.tasks.task import Task, held_out

EVERY = [
    *tasks.names(),
    "arithmetic:digits=3",
    "arithmetic:steps=3,operators=+-*",
    "countdown:numbers=3-4",
    "sort:of=letters",
    "steps:terms=2-6,limit=40",
    "preference:noise=0",
]
PRINTABLE = {chr(code) for code in range(0x20, 0x7F)} | {"\n"}


def reward(task, rows, completions):
    columns = {name: [row[name] for row in rows] for name in rows[0] if name not in ("prompt", "completion")}
    prompts, ids = [row["prompt"] for row in rows], [[0] * (len(text) + 1) for text in completions]
    return [f(prompts=prompts, completions=completions, completion_ids=ids, **columns) for f in task.rewards]


@pytest.mark.parametrize("name", EVERY)
def test_rows_depend_on_seed_and_split_and_not_on_how_many_there_are(name):
    task = tasks.find(name)
    rows = task.rows("train", 40, seed=3)
    assert task.rows("train", 40, seed=3) == rows
    assert task.rows("train", 7, seed=3) == rows[:7]
    assert task.rows("train", 40, seed=4) != rows
    assert len({row["prompt"] for row in rows}) == 40


@pytest.mark.parametrize("name", EVERY)
def test_no_prompt_is_both_trained_and_tested(name):
    task = tasks.find(name)
    train = {row["prompt"] for row in task.rows("train", 300, seed=0)}
    tests = {row["prompt"] for seed in (0, 1) for row in task.rows("held-out", 100, seed=seed)}
    assert train.isdisjoint(tests)


@pytest.mark.parametrize("name", tasks.names())
def test_every_task_has_thousands_of_prompts_by_default(name):
    assert len(tasks.find(name).rows("train", 4096, seed=0)) == 4096


@pytest.mark.parametrize("name", EVERY)
def test_about_a_fifth_is_held_out(name):
    task, generator = tasks.find(name), np.random.default_rng(0)
    prompts = {task.make(generator)["prompt"] for _ in range(3000)}
    assert 0.15 < np.mean([held_out(prompt) for prompt in prompts]) < 0.25


@pytest.mark.parametrize("name", EVERY)
def test_demonstrations_are_right_printable_and_short_enough(name):
    task = tasks.find(name)
    rows = task.rows("train", 200, seed=0)
    completions = [row["completion"] for row in rows]
    assert all(set(row["prompt"] + row["completion"]) <= PRINTABLE for row in rows)
    assert all(completions)
    if not task.name.startswith("preference"):
        assert reward(task, rows, completions) == [[1.0] * 200]
        assert reward(task, rows, [f"{text}?" for text in completions]) == [[0.0] * 200]
    if "limit=40" not in task.name:
        assert max(map(len, completions)) + 1 <= task.max_completion_length
    assert len(task.reward_weights) == len(task.rewards)


def test_a_small_task_gives_all_its_prompts_and_reports_the_end():
    task = tasks.find("arithmetic:digits=1")
    everything = {f"{a}+{b}=" for a in range(10) for b in range(10)}
    tested = sum(map(held_out, everything))
    rows = task.rows("held-out", tested, seed=0) + task.rows("train", 100 - tested, seed=0)
    assert {row["prompt"] for row in rows} == everything
    with pytest.raises(
        ValueError, match=f"has about {tested} different held-out prompts, but {tested + 1} were requested"
    ):
        task.rows("held-out", tested + 1, seed=0)
    assert len(task.rows("held-out", 500, seed=0, distinct=False)) == 500


def test_a_stream_begins_like_the_rows_and_continues():
    task = tasks.find("arithmetic:digits=1")
    rows = list(itertools.islice(task.stream("train", seed=5), 300))
    assert rows == task.rows("train", 300, seed=5, distinct=False)
    assert len({row["prompt"] for row in rows}) < 300


def test_unsupported_kinds_of_rows_are_rejected():
    task = tasks.find("reverse")
    with pytest.raises(ValueError, match=r"reverse:length=3/4/5/6 has no stepwise examples: use the task steps,"):
        task.stepwise_rows("train", 1, seed=0)
    with pytest.raises(ValueError, match="has no preference examples: use the task preference,"):
        task.pairs("train", 1, seed=0)
    with pytest.raises(ValueError, match="split must be 'train' or 'held-out', got 'test'"):
        task.rows("test", 1, seed=0)
    with pytest.raises(ValueError, match="non-negative"):
        task.rows("train", 1, seed=-1)


def test_a_custom_task():
    def make(generator):
        number = int(generator.integers(1000))
        return {"prompt": f"{number}?", "completion": str(number)}

    task = Task("echo", "Say it again", make, (lambda completions, **_: [1.0] * len(completions),), 5)
    rows = task.rows("held-out", 20, seed=0)
    assert all(row["prompt"] == f"{row['completion']}?" and held_out(row["prompt"]) for row in rows)
