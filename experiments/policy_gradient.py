"""Claims about policy gradients, on CartPole-v1 and Acrobot-v1, 500 000 steps per seed.

REINFORCE weights an action by the return of the whole episode, by the rewards-to-go, or by these minus a learned
baseline. Each variant removes noise without bias, so the gradient of the same policy has a lower variance, and learning
is more reliable. Ten seeds of each are trained; reported are the number of seeds that solve the task, and the variance
of their gradients across batches at fixed parameters.

With their presets, the final greedy policies reach over 100 episodes of Gymnasium's own environment: A2C 495 on
CartPole-v1 and -90 on Acrobot-v1, A3C and REINFORCE with a baseline 475 on CartPole-v1 (means over the seeds).

    python experiments/policy_gradient.py [part ...]     # without a part: all; what is done already is kept
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from learning import BLUE, GRAY, ORANGE, learn, one_by_one, write

import operant
from operant.control.reinforce import PSI, Reinforce
from operant.envs import make

BUDGET = 500_000
SOLVED = 475.0
"""Mean return from which CartPole-v1 counts as solved, Gymnasium's threshold."""
TEN, FIVE = range(10), range(5)
VARIANTS = {"reinforce": "whole episode", "reinforce-to-go": "to go", "reinforce-baseline": "to go, less baseline"}
COLORS = {"reinforce": ORANGE, "reinforce-to-go": "#009e73", "reinforce-baseline": BLUE, "a2c": "k", "a3c": GRAY}
PARTS = {
    "reinforce-baseline": ("reinforce-baseline", "CartPole-v1", TEN, 475.0),
    "reinforce-to-go": ("reinforce-to-go", "CartPole-v1", TEN, None),
    "reinforce": ("reinforce", "CartPole-v1", TEN, None),
    "a2c": ("a2c", "CartPole-v1", FIVE, 495.0),
    "a2c-acrobot": ("a2c", "Acrobot-v1", FIVE, -90.0),
    "a3c": ("a3c", "CartPole-v1", FIVE, 475.0),
}
"""Algorithm, task, seeds and the mean to reach, by name of the part."""
STAGES = (0, 10_000, 50_000)
"""Steps after which the variance of the gradient is measured."""
BATCHES = 48
"""Gradients at each stage."""


def bar(part: str) -> dict[str, Any]:
    """Train the seeds of a part; A3C trains one at a time."""
    algorithm, task, seeds, _ = PARTS[part]
    if algorithm == "a3c":
        return one_by_one(algorithm, task, seeds, BUDGET)
    return learn(task, seeds, BUDGET, algorithm=algorithm)


def fraction(scores: Sequence[float]) -> str:
    """Return how many of the seeds solve CartPole-v1: their final policies reach Gymnasium's threshold, 475."""
    return f"{sum(score >= SOLVED for score in scores)} of {len(scores)}"


def gradients(trained: Reinforce, seed: int, stage: int) -> dict[str, float]:
    """Return the trace of the gradient's covariance by Ψ, from the same episodes at the parameters of one seed."""
    copies = range(1000 * (seed + 1) + stage, 1000 * (seed + 1) + stage + BATCHES)
    env = make("CartPole-v1", trained.config.num_envs, copies)
    measured = Reinforce(trained.config, env, seeds=copies, budget=1)
    measured.agent.parameters.copy_(trained.agent.parameters[seed].expand(BATCHES, -1))
    rollout = measured.collect(torch.ones(BATCHES, dtype=torch.bool))
    variances = {}
    for psi in ("total", "to-go", "baseline"):
        measured.config = operant.configure("reinforce", "CartPole-v1", advantage_kind=psi)
        measured.critic_kind = PSI[psi].critic
        gradient = measured.policy_gradient(measured.estimate_advantages(rollout))[0]
        variances[psi] = float(gradient.var(0).sum())
    env.close()
    return variances


