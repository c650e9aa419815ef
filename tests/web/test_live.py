import asyncio
import json
import os
import threading

import pytest
from starlette.requests import Request

from operant.web import live
from operant.web.curves import Columns
from operant.web.live import Streams, event, offsets_of, whole_bytes
from web.folders import make_run  # type: ignore[import-not-found]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Read the files a hundred times a second."""
    monkeypatch.setattr(live, "SECONDS", 0.01)


def asked(query, **headers):
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": "/events", "query_string": query.encode(), "headers": pairs}
    return Request(scope)


def read(text):
    """Return the fields of an event."""
    return dict(line.split(": ", 1) for line in text.decode().splitlines() if line and not line.startswith(":"))


async def news(response, count):
    """Return the next events, without the first setting of the stream."""
    found = []
    async for chunk in response.body_iterator:
        if not chunk.startswith((b"retry", b":")):
            found.append(read(chunk))
        if len(found) == count:
            break
    return found


@pytest.fixture
def run(tmp_path):
    """Return a run with records."""
    return make_run(tmp_path / "runs" / "one", [[0.1, 0.2]] * 3, metrics=5)


def append(path, text):
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_bytes_of_whole_lines(tmp_path):
    path = tmp_path / "file"
    assert whole_bytes(path) == 0
    for text, expected in (("", 0), ("ab", 0), ("ab\n", 3), ("ab\nc", 3), ("ab\ncd\n", 6), ("x\n" + "y" * 200_000, 2)):
        path.write_text(text, encoding="utf-8")
        assert whole_bytes(path) == expected


def test_only_the_end_of_a_file_is_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "MOST_TAIL", 100_000)
    path = tmp_path / "file"
    for text, expected in (("ab\n" + "x" * 99_999, 3), ("ab\n" + "x" * 100_000, 0)):
        path.write_text(text, encoding="utf-8")
        assert whole_bytes(path) == expected


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_does_not_block(run):
    run.metrics_path.unlink()
    os.mkfifo(run.metrics_path)
    found = []

    def follow():
        found.append(whole_bytes(run.metrics_path))
        found.append(Columns().read(run.metrics_path, "a").consumed.tolist())

    reader = threading.Thread(target=follow, daemon=True)  # opening a pipe waits until another process writes to it
    reader.start()
    reader.join(5)
    assert found == [0, []]


def test_a_slow_file_system_does_not_stop_the_server(run, monkeypatch):
    opened = threading.Event()

    def slow(path):
        return 1 if opened.wait(timeout=20) else 0

    monkeypatch.setattr(live, "whole_bytes", slow)

    async def follow():
        response = await Streams(run.path.parent).answer(asked("runs=one&file=metrics"))
        waiting = asyncio.ensure_future(news(response, 1))
        for _ in range(3):
            await asyncio.sleep(0.01)
        opened.set()
        return await waiting

    assert asyncio.run(follow())[0]["id"] == "1"


@pytest.mark.parametrize(
    ("text", "count", "expected"),
    [
        ("12-0", 2, [12, 0]),
        ("7", 1, [7]),
        ("", 1, None),
        ("7-8", 1, None),
        ("-1", 1, None),
        ("a", 1, None),
        ("", 0, None),
    ],
)
def test_an_id_is_read(text, count, expected):
    assert offsets_of(text, count) == expected


def test_an_event_contains_the_sizes_of_files():
    found = read(event([12, 0]))
    assert (found["id"], json.loads(found["data"])) == ("12-0", {"bytes": [12, 0]})


def test_new_evaluations_are_sent(run):
    async def follow():
        response = await Streams(run.path.parent).answer(asked("runs=one&file=evaluations"))
        assert response.media_type == "text/event-stream"
        (first,) = await news(response, 1)
        return first

    first = asyncio.run(follow())
    assert json.loads(first["data"])["bytes"] == [run.evaluations_path.stat().st_size]


