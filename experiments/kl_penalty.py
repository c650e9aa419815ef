"""Claim: a penalty on KL(old‖new) with an adaptive weight keeps the divergence of an update near its target.

PPO on CartPole-v1 and Pendulum-v1 with five seeds: clipped; with the penalty whose β is doubled or halved for the next
update (Schulman et al. 2017, section 4); with dual descent, which adapts β and continues with the same rollout until
the divergence is within a factor 1.5 of the target, at most four times, and so takes more gradient steps than the
others; and clipped with the penalty in addition.
"""

from typing import Any

import numpy as np
import torch
from checks import COLORS, conclude, panels, save
from learning import follow
from matplotlib.axes import Axes

SEEDS, TARGET = range(5), 0.01
KEPT = ("losses/kl", "schedule/beta")
VARIANTS: dict[str, dict[str, Any]] = {
    "clip": {},
    "penalty": {"objective": "penalty", "keep": KEPT},
    "dual descent": {"objective": "penalty", "kl_coef_rounds": 4, "keep": KEPT},
    "clip and penalty": {"objective": "clip-and-penalty", "keep": KEPT},
}
SETTINGS: dict[str, Any] = {
    "preset": "paper",
    "num_envs": 32,
    "num_steps": 32,
    "num_minibatches": 4,
    "kl_coef_target": TARGET,
}
TASKS: dict[str, tuple[int, dict[str, Any]]] = {
    "CartPole-v1": (40_960, {**SETTINGS, "num_epochs": 5, "learning_rate": 3e-3, "hidden_sizes": (32, 32)}),
    "Pendulum-v1": (81_920, {**SETTINGS, "num_epochs": 10, "learning_rate": 1e-3, "gamma": 0.95}),
}


def draw(axes: list[Axes], task: str, runs: dict[str, dict[str, Any]]) -> None:
    """Draw returns, divergences and β: the median of the seeds, and their range for the returns."""
    for color, (name, run) in zip(COLORS, runs.items(), strict=False):
        steps, curve = run["steps"], np.array(run["curve"])
        ended = ~np.isnan(curve).any(axis=1)
        at, curve = np.array(steps)[ended], curve[ended]
        axes[0].plot(at, np.median(curve, axis=1), color=color, label=name, linewidth=1.5)
        axes[0].fill_between(at, curve.min(axis=1), curve.max(axis=1), color=color, alpha=0.1, linewidth=0)
        for axis, kept in zip(axes[1:], KEPT, strict=True):
            if kept in run:
                axis.plot(steps, np.median(run[kept], axis=1), color=color, label=name, linewidth=1.2)
    axes[1].axhspan(TARGET / 1.5, TARGET * 1.5, color=COLORS[6], alpha=0.3, linewidth=0)
    axes[0].set(title=f"{task}, return", ylabel=task)
    axes[1].set(title="KL(old‖new) of an update, nats", yscale="log", ylim=(TARGET / 30, TARGET * 10))
    axes[2].set(title="β", yscale="log")


def main() -> None:
    """Train, write down, draw; fail if a claim does not hold."""
    torch.set_num_threads(1)
    figure, axes = panels(3, 2)
    results: dict[str, Any] = {}
    claims = {}
    for row, (task, (budget, settings)) in enumerate(TASKS.items()):
        runs = {name: follow(task, SEEDS, budget, **settings, **change) for name, change in VARIANTS.items()}
        draw(axes[3 * row : 3 * row + 3], task, runs)
        results[task] = {"budget": budget}
        for name, run in runs.items():
            found = {"mean return": run["mean"], "final": run["final"]}
            if KEPT[0] in run:
                divergences = np.array(run[KEPT[0]])[len(run["steps"]) // 4 :]
                inside = (divergences >= TARGET / 1.5) & (divergences <= TARGET * 1.5)
                found |= {"median KL": np.median(divergences, axis=0), "share in the band": inside.mean()}
            results[task][name] = found
            print(task, name, {key: np.round(np.mean(value), 4) for key, value in found.items()}, flush=True)
        of = results[task]
        claims |= {
            f"{task}: with a penalty the median KL of every seed is within a factor 2 of its target": bool(
                np.all(np.abs(np.log(of["penalty"]["median KL"] / TARGET)) < np.log(2.0))
            ),
            f"{task}: dual descent is within the band more often": of["dual descent"]["share in the band"]
            > of["penalty"]["share in the band"],
        }
    for axis in axes[3:]:
        axis.set_xlabel("environment steps")
    save(figure, __file__, [axes[0], axes[3]])
    conclude(__file__, results, [], claims)


if __name__ == "__main__":
    main()
