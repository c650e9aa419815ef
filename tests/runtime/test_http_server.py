"""Sockets that a server listens on, and a server that ends on request."""

import asyncio
import os
import signal
import socket
import threading

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from operant.runtime import http_server
from operant.runtime.http_server import Protocol, Server, listen


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [("127.0.0.1", 70_000, "from 0 to 65535"), ("no.such.host.invalid", 0, "not an address")],
)
def test_an_address_that_is_none(host, port, message):
    with pytest.raises(ValueError, match=message):
        listen(host, port)


def test_a_port_that_is_in_use():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ValueError, match="is in use: choose another one with --port"),
    ):
        listen("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_server_and_nothing_else(number):
    async def app(scope, receive, send):
        raise AssertionError

    with listen("127.0.0.1", 0) as listening:
        server = Server(uvicorn.Config(app, lifespan="off", log_level="error"))
        timer = threading.Timer(0.5, os.kill, (os.getpid(), number))
        timer.start()
        asyncio.run(server.serve(sockets=[listening]))
        timer.join()


async def exchange(port, parts, pause):
    """Send the parts of requests with pauses between, and return the data received until the connection was closed."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(pause)
    found = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return found


REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "answers"),
    [
        ([], 0),
        ([b"GET / HTTP/1.1\r\nHost"], 0),
        ([REQUEST[:9], REQUEST[9:]], 1),
        ([REQUEST, REQUEST[:9]], 1),
        ([REQUEST, REQUEST], 2),
    ],
)
def test_a_connection_that_does_not_ask_is_closed(monkeypatch, parts, answers):
    monkeypatch.setattr(http_server, "PATIENCE", 0.6)

    async def app(scope, receive, send):
        await asyncio.sleep(0.8)  # a response may take longer
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def serve():
        with listen("127.0.0.1", 0) as listening:
            config = uvicorn.Config(app, http=Protocol, lifespan="off", log_level="error", timeout_keep_alive=1)
            server = Server(config)
            running = asyncio.create_task(server.serve(sockets=[listening]))
            found = await exchange(listening.getsockname()[1], parts, 0.2 if answers < 2 else 1.0)
            server.should_exit = True
            await running
            return found

    assert asyncio.run(serve()).count(b"200 OK") == answers