def test_events_follow_one_another(run):
    async def follow():
        streams = Streams(run.path.parent)
        response = await streams.answer(asked("runs=one&file=metrics"))
        iterator = response.body_iterator
        assert (await anext(iterator)).startswith(b"retry")
        first = read(await anext(iterator))
        assert streams.open == 1
        append(run.metrics_path, '{"consumed": 99, "torn"')
        await asyncio.sleep(0.05)
        append(run.metrics_path, ": 1}\n")
        second = read(await anext(iterator))
        streams.end()
        rest = [chunk async for chunk in iterator]
        return first, second, rest, streams.open

    first, second, rest, left = asyncio.run(follow())
    assert int(second["id"]) == run.metrics_path.stat().st_size == whole_bytes(run.metrics_path)
    assert int(first["id"]) < int(second["id"])
    assert (rest, left) == ([], 1), "it counts until it is sent"


def test_a_reconnected_page_receives_only_new_events(run):
    size = run.evaluations_path.stat().st_size

    async def resumed(known):
        streams = Streams(run.path.parent)
        response = await streams.answer(asked("runs=one&file=evaluations", last_event_id=known))
        iterator = response.body_iterator
        await anext(iterator)
        waiting = asyncio.ensure_future(anext(iterator))
        done, _ = await asyncio.wait([waiting], timeout=0.3)
        waiting.cancel()
        return bool(done)

    assert not asyncio.run(resumed(str(size)))
    assert asyncio.run(resumed(str(size - 10)))
    assert asyncio.run(resumed("nonsense"))


@pytest.mark.parametrize("name", ["two", "set/two", "a/b/two", "a/two", "a/c/two"])
def test_the_list_of_runs_changes(run, name):
    make_run(run.path.parent / "a" / "b" / "zero", [[0.1]])

    async def follow():
        response = await Streams(run.path.parent).answer(asked("runs=one&file=metrics"))
        iterator = response.body_iterator
        await anext(iterator)
        await anext(iterator)
        make_run(run.path.parent / name, [[0.1]])
        return read(await asyncio.wait_for(anext(iterator), 5))

    assert asyncio.run(follow())["event"] == "list"


def test_a_folder_of_runs_that_is_created_later(tmp_path):
    async def follow():
        response = await Streams(tmp_path / "runs").answer(asked("runs=&file=metrics"))
        iterator = response.body_iterator
        await anext(iterator)
        found = [await anext(iterator)]
        for name in ("set/one", "set/two"):
            make_run(tmp_path / "runs" / name, [[0.1]])
            found.append(await asyncio.wait_for(anext(iterator), 5))
        return found

    first, *rest = asyncio.run(follow())
    assert read(first)["id"] == ""
    assert [read(each)["event"] for each in rest] == ["list", "list"]


def test_a_silent_stream_shows_that_it_is_alive(run, monkeypatch):
    monkeypatch.setattr(live, "SILENCE", 0.03)

    async def follow():
        response = await Streams(run.path.parent).answer(asked("runs=&file=metrics"))
        return [chunk async for chunk in _first(response.body_iterator, 3)]

    async def _first(iterator, count):
        for _ in range(count):
            yield await anext(iterator)

    assert asyncio.run(follow())[-1] == b":\n\n"


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        ("runs=one&file=metrics", {"sec_fetch_site": "cross-site"}, 403),
        ("runs=one&file=metrics", {"sec_fetch_site": "same-site"}, 403),
        ("runs=one", {}, 400),
        ("runs=one&file=config.toml", {}, 400),
        ("runs=one&file=../config", {}, 400),
        ("file=metrics&runs=" + ",".join(["one"] * 65), {}, 400),
        ("runs=two&file=metrics", {}, 404),
        ("runs=../one&file=metrics", {}, 404),
        ("runs=%2e%2e/one&file=metrics", {}, 404),
    ],
)
def test_invalid_subscriptions_are_rejected(run, query, headers, status):
    answer = asyncio.run(Streams(run.path.parent).answer(asked(query, **headers)))
    assert answer.status_code == status


def test_streams_are_no_more_than_some(run):
    async def many():
        streams = Streams(run.path.parent)
        answers, sent, last = [], [], None
        for _ in range(live.MOST_STREAMS + 3):
            answer = await streams.answer(asked("runs=one&file=metrics"))
            answers.append(answer.status_code)
            last = answer if answer.status_code == 200 else last
        streams.end()

        async def send(message):
            sent.append(message)

        await last({"type": "http", "asgi": {"spec_version": "2.4"}}, None, send)
        again = await streams.answer(asked("runs=one&file=metrics"))
        return [*answers, again.status_code]

    assert asyncio.run(many()) == [200] * live.MOST_STREAMS + [503] * 3 + [200]
