"""Fixtures for tests of the web app: a client without a socket, and requests as its pages send them."""

import json

import pytest

pytest.importorskip("starlette")

from starlette.testclient import TestClient

from operant.web.app import make_app
from operant.web.safety import Hosts

ADDRESS = "http://127.0.0.1:8421"
PAGE = {"content-type": "application/json", "x-operant": "1", "origin": ADDRESS, "sec-fetch-site": "same-origin"}


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Return a folder without runs."""
    return tmp_path_factory.mktemp("web") / "runs"


@pytest.fixture(scope="session")
def client(runs):
    """Return a client of the app, whose workers run until the session ends."""
    with TestClient(make_app(runs, Hosts("127.0.0.1", 8421)), base_url=ADDRESS) as found:
        yield found


@pytest.fixture(scope="session")
def ask(client):
    """Return a function that sends a request as a page does: `ask(name, **arguments)` returns status and answer."""

    def ask(name, **arguments):
        response = client.post(f"/api/{name}", content=json.dumps(arguments), headers=PAGE)
        return response.status_code, response.json()

    return ask
