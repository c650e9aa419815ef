"""Model-based methods compared with MR.Q, which uses a model only to learn a representation, and with SAC.

SAC has no model; PETS plans in one; MBPO trains SAC on its predictions; MR.Q (Fujimoto et al. 2025, arXiv:2501.16142)
predicts for nothing but its representation. On three tasks, with the defaults of their commands, five seeds each:

    operant train mrq Pendulum-v1 --budget 4000 --seeds 5

Scores are those of 20 episodes of each seed (of 3 where PETS plans for long episodes). Time is that of one core,
evaluations included, for all five seeds; it is processor time, which other programs on the machine do not change much.
Defaults were chosen on seeds from 1000 up.

    python experiments/rivals.py            # on one free core some hour; resumes where it stopped
    python experiments/rivals.py --draw
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from arms import band, gather
from checks import COLORS, conclude, panels, save
from matplotlib.ticker import LogLocator, NullFormatter

import operant
from operant.runtime.metrics import read_records

SEEDS = range(5)
FEW = {"evaluate_episodes": 5}
CART_POLE: dict[str, tuple[str, int, dict[str, Any]]] = {
    "MR.Q": ("mrq", 20, {"budget": 4000, "evaluate_every": 250, **FEW}),
    "SAC": ("sac", 20, {"budget": 12_000, "evaluate_every": 500, **FEW}),
    "MBPO": ("mbpo", 20, {"budget": 2000, "evaluate_every": 125, **FEW}),
    "PETS": ("pets", 3, {"budget": 600, "evaluate_every": 200, "evaluate_episodes": 1}),
}
TASKS: dict[str, dict[str, tuple[str, int, dict[str, Any]]]] = {
    "Pendulum-v1": {
        "MR.Q": ("mrq", 20, {"budget": 4000, "evaluate_every": 250, **FEW}),
        "SAC": ("sac", 20, {"budget": 15_000, "evaluate_every": 500, **FEW}),
        "MBPO": ("mbpo", 20, {"budget": 1500, "evaluate_every": 125, **FEW}),
        "PETS": ("pets", 20, {"budget": 1000, "evaluate_every": 250, "evaluate_episodes": 2}),
    },
    "InvertedPendulum-v5": CART_POLE,
    "operant/ContinuousCartPole-v0": CART_POLE,
}
"""Algorithms, episodes of the last score, and options, by task and name."""
SOLVED = {"Pendulum-v1": -200.0, "InvertedPendulum-v5": 950.0, "operant/ContinuousCartPole-v0": 475.0}
"""Return of a solved task; those of the cart-poles are 95 % of the maximum."""


def learn(task: str, algorithm: str, episodes: int, options: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the curve of every seed, its last score, and the time that training took."""
    with tempfile.TemporaryDirectory() as folder:
        began, cpu = time.monotonic(), time.process_time()
        trained = operant.train(
            algorithm, task, seeds=SEEDS, run=Path(folder) / "run", progress="silent", compile="off", **options
        )
        seconds, cpu_seconds = time.monotonic() - began, time.process_time() - cpu
        records = list(read_records(trained.run.evaluations_path))
        last = trained.evaluate(episodes)
    return {
        "steps": [record["consumed"] for record in records],
        "curves": [record["scores"] for record in records],
        "scores": list(last.scores),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }


def steps_to(cell: dict[str, Any], level: float) -> int | None:
    """Return the steps after which the mean over seeds is first at a level, or None."""
    means = np.array(cell["curves"]).mean(1)
    return next((step for step, mean in zip(cell["steps"], means, strict=True) if mean >= level), None)


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    cases = {f"{task}, {arm}": (task, *given) for task, arms in TASKS.items() for arm, given in arms.items()}
    found = gather(__file__, __doc__, cases, tuple, learn)
    figure, axes = panels(len(TASKS), 2)
    results: dict[str, Any] = {}
    claims: dict[str, bool] = {}
    for column, (task, arms) in enumerate(TASKS.items()):
        shown = (axes[column], axes[len(TASKS) + column])
        for color, arm in zip(COLORS, arms, strict=False):
            cell = found[f"{task}, {arm}"]
            table, share = np.array(cell["curves"]).T, cell["cpu_seconds"] / cell["steps"][-1]
            band(shown[0], cell["steps"], table, color=color, label=arm)
            band(shown[1], [share * step for step in cell["steps"]], table, color=color, label=arm)
            reached = steps_to(cell, SOLVED[task])
            results[f"{task}, {arm}"] = {
                "steps": cell["steps"][-1],
                "scores": cell["scores"],
                "solved_after": reached,
                "solved_after_seconds": None if reached is None else share * reached,
                "cpu_seconds": cell["cpu_seconds"],
            }
            print(f"{task} {arm:5s} {np.mean(cell['scores']):8.1f} {np.round(cell['scores'], 1).tolist()}, {reached}")
        for axis, unit in zip(shown, ("environment steps", "seconds of one core, five seeds"), strict=True):
            axis.axhline(SOLVED[task], color="gray", linewidth=0.8)
            axis.set(title=task, xlabel=unit, ylabel="return, 5 seeds", xscale="log")
            axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
            axis.xaxis.set_major_formatter("{x:.0f}")
            axis.xaxis.set_minor_formatter(NullFormatter())
        claims |= compared(task, {arm: found[f"{task}, {arm}"] for arm in arms})
    save(figure, __file__, axes)
    solved = {arm: results[f"Pendulum-v1, {arm}"]["solved_after"] or np.inf for arm in TASKS["Pendulum-v1"]}
    claims["Pendulum-v1: MR.Q is at -200 in fewer steps than SAC"] = solved["MR.Q"] < solved["SAC"]
    conclude(__file__, results, [], claims)


def compared(task: str, cells: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """Return the claims about a task: steps to the level of a solved task, or to the highest one that SAC reached."""
    level = min(SOLVED[task], float(np.array(cells["SAC"]["curves"]).mean(1).max()))
    fewest = {arm: steps_to(cell, level) or np.inf for arm, cell in cells.items()}
    return {
        f"{task}: MBPO is at {level:.0f} in a third of the steps of SAC": 3 * fewest["MBPO"] <= fewest["SAC"],
        f"{task}: MBPO is there in fewer steps than MR.Q": fewest["MBPO"] < fewest["MR.Q"],
    }


if __name__ == "__main__":
    main()
