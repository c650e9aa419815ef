"""Claim: a run killed by SIGKILL at ten moments, resumed each time, ends in the same bytes as one that was not.

The same training is run twice by the command line, with tensor environments and with Gymnasium's: once undisturbed,
once killed at ten moments that are uniform over the seconds that the first one took, and resumed after each. Then every
file of the two final checkpoints is compared.

    python experiments/resume.py [--seconds 75]
"""

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np

from operant.runtime.metrics import read_records

KILLS = 10
SEEDS = 4
CHECKPOINT_SECONDS = 2
SPEED = {"tensor": 80_000, "gymnasium": 24_000}
"""Environment steps per second and seed, to choose a budget by."""


def command(*words: object) -> list[str]:
    """Return a call of operant's command line."""
    return [sys.executable, "-m", "operant", *map(str, words), "--progress", "silent", "--json"]


def training(backend: str, budget: int, folder: Path) -> list[str]:
    """Return the command that begins the training."""
    options = ("--seeds", SEEDS, "--budget", budget, "--env-backend", backend, "--run", folder)
    return command("train", "ppo", "CartPole-v1", *options, "--checkpoint-seconds", CHECKPOINT_SECONDS)


def digest(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file of the final checkpoint."""
    last = max((folder / "checkpoints").glob("step_*"))
    return {
        f"{last.name}/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(last.iterdir())
    }


def killed(backend: str, budget: int, folder: Path, moments: list[float]) -> list[float]:
    """Train with a SIGKILL at each of these times, in seconds of running; return those that hit a running process."""
    begin, landed, ran = training(backend, budget, folder), [], 0.0
    for moment in moments:
        process = subprocess.Popen(begin, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(timeout=moment - ran)
            return landed
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            landed.append(moment)
        ran = moment
        if (folder / "config.toml").exists():
            begin = command("resume", folder)
    subprocess.run(begin, check=True, stdout=subprocess.DEVNULL)
    return landed


def experiment(backend: str, seconds: float, root: Path) -> dict[str, Any]:
    """Run the training twice and compare."""
    budget = int(seconds * SPEED[backend])
    start = time.perf_counter()
    subprocess.run(training(backend, budget, root / "whole"), check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - start
    moments = np.sort(np.random.default_rng(0).uniform(0, wall, KILLS)).tolist()
    landed = killed(backend, budget, root / "killed", moments)
    whole, resumed = digest(root / "whole"), digest(root / "killed")
    return {
        "backend": backend,
        "budget": budget,
        "seeds": SEEDS,
        "wall_seconds": wall,
        "training_seconds": read_records(root / "whole" / "metrics.jsonl")[-1]["time/seconds"],
        "killed_at": landed,
        "digest": whole,
        "equal": whole == resumed,
    }


def draw(results: list[dict[str, Any]], file: str) -> None:
    """Plot the times of the kills."""
    figure, axis = plt.subplots(figsize=(8, 1.1 + 0.7 * len(results)), constrained_layout=True)
    for row, result in enumerate(results):
        axis.barh(row, result["wall_seconds"], height=0.5, color="#cfe3f1")
        axis.plot(result["killed_at"], [row] * len(result["killed_at"]), "x", color="#d55e00", markersize=8)
    labels = [f"{result['backend']}: {'equal' if result['equal'] else 'DIFFERENT'}" for result in results]
    axis.set(
        yticks=range(len(results)), yticklabels=labels, xlabel="seconds of running", ylim=(-0.6, len(results) - 0.4)
    )
    axis.set_title("killed at x and resumed; final checkpoint against the undisturbed run", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(file).with_suffix(".png"), dpi=130)


def main() -> None:
    """Run with both kinds of environment; fail unless the bytes are equal and eight kills hit a running process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=75.0, help="of training, about")
    parser.add_argument("--backends", nargs="+", default=list(SPEED), choices=list(SPEED))
    args = parser.parse_args()
    results = []
    for backend in args.backends:
        with tempfile.TemporaryDirectory() as root:
            result = experiment(backend, args.seconds, Path(root))
        print(
            f"{backend}: {result['training_seconds']:.0f} s of training, {len(result['killed_at'])} kills, "
            f"final checkpoints {'equal' if result['equal'] else 'DIFFERENT'}"
        )
        results.append(result)
    Path(__file__).with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
    draw(results, __file__)
    raise SystemExit(not all(result["equal"] and len(result["killed_at"]) >= 8 for result in results))


if __name__ == "__main__":
    main()
