"""Claim: on CartPole without velocities, recurrent PPO balances the pole, and PPO does not.

Five seeds of each, 150 000 steps per seed, equal hyperparameters except the recurrent network. Scores are means over
100 greedy episodes of the final policies.
"""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from learning import BLUE, ORANGE, learn, write

from operant.control.recurrent_ppo import PRESETS

TASK = "operant/HiddenCartPole-v0"
SEEDS = range(5)
BUDGET = 150_000
REMEMBERS, FORGETS = 400.0, 100.0
"""Mean score that a recurrent policy must reach, and that one without a hidden state must stay below."""


def draw(blocks: dict[str, Any]) -> None:
    """Draw the learning curves of all seeds."""
    figure, axis = plt.subplots(figsize=(6.5, 3.8), constrained_layout=True)
    for (name, block), color in zip(blocks.items(), (BLUE, ORANGE), strict=True):
        steps = [point["steps"] for point in block["curve"]]
        scores = np.array([point["scores"] for point in block["curve"]])
        axis.plot(steps, scores, color=color, alpha=0.3, linewidth=0.9)
        axis.plot(steps, np.median(scores, axis=1), color=color, linewidth=2.2, label=f"{name}, median of five seeds")
    axis.set(
        xlabel="environment steps of each seed",
        ylabel="greedy return, 20 episodes",
        title="CartPole without velocities: PPO with and without a memory",
        ylim=(0, 520),
    )
    axis.legend(frameon=False, loc="center right")
    axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)
    plt.close(figure)


def main() -> None:
    """Train both, store and plot the results; fail if a claim does not hold."""
    preset = PRESETS[TASK]
    plain = {name: value for name, value in preset.items() if name != "rnn_hidden_size"}
    blocks = {
        "with memory": learn(TASK, SEEDS, BUDGET, algorithm="recurrent-ppo"),
        "without": learn(TASK, SEEDS, BUDGET, num_epochs=4, num_minibatches=4, share_features=True, **plain),
    }
    write(blocks, __file__)
    draw(blocks)
    for name, block in blocks.items():
        final = block["final"]
        print(f"{name}: mean {final['mean']:.1f}, seeds {', '.join(f'{score:.1f}' for score in final['scores'])}")
    remembering, forgetting = (block["final"]["mean"] for block in blocks.values())
    raise SystemExit(not (remembering >= REMEMBERS and forgetting < FORGETS))


if __name__ == "__main__":
    main()
