"""Model-based methods compared with MR.Q, which uses a model only to learn a representation, and with SAC.

SAC has no model; PETS plans in one; MBPO trains SAC on its predictions; MR.Q (Fujimoto et al. 2025, arXiv:2501.16142)
predicts for nothing but its representation. All on Pendulum-v1, with the defaults of their commands, five seeds each:

    operant train mrq Pendulum-v1 --budget 4000 --seeds 5

Scores are those of 20 episodes of each seed. Time is that of one core, evaluations included, for all five seeds; it is
processor time, which other programs on the machine do not change much. Defaults were chosen on seeds from 1000 up.

    python experiments/rivals.py            # on one free core some ten minutes; resumes where it stopped
    python experiments/rivals.py --draw
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from arms import band, gather
from checks import COLORS, conclude, panels, save

import operant
from operant.runtime.metrics import read_records

TASK, SOLVED = "Pendulum-v1", -200.0
SEEDS = range(5)
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "MR.Q": ("mrq", {"budget": 4000, "evaluate_every": 250, "evaluate_episodes": 5}),
    "SAC": ("sac", {"budget": 15_000, "evaluate_every": 500, "evaluate_episodes": 5}),
    "MBPO": ("mbpo", {"budget": 1500, "evaluate_every": 125, "evaluate_episodes": 5}),
    "PETS": ("pets", {"budget": 1000, "evaluate_every": 250, "evaluate_episodes": 2}),
}


def learn(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the curve of every seed, its last score, and the time that training took."""
    with tempfile.TemporaryDirectory() as folder:
        began, cpu = time.monotonic(), time.process_time()
        trained = operant.train(
            algorithm, TASK, seeds=SEEDS, run=Path(folder) / "run", progress="silent", compile="off", **options
        )
        seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu
        records = list(read_records(trained.run.evaluations_path))
        last = trained.evaluate(20)
    return {
        "steps": [record["consumed"] for record in records],
        "curves": [record["scores"] for record in records],
        "scores": list(last.scores),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }


def solved_after(cell: dict[str, Any]) -> int | None:
    """Return the steps after which the mean over seeds is first at the level of a solved task, or None."""
    means = np.array(cell["curves"]).mean(1)
    return next((step for step, mean in zip(cell["steps"], means, strict=True) if mean >= SOLVED), None)


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    found = gather(__file__, __doc__, ARMS, tuple, learn)
    figure, axes = panels(2)
    results: dict[str, Any] = {}
    for color, arm in zip(COLORS, ARMS, strict=False):
        cell, reached = found[arm], solved_after(found[arm])
        table = np.array(cell["curves"]).T
        share = cell["cpu_seconds"] / cell["steps"][-1]
        band(axes[0], cell["steps"], table, color=color, label=arm)
        band(axes[1], [share * step for step in cell["steps"]], table, color=color, label=arm)
        results[arm] = {
            "steps": cell["steps"][-1],
            "scores": cell["scores"],
            "solved_after": reached,
            "solved_after_seconds": None if reached is None else share * reached,
            "cpu_seconds": cell["cpu_seconds"],
        }
        print(f"{arm:5s} {np.mean(cell['scores']):8.1f} {np.round(cell['scores'], 1).tolist()}", results[arm])
    for axis, unit in zip(axes, ("environment steps", "seconds of one core, five seeds"), strict=True):
        axis.axhline(SOLVED, color="gray", linewidth=0.8)
        axis.set(title=TASK, xlabel=unit, ylabel="return, 5 seeds", xscale="log")
    save(figure, __file__, axes)
    fewest = {arm: result["solved_after"] or np.inf for arm, result in results.items()}
    claims = {
        "MR.Q is at -200 in fewer steps than SAC": fewest["MR.Q"] < fewest["SAC"],
        "the methods that plan or train with predictions need fewer steps than MR.Q": max(
            fewest["PETS"], fewest["MBPO"]
        )
        < fewest["MR.Q"],
    }
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
