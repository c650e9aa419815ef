"""Does MuZero, a tree search in a learned latent model (arXiv:1911.08265), learn CartPole-v1?

The command with its defaults:

    operant train muzero CartPole-v1 --seeds 5

Scores are means over 100 episodes per seed after 40 000 environment steps, and the time per step must not grow with the
replay buffer; defaults were chosen on seeds from 1000 up.

    python experiments/latent_search.py            # a quarter of an hour
    python experiments/latent_search.py --draw
"""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from arms import band, gather
from checks import COLORS, conclude, panels, save

import operant
from operant.runtime.metrics import read_records

SEEDS = range(5)


def learn(task: str) -> dict[str, Any]:
    """Train, and return the curve of every seed, its last scores, and when each batch of steps was done."""
    with tempfile.TemporaryDirectory() as folder:
        trained = operant.train("muzero", task, seeds=SEEDS, run=Path(folder) / "run", evaluate_episodes=5)
        evaluations = list(read_records(trained.run.evaluations_path))
        batches = list(read_records(trained.run.metrics_path))
        last = trained.evaluate(100)
    return {
        "steps": [record["consumed"] for record in evaluations],
        "curves": [record["scores"] for record in evaluations],
        "scores": list(last.scores),
        "batches": [[record["consumed"], record["time/seconds"]] for record in batches],
    }


def main() -> None:
    """Train, draw; fail if a claim does not hold."""
    found = gather(__file__, __doc__, {"CartPole-v1": ("CartPole-v1",)}, tuple, learn)["CartPole-v1"]
    figure, axes = panels(2)
    band(axes[0], found["steps"], np.array(found["curves"]).T, color=COLORS[0], label="MuZero")
    axes[0].axhline(475, color="gray", linewidth=0.8)
    axes[0].set(title="CartPole-v1", xlabel="environment steps", ylabel="return, 5 seeds", ylim=(0, 510))
    steps, seconds = np.array(found["batches"]).T
    axes[1].plot(steps, seconds, color=COLORS[0])
    axes[1].set(title="Time", xlabel="environment steps", ylabel="seconds of training, 5 seeds together")
    save(figure, __file__, axes)
    each = np.diff(seconds) / np.diff(steps) * 1000 / len(SEEDS)
    tenth = len(each) // 10
    early, late = np.median(each[tenth : 2 * tenth]), np.median(each[-tenth:])
    print(f"{seconds[-1]:.0f} s; {early:.2f} ms a step of a seed in the second tenth, {late:.2f} ms in the last")
    claims = {
        "at least 475 after 40 000 steps, every seed": min(found["scores"]) >= 475,
        "a step takes no longer at the end": bool(late <= 1.2 * early),
    }
    conclude(__file__, {"scores": found["scores"], "milliseconds": [early, late]}, [], claims)


if __name__ == "__main__":
    main()