def variance() -> dict[str, Any]:
    """Measure the variance along the training of REINFORCE with a baseline."""
    config = operant.configure("reinforce-baseline", "CartPole-v1")
    env = make("CartPole-v1", config.num_envs, TEN)
    learner = Reinforce(config, env, seeds=TEN, budget=BUDGET)
    stages = []
    for stage in STAGES:
        while learner.consumed < stage:
            learner.iterate()
        seeds = [gradients(learner, seed, stage) for seed in TEN]
        stages.append({"steps": stage, "variances": {psi: [seed[psi] for seed in seeds] for psi in seeds[0]}})
    learner.close()
    return {"episodes_per_batch": config.num_envs, "batches": BATCHES, "stages": stages}


def draw(results: dict[str, Any]) -> None:
    """Draw the curves of the variants, the variance of their gradients, and all final scores on CartPole."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), constrained_layout=True)
    for name, label in VARIANTS.items():
        steps = [point["steps"] / 1000 for point in results[name]["curve"]]
        scores = np.array([point["scores"] for point in results[name]["curve"]])
        left.plot(steps, scores, color=COLORS[name], alpha=0.15, linewidth=0.7)
        left.plot(steps, np.mean(scores, axis=1), color=COLORS[name], linewidth=2.2, label=label)
    left.set(xlabel="thousand environment steps of each seed", ylabel="greedy return, 20 episodes", ylim=(0, 515))
    left.set_title("REINFORCE on CartPole-v1: mean of 10 seeds")
    left.legend(frameon=False, loc="lower right", title="actions weighted by")
    stages = results["variance"]["stages"]
    for psi, name in zip(("total", "to-go", "baseline"), VARIANTS, strict=True):
        shift = 0.8 * (list(VARIANTS).index(name) - 1) / 3
        for place, stage in enumerate(stages):
            values = stage["variances"][psi]
            middle.plot([place + shift] * len(values), values, "o", color=COLORS[name], markersize=4, alpha=0.6)
            middle.plot(place + shift, np.exp(np.mean(np.log(values))), "_", color=COLORS[name], markersize=20)
    middle.set_yscale("log")
    middle.set_xticks(range(len(stages)), [f"{stage['steps']:,}" for stage in stages])
    middle.set(xlabel="environment steps of training", ylabel="trace of the covariance")
    middle.set_title("gradient at fixed parameters, 10 seeds")
    names = [part for part in PARTS if PARTS[part][1] == "CartPole-v1"][::-1]
    for place, name in enumerate(names):
        scores = results[name]["final"]["scores"]
        offsets = place + np.linspace(-0.2, 0.2, len(scores))
        right.plot(scores, offsets, "o", color=COLORS[name], markersize=4, alpha=0.7)
        if (least := PARTS[name][3]) is not None:
            right.plot([least, least], [place - 0.35, place + 0.35], color="k", linewidth=1.5)
    right.set_yticks(range(len(names)), [f"{name}\n{results[name]['final']['mean']:.1f}" for name in names])
    right.set(xlabel="final greedy return (line: mean to reach)", xlim=(0, 515))
    right.set_title("CartPole-v1 after 500 000 steps")
    for axis in (left, middle, right):
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=130)
    plt.close(figure)


def main(chosen: Sequence[str]) -> None:
    """Do the parts that were chosen or are missing; draw once all are there; fail if a mean is not reached."""
    file = Path(__file__).with_suffix(".json")
    for part in chosen or (*PARTS, "variance"):
        kept = json.loads(file.read_text()) if file.exists() else {}
        if part in kept and not chosen:
            continue
        result = variance() if part == "variance" else bar(part)
        write({**(json.loads(file.read_text()) if file.exists() else {}), part: result}, __file__)
    results = json.loads(file.read_text())
    missed = False
    for part, (algorithm, task, _, least) in PARTS.items():
        if part not in results:
            continue
        final = results[part]["final"]
        missed |= least is not None and final["mean"] < least
        reach = "" if least is None else f", to reach {least:g}"
        solved = f", {fraction(final['scores'])} solved" if task == "CartPole-v1" else ""
        print(f"{algorithm} {task}: mean {final['mean']:.1f}, worst {min(final['scores']):.1f}{solved}{reach}")
    if set(results) >= {*PARTS, "variance"}:
        draw(results)
    raise SystemExit(missed)


if __name__ == "__main__":
    main(sys.argv[1:])
