import asyncio

import pytest

from operant.language.engines.connection import KEY as SENT
from operant.language.engines.gate import KEY, Gate


@pytest.fixture
def serve(monkeypatch):
    """Return a function that sends a request through a gate, and returns its response and whether it was forwarded."""
    monkeypatch.setenv(KEY, "secret")
    passed, sent = [], []

    async def app(scope, receive, send):
        passed.append(scope)

    async def send(message):
        sent.append(message)

    def serve(kind="http", *headers):
        passed.clear()
        sent.clear()
        asyncio.run(Gate(app)({"type": kind, "path": "/collective_rpc", "headers": headers}, None, send))
        return bool(passed), [message.get("status", message.get("code")) for message in sent]

    return serve


def test_the_key_opens_it(serve):
    assert KEY == SENT
    assert serve("http", (b"host", b"x"), (b"authorization", b"Bearer secret")) == (True, [])
    assert serve("http", (b"Authorization", b"Bearer secret")) == (True, [])
    assert serve("lifespan") == (True, [])


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(b"authorization", b"Bearer wrong")],
        [(b"authorization", b"secret")],
        [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer secret")],
        [(b"authorization", "Bearer sécret".encode())],
    ],
)
def test_nothing_else_does(serve, headers):
    assert serve("http", *headers) == (False, [401, None])
    assert serve("websocket", *headers) == (False, [1008])


def test_without_a_key_there_is_no_gate(monkeypatch):
    async def app(*_):
        raise AssertionError

    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(KeyError):
        Gate(app)
