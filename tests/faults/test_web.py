"""The web app when processes die, several users write concurrently, and requests are malicious."""

import http.client
import importlib
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from operant.language.preferences import PreferenceStore, agreement, new_event_id
from operant.web.safety import MOST_BYTES
from operant.web.worker import FUNCTIONS, answer
from web.folders import make_run  # type: ignore[import-not-found]

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")

PROMPTS = 12
SECONDS = 120
ANNOTATORS, LABELS, KILLS = 8, 1000, 10
LOST = (OSError, ValueError, http.client.HTTPException)
"""What a client sees of a server that is killed before, during or after its answer."""


def spoken(runs, prompts=PROMPTS):
    """Make a run with answers to label."""
    run = make_run(runs / "spoken", [[0.5]])
    with run.samples_path.open("w", encoding="utf-8") as file:
        for prompt, text in ((f"question {i}", text) for i in range(prompts) for text in ("yes", "no")):
            sample = {"consumed": 5, "seed": 0, "prompt": prompt, "completion": text, "reward": 1.0}
            file.write(json.dumps(sample | {"truncated": False, "temperature": 0.0}) + "\n")
    return run


class Server:
    """Process of `operant serve` in a separate process group."""

    def __init__(self, runs, port=0):
        command = [sys.executable, "-m", "operant", "serve", "--no-browser", "--port", str(port), "--runs", str(runs)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = self.process.stdout.readline().strip().rstrip("/")
        self.port = int(self.address.rpartition(":")[2])

    def request(self, name, **arguments):
        headers = {"content-type": "application/json", "x-operant": "1"}
        return urllib.request.Request(f"{self.address}/api/{name}", json.dumps(arguments).encode(), headers)  # noqa: S310

    def ask(self, name, **arguments):
        try:
            with urllib.request.urlopen(self.request(name, **arguments), timeout=SECONDS) as response:  # noqa: S310
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def send(self, data, *, wait=True):
        """Send raw bytes, and return the first line of the response."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS) as connection:
            connection.sendall(data)
            return connection.recv(4096).split(b"\r\n", 1)[0] if wait else b""

    def workers(self):
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        return [int(child) for child in children.split()]

    def megabytes(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1000

    def kill(self):
        workers = self.workers() if self.process.poll() is None else []
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        return workers


@pytest.fixture
def serve():
    """Return a function that starts servers; those that still run after the test are killed."""
    started = []

    def begin(runs, port=0):
        started.append(Server(runs, port))
        return started[-1]

    yield begin
    for server in started:
        with suppress(OSError):
            server.kill()


def stored(runs):
    with PreferenceStore(runs / "spoken" / "preferences.sqlite") as store:
        return store.labels()


def in_background(action):
    def quietly():
        with suppress(*LOST):
            action()

    thread = threading.Thread(target=quietly, daemon=True)
    thread.start()
    return thread


def label(server, state, event_id, annotator="ann", outcome="A"):
    item = state["item"]
    return server.ask(
        "labels/record",
        run="spoken",
        annotator=annotator,
        item_id=item["id"],
        outcome=outcome,
        event_id=event_id,
        seconds=1.0,
    )


def test_f20_a_server_killed_after_the_commit_leaves_one_label(tmp_path, serve):
    spoken(tmp_path / "runs")
    server = serve(tmp_path / "runs")
    _, state = server.ask("labels/following", run="spoken", annotator="ann")
    event_id, journal = new_event_id(), tmp_path / "runs" / "spoken" / "preferences.events.jsonl"
    in_background(lambda: label(server, state, event_id))
    deadline = time.monotonic() + SECONDS
    while event_id not in (journal.read_text(encoding="utf-8") if journal.exists() else ""):
        assert time.monotonic() < deadline
    server.kill()
    assert [event.event_id for event in stored(tmp_path / "runs")] == [event_id]
    status, answer = label(serve(tmp_path / "runs"), state, event_id)
    assert (status, answer["saved"], answer["answered"]) == (200, True, 1)
    assert len(stored(tmp_path / "runs")) == 1


def test_f21_a_server_killed_before_the_commit_leaves_none_and_the_page_may_send_again(tmp_path, serve):
    spoken(tmp_path / "runs")
    server = serve(tmp_path / "runs")
    _, state = server.ask("labels/following", run="spoken", annotator="ann")
    for worker in server.workers():
        os.kill(worker, signal.SIGSTOP)
    event_id = new_event_id()
    in_background(lambda: label(server, state, event_id))
    time.sleep(0.5)
    for worker in server.kill():
        os.kill(worker, signal.SIGKILL)
    assert stored(tmp_path / "runs") == []
    assert label(serve(tmp_path / "runs"), state, event_id)[0] == 200
    assert [event.event_id for event in stored(tmp_path / "runs")] == [event_id]


def test_f22_eight_concurrent_annotators_and_undo_in_between(tmp_path, serve):
    spoken(tmp_path / "runs", prompts=6)
    server = serve(tmp_path / "runs")
    kept: dict[str, list[str]] = {}

    def work(name, place):
        state = server.ask("labels/following", run="spoken", annotator=name, overlap=8)[1]
        kept[name] = []
        while state["item"] is not None:
            outcome = ("A", "B", "tie")[(place + len(kept[name])) % 3]
            status, _ = label(server, state, event := new_event_id(), name, outcome)
            assert status == 200
            kept[name].append(event)
            if place % 2 and len(kept[name]) == 3:
                assert server.ask("labels/undo", run="spoken", annotator=name, event_id=new_event_id())[1]["undone"]
                kept[name].pop()
                place += 1  # once
            state = server.ask("labels/following", run="spoken", annotator=name, overlap=8)[1]

    threads = [threading.Thread(target=work, args=(f"person {place}", place)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    with PreferenceStore(tmp_path / "runs" / "spoken" / "preferences.sqlite") as store:
        labels, events = store.labels(), store.events()
        found = agreement(store.items(), labels)
        again = agreement(store.items(), sorted(labels, key=lambda event: event.event_id))
    assert sorted(event.event_id for event in labels) == sorted(event for own in kept.values() for event in own)
    assert len({event.event_id for event in events}) == len(events)
    assert {name: sum(event.annotator == name for event in labels) for name in kept} == dict.fromkeys(kept, 6)
    assert repr(found) == repr(again)


class Annotator(threading.Thread):
    """Client that labels everything, and sends a label again, with its id, until it is acknowledged."""

    def __init__(self, server, name, acknowledged):
        super().__init__(daemon=True)
        self.server, self.acknowledged, self.again = server, acknowledged, 0
        self.asked = {"run": "spoken", "annotator": name, "overlap": ANNOTATORS}
        self.name_ = name

    def patiently(self, action):
        while True:
            with suppress(*LOST):
                status, answer = action()
                if status == 200:
                    return answer
            self.again += 1
            time.sleep(0.05)

    def run(self):
        state = self.patiently(lambda: self.server.ask("labels/following", **self.asked))
        while (item := state["item"]) is not None:
            known = {"item": item}, new_event_id(), self.name_
            self.patiently(lambda known=known: label(self.server, *known))
            self.acknowledged.append((item["id"], *known[1:]))
            state = self.patiently(lambda: self.server.ask("labels/following", **self.asked))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_f20_a_thousand_labels_of_eight_people_while_the_server_is_killed_ten_times(tmp_path, serve):
    spoken(tmp_path / "runs", prompts=LABELS // ANNOTATORS)
    server = serve(tmp_path / "runs")
    acknowledged: list[tuple[str, str, str]] = []
    people = [Annotator(server, f"person {i}", acknowledged) for i in range(ANNOTATORS)]
    for person in people:
        person.start()
    for killed in range(KILLS):
        while len(acknowledged) < (killed + 1) * LABELS // (KILLS + 2):
            time.sleep(0.01)
        server.kill()
        server = serve(tmp_path / "runs", server.port)
    for person in people:
        person.join(1000)
    with PreferenceStore(tmp_path / "runs" / "spoken" / "preferences.sqlite") as store:
        found = sorted((event.item_id, event.event_id, event.annotator) for event in store.labels())
        events = store.events()
    assert found == sorted(acknowledged)
    assert len(found) == LABELS
    assert len(set(events_of := [event.event_id for event in events])) == len(events_of) == LABELS
    assert sum(person.again for person in people) >= KILLS


def test_f22_two_browsers_of_one_annotator_store_one_label(tmp_path, serve):
    spoken(tmp_path / "runs")
    server = serve(tmp_path / "runs")
    _, state = server.ask("labels/following", run="spoken", annotator="ann")
    answers = []
    threads = [
        threading.Thread(
            target=lambda own: answers.append(label(server, state, new_event_id(), outcome=own)[0]), args=(own,)
        )
        for own in ("A", "B", "tie", "A")
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(answers) == [200, 409, 409, 409]
    assert len(stored(tmp_path / "runs")) == 1


def test_f23_a_missing_or_damaged_database_is_never_silently_empty(tmp_path, serve):
    spoken(tmp_path / "runs")
    server = serve(tmp_path / "runs")
    for _ in range(3):
        _, state = server.ask("labels/following", run="spoken", annotator="ann")
        assert label(server, state, new_event_id())[0] == 200
    before = [event.event_id for event in stored(tmp_path / "runs")]
    folder = tmp_path / "runs" / "spoken"
    for damage in ("gone", "garbage"):
        server.kill()
        for file in folder.glob("preferences.sqlite*"):
            file.unlink() if damage == "gone" else file.write_bytes(b"no database at all" * 100)
        server = serve(tmp_path / "runs")
        status, state = server.ask("labels/following", run="spoken", annotator="ann")
        if status == 200:
            assert state["answered"] == 3, damage
            assert [event.event_id for event in stored(tmp_path / "runs")] == before
        else:
            assert status == 409, state
            assert "preferences" in state


@pytest.mark.parametrize(
    ("request_line", "headers"),
    [
        (b"GET / HTTP/1.1", b"Host: evil.example\r\n"),
        (b"GET / HTTP/1.1", b""),
        (b"GET / HTTP/1.0", b""),
        (b"GET / HTTP/1.0", b"Host: evil.example\r\n"),
        (b"GET http://evil.example/ HTTP/1.1", b"Host: evil.example\r\n"),
        (b"GET / HTTP/1.1", b"Host: 127.0.0.1:PORT\r\nHost: evil.example\r\n"),
        (
            b"POST /api/about HTTP/1.1",
            b"Host: 127.0.0.1:PORT\r\nOrigin: null\r\nContent-Type: application/json\r\nX-Operant: 1\r\n",
        ),
        (b"POST /api/about HTTP/1.1", b"Host: 127.0.0.1:PORT\r\nContent-Type: text/plain\r\n"),
        (b"POST /api/about HTTP/1.1", b"Host: 127.0.0.1:PORT\r\nContent-Type: multipart/form-data; boundary=x\r\n"),
        (b"GET /events?runs=&file=metrics HTTP/1.1", b"Host: 127.0.0.1:PORT\r\nSec-Fetch-Site: cross-site\r\n"),
        (b"DELETE /api/about HTTP/1.1", b"Host: 127.0.0.1:PORT\r\n"),
    ],
)
def test_f24_requests_that_no_page_sends_get_a_4xx(request_line, headers, idle_server):
    port = str(idle_server.port).encode()
    data = request_line + b"\r\n" + headers.replace(b"PORT", port) + b"Content-Length: 2\r\nConnection: close\r\n\r\n{}"
    assert idle_server.send(data).split()[1].startswith(b"4")


@pytest.fixture(scope="module")
def idle_server(tmp_path_factory):
    """Return a server without runs."""
    server = Server(tmp_path_factory.mktemp("idle"))
    yield server
    server.kill()


NAMES = (
    *(
        "../secret",
        "one/../../secret",
        "%2e%2e/secret",
        "%252e%252e/secret",
        "..\\secret",
        "one\0",
        "/etc",
        "link",
        "a" * 5000,
    ),
    *("\\\\host\\share", "C:\\x", "CON", "one/", "./one", ".", "..", "", "one//two", "\u202e", "one\n", "~root"),
)


def test_f25_no_name_leads_out_of_the_folder_of_runs(tmp_path):
    runs, secret = tmp_path / "runs", tmp_path / "secret"
    make_run(runs / "one", [[0.1]])
    make_run(secret, [[0.1]])
    (runs / "link").symlink_to(secret)
    opened: list[str] = []
    watching = True

    def audit(event, arguments):
        if watching and event in ("open", "os.scandir", "os.listdir") and isinstance(arguments[0], str | os.PathLike):
            opened.append(os.fspath(arguments[0]))

    sys.addaudithook(audit)
    for function in FUNCTIONS:
        package, _, word = function.partition(".")
        if package in ("playground", "explorables") or word in ("index", "models", "batches"):  # which have no name
            continue
        for name in NAMES:
            arguments = {
                "run": name,
                "name": name,
                "at": 0,
                "names": [name],
                "metric": name,
                "event_id": "x",
                "seconds": 1,
            }
            arguments |= {"source": name, "consumed": 1, "seed": 0, "annotator": "ann", "item_id": name, "outcome": "A"}
            module, _, found = FUNCTIONS[function].partition(":")
            wanted = set(inspect.signature(getattr(importlib.import_module(module), found)).parameters)
            given = {key: value for key, value in arguments.items() if key in wanted}
            status, body = answer(runs, json.dumps([function, given]).encode())
            assert 400 <= status < 500, (function, name, body)
    watching = False
    outside = [path for path in opened if Path(path).resolve().is_relative_to(secret.resolve())]
    assert outside == []


def test_f27_slow_and_large_requests_are_bounded(tmp_path, serve):
    make_run(tmp_path / "runs" / "one", [[0.1]])
    server = serve(tmp_path / "runs")
    assert server.ask("about")[0] == 200
    before = server.megabytes()
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
    for connection in slow:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
    streams = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(70)]
    host = f"Host: 127.0.0.1:{server.port}\r\n".encode()
    for stream in streams:
        stream.sendall(b"GET /events?runs=one&file=metrics HTTP/1.1\r\n" + host + b"\r\n")
    statuses = []
    for stream in streams:
        stream.settimeout(SECONDS)
        statuses.append(stream.recv(4096).split(b" ", 2)[1])
    assert statuses.count(b"503") == 70 - statuses.count(b"200") >= 1
    head = b"POST /api/about HTTP/1.1\r\n" + host + b"Content-Type: application/json\r\nX-Operant: 1\r\n"
    assert b" 413 " in server.send(head + b"Content-Length: 1000000000\r\n\r\n")
    with suppress(OSError), socket.create_connection(("127.0.0.1", server.port), timeout=SECONDS) as endless:
        endless.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(200):
            endless.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
    deep = b"[" * (MOST_BYTES // 2)
    assert server.send(head + f"Content-Length: {len(deep)}\r\n\r\n".encode() + deep).split()[1] in (b"400", b"200")
    assert server.ask("about")[0] == 200
    assert server.megabytes() < before + 60
    for connection in (*slow, *streams):
        connection.close()
    assert server.ask("runs/index")[0] == 200
