"""Claim: the number of processes and of kills changes no bit of a run.

PPO on CartPole-v1, SAC on Pendulum-v1 and GRPO on the task `preference`, each with four shards: once in one process
from beginning to end, and once on 1, 2 and 4 processes in random order, killed twenty times at a random moment
(SIGKILL; one process of the group, or all of them) and resumed:

    operant train ppo CartPole-v1 --seeds 2 --shards 4 --budget 1500000
    operant train ppo CartPole-v1 --seeds 2 --shards 4 --budget 1500000 --processes 4
    operant resume RUN --processes 2

The bytes of the last checkpoints must be the same.

    python experiments/elastic.py            # ten minutes: each start imports torch in every process
    python experiments/elastic.py --draw
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from arms import gather
from checks import COLORS, conclude, panels, save
from matplotlib.axes import Axes

KILLS = 20
SIZES = (1, 2, 4)
WAIT = 2
"""Maximum seconds between the first checkpoint of a start and a kill."""
PATIENCE, END = 5400, 600
"""Maximum seconds of a whole run, and of the end of a launcher whose process was killed, on a busy machine."""
COMMON = ("--shards", "4", "--checkpoint-seconds", "0", "--progress", "silent")
COMMANDS = {
    "PPO": (
        *("ppo", "CartPole-v1", "--seeds", "2", "--budget", "1500000", "--evaluate-every", "1500000"),
        *("--evaluate-episodes", "1", "--compile", "off"),
    ),
    "SAC": (
        *("sac", "Pendulum-v1", "--seeds", "1", "--budget", "60000", "--evaluate-every", "60000"),
        *("--evaluate-episodes", "1", "--compile", "off", "--num-envs", "4", "--train-freq", "1", "--batch-size", "64"),
        *("--hidden-sizes", "16", "--buffer-size", "20000"),
    ),
    "GRPO": (
        *("grpo", "preference", "--seeds", "1", "--budget", "4000", "--evaluate-every", "4000", "--held-out", "4"),
        *("--prompts-per-batch", "8", "--num-generations", "4", "--max-completion-length", "16"),
        *("--learning-rate", "1e-3"),
    ),
}
"""Trained algorithms by the name of the result, with budgets long enough for all kills."""
UNITS = {"PPO": "environment steps", "SAC": "environment steps", "GRPO": "prompts"}


def newest(run: Path) -> tuple[int, dict[str, str]]:
    """Return the steps of the newest whole checkpoint, and the hashes of its files; 0 if there is none."""
    for folder in sorted((run / "checkpoints").glob("step_*"), reverse=True):
        try:
            files = json.loads((folder / "manifest.json").read_bytes())["files"]
        except FileNotFoundError:  # it has just been removed, or is not whole
            continue
        return int(folder.name.removeprefix("step_")), {name: file["sha256"] for name, file in files.items()}
    return 0, {}


def start(words: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start a command in a separate process group."""
    command = [sys.executable, "-m", "operant", *words]
    return subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def trainers(leader: int) -> list[int]:
    """Return the processes of a group that train: those that torchrun has started, or the leader itself."""
    children = Path(f"/proc/{leader}/task/{leader}/children").read_text(encoding="utf-8").split()
    return [int(pid) for pid in children] or [leader]


def kill(process: subprocess.Popen[bytes], chance: np.random.Generator) -> str:
    """Kill one of the training processes, or a whole group."""
    ranks = trainers(process.pid)
    if len(ranks) > 1 and chance.random() < 0.5:
        os.kill(int(chance.choice(ranks)), signal.SIGKILL)
        process.wait(timeout=END)
        return "one"
    os.killpg(process.pid, signal.SIGKILL)
    for pid in ranks:  # torchrun gives each of its processes a group of its own
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(timeout=END)
    return "all"


def learn(name: str, seed: int) -> dict[str, Any]:
    """Train both, and return the kills with their times, and both sets of hashes."""
    command = (*COMMANDS[name], *COMMON)
    chance, events = np.random.default_rng(seed), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        assert start(["train", *command, "--run", str(whole)]).wait(timeout=PATIENCE) == 0
        began = time.monotonic()
        for _ in range(KILLS):
            size, (reached, _) = int(chance.choice(SIZES)), newest(killed)
            words = (
                ["resume", str(killed), "--progress", "silent"]
                if reached
                else ["train", *command, "--run", str(killed)]
            )
            process, from_ = start([*words, "--processes", str(size)]), time.monotonic() - began
            while newest(killed)[0] <= reached:
                assert process.poll() is None, "it ended by itself"
                time.sleep(0.02)
            time.sleep(chance.random() * WAIT)
            how = kill(process, chance)
            event = {"processes": size, "killed": how, "from": reached, "to": newest(killed)[0]}
            events.append({**event, "seconds": [from_, time.monotonic() - began]})
            print(name, events[-1], flush=True)
        assert start(["resume", str(killed), "--progress", "silent"]).wait(timeout=PATIENCE) == 0
        return {"events": events, "whole": newest(whole), "killed": newest(killed)}


def _number(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def draw(axis: Axes, name: str, events: Sequence[dict[str, Any]]) -> None:
    """Draw the progress of a run that was killed, start by start."""
    for color, size in zip(COLORS, SIZES, strict=False):
        parts = [event for event in events if event["processes"] == size]
        for i, event in enumerate(parts):
            steps = [event["from"] / 1000, event["to"] / 1000]
            axis.plot(event["seconds"], steps, color=color, label=_number(size) if i == 0 else None)
            axis.plot(event["seconds"][1], steps[1], "x", color=color)
    axis.set(title=f"{name}, killed and resumed", xlabel="seconds, starts included", ylabel=f"thousand {UNITS[name]}")


def main() -> None:
    """Train, kill, compare and plot; fail if a byte differs."""
    found = gather(__file__, __doc__, {name: (name, 0) for name in COMMANDS}, tuple, learn)
    figure, axes = panels(len(found))
    claims = dict[str, bool]()
    for axis, (name, result) in zip(axes, found.items(), strict=True):
        events, same = result["events"], result["whole"] == result["killed"]
        draw(axis, name, events)
        claims |= {
            f"{name}: {KILLS} times killed, the last checkpoint has the same bytes": same,
            f"{name}: every number of processes was tried": {event["processes"] for event in events} == set(SIZES),
            f"{name}: single processes were killed, and whole groups": {event["killed"] for event in events}
            == {"one", "all"},
        }
    save(figure, __file__, axes)
    conclude(__file__, found, [], claims)


if __name__ == "__main__":
    main()
