"""Takes the pictures of docs/web.md: trains the runs that they show, serves them, and drives a browser.

    python docs/screenshots.py [FOLDER]

Runs that FOLDER already has are kept (default: runs/screenshots). Needs the extras `language` and `web`, Playwright and
Chromium; training takes about ten minutes.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

import operant
from operant.language.preferences import PreferenceStore, SimulatedAnnotator, add_samples
from operant.language.tasks.writing import hidden

OUT = Path(__file__).with_name("web")
MINUTE = 60_000
CLIFF = {"seeds": 8, "budget": 20_000, "evaluate_every": 1000}
RUNS: dict[str, tuple[str, str, dict[str, Any]]] = {
    **{name: (name, "CliffWalking-v1", CLIFF) for name in ("q-learning", "sarsa", "expected-sarsa")},
    "ppo-CartPole-v1-1": ("ppo", "CartPole-v1", {"seeds": 8, "budget": 100_000, "keep_checkpoints": 20}),
    "sft": ("sft", "arithmetic", {"budget": 9000}),
    "grpo": ("grpo", "arithmetic", {"budget": 3200, "evaluate_every": 320, "beta": 0.01, "init": "sft"}),
    "writer": ("sft", "preference", {"budget": 8000}),
    "beginner": ("sft", "preference", {"budget": 300}),
    "reward": ("reward-model", "preference", {"init": "writer", "budget": 4000}),
}
"""Runs by name: algorithm, task, and options; `init` names another run."""


def train(folder: Path) -> None:
    """Train the runs that the folder lacks."""
    for name, (algorithm, task, options) in RUNS.items():
        if not (folder / name / "run.json").exists():
            start = {"init": folder / options["init"]} if "init" in options else {}
            operant.train(algorithm, task, run=folder / name, **{"seeds": 1, **options, **start})
    if not (folder / "writer" / "preferences.sqlite").exists():
        label(folder)


def label(folder: Path) -> None:
    """Compare answers of the writer in the names of two annotators."""
    with PreferenceStore(folder / "writer" / "preferences.sqlite") as store:
        add_samples(store, folder / "writer" / "eval" / "samples.jsonl", run="writer")
        for name in ("ana", "ben"):
            SimulatedAnnotator(hidden, name=name).label(store)


def opened(page: Page, address: str) -> None:
    """Open a page and wait until it is complete."""
    page.goto(address)
    page.locator("main[data-ready]").wait_for()


def playground(page: Page) -> None:
    """Show an early policy of policy iteration."""
    opened(page, "/#v=1&world=trap&a=policy-iteration&frame=20")


def cliff(page: Page) -> None:
    """Compare Q-learning with SARSA, in the dark theme."""
    opened(page, "/#v=1&world=cliff&a=q-learning&b=sarsa&stride=100")
    page.get_by_role("button", name="Last frame").click()


def runs(page: Page) -> None:
    """Compare three runs."""
    opened(page, "/runs#runs=q-learning,sarsa,expected-sarsa&pin=q-learning")
    expect(page.locator("#comparison")).to_contain_text("What differs")


def travel(page: Page) -> None:
    """Let the policy of an early update act."""
    opened(page, "/runs#runs=ppo-CartPole-v1-1&at=12288&seed=3")
    expect(page.locator(".arrival")).to_contain_text("12,288")
    expect(page.locator("canvas[data-step]")).to_be_visible()
    for _ in range(6):
        page.keyboard.press("Shift+.")


def completions(page: Page) -> None:
    """Compare two steps of GRPO, with the ledger of an answer."""
    opened(page, "/completions#run=grpo&source=training&seed=0&at=3200&with=320")
    expect(page.locator(".step[aria-busy=false] .at")).to_have_count(2)
    page.locator("button.open").first.press("Enter")
    expect(page.locator(".ledger table").first).to_be_visible()


def chat(page: Page) -> None:
    """Ask two models, whose answers a reward model scores."""
    opened(page, "/chat#a=writer&b=beginner&reward=reward")
    for i, prompt in enumerate(("fox hears owl:", "lion calls frog:", "fox sees owl:"), 1):
        page.get_by_label("Prompt", exact=True).fill(prompt)
        page.keyboard.press("Enter")
        expect(page.locator(".turn .reward")).to_have_count(2 * i)
        page.locator("main[data-ready]").wait_for()


def labels(page: Page) -> None:
    """Compare two answers, and show the agreement of annotators."""
    opened(page, "/labels#run=writer&as=carl&overlap=3")
    expect(page.get_by_role("button", name="Tie")).to_be_visible()
    page.locator("summary").press("Enter")
    expect(page.locator(".overview")).to_contain_text("Krippendorff's alpha")


def explorables(page: Page) -> None:
    """Show the samples of a batch on the clipped surrogate."""
    opened(page, "/explorables")
    page.get_by_label("Batch of a run").select_option("ppo-CartPole-v1-1")
    expect(page.locator("#clip .dots")).to_have_count(2)
    page.get_by_label("Update, by the budget used").press("Home")
    expect(page.get_by_role("status").filter(has_text="samples")).to_contain_text("from 0 on")


SHOTS: tuple[tuple[Callable[[Page], None], int, int], ...] = (
    (playground, 1280, 840),
    (cliff, 1440, 980),
    (runs, 1440, 1000),
    (travel, 1440, 1360),
    (completions, 1440, 900),
    (chat, 1440, 900),
    (labels, 1280, 900),
    (explorables, 1280, 1000),
)
"""What is shown, and the width and height of the window."""


def take(browser: Browser, address: str) -> None:
    """Take all pictures."""
    for show, width, height in SHOTS:
        page = browser.new_page(
            base_url=address,
            viewport={"width": width, "height": height},
            color_scheme="dark" if show is cliff else "light",
            reduced_motion="reduce",
        )
        page.set_default_timeout(MINUTE)
        show(page)
        page.screenshot(path=OUT / f"{show.__name__}.png")
        page.close()


def main() -> None:
    """Train, serve, and take the pictures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/screenshots").resolve() / "runs"
    train(folder)
    expect.set_options(timeout=MINUTE)
    command = [sys.executable, "-m", "operant", "serve", "--no-browser", "--port", "0"]
    server = subprocess.Popen(command, cwd=folder.parent, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        with sync_playwright() as playwright:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            take(browser, address)
            browser.close()
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
