import os
import socket
import subprocess
import sys

import pytest

from operant.language.preferences import Item, PreferenceStore, new_event_id
from operant.language.preferences.reservations import RESERVED_SECONDS

WINDOW = """
import sys
from operant.language.preferences import PreferenceStore, new_event_id

store = PreferenceStore(sys.argv[1])
at = store.next_item("ann")
for line in sys.stdin:
    if line == "show\\n":
        print(at and at.prompt, flush=True)
    elif line == "answer\\n":
        store.record(at, "A", event_id=new_event_id(), shown_at=1.0, answered_at=2.0)
        at = store.next_item("ann")
        print(at and at.prompt, flush=True)
    elif line == "close\\n":
        store.close()
        print("closed", flush=True)
"""


@pytest.fixture
def store(tmp_path):
    with PreferenceStore(tmp_path / "preferences.sqlite") as store:
        store.add_items(Item.of(f"p{n}", ["a", "b"]) for n in range(4))
        yield store


@pytest.fixture
def window(store):
    """Return a function that opens another window of the same annotator, in a process with a pipe for commands."""
    processes = []

    def opened():
        command = [sys.executable, "-c", WINDOW, str(store.path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        processes.append(process)

        def tell(what):
            process.stdin.write(f"{what}\n")
            process.stdin.flush()
            return process.stdout.readline().strip()

        return process, tell

    yield opened
    for process in processes:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def answer(store, at):
    store.record(at, "A", event_id=new_event_id(), shown_at=1.0, answered_at=2.0)


def test_two_windows_never_show_the_same_question(store, window):
    first = store.next_item("ann")
    process, tell = window()
    assert (first.prompt, tell("show")) == ("p0", "p1")
    assert store.next_item("ann") == first, "a question stays in its own window"
    assert store.next_item("bob", overlap=2).prompt == "p0", "other annotators are not affected"
    assert tell("answer") == "p2"
    answer(store, first)
    assert store.next_item("ann").prompt == "p3"
    assert (store.waiting("ann"), store.waiting("bob")) == (1, 0)
    answer(store, store.next_item("ann"))
    assert store.next_item("ann") is None, "the remaining question is shown in the other window"
    process.kill()
    process.wait()
    assert store.waiting("ann") == 0, "the process of the window has died"
    assert store.next_item("ann").prompt == "p2"


def test_the_question_of_a_closed_window_is_free(store, window):
    _, tell = window()
    assert tell("show") == "p0"
    assert store.next_item("ann").prompt == "p1"
    assert tell("close") == "closed"
    assert store.waiting("ann") == 0
    assert store.next_item("ann").prompt == "p0"


def test_a_reservation_of_another_machine_ends_after_some_minutes(store):
    at = store.next_item("ann", now=1000.0)
    with store.transaction() as connection:
        connection.execute("UPDATE reservations SET host = 'elsewhere'")
    assert store.next_item("ann", now=1000.0 + RESERVED_SECONDS - 1).prompt == "p1"
    with store.transaction() as connection:
        connection.execute("DELETE FROM reservations WHERE host <> 'elsewhere'")
    assert store.next_item("ann", now=1000.0 + RESERVED_SECONDS) == at


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="only Linux tells when a process was started")  # noqa: PTH110
def test_a_number_of_a_process_that_is_used_again_holds_nothing(store):
    at = store.next_item("ann")
    with store.transaction() as connection:
        connection.execute("UPDATE reservations SET process = ?, started = '1 of another'", (os.getppid(),))
        (host,) = connection.execute("SELECT host FROM reservations").fetchone()
    assert host == socket.gethostname()
    assert store.next_item("ann") == at


def test_only_items_that_are_asked_for_are_shown(store):
    ids = [item.item_id for item in store.items()]
    assert store.next_item("ann", among=ids[2:]).prompt == "p2"
    assert store.next_item("ann", among=ids[:2]).prompt == "p0"
    assert store.next_item("ann", among=[]) is None
    assert store.next_item("ann").prompt == "p2", "questions that were shown and not answered come first"
