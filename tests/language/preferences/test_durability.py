"""Processes that write concurrently, that are killed, and that run out of disk space."""

import contextlib
import json
import multiprocessing
import resource
import signal
import sqlite3
import subprocess
import sys
import threading

import pytest

from operant.language.preferences import ConflictError, Item, PreferenceStore, StoreError, agreement, new_event_id
from operant.language.preferences.journal import journal_path
from operant.language.preferences.recovery import read_lines

ITEMS = 24

WRITER = """
import sys, time
from operant.language.preferences import PreferenceStore
mode = sys.argv[2]
with PreferenceStore(sys.argv[1]) as store:
    for n in range(24):
        at = store.next_item("ann")
        with store.transaction():
            store.record(at, "A", event_id=f"e{n}", shown_at=1.0, answered_at=2.0)
            if mode == "before":
                print(f"e{n}", flush=True)
                time.sleep(60)
        print(f"e{n}", flush=True)
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "preferences.sqlite"
    with PreferenceStore(path) as store:
        store.add_items(Item.of(f"p{n}", "ab") for n in range(ITEMS))
    return path


def check(path):
    """Check the invariants, and return the log of events."""
    with PreferenceStore(path) as store:
        events, labels, log = store.events(), store.labels(), store.log()
    assert [r for _, r in read_lines(journal_path(path))][1:] == json.loads(json.dumps(log))
    assert [event.sequence for event in events] == list(range(ITEMS + 1, ITEMS + 1 + len(events)))
    live = {}
    for event in events:  # the view equals a replay of the log
        held = live.pop((event.annotator, event.item_id), None)
        assert (held and held.event_id) == event.supersedes
        if event.kind == "label":
            live[event.annotator, event.item_id] = event
    assert sorted(labels, key=lambda e: e.sequence) == sorted(live.values(), key=lambda e: e.sequence)
    return events


def answer(store, at, **more):
    stamps = {"event_id": new_event_id(), "shown_at": 1.0, "answered_at": 2.0}
    return store.record(at, "A", **(stamps | more))


def work(path, name, barrier, results):
    """Label everything; every third answer is undone, sent twice or both."""
    with PreferenceStore(path) as store:
        barrier.wait(60)
        count = 0
        while (at := store.next_item(name, overlap=2)) is not None:
            event = answer(store, at)
            assert store.append(event) == event
            count += 1
            if count % 3 == 0 and count < 20:
                assert store.undo(name, event_id=new_event_id(), label=event.event_id) is not None
    results.put((name, count))


def test_several_processes_label_concurrently(path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["operant.language.preferences"])
    names = ["ann", "bob", "cho"]
    barrier, results = context.Barrier(len(names)), context.Queue()
    processes = [context.Process(target=work, args=(path, name, barrier, results)) for name in names]
    for process in processes:
        process.start()
    counts = dict(results.get(timeout=120) for _ in names)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    events = check(path)
    made = {name: sum(e.kind == "label" and e.annotator == name for e in events) for name in names}
    assert made == counts
    with PreferenceStore(path) as store:
        labels, items = store.labels(), store.items()
    judged = [sum(e.item_id == item.item_id for e in labels) for item in items]
    assert judged == [2] * ITEMS  # never more than the overlap, although all of them asked at the same time
    assert agreement(items, labels).labels == {"A": 2 * ITEMS}


def in_threads(*functions):
    """Call functions at the same moment, and return their results or errors."""
    barrier, results = threading.Barrier(len(functions)), [None] * len(functions)

    def call(i):
        barrier.wait()
        try:
            results[i] = functions[i]()
        except ConflictError as error:
            results[i] = error

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_two_windows_of_one_annotator(path):
    """Both windows show the same item and answer it: one answer is stored, the other window gets an error."""
    with PreferenceStore(path) as first, PreferenceStore(path) as second:
        for _ in range(10):
            at = first.next_item("ann")
            assert second.next_item("ann") == at
            results = in_threads(lambda at=at: answer(first, at), lambda at=at: answer(second, at))
            assert sorted(isinstance(result, ConflictError) for result in results) == [False, True]
    assert len(check(path)) == 10


def test_several_processes_open_a_new_store_concurrently(tmp_path):
    item = Item.of("p", "ab")

    def open_and_add():
        with PreferenceStore(tmp_path / "new.sqlite") as store:
            return store.add_item(item), store.pseudonym_key()

    results = in_threads(*[open_and_add] * 8)
    assert sorted(new for new, _ in results) == [False] * 7 + [True]
    assert len({key for _, key in results}) == 1


def test_the_same_post_from_eight_threads_is_one_label(path):
    with PreferenceStore(path) as store:
        at = store.next_item("ann")
        results = in_threads(*[lambda: answer(store, at, event_id="e")] * 8)
    assert results == check(path) * 8


def test_undo_races_with_an_answer(path):
    """In either order, the log is sequential, and nothing is undone twice."""
    with PreferenceStore(path) as first, PreferenceStore(path) as second:
        for _ in range(10):
            before = answer(first, first.next_item("ann"))
            at = first.next_item("ann")
            new, undone, also = in_threads(
                lambda at=at: answer(first, at),
                lambda e=before: second.undo("ann", event_id=new_event_id(), label=e.event_id),
                lambda e=before: first.undo("ann", event_id=new_event_id(), label=e.event_id),
            )
            assert new in first.labels()
            assert sorted(isinstance(result, ConflictError) for result in (undone, also)) == [False, True]
            assert before not in first.labels()
    check(path)


def start(path, mode):
    command = [sys.executable, "-c", WRITER, str(path), mode]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("after", [1, 17])
def test_acknowledged_answers_survive_a_kill(path, after):
    with start(path, "loop") as process:
        acknowledged = [process.stdout.readline().strip() for _ in range(after)]
        process.send_signal(signal.SIGKILL)
        acknowledged += process.stdout.read().split()
    stored = [event.event_id for event in check(path)]
    assert stored[: len(acknowledged)] == acknowledged
    assert len(stored) <= len(acknowledged) + 1  # one may have been stored and not yet acknowledged
    with PreferenceStore(path) as store:  # a client without a response sends the same again: one label
        at = store.present(store.items()[len(acknowledged) - 1].item_id, "ann")
        answer(store, at, event_id=acknowledged[-1])
    assert [event.event_id for event in check(path)] == stored


def test_a_kill_before_the_commit_stores_nothing(path):
    with start(path, "before") as process:
        assert process.stdout.readline() == "e0\n"
        process.send_signal(signal.SIGKILL)
    assert check(path) == []
    with PreferenceStore(path) as store:
        answer(store, store.next_item("ann"), event_id="e0")
    assert len(check(path)) == 1


@contextlib.contextmanager
def full_disk(limit):
    """Set a limit of ``limit`` bytes to the size of files; the kernel then truncates writes and returns an error."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_stores_nothing_and_raises_an_error(path):
    with PreferenceStore(path) as store:
        first = answer(store, store.next_item("ann"))
        at = store.next_item("ann")
        wal = path.with_name("preferences.sqlite-wal").stat().st_size
        for room in (0, 1000, 4200):
            with full_disk(wal + room), pytest.raises(StoreError, match="nothing was stored"):
                answer(store, at, event_id="second")
            assert store.events() == [first]
        answer(store, at, event_id="second")
    assert len(check(path)) == 2


def test_a_lost_write_ahead_log_is_noticed(path, tmp_path):
    """If a user copies the database without its WAL, the copy of the log has more events."""
    with PreferenceStore(path) as store:
        store._connection.execute("PRAGMA wal_autocheckpoint=0")
        answer(store, store.next_item("ann"))
        moved = tmp_path / "moved"
        moved.mkdir()
        for name in ("preferences.sqlite", "preferences.events.jsonl"):
            (moved / name).write_bytes(path.with_name(name).read_bytes())
    with pytest.raises(StoreError, match=r"and the database only .*--rebuild"):
        PreferenceStore(moved / "preferences.sqlite")


def test_the_tables_can_be_read_by_sqlite_alone(path):
    with PreferenceStore(path) as store:
        answer(store, store.next_item("ann"))
        connection = sqlite3.connect(path)
        assert connection.execute("SELECT annotator, outcome FROM labels").fetchall() == [("ann", "A")]
        connection.close()
