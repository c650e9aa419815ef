"""Does hindsight find goals that chance does not (Andrychowicz et al. 2017, arXiv:1707.01495)?

Of 2^n states of n bits one is the goal, and every other step costs 1: without a word of what was achieved, nothing but
-1 is ever seen. The commands of the documentation with their defaults, and the same without hindsight:

    operant train dqn operant/BitFlip-v0 --env-kwargs bits=15 --hindsight future --seeds 0-9
    operant train dqn operant/BitFlip-v0 --env-kwargs bits=25 --hindsight future --seeds 0-9
    operant train sac operant/Reach-v0 --hindsight future --budget 10000 --seeds 0-9
    operant train sac gymnasium_robotics:FetchReach-v4 --hindsight future --budget 5000 --seeds 0-4

Success is that of 100 episodes of the greedy policy. Presets were chosen on seeds from 1000 up.

    python experiments/hindsight.py            # some twenty minutes; needs the extra `goals`; goes on where it stopped
    python experiments/hindsight.py --draw
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from arms import band, gather
from checks import COLORS, conclude, panels, save

import operant
from operant.runtime.metrics import read_records

Case = tuple[str, str, dict[str, Any], int, range]
TASKS: dict[str, Case] = {
    "15 bits": ("dqn", "operant/BitFlip-v0", {"bits": 15}, 100_000, range(10)),
    "25 bits": ("dqn", "operant/BitFlip-v0", {"bits": 25}, 100_000, range(10)),
    "Reach": ("sac", "operant/Reach-v0", {}, 10_000, range(10)),
    "FetchReach-v4": ("sac", "gymnasium_robotics:FetchReach-v4", {}, 5_000, range(5)),
}
"""Algorithm, task, its parameters, environment steps of a seed, and seeds."""
ARMS = ("future", "none")


def learn(name: str, hindsight: str) -> dict[str, Any]:
    """Train, and return the steps of the evaluations and the success of every seed in each."""
    algorithm, task, kwargs, budget, seeds = TASKS[name]
    with tempfile.TemporaryDirectory() as folder:
        trained = operant.train(
            algorithm,
            task,
            env_kwargs=kwargs,
            budget=budget,
            seeds=list(seeds),
            hindsight=hindsight,
            run=Path(folder) / "run",
            evaluate_episodes=100,
        )
        records = list(read_records(trained.run.evaluations_path))
    return {
        "steps": [record["consumed"] for record in records],
        "success": [record["success_rate"] for record in records],
    }


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    cases = {f"{name}, {arm}": (name, arm) for name in TASKS for arm in ARMS}
    found = gather(__file__, __doc__, cases, tuple, learn)
    figure, axes = panels(len(TASKS))
    for axis, name in zip(axes, TASKS, strict=True):
        for color, arm in zip(COLORS, ARMS, strict=False):
            cell = found[f"{name}, {arm}"]
            label = "with hindsight" if arm == "future" else "without"
            band(axis, np.array(cell["steps"]) / 1000, np.array(cell["success"]).T, color=color, label=label)
        axis.set(title=name, xlabel="thousand environment steps", ylim=(-0.03, 1.03))
    axes[0].set_ylabel("success in 100 episodes")
    save(figure, __file__, axes)
    last = {name: np.array(cell["success"])[-1] for name, cell in found.items()}
    for name, success in last.items():
        print(f"{name:22s} {success.mean():.3f}  least {success.min():.2f}  most {success.max():.2f}")
    claims = {
        "15 bits: at least 95 % with hindsight, every seed": last["15 bits, future"].min() >= 0.95,
        "15 bits: at most 5 % without, every seed": last["15 bits, none"].max() <= 0.05,
        "25 bits: at least 95 % with hindsight, every seed": last["25 bits, future"].min() >= 0.95,
        "Reach: at least 98 % with hindsight, every seed": last["Reach, future"].min() >= 0.98,
        "FetchReach: at least 98 % with hindsight, every seed": last["FetchReach-v4, future"].min() >= 0.98,
    }
    conclude(__file__, {"success": last, "curves": found}, [], claims)


if __name__ == "__main__":
    main()
