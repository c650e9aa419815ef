import json

import pytest

import operant
from operant.language.preferences.items import encode
from operant.language.preferences.sampling import Policy, data_of, held_out_prompts, prompts_of
from operant.language.preferences.store import PreferenceStore
from operant.language.sft import SFTConfig
from operant.language.tasks.task import held_out
from operant.runtime.run import Run
from operant.runtime.settings import Settings


@pytest.fixture
def make(tmp_path):
    """Return a function that makes the folder of a run that was not trained."""

    def make(task, **values):
        settings = Settings("sft", task, seeds=(3, 4))
        return Run.create(tmp_path / "run", settings, SFTConfig(train_examples=8, held_out=4, **values))

    return make


def test_prompts_of_a_task_come_from_the_part_that_is_asked_for(make):
    run = make("arithmetic")
    for which, expected in (("training", False), ("held-out", True)):
        rows = prompts_of(run, which, 30)
        assert len({row["prompt"] for row in rows}) == 30, "more than the learner used"
        assert {held_out(row["prompt"]) for row in rows} == {expected}
        assert prompts_of(run, which, 5) == rows[:5], "the same at each call"
    assert held_out_prompts(run) == {encode(row["prompt"]) for row in prompts_of(run, "held-out", 4)}
    assert prompts_of(run, "training", 5, index=1) != prompts_of(run, "training", 5, index=0)


def test_prompts_of_a_data_set_are_split_as_in_training(make, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"p{n}", "completion": "x"}) + "\n" for n in range(20)))
    run = make(str(file))
    training, held = ({row["prompt"] for row in prompts_of(run, which, 99)} for which in ("training", "held-out"))
    assert len(held) == 4
    assert not training & held
    assert training | held == {f"p{n}" for n in range(20)}
    assert held_out_prompts(run) == set(map(encode, held))


def test_rows_that_differ_in_their_tools_are_labeled_apart(tmp_path, words):
    file, tools = tmp_path / "rows.jsonl", [[{"name": "calculator"}], [{"name": "search"}]]
    asked = [{"role": "user", "content": "the cat"}]
    answer = [{"role": "assistant", "content": "sat"}]
    rows = [{"prompt": asked, "completion": answer, "tools": tool} for tool in tools] * 8
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"held_out": 2, "max_completion_length": 4, "run": tmp_path / "run", "progress": "silent"}
    trained = operant.train("sft", str(file), budget=4, batch_size=2, **options)
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        policy = Policy(trained.run)
        found = policy.add_answers(store, rows[:4], held_out=())
        assert (found.prompts, found.items) == (2, 2)
        assert [item.provenance["tools"] for item in store.items()] == tools
        assert policy.add_answers(store, rows[:4], held_out=()).prompts == 0, "they are known"


def test_a_seed_that_is_not_there_and_texts_without_prompts(make, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(20)))
    run = make(str(file))
    with pytest.raises(ValueError, match="the run has 2 seeds, so the index must be below 2; got 2"):
        data_of(run, 2)
    with pytest.raises(ValueError, match="of the kind language-modeling"):
        data_of(run, 0)
