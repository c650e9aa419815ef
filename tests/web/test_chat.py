import io
import shutil
import sys

import pytest

import operant
from operant.cli import main
from operant.web import chat
from operant.web.workers import NotFoundError
from web.folders import make_run  # type: ignore[import-not-found]

SMALL = {"train_examples": 24, "held_out": 2, "batch_size": 8, "budget": 16, "evaluate_every": 16, "progress": "silent"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two seeds of a policy, the same saved, a reward model, and a run of a table."""
    path = tmp_path_factory.mktemp("web") / "runs"
    operant.train("sft", "preference", seeds=2, run=path / "words", **SMALL)
    operant.train("reward-model", "preference", seeds=1, run=path / "judge", **SMALL)
    assert main(["export", str(path / "words"), str(path / "saved" / "model")]) == 0
    make_run(path / "table", [[0.1]])
    return path


@pytest.fixture(autouse=True)
def forget():
    """Clear the answers of other tests."""
    chat._open.clear()


def whole(folder, prompt, **given):
    """Call until an answer is complete, and return it."""
    given = {"model": "words", "before": [], "max_tokens": 12} | given
    for _ in range(200):
        found = chat.answer(folder, prompt=prompt, **given)
        if found["complete"]:
            return found
    raise AssertionError("no end")


def shown(capfd, *arguments):
    capfd.readouterr()
    assert main(["chat", *map(str, arguments)]) == 0
    return capfd.readouterr().out.splitlines()


def test_the_answers_and_scores_are_those_of_the_command(folder, capfd):
    settings = {"temperature": 0.8, "top_p": 0.9, "seed": 7, "max_tokens": 12}
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value)]
    turns, pages = [], []
    for prompt in ("abc", "de"):
        found = whole(folder, prompt, before=turns, reward_model="judge", **settings)
        turns = [*turns, {"prompt": prompt, "answer": found["text"]}]
        pages += [found["text"], f"reward: {found['reward']:.6g}"]
    command = [folder / "words", *flags, "--prompt", "abc", "--prompt", "de", "--reward-model", folder / "judge"]
    assert shown(capfd, *command) == pages
    assert len({*pages}) == 4


def test_a_saved_model_is_the_run_it_was_saved_from(folder):
    assert whole(folder, "abc", model="saved/model")["text"] == whole(folder, "abc")["text"]


def test_seeds_of_a_run_are_different_policies(folder):
    texts = {whole(folder, "abc", seed_index=index, max_tokens=40)["text"] for index in (0, 1)}
    assert len(texts) == 2


def test_an_answer_comes_in_parts_and_is_the_same_after_it_was_lost(folder, monkeypatch):
    expected = whole(folder, "abc", max_tokens=40)
    chat._open.clear()
    monkeypatch.setattr(chat, "MOMENT", 0.0)
    given = {"model": "words", "prompt": "abc", "before": [], "max_tokens": 40}
    parts = [chat.answer(folder, **given) for _ in range(3)]
    assert [part["complete"] for part in parts] == [False] * 3
    assert len(parts[0]["text"]) < len(parts[2]["text"])
    assert expected["text"].startswith(parts[2]["text"])
    assert (parts[2]["tokens"], parts[2]["reward"]) == (None, None)
    chat._open.clear()
    assert whole(folder, "abc", max_tokens=40) == expected
    assert expected["tokens"] <= 40


def test_an_answer_whose_sampling_fails_is_sampled_again(folder, monkeypatch):
    given = {"model": "words", "prompt": "abc", "before": [], "max_tokens": 40}
    expected = whole(folder, "abc", max_tokens=40)
    chat._open.clear()
    monkeypatch.setattr(chat, "MOMENT", 0.0)
    start = chat.answer(folder, **given)
    (writing,) = chat._open.values()
    sample = writing._pieces

    def failing():
        yield next(sample)
        raise RuntimeError("out of memory")

    writing._pieces = failing()
    assert len(chat.answer(folder, **given)["text"]) > len(start["text"])
    with pytest.raises(RuntimeError, match="out of memory"):
        chat.answer(folder, **given)
    assert chat.answer(folder, **given) == start
    assert whole(folder, "abc", max_tokens=40) == expected


def test_a_call_is_short(folder, monkeypatch):
    whole(folder, "a", max_tokens=1)
    monkeypatch.setattr(chat, "MOMENT", 0.02)
    found = chat.answer(folder, model="words", prompt="abc", before=[], max_tokens=1024, temperature=5.0)
    assert not found["complete"]


def test_few_answers_are_remembered(folder):
    for i in range(chat.MOST_OPEN + 3):
        whole(folder, f"a{i}", max_tokens=1)
    assert len(chat._open) == chat.MOST_OPEN


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"prompt": "café"}, "no token for 'é'"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": "a" * 20_001}, "must have at most 20000 characters, got 20001"),
        ({"before": [{"prompt": "a" * 20_000, "answer": ""}]}, "at most 20000 characters, got 20003"),
        ({"before": [{"prompt": "a"}]}, "every earlier turn must have a prompt and an answer"),
        ({"max_tokens": 0}, "from 1 to 1024, got 0"),
        ({"max_tokens": 1025}, "from 1 to 1024, got 1025"),
        ({"temperature": -1}, "temperature must be at least 0"),
        ({"temperature": float("nan")}, "temperature must be at least 0"),
        ({"top_p": 0}, r"top_p in \(0, 1\]"),
        ({"seed": -1}, "seed must be an integer from 0 to 9007199254740991, got -1"),
        ({"seed": 2**53}, "seed must be an integer from 0 to 9007199254740991, got 9007199254740992"),
        ({"seed_index": 2}, "the run has 2 seeds, so the index must be below 2"),
        ({"model": "judge"}, "a run of reward-model, which does not train a language model"),
        ({"model": "table"}, "a run of q-learning, which does not train a language model"),
        ({"reward_model": "words"}, "a run of sft, which does not train a reward model"),
    ],
)
def test_invalid_prompts_are_rejected(folder, change, message):
    given = {"model": "words", "prompt": "abc", "before": [], "max_tokens": 3} | change
    with pytest.raises(ValueError, match=message):
        chat.answer(folder, **given)
    assert not chat._open


@pytest.mark.parametrize("name", ["none", "../words", "saved", "saved/../words", "/etc", "", "words\0"])
def test_models_outside_the_folder_are_not_found(folder, name):
    with pytest.raises(NotFoundError):
        chat.answer(folder, model=name, prompt="a", before=[])
    if name:
        with pytest.raises(NotFoundError):
            chat.answer(folder, model="words", prompt="a", before=[], reward_model=name)


def test_code_of_a_run_is_not_run(folder, tmp_path, monkeypatch):
    marker = tmp_path / "ran"
    foreign = folder / "foreign"
    foreign.mkdir()
    (foreign / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n", encoding="utf-8")
    text = (folder / "words" / "config.toml").read_text(encoding="utf-8")
    hostile = text.replace('algorithm = "sft"', f'algorithm = "{foreign}/evil.py:Learner"')
    assert hostile != text
    (foreign / "config.toml").write_text(hostile, encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(ValueError, match="does not train a language model"):
        chat.answer(folder, model="foreign", prompt="a", before=[])
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["model", "reward_model"])
def test_code_of_a_run_at_the_start_of_another_is_not_run(folder, tmp_path, kind):
    marker, first, second = tmp_path / "ran", tmp_path / "first", folder / f"second-{kind}"
    first.mkdir()
    (first / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n", encoding="utf-8")
    shutil.copytree(folder / ("words" if kind == "model" else "judge"), second)
    text = (second / "config.toml").read_text(encoding="utf-8")
    (second / "config.toml").write_text(text.replace('init = ""', f'init = "{first}"'), encoding="utf-8")
    words = (folder / "words" / "config.toml").read_text(encoding="utf-8")
    hostile = words.replace('algorithm = "sft"', f'algorithm = "{first}/evil.py:Learner"')
    (first / "config.toml").write_text(hostile, encoding="utf-8")
    with pytest.raises(ValueError, match=r"starts from .*first, a run of .*evil.py:Learner, which is custom code"):
        chat.answer(folder, **{"model": "words", "prompt": "a", "before": []} | {kind: second.name})
    assert not marker.exists()
    (first / "config.toml").write_text(words.replace('init = ""', f'init = "{first}"'), encoding="utf-8")
    with pytest.raises(ValueError, match="which starts from itself"):
        chat.answer(folder, **{"model": "words", "prompt": "a", "before": []} | {kind: second.name})


def test_only_two_models_stay_in_memory(folder):
    for given in ({}, {"seed_index": 1}, {"model": "saved/model"}):
        whole(folder, "abc", **given)
    assert len({id(writing.speaker) for writing in chat._open.values()}) == 2
    assert len(chat._open) == 2
