"""How far does planning in a learned model get with few steps (PETS; Chua et al. 2018, arXiv:1805.12114)?

The commands with their defaults, on Pendulum-v1, where -200 is a pendulum that is swung up and stays there:

    operant train pets Pendulum-v1 --budget 1000 --seeds 10
    operant train sac Pendulum-v1 --seeds 10

Scores are those of 100 episodes of each seed; defaults were chosen on seeds from 1000 up.

    python experiments/few_steps.py            # half an hour; resumes where it stopped
    python experiments/few_steps.py --draw
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

SEEDS = range(10)
ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "PETS": ("pets", {"budget": 1000, "evaluate_every": 200, "evaluate_episodes": 3}),
    "SAC": ("sac", {"budget": 20_000, "evaluate_every": 500}),
}


def learn(algorithm: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the curve of every seed, its last score, and the seconds that training took."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        trained = operant.train(algorithm, "Pendulum-v1", seeds=SEEDS, run=Path(folder) / "run", **options)
        seconds = time.monotonic() - began
        records = list(read_records(trained.run.evaluations_path))
        last = trained.evaluate(100)
    return {
        "steps": [record["consumed"] for record in records],
        "curves": [record["scores"] for record in records],
        "scores": list(last.scores),
        "seconds": seconds,
    }


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    found = gather(__file__, __doc__, ARMS, tuple, learn)
    figure, axes = panels(1)
    for color, arm in zip(COLORS, ARMS, strict=False):
        cell = found[arm]
        band(axes[0], cell["steps"], np.array(cell["curves"]).T, color=color, label=arm)
        print(
            f"{arm:5s} {np.mean(cell['scores']):.1f}", np.round(cell["scores"], 1).tolist(), f"{cell['seconds']:.0f} s"
        )
    axes[0].axhline(-200, color="gray", linewidth=0.8)
    axes[0].set(title="Pendulum-v1", xlabel="environment steps", ylabel="return, 10 seeds", xscale="log")
    save(figure, __file__, axes)
    curve = np.array(found["SAC"]["curves"]).mean(1)
    reached = [step for step, value in zip(found["SAC"]["steps"], curve, strict=True) if value >= -200]
    print(f"SAC's mean is at -200 or above after {reached[0] if reached else 'none'} steps")
    claims = {
        "PETS: at least -200 after 1 000 steps, every seed": min(found["PETS"]["scores"]) >= -200,
        "SAC's mean needs at least three times as many": not reached or reached[0] >= 3000,
    }
    results = {arm: {key: found[arm][key] for key in ("scores", "seconds")} for arm in ARMS}
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
