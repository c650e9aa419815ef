import json
import logging
import sqlite3

import pytest

from operant.language.preferences import Completion, Item, PreferenceStore, StoreError, new_event_id
from operant.language.preferences.journal import Journal, event_of, item_of, journal_path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "preferences.sqlite"


def fill(path, first, last):
    with PreferenceStore(path) as store:
        for n in range(first, last):
            store.add_item(Item.of(f"p{n}\nü", [Completion("a", {"seed": n}), "b", "c"]))
            at = store.next_item("ann")
            stamps = {"event_id": new_event_id(), "shown_at": 1.0, "answered_at": 2.0}
            store.record(at, "ranking", ranks=[1, 2, 2], **stamps)
        store.undo("ann", event_id=new_event_id())
        return store.log(), store.pseudonym_key()


def lines(path):
    return [json.loads(line) for line in journal_path(path).read_text(encoding="utf-8").splitlines()]


def test_the_copy_is_the_log(path):
    log, key = fill(path, 0, 3)
    header, *records = lines(path)
    assert header == {"type": "header", "schema_version": 1, "sequence": 0, "pseudonyms": key}
    assert records == json.loads(json.dumps(log))
    assert [record["sequence"] for record in records] == list(range(1, 8))
    assert journal_path(path).name == "preferences.events.jsonl"
    assert journal_path(path).stat().st_mode & 0o077 == 0


def test_lines_turn_into_items_and_events_again(path):
    fill(path, 0, 2)
    with PreferenceStore(path) as store:
        records = lines(path)[1:]
        assert [item_of(r) for r in records if r["type"] == "item"] == store.items()
        assert [event_of(r) for r in records if r["type"] == "event"] == store.events()


def test_a_torn_line_is_cut_off_and_what_is_missing_is_added(path):
    fill(path, 0, 2)
    whole = journal_path(path).read_bytes()
    for size in (len(whole) - 1, len(whole) - 200, whole.index(b"\n") + 1, 40, 0):
        journal_path(path).write_bytes(whole[:size])
        PreferenceStore(path).close()
        assert journal_path(path).read_bytes() == whole


def test_a_lost_copy_is_written_again(path):
    fill(path, 0, 2)
    whole = journal_path(path).read_bytes()
    journal_path(path).unlink()
    PreferenceStore(path).close()
    assert journal_path(path).read_bytes() == whole


def test_a_lost_database_is_not_treated_as_an_empty_one(path):
    fill(path, 0, 2)
    path.unlink()
    for _ in range(2):
        with pytest.raises(StoreError, match=r"holds 5 entries and the database only 0: .*--rebuild"):
            PreferenceStore(path)
    assert len(lines(path)) == 6


def test_a_damaged_copy_is_named(path):
    fill(path, 0, 1)
    with journal_path(path).open("ab") as file:
        file.write(b"{}\n")
    with pytest.raises(StoreError, match=r"the last line of .* is damaged; the database is whole"):
        PreferenceStore(path)


def test_two_stores_keep_one_copy(path):
    with PreferenceStore(path) as first, PreferenceStore(path) as second:
        for n in range(6):
            (first, second)[n % 2].add_item(Item.of(f"p{n}", "ab"))
    assert [record.get("prompt") for record in lines(path)[1:]] == [f"p{n}" for n in range(6)]


def test_an_item_stored_while_the_copy_is_written_is_copied_once(path):
    def other_process(statement):
        if "FROM items WHERE sequence >" in statement and not stored:
            with sqlite3.connect(path) as connection:  # a commit whose process has not updated the copy yet
                connection.execute("INSERT INTO items VALUES (2, 'other', '\"p\"', NULL, '{}')")
            stored.append(2)

    stored = []
    with PreferenceStore(path) as store:
        store._connection.set_trace_callback(other_process)
        store.add_item(Item.of("p0", "ab"))
        assert stored
        store.add_item(Item.of("p2", "ab"))
        assert [record["sequence"] for record in lines(path)] == [0, 1, 2, 3]


def test_answers_are_stored_even_if_the_copy_fails(path, caplog, monkeypatch):
    with PreferenceStore(path) as store:
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
            patch.setattr("os.write", lambda descriptor, data: len(data) // 2)
            store.add_item(Item.of("p0", "ab"))
            store.add_item(Item.of("p1", "ab"))
        assert caplog.text.count("lags behind the database until it can be written: the disk is full") == 1
        assert len(lines(path)) == 1
        store.add_item(Item.of("p2", "ab"))
    assert [record.get("prompt") for record in lines(path)[1:]] == ["p0", "p1", "p2"]


@pytest.mark.parametrize(
    ("record", "message"),
    [({"type": "item"}, "lacks 'completions'"), ({"type": "item", "completions": 3}, "lacks")],
)
def test_lines_that_are_no_items(record, message):
    with pytest.raises(ValueError, match=message):
        item_of(record)


def test_texts_that_were_changed_are_seen(path):
    fill(path, 0, 1)
    record = next(r for r in lines(path) if r["type"] == "item")
    record["completions"][0]["text"] = "better"
    with pytest.raises(ValueError, match=f"the texts of item {record['item_id']} were changed"):
        item_of(record)


def test_lines_that_are_no_events(path):
    fill(path, 0, 1)
    record = next(r for r in lines(path) if r["type"] == "event")
    for wrong in (record | {"more": 1}, {name: value for name, value in record.items() if name != "shown"}):
        with pytest.raises(ValueError, match="an event has missing or unknown fields"):
            event_of(wrong)


def test_a_folder_in_place_of_the_copy_is_an_error(path):
    journal_path(path).mkdir()
    with pytest.raises(StoreError, match="cannot be opened: Is a directory"):
        Journal(path)
