import pytest

from operant.language.preferences import Item, PreferenceStore, SimulatedAnnotator, StoreError, rebuild
from operant.language.preferences.journal import journal_path
from operant.language.preferences.recovery import read_lines


def reward(prompts, completions, completion_ids):
    return [float(ord(text)) for text in completions]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "preferences.sqlite"
    with PreferenceStore(path) as store:
        store.add_items(Item.of(f"p{n}", "abc", gold=[1, 2, 3]) for n in range(5))
        SimulatedAnnotator(reward).label(store)
        store.undo("simulated", event_id="u")
    return path


def content(path):
    with PreferenceStore(path) as store:
        return store.log(), store.labels(), store.pseudonym_key()


@pytest.mark.parametrize("damage", ["lost", "overwritten", "emptied", "whole"])
def test_a_database_is_restored(path, damage):
    before, copy = content(path), journal_path(path).read_bytes()
    if damage == "lost":
        path.unlink()
    elif damage != "whole":
        path.write_bytes(b"x" * 5000 if damage == "overwritten" else b"")
    if damage != "whole":
        with pytest.raises(StoreError, match="--rebuild"):
            PreferenceStore(path)
    assert rebuild(path) == 11
    assert content(path) == before
    assert journal_path(path).read_bytes() == copy
    names = {"preferences.sqlite", "preferences.events.jsonl", "preferences.sqlite.damaged-1"}
    assert {file.name for file in path.parent.iterdir()} == names


def test_damaged_databases_are_kept(path):
    path.write_bytes(b"first")
    rebuild(path)
    path.write_bytes(b"second")
    rebuild(path)
    kept = {n: path.with_name(f"preferences.sqlite.damaged-{n}").read_bytes() for n in (1, 2)}
    assert kept == {1: b"first", 2: b"second"}


def test_a_torn_copy_gives_what_it_has(path):
    journal = journal_path(path)
    journal.write_bytes(journal.read_bytes()[:-10])
    assert rebuild(path) == 10
    assert len(content(path)[1]) == 5  # the undo is the line that is lost


@pytest.mark.parametrize("line", [b"{torn", b"[]", b'{"type": "other"}'])
def test_a_damaged_copy_changes_nothing(path, line):
    before, journal = path.read_bytes(), journal_path(path)
    lines = journal.read_bytes().split(b"\n")
    journal.write_bytes(b"\n".join([*lines[:3], line, *lines[4:]]))
    with pytest.raises(StoreError, match=r"cannot be rebuilt from preferences\.events\.jsonl: .*"):
        rebuild(path)
    assert path.read_bytes() == before
    assert {file.name for file in path.parent.iterdir()} == {"preferences.sqlite", "preferences.events.jsonl"}


def test_a_line_that_is_missing_is_seen(path):
    journal = journal_path(path)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:8] + lines[9:]))
    with pytest.raises(StoreError, match="is not at its index 9: lines are missing"):
        rebuild(path)


def test_without_a_copy(tmp_path):
    with pytest.raises(StoreError, match="cannot be rebuilt"):
        rebuild(tmp_path / "preferences.sqlite")


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"a": "\xc3\xa9"}\n\n{"b": 1}')
    assert list(read_lines(path)) == [(1, {"a": "é"}), (3, {"b": 1})]
    path.write_bytes(b'{"a": 1}\n{"b"')
    assert list(read_lines(path, torn=True)) == [(1, {"a": 1})]
    with pytest.raises(ValueError, match="line 2 is no JSON"):
        list(read_lines(path))
    path.write_bytes(b'{"a"\n{"b": 1}\n')
    with pytest.raises(ValueError, match="line 1 is no JSON"):
        list(read_lines(path, torn=True))
