import re
import socket
import threading
import time
import warnings

import pytest

from operant.language.engines import connection
from operant.language.engines.connection import Connection, ServerError, loopback


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(connection, "PAUSE", 0.0)


def test_objects_go_there_and_back(listen):
    address = listen(lambda path, body, headers: (200, {"path": path, "body": body}))
    assert Connection(address).post("/a", {"x": [1, 2.5, None]}) == {"path": "/a", "body": {"x": [1, 2.5, None]}}
    assert Connection(address).get("/b") == {"path": "/b", "body": None}


@pytest.mark.parametrize("end", ["/", "/v1", "/v1/", "/prefix", "/prefix/v1"])
def test_an_address_may_have_a_path(listen, end):
    address = listen(lambda path, body, headers: (200, path))
    expected = "/prefix/v1/models" if "prefix" in end else "/v1/models"
    assert Connection(address + end).get("/v1/models") == expected


def test_an_empty_answer_is_none(listen):
    assert Connection(listen(lambda path, body, headers: (200, b""))).post("/") is None


def test_a_key_is_sent(listen, monkeypatch):
    address = listen(lambda path, body, headers: (200, headers["Authorization"]))
    assert Connection(address).get("/") is None
    monkeypatch.setenv(connection.KEY, "abc")
    assert Connection(address).get("/") == "Bearer abc"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_busy_server_is_asked_again(listen, status):
    answers = [(status, {}), (status, {}), (200, "at last")]
    assert Connection(listen(lambda *request: answers.pop(0))).get("/") == "at last"


def test_a_server_that_hangs_up_is_asked_again(listen):
    answers = [None, (200, "at last")]
    assert Connection(listen(lambda *request: answers.pop(0))).get("/") == "at last"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"error": {"message": "too long", "code": 400}}, "too long"),
        ({"error": "too long"}, "too long"),
        ({"message": "too long"}, "too long"),
        ({"detail": "too long"}, "too long"),
        (b"too long", "too long"),
        ({"error": {}}, "{'error': {}}"),
    ],
)
def test_a_rejection_has_a_reason_and_is_final(listen, answer, reason):
    asked = []

    def refuse(path, body, headers):
        asked.append(path)
        return 400, answer

    address = listen(refuse)
    with pytest.raises(ServerError) as caught:
        Connection(address).post("/v1/completions", {})
    assert str(caught.value) == f"{address}/v1/completions returned status 400: {reason}"
    assert caught.value.status == 400
    assert len(asked) == 1


def test_attempts_come_to_an_end(listen):
    asked = []

    def busy(path, body, headers):
        asked.append(path)
        return 503, {"error": "busy"}

    with pytest.raises(ServerError, match="returned status 503: busy"):
        Connection(listen(busy), attempts=4).get("/")
    assert len(asked) == 4


def test_pauses_grow(listen, monkeypatch):
    pauses = []
    monkeypatch.setattr(connection, "PAUSE", 0.5)
    monkeypatch.setattr(time, "sleep", pauses.append)
    with pytest.raises(ServerError):
        Connection(listen(lambda *request: (503, {})), attempts=4).get("/")
    assert pauses == [0.5, 1.0, 2.0]


def test_a_response_that_is_not_json_is_an_error(listen):
    with pytest.raises(ServerError, match="did not return JSON: '<html>'"):
        Connection(listen(lambda *request: (200, b"<html>"))).get("/")


def test_without_a_server():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(ServerError, match=rf"{address} cannot be reached \(.*refused\): is the server running"):
            Connection(address).get("/")


def test_a_server_that_does_not_answer(listen):
    asked, end = [], threading.Event()

    def wait(path, body, headers):
        asked.append(path)
        end.wait(20)

    address = listen(wait)
    with pytest.raises(ServerError, match=r"did not respond within 0\.1 seconds"):
        Connection(address, seconds=0.1, attempts=2).get("/")
    end.set()
    assert len(asked) == 2


@pytest.mark.parametrize("address", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", ""])
def test_an_address_that_is_none(address):
    with pytest.raises(ValueError, match=r"must be a URL such as http://127\.0\.0\.1:8000, got"):
        Connection(address)


@pytest.mark.parametrize("address", ["http://127.0.0.1:99999", "http://127.0.0.1:port", "http://[::1"])
def test_an_address_that_cannot_be_read_is_named(address):
    with pytest.raises(ValueError, match=re.escape(f"must be a URL, got {address!r}")):
        Connection(address)


@pytest.mark.parametrize("values", [{"seconds": 0}, {"attempts": 0}])
def test_values_that_cannot_work(values):
    with pytest.raises(ValueError, match="seconds must be above 0 and attempts at least 1"):
        Connection("http://127.0.0.1:1", **values)


@pytest.mark.parametrize("address", ["http://10.0.0.1:8000", "http://gpu.example.org"])
def test_other_machines_are_talked_to_with_a_warning(address):
    with pytest.warns(RuntimeWarning, match="is not encrypted: use https"):
        Connection(address)


@pytest.mark.parametrize("address", ["https://gpu.example.org", "http://localhost:1", "http://[::1]:1"])
def test_addresses_without_a_warning(address):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Connection(address)


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("10.1.1.1", False)],
)
def test_loopback(host, local):
    assert loopback(host) is local
