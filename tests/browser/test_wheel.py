"""The wheel: its contents, its size, and the app without runs."""

import importlib.metadata
import re
import subprocess
import sys
import zipfile

import pytest
from playwright.sync_api import expect

from browser.installed import ROOT, Server  # type: ignore[import-not-found]
from operant.web.app import STATIC

pytestmark = pytest.mark.slow

APP_BYTES = 1_000_000
EXTRA_BYTES = 10_000_000


@pytest.fixture(scope="module")
def server(installed, tmp_path_factory):
    """Serve without a folder of runs, with an address of the documentation."""
    found = Server(tmp_path_factory.mktemp("empty") / "runs", installed, ("--docs", "https://docs.example.org/operant"))
    yield found
    found.kill()


def test_every_file_of_the_app_is_in_the_wheel(built):
    with zipfile.ZipFile(built) as archive:
        sizes = {one.filename: one.file_size for one in archive.infolist()}
    files = {f"operant/web/static/{path.relative_to(STATIC).as_posix()}" for path in STATIC.rglob("*.*")}
    assert len(files) > 20
    assert files <= set(sizes)
    assert sum(size for name, size in sizes.items() if name.startswith("operant/web/")) < APP_BYTES


def needed(name, found):
    """Add a distribution and its requirements, without extras."""
    name = re.split(r"[^A-Za-z0-9._-]", name)[0]
    if name in found:
        return
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # a requirement of another Python or system
        return
    found[name] = sum(file.locate().stat().st_size for file in distribution.files or [] if file.locate().exists())
    for line in distribution.requires or []:
        if "extra ==" not in line:
            needed(line, found)


def test_the_extra_is_light():
    found = {}
    for name in ("starlette", "uvicorn"):
        needed(name, found)
    assert {"starlette", "uvicorn", "anyio", "h11"} <= set(found)
    assert sum(found.values()) < EXTRA_BYTES, found


def test_the_first_page_is_there(page):
    page.goto("/")
    expect(page.get_by_role("navigation")).to_contain_text("Playground")
    page.locator("main[data-ready]").wait_for()
    expect(page.locator(".position")).to_contain_text("/")


def test_links_lead_to_the_documentation_and_tell_it_nothing(page):
    page.goto("/map#at=train:ppo")
    link = page.get_by_role("link", name="Documentation")
    expect(link).to_have_attribute("href", "https://docs.example.org/operant/algorithms/ppo/")
    expect(link).to_have_attribute("rel", "noreferrer")
    page.goto("/explorables")
    page.locator("main[data-ready]").wait_for()
    expect(page.locator("#clip").get_by_role("link")).to_have_attribute(
        "href", "https://docs.example.org/operant/ops/policy/"
    )


def test_without_an_address_the_command_that_gives_one_is_shown(browser, installed, tmp_path):
    server = Server(tmp_path / "runs", installed)
    try:
        page = browser.new_page(base_url=server.address)
        page.goto("/map#at=train:ppo")
        expect(page.locator(".leaf-detail .documentation")).to_have_text(
            "Documentation: make docs && operant serve --docs site"
        )
        expect(page.get_by_role("link", name="Docs", exact=True)).to_have_count(0)
        page.goto("/explorables")
        page.locator("main[data-ready]").wait_for()
        expect(page.locator("#clip .documentation")).to_have_text("")
        page.close()
    finally:
        server.kill()


PAGE = """# A page

Some *text* to find, with code that is highlighted and aligned.

| a | b |
|---|--:|
| 1 | 2 |

```python
print("hello")
```
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a small site, built as `make docs` builds the documentation: with the same theme and settings."""
    pytest.importorskip("material")
    yaml = pytest.importorskip("yaml")

    class Loader(yaml.SafeLoader):
        """Loader of the settings without their functions."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)
    folder = tmp_path_factory.mktemp("small")
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    kept = {name: settings[name] for name in ("site_name", "theme", "markdown_extensions", "extra_css")}
    files = {"index.md": PAGE, "algorithms/ppo.md": PAGE, "style.css": (ROOT / "docs" / "style.css").read_text("utf-8")}
    files["icon.svg"] = (STATIC / "icon.svg").read_text("utf-8")
    for name, text in files.items():
        path = folder / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (folder / "mkdocs.yml").write_text(yaml.safe_dump(kept | {"plugins": ["search"]}), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", "site"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "site"


def test_the_app_serves_the_documentation(browser, installed, site, tmp_path):
    server = Server(tmp_path / "runs", installed, ("--docs", str(site)))
    context = browser.new_context(base_url=server.address)
    read, said = context.new_page(), []
    read.on("console", lambda message: said.append(message.text) if message.type in ("error", "warning") else None)
    read.on("request", lambda asked: None if asked.url.startswith(server.address) else said.append(asked.url))
    try:
        read.goto("/map#at=train:ppo")
        read.get_by_role("link", name="Documentation").press("Enter")
        expect(read).to_have_url(f"{server.address}/docs/algorithms/ppo/")
        expect(read.get_by_role("heading", name="A page")).to_be_visible()
        read.get_by_role("textbox", name="Search").click()
        expect(read.get_by_text("Type to start searching")).to_be_attached()  # the search index is loaded
        read.keyboard.type("highlighted")
        expect(read.locator(".md-search-result__item").first).to_be_visible()
        read.goto("/explorables")
        read.locator("main[data-ready]").wait_for()
        read.keyboard.press("g")
        read.keyboard.press("d")
        expect(read).to_have_url(f"{server.address}/docs/")
        expect(read.get_by_role("heading", name="A page")).to_be_visible()  # before, the page may not have a body
        read.evaluate("fetch('/api/about', { method: 'POST' }).catch(() => document.body.dataset.rejected = 1)")
        expect(read.locator("body[data-rejected]")).to_be_attached()  # scripts of the site cannot call the app
        assert [text for text in said if "/api/about" not in text] == []
    finally:
        context.close()
        server.kill()
