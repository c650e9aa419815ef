"""Seconds until the web app has listed a thousand runs: the median of some rounds, each of which reads all of them.

python benchmarks/web.py [--rounds 5]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import operant
from operant.web import runs

COUNT = 1000


def link(run: Path, folder: Path) -> None:
    """Make a run appear a thousand times in a folder."""
    for i in range(COUNT):
        (folder / f"run-{i}" / "eval").mkdir(parents=True)
        for name in ("config.toml", "run.json", "eval/evaluations.jsonl"):
            os.link(run / name, folder / f"run-{i}" / name)


def main() -> None:
    """Train one run, link it a thousand times, and list them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        first = Path(scratch) / "first"
        operant.train("q-learning", "CliffWalking-v1", seeds=2, budget=2_000, run=first, progress="silent")
        for n in range(rounds):  # what was listed once is remembered, so each round has a folder of its own
            folder = Path(scratch) / f"runs-{n}"
            link(first, folder)
            began = time.perf_counter()
            assert len(runs.index(folder)["runs"]) == COUNT
            seconds.append(time.perf_counter() - began)
    print(f"{COUNT} runs listed: {statistics.median(seconds):.2f} s (1 is the aim), of {rounds} rounds")


if __name__ == "__main__":
    main()
