"""Sockets that a server listens on, and a server that ends when it is told to."""

import asyncio
import os
import signal
import socket
import threading

import pytest

pytest.importorskip("uvicorn")

import uvicorn

from operant.runtime.http_server import Server, listen


@pytest.mark.parametrize(
    ("host", "port", "message"), [("127.0.0.1", 70_000, "from 0 to 65535"), ("no.such.host.invalid", 0, "no address")]
)
def test_an_address_that_is_none(host, port, message):
    with pytest.raises(ValueError, match=message):
        listen(host, port)


def test_a_port_that_is_in_use():
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ValueError, match="is in use; name another one with --port"),
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
