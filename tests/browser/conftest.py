"""Fixtures for tests of the web app in Chromium, served by the installed wheel; skipped without Chromium."""

import json
import shutil

import pytest

from browser.installed import Server, build, install  # type: ignore[import-not-found]

pytest.importorskip("starlette")
pytest.importorskip("hatchling")
sync_api = pytest.importorskip("playwright.sync_api")

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""Commands of Chromium; the first one has no windows that it would hide, and takes a third less processor time."""
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), None)
SECONDS = 200
sync_api.expect.set_options(timeout=1000 * SECONDS)
PROMPTS = 5


@pytest.fixture(scope="module")
def browser():
    """Return Chromium, only for these tests, since its event loop would otherwise run in all others."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Return a folder with two short runs, one with answers to label, a language model and a reward model."""
    from operant import api

    path = tmp_path_factory.mktemp("browser") / "runs"
    sizes = {"train_examples": 24, "held_out": 2, "prompts_per_batch": 4, "num_generations": 4, "evaluate_every": 4}
    api.train("grpo", "arithmetic", seeds=1, budget=8, run=path / "words", progress="silent", **sizes)
    small = {"train_examples": 16, "held_out": 2, "batch_size": 8, "evaluate_every": 8}
    api.train("reward-model", "preference", seeds=1, budget=8, run=path / "judge", progress="silent", **small)
    for name, gamma in (("low", 0.5), ("high", 0.99)):
        api.train("q-learning", "FrozenLake-v1", seeds=3, budget=2000, run=path / name, gamma=gamma, progress="silent")
    with (path / "low" / "eval" / "samples.jsonl").open("w", encoding="utf-8") as file:
        for i in range(PROMPTS):
            for text in ("<img src=x onerror=alert(1)>", f"answer {i}"):
                sample = {"consumed": 5, "seed": 0, "prompt": f"question {i}", "completion": text, "reward": 1.0}
                file.write(json.dumps(sample | {"truncated": False, "temperature": 0.0}) + "\n")
    return path


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Return the wheel built from the sources."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(built, tmp_path_factory):
    """Return the environment variables of processes that use the installed wheel."""
    return install(built, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def server(runs, installed):
    """Return a server of the runs; a test module may define its own `runs`."""
    found = Server(runs, installed)
    yield found
    found.kill()


@pytest.fixture
def page(browser, server):
    """Return a page that fails the test if it has an error or sends a request to another server."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, base_url=server.address)
    context.set_default_timeout(SECONDS * 1000)
    found, faults = context.new_page(), []
    found.on("pageerror", lambda error: faults.append(str(error)))
    found.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    found.on(
        "request",
        lambda asked: None if asked.url.startswith((server.address, "data:", "blob:")) else faults.append(asked.url),
    )
    found.faults = faults
    yield found
    context.close()
    assert faults == []
