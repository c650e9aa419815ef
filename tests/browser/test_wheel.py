"""The wheel: what is in it, how much it weighs, and what it shows where there are no runs."""

import importlib.metadata
import re
import zipfile

import pytest
from playwright.sync_api import expect

from browser.installed import Server  # type: ignore[import-not-found]
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
    """Add a distribution and what it needs, without extras."""
    name = re.split(r"[^A-Za-z0-9._-]", name)[0]
    if name in found:
        return
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:  # for another Python or system
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
