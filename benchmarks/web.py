"""Figures of the web app: time to the first page, lists, curves, animation, memory, many clients, size.

Each line names its aim. Times are medians; those of pages need Chromium. The load of the machine is printed, since
other work makes everything slower.

python benchmarks/web.py [--rounds 7] [--clients 10000]
"""

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import operant
from operant.web import runs
from operant.web.app import STATIC

COUNT, POINTS, SEEDS = 1000, 10_000, 8
PAINT = """() => new Promise((resolve) => { const look = () => {
  const [found] = performance.getEntriesByName("first-contentful-paint");
  if (found) resolve((performance.timeOrigin + found.startTime) / 1000); else setTimeout(look, 5); }; look(); })"""
READY = """window.ready = new Promise((resolve) => new MutationObserver((_, observer) => {
  if (!document.querySelector("main[data-ready]")) return;
  observer.disconnect();
  requestAnimationFrame(() => setTimeout(() => resolve((performance.timeOrigin + performance.now()) / 1000)));
}).observe(document, { childList: true, subtree: true, attributes: true }));"""
"""Notes when the content is painted: Playwright looks for it only now and then."""
DRAW = """(metric) => new Promise((resolve) => {
  const select = document.querySelector("[aria-label=Metric]"), figure = document.querySelector(".figure");
  new MutationObserver((_, observer) => { observer.disconnect(); requestAnimationFrame(() => setTimeout(() => {
    const asked = performance.getEntriesByType("resource").filter((one) => one.name.endsWith("runs/curves")).at(-1);
    resolve([performance.now() - asked.startTime, performance.now() - asked.responseEnd]); })); })
    .observe(figure.querySelector("svg"), { childList: true, subtree: true });
  select.value = metric; select.dispatchEvent(new Event("change")); })"""
PLAY = """() => new Promise((resolve) => { let frames = 0, last = 0; const began = performance.now();
  new MutationObserver(() => { frames += 1; last = performance.now(); }).observe(document.querySelector(".position"), { childList: true, subtree: true, characterData: true });
  document.querySelector("[aria-label=Play]").click(); setTimeout(() => resolve(1000 * frames / (last - began)), 2000); })"""  # noqa: E501


def link(run: Path, folder: Path) -> None:
    """Make a run appear a thousand times in a folder."""
    for i in range(COUNT):
        (folder / f"run-{i}" / "eval").mkdir(parents=True)
        for name in ("config.toml", "run.json", "eval/evaluations.jsonl"):
            os.link(run / name, folder / f"run-{i}" / name)


