import asyncio
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from operant.web import app
from operant.web.app import PAGES, STATIC, make_app
from operant.web.documentation_site import TYPES
from operant.web.safety import Hosts
from operant.web.workers import Worker
from web.conftest import ADDRESS  # type: ignore[import-not-found]

KILOBYTES = 300


@pytest.mark.parametrize("page", PAGES)
def test_every_page_is_the_shell(client, page):
    response = client.get(page)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert '<main id="page"' in response.text


@pytest.mark.parametrize("path", sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.*")))
def test_every_file_is_served_as_what_it_is(client, path):
    response = client.get(f"/static/{path}")
    assert response.status_code == 200
    assert response.headers["content-type"] == TYPES[Path(path).suffix]
    assert response.content == (STATIC / path).read_bytes()


@pytest.mark.parametrize(
    "path",
    [
        "../app.py",
        "..%2fapp.py",
        "%2e%2e/app.py",
        "%252e%252e/app.py",
        "..\\app.py",
        "/etc/passwd",
        "js/../../app.py",
        "js",
        "",
        "js/",
        "style.css%00",
        "C:/x",
    ],
)
def test_nothing_else_is_served(client, path):
    assert client.get(f"/static/{path}").status_code == 404


def test_the_files_stay_light():
    assert sum(path.stat().st_size for path in STATIC.rglob("*") if path.is_file()) < KILOBYTES * 1000


def test_no_file_names_another_server():
    for path in STATIC.rglob("*.*"):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import", text), path


def test_every_module_that_is_imported_exists():
    for path in STATIC.rglob("*.js"):
        for name in re.findall(r"""(?:from|import)\(?\s*["'](\./[^"']+)["']""", path.read_text(encoding="utf-8")):
            assert (path.parent / name).is_file(), f"{path.name} imports {name}"


def test_the_map_is_answered(ask):
    status, answer = ask("map")
    assert status == 200
    assert answer["children"]


@pytest.mark.parametrize("name", ["playground/frobnicate", "runs/medium", "os/system"])
def test_unknown_functions_are_not_found(client, ask, name):
    from web.conftest import PAGE  # type: ignore[import-not-found]

    assert client.post(f"/api/{name}", content=b"{}", headers=PAGE).status_code == 404


def test_a_body_that_takes_too_long_is_given_up(client, monkeypatch):
    from web.conftest import PAGE  # type: ignore[import-not-found]

    monkeypatch.setattr(app, "BODY_SECONDS", 0.05)

    async def slow(_):
        await asyncio.sleep(5)

    monkeypatch.setattr(app.Request, "body", slow)
    response = client.post("/api/chat/answer", content=b"{}", headers=PAGE)
    assert response.status_code == 408
    assert "longer than 0.05 seconds" in response.json()["error"]


def test_the_playground_wakes_its_worker(monkeypatch, runs):
    called = []

    async def call(self, function, arguments):
        called.append(function)
        return 200, b"[]"

    monkeypatch.setattr(Worker, "call", call)
    with TestClient(make_app(runs, Hosts("127.0.0.1", 8421)), base_url=ADDRESS) as client:
        client.get("/runs")
        assert called == ["runs.index"]
        client.get("/")
        assert called == ["runs.index", "playground.presets"]
