"""Claim: λ of GAE trades bias for variance, and PPO learns best with an intermediate λ.

PPO on CartPole-v1 and Pendulum-v1 with λ from 0 (only the critic) to 1 (only the sampled return), five seeds each, with
all else equal. The score of a seed is the mean return of its episodes over the whole training.
"""

from typing import Any

import numpy as np
import torch
from checks import COLORS, conclude, panels, save, standard_error
from learning import follow

SEEDS = range(5)
LAMBDAS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 1.0)
SETTINGS: dict[str, Any] = {"preset": "paper", "num_envs": 32, "num_steps": 32, "num_epochs": 5, "num_minibatches": 4}
TASKS: dict[str, tuple[int, dict[str, Any]]] = {
    "CartPole-v1": (40_960, {**SETTINGS, "learning_rate": 3e-3, "hidden_sizes": (32, 32)}),
    "Pendulum-v1": (122_880, {**SETTINGS, "num_epochs": 10, "learning_rate": 1e-3, "gamma": 0.95}),
}


def learn() -> dict[str, Any]:
    """Train with every λ on every task."""
    results: dict[str, Any] = {}
    for task, (budget, settings) in TASKS.items():
        results[task] = {"budget": budget, "runs": {}}
        for lam in LAMBDAS:
            run = follow(task, SEEDS, budget, gae_lambda=lam, **settings)
            results[task]["runs"][f"{lam:g}"] = {"mean": run["mean"], "final": run["final"]}
            print(f"{task}, λ = {lam:g}: {np.mean(run['mean']):.1f}, final {np.mean(run['final']):.1f}", flush=True)
    return results


def draw(results: dict[str, Any]) -> None:
    """Draw every seed and the means, a panel for each task."""
    figure, axes = panels(2)
    for axis, (task, found) in zip(axes, results.items(), strict=True):
        for position, run in enumerate(found["runs"].values()):
            offsets = np.linspace(-0.12, 0.12, len(run["mean"]))
            axis.plot(position + offsets, run["mean"], "o", color=COLORS[0], markersize=3.5, alpha=0.6)
        means = [np.mean(run["mean"]) for run in found["runs"].values()]
        axis.plot(range(len(means)), means, color=COLORS[1], linewidth=2, label="mean of the seeds")
        axis.set_xticks(range(len(means)), list(found["runs"]))
        axis.set(title=f"PPO on {task}, {found['budget']} steps", xlabel="λ")
    axes[0].set_ylabel("mean return over the training")
    save(figure, __file__, axes)


def claims(results: dict[str, Any]) -> dict[str, bool]:
    """Return the claims about the results; the claim about λ = 1 depends on the task."""
    found = {}
    for task, result in results.items():
        scores = {name: np.array(run["mean"]) for name, run in result["runs"].items()}
        usual = scores["0.95"]
        apart = {
            end: (usual.mean() - scores[end].mean()) / np.hypot(standard_error(usual), standard_error(scores[end]))
            for end in ("0", "1")
        }
        found[f"{task}: λ = 0.95 is better than λ = 0 by three standard errors ({apart['0']:.1f})"] = apart["0"] > 3.0
        found[f"{task}: λ = 0.95 is better than λ = 1, by {apart['1']:.1f} standard errors"] = apart["1"] > 0.0
    return {claim: bool(holds) for claim, holds in found.items()}


def main() -> None:
    """Train, store and plot the results; fail if a claim does not hold."""
    torch.set_num_threads(1)
    results = learn()
    draw(results)
    conclude(__file__, results, [], claims(results))


if __name__ == "__main__":
    main()