def listed(first: Path, scratch: Path, rounds: int) -> float:
    """Return the seconds until a thousand runs are listed in a process that has not read them before."""
    seconds: list[float] = []
    for n in range(rounds):  # what was listed once is remembered, so each round has a folder of its own
        folder = scratch / f"runs-{n}"
        link(first, folder)
        began = time.perf_counter()
        assert len(runs.index(folder)["runs"]) == COUNT
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """Serve a folder of runs; yield the address and the process."""
    command = [sys.executable, "-m", "operant", "serve", "--no-browser", "--port", "0", "--runs", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.terminate()
        process.communicate()


def opened(browser: Any, folder: Path, path: str, rounds: int) -> tuple[float, float]:
    """Return the seconds from the start of the server to the first contentful paint of a page, and to its content."""
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.add_init_script(READY)
        page.goto("about:blank")
        began = time.time()
        with serving(folder) as (address, _):
            page.goto(address.rstrip("/") + path)
            found.append((page.evaluate(PAINT) - began, page.evaluate("window.ready") - began))
        page.close()
    first, ready = zip(*found, strict=True)
    return statistics.median(first), statistics.median(ready)


def long_run(first: Path, path: Path) -> None:
    """Write a run with a metric of 10 000 points of 8 seeds."""
    shutil.copytree(first, path)
    with (path / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for i in range(POINTS):
            row = [(i * (seed + 3) % 101) / 101 for seed in range(SEEDS)]
            file.write(json.dumps({"consumed": 10 * (i + 1), "rollout/episode_return": row}) + "\n")


def drawn(browser: Any, address: str, rounds: int) -> tuple[float, float]:
    """Return the milliseconds from asking for a curve, and from its arrival, until it is drawn."""
    found: list[list[float]] = []
    for _ in range(rounds):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        page.goto(f"{address}runs#runs=long")
        page.locator("main[data-ready]").wait_for()
        page.wait_for_timeout(300)
        found.append(page.evaluate(DRAW, "rollout/episode_return"))
        page.close()
    whole, own = zip(*found, strict=True)
    return statistics.median(whole), statistics.median(own)


def animated(browser: Any, address: str, rounds: int) -> float:
    """Return the frames a second of value iteration on 100 x 100 cells."""
    found: list[float] = []
    for _ in range(rounds):
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        cells = "/".join(["100."] * 99 + ["99.G"])
        page.goto(f"{address}#world=trap&grid={cells}&a=value-iteration&gamma=0.99&speed=60")
        page.locator("main[data-ready]").wait_for(timeout=120_000)
        found.append(page.evaluate(PLAY))
        page.close()
    return statistics.median(found)


def resident(process: int) -> float:
    """Return the megabytes of a process."""
    lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmRSS"))) / 1000


def children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    return [int(number) for number in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


async def crowd(port: int, clients: int) -> int:
    """Open event streams, and return how many were answered by 503."""
    request = f"GET /events?runs=long&file=metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    writers, many = [], 0
    for _ in range(clients):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        many += b" 503 " in await asyncio.wait_for(reader.readline(), 60)
        writers.append(writer)
    return many


def report(what: str, value: float, unit: str, aim: str) -> None:
    """Print a figure."""
    print(f"{what:<62} {value:>9.3g} {unit:<5} (aim: {aim})", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--clients", type=int, default=10_000)
    options = parser.parse_args()
    print(f"load of the machine before: {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder = scratch / "runs"
        small = {"train_examples": 24, "held_out": 4, "progress": "silent"}
        operant.train("q-learning", "CliffWalking-v1", seeds=2, budget=2_000, run=scratch / "first", progress="silent")
        operant.train("grpo", "arithmetic", seeds=1, budget=8, run=folder / "words", **small)
        long_run(scratch / "first", folder / "long")
        report(f"{COUNT} runs, read by the server", listed(scratch / "first", scratch, options.rounds), "s", "1")
        with_chromium(lambda browser: pages(browser, scratch, folder, options.rounds))
        with serving(folder) as (address, process):
            before = resident(process)
            refused = asyncio.run(crowd(int(address.rstrip("/").rpartition(":")[2]), options.clients))
            after = resident(process)
        report(
            f"memory for {options.clients} event streams, {refused} answered by 503", after - before, "MB", "bounded"
        )
    size = sum(path.stat().st_size for path in STATIC.parent.rglob("*") if path.suffix != ".pyc" and path.is_file())
    report("the app in the wheel, uncompressed", size / 1e6, "MB", "below 1")
    print(f"load of the machine after: {os.getloadavg()[0]:.2f}")


def with_chromium(measure: Callable[[Any], None]) -> None:
    """Measure in Chromium, where there is one."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        print("no Chromium: the pages are not measured")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        measure(browser)
        browser.close()


def pages(browser: Any, scratch: Path, folder: Path, rounds: int) -> None:
    """Measure what is seen."""
    painted, ready = opened(browser, folder, "/", rounds)
    report("first contentful paint, from the start of `operant serve`", painted, "s", "1")
    report("the playground with its values, from the same", ready, "s", "none")
    painted, ready = opened(browser, scratch / "runs-0", "/runs", rounds)
    report(f"{COUNT} runs on the page, from the start of `operant serve`", ready, "s", "1")
    with serving(folder) as (address, process):
        whole, own = drawn(browser, address, rounds)
        report(f"a curve of {POINTS} x {SEEDS} points, once it has arrived", own, "ms", "200")
        report("the same from asking for it", whole, "ms", "none")
        report("frames of 100 x 100 cells", animated(browser, address, 3), "/s", "30")
    with serving(folder) as (address, process):
        page = browser.new_page()
        page.goto(f"{address}completions#run=words")
        page.locator("main[data-ready]").wait_for()
        memory = sum(map(resident, (process, *children(process))))
        report("memory of the server and its processes, a language run open", memory, "MB", "200")


if __name__ == "__main__":
    main()
