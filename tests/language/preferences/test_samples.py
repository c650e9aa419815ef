import json

import pytest

from operant.language.preferences import PreferenceStore, add_rows, add_samples
from operant.language.preferences.exporting import is_held_out
from operant.language.preferences.samples import read_samples


@pytest.fixture
def path(tmp_path):
    return tmp_path / "samples.jsonl"


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        yield store


def write(path, completions, *, consumed=0):
    """Append one sample per pair of prompt and completion."""
    with path.open("a") as file:
        for prompt, completion in completions:
            record = {"consumed": consumed, "seed": 3, "prompt": prompt, "completion": completion, "reward": None}
            file.write(json.dumps(record) + "\n")


def sets(store):
    return [(item.prompt, {c.text for c in item.completions}) for item in store.items()]


def test_prompts_with_two_different_completions_are_items(path, store):
    write(path, [("p", "a"), ("q", "a"), ("p", "b"), ("q", "a"), ("r", "x")])
    assert add_samples(store, path, run="first") == (1, 3)
    assert sets(store) == [("p", {"a", "b"})]
    provenance = {"run": "first", "consumed": 0, "seed": 3, "reward": None}
    assert all(c.provenance == provenance for c in store.items()[0].completions)


@pytest.mark.parametrize(("size", "groups"), [(2, [2, 2, 2]), (3, [3, 3]), (4, [4, 3]), (6, [6]), (9, [7])])
def test_many_completions_are_cut_into_groups(path, store, size, groups):
    write(path, [("p", c) for c in "abcdefg"])
    add_samples(store, path, run="r", completions=size)
    found = [c for _, texts in sets(store) for c in texts]
    assert [len(texts) for _, texts in sets(store)] == [n for n in groups if n > 1]
    assert len(found) == len(set(found))


def test_the_same_samples_add_nothing_and_new_ones_what_is_new(path, store):
    write(path, [("p", c) for c in "abcd"])
    assert add_samples(store, path, run="r")[0] == 2
    assert add_samples(store, path, run="r", seed=7)[0] == 0
    write(path, [("p", c) for c in "aefb"], consumed=100)
    assert add_samples(store, path, run="r")[0] == 1
    assert sets(store)[-1] == ("p", {"e", "f"})
    assert store.items()[-1].completions[0].provenance["consumed"] == 100


def test_the_grouping_belongs_to_the_seed(tmp_path, path):
    write(path, [("p", c) for c in "abcdefgh"])
    found = []
    for name, seed in (("x", 0), ("y", 0), ("z", 1)):
        with PreferenceStore(tmp_path / name) as store:
            add_samples(store, path, run="r", seed=seed)
            found.append(sets(store))
    assert found[0] == found[1] != found[2]


def test_invalid_samples_are_left_out(path):
    write(path, [("p", "NaN")])
    with path.open("ab") as file:
        file.write(b'\n[1]\n\xff\n{"prompt": "p"}\n{"prompt": "p", "compl')
    assert [record["completion"] for record in read_samples(path)] == ["NaN"]


def test_one_completion_is_no_comparison(path, store):
    with pytest.raises(ValueError, match="completions must be at least 2, got 1"):
        add_samples(store, path, run="r", completions=1)


def test_without_samples(path, store):
    with pytest.raises(FileNotFoundError):
        add_samples(store, path, run="r")


def test_answers_of_examples_are_asked_about(tmp_path):
    rows = [{"prompt": "p", "completions": ["a", "b", "c", "a"]}, {"prompt": "q", "completions": ["x", "y"]}]
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        assert add_rows(store, rows, file="mine.jsonl") == 2
        assert add_rows(store, rows, file="mine.jsonl") == 0
        assert sorted(str(item.prompt) for item in store.items()) == ["p", "q"]
        assert not store.labels()
        assert not any(map(is_held_out, store.items()))
        with pytest.raises(ValueError, match="of the kind prompt-only"):
            add_rows(store, [{"prompt": "alone"}], file="mine.jsonl")
