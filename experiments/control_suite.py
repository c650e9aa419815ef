"""SAC, MR.Q, PETS and MBPO on three tasks of the DeepMind Control Suite, after 50 000 frames.

The commands with their defaults; each action is repeated twice, so that 25 000 steps are 50 000 frames:

    operant train mrq experiments/suite_tasks.py:CartpoleSwingup --budget 25000 --seeds 5

Scores are those of 20 episodes of each seed (of 3 where PETS plans for long episodes). Published numbers of MR.Q are
those of Fujimoto et al. 2025 (arXiv:2501.16142) after as many frames, with larger networks.

The wall time is that of one core for all five seeds, evaluations included, on a machine that did other work as well.

    pip install "operant[dm-control,plots]"
    python experiments/control_suite.py                              # all that is missing; many hours of one core
    python experiments/control_suite.py --cells reacher-easy/MR.Q    # some of them; those that were stopped resume
    python experiments/control_suite.py --draw
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arms import band, over_seeds
from checks import COLORS, Check, conclude, panels, save

import operant
from operant.runtime.metrics import read_records

SEEDS = range(5)
FRAMES = 50_000
TASKS = {"cartpole-swingup": "CartpoleSwingup", "reacher-easy": "ReacherEasy", "ball_in_cup-catch": "BallInCupCatch"}
"""Classes of `suite_tasks.py` by the names of the suite."""
PUBLISHED = {"cartpole-swingup": "795", "reacher-easy": "734", "ball_in_cup-catch": "764"}
"""Scores of MR.Q after 50 000 frames."""
ARMS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "MR.Q": ("mrq", 20, {"evaluate_every": 1250, "evaluate_episodes": 5}),
    "SAC": ("sac", 20, {"evaluate_every": 1250, "evaluate_episodes": 5}),
    "MBPO": ("mbpo", 20, {"evaluate_every": 1250, "evaluate_episodes": 5}),
    "PETS": ("pets", 3, {"evaluate_every": 5000, "evaluate_episodes": 1}),
}
"""Algorithms, episodes of the last score, and options, by name."""
CELLS = [f"{task}/{arm}" for arm in ("SAC", "MR.Q", "PETS", "MBPO") for task in TASKS]
RESULTS = Path(__file__).with_suffix("")
RUNS = Path(os.environ.get("OPERANT_RUNS", Path(__file__).parents[1] / "runs")) / "control_suite"
"""Folder of the runs, so that one that was stopped resumes."""


def stored(cell: str) -> Path:
    """Return the file with the raw result of a task and an algorithm."""
    return RESULTS / f"{cell.replace('/', '-')}.json"


def learn(cell: str) -> dict[str, Any]:
    """Train, or resume a run that was stopped, and return the curves, the last scores, and the time that it took.

    The time is that of training and its evaluations.
    """
    task, arm = cell.split("/")
    algorithm, episodes, options = ARMS[arm]
    folder = RUNS / stored(cell).stem
    if (folder / "config.toml").exists():
        trained = operant.resume(folder, progress="silent")
    else:
        environment = f"{Path(__file__).with_name('suite_tasks.py')}:{TASKS[task]}"
        trained = operant.train(
            algorithm, environment, seeds=SEEDS, budget=FRAMES // 2, run=folder, progress="silent", **options
        )
    if trained.outcome is None or trained.experiment.learner.consumed < FRAMES // 2:
        raise SystemExit(f"{cell} was stopped; start again to resume it")
    *_, end = read_records(trained.run.metrics_path)
    began = time.monotonic()
    last = trained.evaluate(episodes)
    print(f"{cell}: {last.mean:.0f}, evaluated in {time.monotonic() - began:.0f} s", flush=True)
    records = list(read_records(trained.run.evaluations_path))
    return {
        "steps": [record["consumed"] for record in records],
        "curves": [record["scores"] for record in records],
        "scores": list(last.scores),
        "seconds": end["time/seconds"],
    }


def main() -> None:
    """Train what is missing, draw what is there; fail if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draw", action="store_true", help="draw again from the results, without training")
    parser.add_argument(
        "--cells", nargs="+", choices=CELLS, default=CELLS, metavar="TASK/ALGORITHM", help="train these"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    RESULTS.mkdir(exist_ok=True)
    for cell in () if options.draw else options.cells:
        if not stored(cell).exists():
            stored(cell).write_text(json.dumps(learn(cell), separators=(",", ":")) + "\n")
    draw({cell: json.loads(stored(cell).read_text()) for cell in CELLS if stored(cell).exists()})


def draw(found: dict[str, dict[str, Any]]) -> None:
    """Draw the curves over frames, write the table, and compare MR.Q with the published scores."""
    figure, axes = panels(len(TASKS))
    results: dict[str, Any] = {"missing": [cell for cell in CELLS if cell not in found]}
    checks: list[Check] = []
    for axis, task in zip(axes, TASKS, strict=True):
        axis.axhline(float(PUBLISHED[task]), color="gray", linewidth=0.8, label="MR.Q, published")
        for color, arm in zip(COLORS, ARMS, strict=False):
            cell = found.get(f"{task}/{arm}")
            if cell is None:
                continue
            band(axis, 2 * np.array(cell["steps"]), np.array(cell["curves"]).T, color=color, label=arm)
            results[f"{task}/{arm}"] = {**over_seeds(np.array(cell["scores"])), "seconds": cell["seconds"]}
            print(f"{task} {arm:5s} {np.mean(cell['scores']):6.1f} {np.round(cell['scores']).tolist()}")
            if arm == "MR.Q":
                checks.append(Check.of(f"{task}: MR.Q, published", cell["scores"], PUBLISHED[task]))
        axis.set(title=task, xlabel="frames", ylabel="return, 5 seeds", ylim=(0, 1000))
    save(figure, __file__, axes)
    print("not trained yet:", ", ".join(results["missing"]) or "none")
    conclude(__file__, results, checks, {})


if __name__ == "__main__":
    main()
