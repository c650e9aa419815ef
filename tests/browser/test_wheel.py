"""The app as users install it: built into a wheel, installed into a folder of its own, and opened in a browser."""

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import expect

from operant.web.app import STATIC

pytestmark = pytest.mark.slow
pytest.importorskip("hatchling")

ROOT = Path(__file__).parents[2]
APP_BYTES = 1_000_000
EXTRA_BYTES = 10_000_000


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def server(wheel, tmp_path_factory):
    """Serve from the installed wheel, in a folder without runs."""
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True, env=os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"})
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(target), *_others()])}
    where = [sys.executable, "-P", "-c", "import operant; print(operant.__file__)"]
    here = tmp_path_factory.mktemp("empty")
    found = subprocess.run(where, env=environment, cwd=here, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(target)
    flags = ["--no-browser", "--port", "0", "--docs", "https://docs.example.org/operant"]
    command = [sys.executable, "-P", "-m", "operant", "serve", *flags]
    process = subprocess.Popen(command, env=environment, cwd=here, stdout=subprocess.PIPE, text=True)

    class Served:
        address = process.stdout.readline().strip().rstrip("/")

    yield Served
    process.kill()
    process.wait()
    process.stdout.close()


def _others():
    """Return the folders that this process itself was given, but for the sources."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [path for path in given if path and Path(path).resolve() != ROOT / "src"]


def test_every_file_of_the_app_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
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
