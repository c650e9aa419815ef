import re

import pytest
from starlette.testclient import TestClient

from operant.web.app import make_app
from operant.web.documentation import PREFIX, Documentation
from operant.web.documentation_site import TYPES, digest, inline_of, policy
from operant.web.safety import Hosts
from web.conftest import ADDRESS, PAGE  # type: ignore[import-not-found]

FIRST = """<!doctype html><style>p { color: red }</style><script>let a = "</p>";\r\nlet b = 1</script>
<script type="application/json">{}</script><script src="app.js">no</script><p style="width: 3px; color: &quot;x&quot;">
"""
METHODS = ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a site, next to a file that must not be served, and a link to that file."""
    found = tmp_path_factory.mktemp("built") / "site"
    (found / "algorithms" / "ppo").mkdir(parents=True)
    (found / "index.html").write_text(FIRST, encoding="utf-8", newline="")
    (found / "algorithms" / "ppo" / "index.html").write_text("<p>PPO</p>", encoding="utf-8")
    for name in ("app.js", "search.json", "image.png", "font.woff2", "notes.db", ".env", "Makefile"):
        (found / name).write_text(name, encoding="utf-8")
    secret = found.parent / "secret.html"
    secret.write_text("secret", encoding="utf-8")
    (found / "link.html").symlink_to(secret)
    (found / "up").symlink_to(found.parent)
    return found


@pytest.fixture(scope="module")
def site(folder, runs):
    """Return a client of an app that serves the site."""
    app = make_app(runs, Hosts("127.0.0.1", 8421), None, Documentation(PREFIX, folder))
    with TestClient(app, base_url=ADDRESS, follow_redirects=False) as found:
        yield found


def test_a_folder_is_its_first_page(site, folder):
    assert site.get("/docs/").content == (folder / "index.html").read_bytes()
    assert site.get("/docs/algorithms/ppo/").text == "<p>PPO</p>"
    for given, slash in (("/docs", "/docs/"), ("/docs/algorithms/ppo", "/docs/algorithms/ppo/")):
        response = site.get(given)
        assert (response.status_code, response.headers["location"]) == (307, slash)


@pytest.mark.parametrize("name", ["index.html", "app.js", "search.json", "image.png", "font.woff2"])
def test_a_file_is_served_as_what_it_is(site, folder, name):
    response = site.get(f"/docs/{name}")
    assert response.content == (folder / name).read_bytes()
    assert response.headers["content-type"] == TYPES[f".{name.rpartition('.')[2]}"]
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "name",
    [
        *("../secret.html", "..%2fsecret.html", "%2e%2e/secret.html", "%252e%252e/secret.html", "..\\secret.html"),
        *("link.html", "up/secret.html", "up/site/index.html", "/etc/passwd", "//etc/passwd", "C:/x", "app.js%00"),
        *("notes.db", ".env", "Makefile", "algorithms/", "algorithms", "app.js/", "nowhere", "index.html/", "./app.js"),
    ],
)
def test_nothing_else_is_served(site, name):
    response = site.get(f"/docs/{name}")
    assert response.status_code == 404 or response.text == "app.js"  # the client itself resolves ./
    assert "secret" not in response.text


def test_files_that_become_links_or_vanish_are_not_served(folder, runs):
    late, gone = folder / "late.html", folder / "gone.html"
    late.write_text("fine", encoding="utf-8")
    gone.write_text("fine", encoding="utf-8")
    app = make_app(runs, Hosts("127.0.0.1", 8421), None, Documentation(PREFIX, folder))
    late.unlink()
    late.symlink_to(folder.parent / "secret.html")
    gone.unlink()
    with TestClient(app, base_url=ADDRESS) as client:
        assert client.get("/docs/late.html").status_code == 404
        assert client.get("/docs/gone.html").status_code == 404


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("address", ["/docs", "/docs/", "/docs/app.js", "/docs/nowhere"])
def test_it_can_only_be_read(site, method, address):
    assert site.request(method, address, headers=PAGE).status_code == 405


@pytest.mark.parametrize("address", ["/docs", "/docs/", "/docs/index.html"])
def test_without_a_site_there_is_nothing(client, address):
    assert client.get(address).status_code == 404
    assert "unsafe" not in client.get(address).headers["content-security-policy"]


def test_a_foreign_name_and_a_missing_token_are_rejected(folder, runs):
    documentation = Documentation(PREFIX, folder)
    with TestClient(make_app(runs, Hosts("h", 8421), "token", documentation), base_url="http://h:8421") as client:
        assert client.get("/docs/").status_code == 403
        assert client.get("/docs/", headers={"host": "evil.example"}).status_code == 421


def test_the_page_may_run_what_is_written_in_it_and_nothing_else(site):
    (rules,) = [value for name, value in site.get("/docs/").headers.multi_items() if name == "content-security-policy"]
    parts = {part.split()[0]: part.split()[1:] for part in rules.split("; ")}
    assert parts["script-src"] == [f"{ADDRESS}/docs/", digest('let a = "</p>";\nlet b = 1')]
    assert parts["style-src"] == [
        *(f"{ADDRESS}/docs/", digest("p { color: red }"), "'unsafe-hashes'", digest('width: 3px; color: "x"')),
    ]
    assert parts["connect-src"] == [f"{ADDRESS}/docs/"]
    assert all(parts[name] == ["'none'"] for name in ("default-src", "base-uri", "form-action", "frame-ancestors"))
    assert "'unsafe-inline'" not in rules
    assert site.get("/docs/").headers["x-frame-options"] == "DENY"


def test_files_and_addresses_that_a_policy_cannot_name():
    assert "sha256" not in policy("127.0.0.1:8421", "")
    assert "unsafe" not in policy("127.0.0.1:8421", "<p>plain</p>")
    assert "script-src 'self';" in policy("[::1]:8421", "")


def test_a_digest_is_what_browsers_compute():
    # https://www.w3.org/TR/CSP3/#framework-directive-source-list, the example of a hash
    assert digest("doSomething();") == "'sha256-RFWPLDbv2BY+rCkDzsE+0fr8ylGr2R2faWMhq4lfEQc='"


def test_inline_scripts_and_styles_are_found_once():
    found = inline_of(
        "<script>a</script>text<style>b</style>text<i style=''></i><script src=x></script>text<b style=c>"
    )
    assert (found.scripts, found.styles, found.attributes) == (["a"], ["b"], ["c"])
    assert not re.search("text", str(found))
