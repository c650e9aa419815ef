"""Claim: SAC with state-dependent noise solves MountainCarContinuous-v0 (gSDE; Raffin et al. 2021, arXiv:2005.05719).

The reward of MountainCarContinuous-v0 is 100 at the top, minus a tenth of the squared action at every step, so a policy
that never reaches the top learns to stand still. The command with its defaults, and the same with independent noise:

    operant train sac MountainCarContinuous-v0 --budget 50000 --seeds 10
    operant train sac MountainCarContinuous-v0 --budget 50000 --seeds 10 --no-use-sde

Scores are those of 100 episodes of the greedy policy; the preset was chosen on seeds from 1000 up.

    python experiments/state_noise.py            # ten minutes; resumes where it stopped
    python experiments/state_noise.py --draw
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from arms import band, gather
from checks import COLORS, conclude, panels, save

import operant
from operant.runtime.metrics import read_records

ARMS = {"noise of the state": True, "independent noise": False}
SEEDS = range(10)


def learn(use_sde: bool) -> dict[str, Any]:
    """Train, and return the curve of every seed and its last score."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        task = "MountainCarContinuous-v0"
        trained = operant.train("sac", task, budget=50_000, seeds=SEEDS, use_sde=use_sde, run=run)
        records = list(read_records(trained.run.evaluations_path))
        last = trained.evaluate(100)
    return {
        "steps": [record["consumed"] for record in records],
        "curves": [record["scores"] for record in records],
        "scores": list(last.scores),
    }


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    found = gather(__file__, __doc__, {arm: (use,) for arm, use in ARMS.items()}, tuple, learn)
    figure, axes = panels(1)
    for color, arm in zip(COLORS, ARMS, strict=False):
        cell = found[arm]
        band(axes[0], np.array(cell["steps"]) / 1000, np.array(cell["curves"]).T, color=color, label=arm)
    axes[0].set(title="SAC on MountainCarContinuous-v0", xlabel="thousand environment steps", ylabel="return, 10 seeds")
    save(figure, __file__, axes)
    scores = {arm: np.array(found[arm]["scores"]) for arm in ARMS}
    for arm, values in scores.items():
        print(f"{arm:20s} {values.mean():.1f}", values.round(1).tolist())
    learned = found["noise of the state"]
    *_, before = (row for steps, row in zip(learned["steps"], learned["curves"], strict=True) if steps <= 50_000)
    claims = {
        "at least 90 with noise of the state, every seed": bool(scores["noise of the state"].min() >= 90),
        "so in the last evaluation before 50 000 steps, every seed": min(before) >= 90,
        "independent noise leaves seeds below 90": bool(scores["independent noise"].min() < 90),
    }
    conclude(__file__, {"scores": scores}, [], claims)


if __name__ == "__main__":
    main()
