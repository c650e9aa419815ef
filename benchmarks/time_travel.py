"""How long going to an update of a run takes, and what keeping states along the training costs.

PPO on CartPole-v1, 100 000 steps of each of 8 seeds, trained without kept states and with 20 of them (the default), in
turn. Then random updates are gone to, each from what the run has kept and never from memory, and the SHA-256 of each
state is compared with that of a training that was hashed after every update.

    python benchmarks/time_travel.py [--places 60] [--rounds 3] [--json]
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from operant import api
from operant.build import reassemble
from operant.runtime.encoding import digest
from operant.runtime.history import Keep
from operant.runtime.run import Run
from operant.runtime.time_travel import TimeTravel

ALGORITHM, TASK, SEEDS, BUDGET = "ppo", "CartPole-v1", 8, 100_000
KEEPS: tuple[Keep, ...] = ("none", "auto", "all")


def train(path: Path, keep: Keep) -> float:
    """Train a run and return the seconds of processor time."""
    begin = time.process_time()
    options: dict[str, Any] = {"keep_checkpoints": keep, "progress": "silent"}
    api.train(ALGORITHM, TASK, seeds=SEEDS, budget=BUDGET, run=path, **options)
    return time.process_time() - begin


def truth(run: Run) -> dict[int, str]:
    """Return the hash of the state after every update, by the budget used."""
    with closing(reassemble(run, remote_code=False)) as experiment:
        learner = experiment.learner
        found = {0: digest(learner.state_dict())}
        while learner.consumed < BUDGET:
            learner.iterate()
            found[learner.consumed] = digest(learner.state_dict())
        return found


def journeys(run: Run, expected: dict[int, str], places: int) -> dict[str, Any]:
    """Go to random updates, and return the seconds of each and how many states were another one."""
    draw = random.Random(0)
    seconds: list[float] = []
    computing: list[float] = []
    wrong = 0
    with closing(reassemble(run, remote_code=False)) as experiment:
        travel = TimeTravel(run, experiment.learner, memory=0)
        experiment.learner.iterate()  # what is compiled by the first update is not a part of a journey
        travel.go(0)
        for _ in range(places):
            at = draw.choice(sorted(expected))
            travel.go(0)  # so that no journey begins where the one before has ended
            begin, used = time.perf_counter(), time.process_time()
            arrival = travel.go(at)
            seconds.append(time.perf_counter() - begin)
            computing.append(time.process_time() - used)
            wrong += arrival.sha256 != expected[at]
    return {
        "median_seconds": statistics.median(seconds),
        "most_seconds": max(seconds),
        "median_cpu_seconds": statistics.median(computing),
        "most_cpu_seconds": max(computing),
        "places": places,
        "other_states": wrong,
    }


def bytes_of(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main() -> None:
    """Print what each way of keeping states costs, and how long journeys take then."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", type=int, default=60, help="updates to go to (default: 60)")
    parser.add_argument("--rounds", type=int, default=3, help="trainings of each (default: 3)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        train(root / "warm", "none")
        seconds: dict[Keep, list[float]] = {keep: [] for keep in KEEPS}
        for turn in range(arguments.rounds):
            for keep in KEEPS:
                seconds[keep].append(train(root / f"{keep}-{turn}", keep))
        expected = truth(Run.open(root / "none-0"))
        found = {
            str(keep): {
                "train_cpu_seconds": statistics.median(seconds[keep]),
                "kept_bytes": bytes_of(root / f"{keep}-0" / "history"),
                **journeys(Run.open(root / f"{keep}-0"), expected, arguments.places),
            }
            for keep in KEEPS
        }
    if arguments.json:
        print(json.dumps(found))
        return
    for keep, row in found.items():
        print(
            f"{keep:>5}: training {row['train_cpu_seconds']:.2f} s of CPU, {row['kept_bytes'] / 1e6:.1f} MB; an update "
            f"in {row['median_seconds']:.3f} s, {row['median_cpu_seconds']:.3f} s of CPU (medians of {row['places']}; "
            f"{row['most_seconds']:.3f} and {row['most_cpu_seconds']:.3f} s at most), "
            f"{row['other_states']} other states"
        )


if __name__ == "__main__":
    main()
