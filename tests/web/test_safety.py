import asyncio
import json

import pytest
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from operant.web.app import PAGES, make_app
from operant.web.safety import COOKIE, MOST_BYTES, Hosts
from operant.web.worker import FUNCTIONS
from web.conftest import ADDRESS, PAGE  # type: ignore[import-not-found]

ADDRESSES = [*PAGES, "/static/style.css", "/static/js/main.js", "/events", "/media/run/film.mp4", "/docs", "/docs/"]
ADDRESSES += [f"/api/{name}" for name in ("about", "map", *(name.replace(".", "/") for name in FUNCTIONS))]
EVERY = "0.0.0.0"  # noqa: S104 - nothing is bound
METHODS = ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND", "BREW"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("address", ADDRESSES)
def test_no_other_method_is_answered_anywhere(client, method, address):
    assert client.request(method, address, headers=PAGE).status_code == 405


@pytest.mark.parametrize("address", [address for address in ADDRESSES if address.startswith("/api/")])
def test_data_is_not_fetched_by_get_nor_asked_for_by_another_site(client, address):
    assert client.get(address).status_code == 405
    for change in ({"origin": "http://evil.example"}, {"x-operant": "0"}, {"sec-fetch-site": "cross-site"}):
        assert client.post(address, content=b"{}", headers=PAGE | change).status_code == 403


@pytest.mark.parametrize("address", [address for address in ADDRESSES if not address.startswith("/api/")])
def test_pages_and_files_take_no_post(client, address):
    assert client.post(address, content=b"{}", headers=PAGE).status_code == 405


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:80", "localhost.evil:8421", "", "[::2]:8421"])
@pytest.mark.parametrize("address", ["/", "/static/style.css"])
def test_a_foreign_name_is_rejected(client, host, address):
    response = client.get(address, headers={"host": host})
    assert response.status_code == 421
    assert "operant serve" in response.text


@pytest.mark.parametrize("host", ["127.0.0.1:8421", "localhost:8421", "LOCALHOST:8421", "[::1]:8421"])
def test_names_of_this_machine_are_known(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"x-operant": "0"}, 403),
        ({"x-operant": None}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://127.0.0.1:8421"}, 403),
        ({"origin": "http://127.0.0.1:9999"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"content-length": str(MOST_BYTES + 1)}, 413),
        ({"content-length": "-1"}, 413),
    ],
)
def test_a_post_that_no_page_of_this_server_sends_is_rejected(client, change, status):
    headers = {name: value for name, value in (PAGE | change).items() if value is not None}
    assert client.post("/api/about", content=b"{}", headers=headers).status_code == status


def test_a_post_of_a_page_is_answered(ask, runs):
    status, answer = ask("about")
    assert status == 200
    assert answer["runs"] == str(runs)
    assert answer["found"] is False


def test_a_long_body_without_a_stated_length_is_cut_off(client):
    def parts():
        for _ in range(40):
            yield b" " * 50_000

    response = client.post("/api/playground/read", content=parts(), headers=PAGE)
    assert response.status_code in (400, 404, 413)


@pytest.mark.parametrize("body", ["[]", "3", "{", '{"a": ' * 5000, "null", ""])
def test_a_body_that_is_no_object(client, body):
    response = client.post("/api/playground/nothing", content=body, headers=PAGE)
    assert response.status_code in (400, 404)


@pytest.mark.parametrize("address", ["/", "/static/js/main.js", "/nowhere", "/static/../app.py"])
def test_every_answer_keeps_the_browser_within_bounds(client, address):
    headers = client.get(address).headers
    policy = headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.fixture(scope="module")
def guarded(runs):
    app = make_app(runs, Hosts("192.168.1.5", 8421), "secret")
    with TestClient(app, base_url="http://192.168.1.5:8421", follow_redirects=False) as found:
        yield found


@pytest.mark.parametrize("address", ["/", "/?token=wrong", "/static/style.css", "/docs/", "/?token="])
def test_nothing_is_served_without_the_token(guarded, address):
    guarded.cookies.clear()
    assert guarded.get(address).status_code == 403


def test_a_post_needs_the_token_too(guarded):
    guarded.cookies.clear()
    headers = PAGE | {"origin": "http://192.168.1.5:8421"}
    assert guarded.post("/api/about", content=b"{}", headers=headers).status_code == 403
    assert guarded.post("/api/about?token=secret", content=b"{}", headers=headers).status_code == 403


def test_the_address_with_the_token_opens_the_door(guarded):
    guarded.cookies.clear()
    response = guarded.get("/runs?token=secret")
    assert (response.status_code, response.headers["location"]) == (303, "/runs")
    cookie = response.headers["set-cookie"]
    assert all(part in cookie for part in (f"{COOKIE}_8421=secret", "HttpOnly", "SameSite=Strict"))
    assert guarded.get("/runs").status_code == 200


def test_servers_on_other_ports_of_the_host_do_not_shut_the_door(guarded, runs):
    guarded.cookies.clear()
    guarded.get("/runs?token=secret")
    kept = "; ".join(f"{name}={value}" for name, value in guarded.cookies.items())
    other = make_app(runs, Hosts("192.168.1.5", 8422), "another")
    with TestClient(other, base_url="http://192.168.1.5:8422", follow_redirects=False) as second:
        cookie = second.get("/runs?token=another").headers["set-cookie"].partition(";")[0]
        guarded.cookies.clear()
        for cookies in (f"{kept}; {cookie}", f'{{"odd": 1}}={{"é"}}; {cookie}; {kept}'):
            headers = {"cookie": cookies.encode("latin-1")}
            assert guarded.get("/runs", headers=headers).status_code == 200
            assert second.get("/runs", headers=headers).status_code == 200
        assert guarded.get("/runs", headers={"cookie": cookie}).status_code == 403


def test_a_redirect_never_leaves_this_server(runs):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request", "body": b""}

    guard = make_app(runs, Hosts("192.168.1.5", 8421), "secret")
    scope = {"type": "http", "method": "GET", "path": "//evil.example/\r\nx", "query_string": b"token=secret"}
    asyncio.run(guard(scope | {"headers": [(b"host", b"192.168.1.5:8421")]}, receive, send))
    assert dict(sent[0]["headers"])[b"location"] == b"/evil.example/%0D%0Ax"


@pytest.mark.parametrize(
    ("bound", "header", "allowed"),
    [
        (EVERY, "10.0.0.7:8421", True),
        (EVERY, "[fe80::1]:8421", True),
        (EVERY, "evil.example:8421", False),
        ("::", "127.0.0.1:8421", True),
        ("box.example", "box.example:8421", True),
        ("box.example", "10.0.0.7:8421", False),
        ("::1", "[::1]:8421", True),
    ],
)
def test_names_of_a_server_that_others_reach(bound, header, allowed):
    assert Hosts(bound, 8421).allow(header) is allowed


def test_a_web_socket_is_closed(client):
    with pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect("/api/about"):
        pass
    assert closed.value.code == 1008


def test_the_pages_hold_no_inline_script(client):
    page = client.get("/").text
    assert "<script>" not in page
    assert " style=" not in page
    assert " onclick=" not in page
    assert json.dumps(ADDRESS) not in page
    assert "https://" not in page
