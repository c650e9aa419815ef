"""Claim: PPO's results depend on its hyperparameters, the seed, and three implementation details.

One hyperparameter at a time is moved away from a common base on CartPole-v1, with five seeds each; the base itself has
twenty. Then three details are left out, one at a time and all together, with ten seeds on CartPole-v1 and on
Pendulum-v1: standardized advantages, orthogonal initialization (with a policy that begins close to uniform; without it,
what PyTorch gives a linear layer), and clipping the norm of the gradient.

A minibatch of 4096 needs a rollout of that size: four times as many steps, so a quarter as many rollouts. It is
compared with minibatches of 256 of such a rollout.

The score of a seed is the mean return of its episodes over the whole training. The dashed line is the mean of the base
over its twenty seeds.

    python experiments/ppo_sensitivity.py            # what is there already is kept
    python experiments/ppo_sensitivity.py --afresh
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from checks import COLORS, conclude, panels, save, standard_error
from learning import follow
from matplotlib.axes import Axes

from operant import streams
from operant.control import PPO

BUDGET, SEEDS = 40_960, range(5)
BASE: dict[str, Any] = {
    "preset": "paper",
    "num_envs": 32,
    "num_steps": 32,
    "num_epochs": 5,
    "num_minibatches": 4,
    "learning_rate": 3e-3,
    "hidden_sizes": (32, 32),
    "ent_coef": 0.0,
}
SWEEPS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "clip_range": ("clip range ε", (0.05, 0.1, 0.2, 0.4, 0.8)),
    "gae_lambda": ("λ of the advantages", (0.0, 0.5, 0.9, 0.95, 1.0)),
    "gamma": ("discount γ", (0.9, 0.98, 0.99, 0.999)),
    "num_epochs": ("epochs a rollout", (1, 2, 3, 5, 10, 20)),
    "num_minibatches": ("samples a minibatch (of 1024, of 4096)", (16, 4, 2, 1)),
    "ent_coef": ("entropy coefficient", (0.0, 0.01, 0.1)),
    "vf_coef": ("value coefficient", (0.1, 0.5, 2.0)),
    "max_grad_norm": ("maximum gradient norm", (0.05, 0.5, 2.0, None)),
}
LARGE: dict[str, dict[str, Any]] = {
    "256": {"num_steps": 128, "num_minibatches": 16},
    "4096": {"num_steps": 128, "num_minibatches": 1},
}
"""Rollouts of 4096, by the samples of a minibatch."""
DEFAULTS = {"clip_range": 0.2, "gae_lambda": 0.95, "gamma": 0.99, "vf_coef": 0.5, "max_grad_norm": 0.5}


def begin_uniformly(learner: PPO) -> None:
    """Draw weights and biases as PyTorch's linear layers do: uniform within the inverse root of the inputs."""
    networks = learner.agent.networks
    rows = len(networks.layers[0][0]) // len(learner.seeds)
    for position, seed in enumerate(learner.seeds):
        generator = streams.torch_generator(seed, "uniform initialization")
        for weight, bias in networks.layers:
            bound = weight.shape[1] ** -0.5
            for part in (weight, bias):
                part[position * rows : (position + 1) * rows].uniform_(-bound, bound, generator=generator)


WITHOUT: dict[str, dict[str, Any]] = {
    "all three details": {},
    "no standardized\nadvantages": {"normalize_advantage": "none"},
    "no orthogonal\ninitialization": {"prepare": begin_uniformly},
    "no clipping of\nthe gradient": {"max_grad_norm": None},
    "none of them": {
        "normalize_advantage": "none",
        "max_grad_norm": None,
        "prepare": begin_uniformly,
    },
}
TASKS: dict[str, tuple[range, int, dict[str, Any]]] = {
    "CartPole-v1": (range(10), BUDGET, BASE),
    "Pendulum-v1": (range(10), 100_000, {**BASE, "num_epochs": 10, "learning_rate": 1e-3, "gamma": 0.95}),
}


def sweep(base: dict[str, Any], before: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Train with all values of all hyperparameters that have no result; the base is trained once."""
    cells = {name: {str(value): {name: value} for value in values} for name, (_, values) in SWEEPS.items()}
    found: dict[str, dict[str, Any]] = {}
    for name, changes in (cells | {"rollouts of 4096": LARGE}).items():
        found[name] = {}
        for value, change in changes.items():
            if value in before.get(name, {}):
                found[name][value] = before[name][value]
                continue
            same = all(part == BASE.get(field, DEFAULTS.get(field)) for field, part in change.items())
            run = base if same else follow("CartPole-v1", SEEDS, BUDGET, **{**BASE, **change})
            found[name][value] = {"mean": run["mean"][: len(SEEDS)], "final": run["final"][: len(SEEDS)]}
            print(f"{name}={value}: {np.mean(found[name][value]['mean']):.1f}", flush=True)
    return found


def ablate(before: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Train without the details, unless there is a result with as many seeds."""
    found: dict[str, dict[str, Any]] = {}
    for task, (seeds, budget, parameters) in TASKS.items():
        found[task] = {}
        for name, change in WITHOUT.items():
            old = before.get(task, {}).get(name)
            if old is not None and len(old["mean"]) == len(seeds):
                found[task][name] = old
                continue
            run = follow(task, seeds, budget, **{**parameters, **change})
            found[task][name] = {"mean": run["mean"], "final": run["final"]}
            print(f"{task}, {name!r}: {np.mean(run['mean']):.1f}, final {np.mean(run['final']):.1f}", flush=True)
    return found


def dots(axis: Axes, runs: dict[str, Any], marked: str) -> None:
    """Draw the mean returns of all seeds and their mean for each value; the one `marked` in another color."""
    for position, (name, run) in enumerate(runs.items()):
        scores = run["mean"]
        color = COLORS[1] if name == marked else COLORS[0]
        offsets = np.linspace(-0.15, 0.15, len(scores))
        axis.plot(position + offsets, scores, "o", color=color, markersize=3.5, alpha=0.6)
        axis.plot([position - 0.3, position + 0.3], [np.mean(scores)] * 2, color=color, linewidth=2)
    axis.set_xticks(range(len(runs)), ["none" if name == "None" else name for name in runs])


def draw(base: dict[str, Any], found: dict[str, dict[str, Any]], details: dict[str, dict[str, Any]]) -> None:
    """Draw a panel for every hyperparameter, one for the seeds, and one for the details in each task."""
    figure, axes = panels(4, 3)
    for axis, (name, (title, _)) in zip(axes, SWEEPS.items(), strict=False):
        runs = found[name]
        marked = str(BASE.get(name, DEFAULTS.get(name)))
        if name == "num_minibatches":
            runs = {str(1024 // int(parts)): run for parts, run in runs.items()}
            runs |= {f"{size}\nof 4096": run for size, run in found["rollouts of 4096"].items()}
            marked = str(1024 // int(marked))
        dots(axis, runs, marked)
        axis.axhline(np.mean(base["mean"]), color=COLORS[6], linestyle="--", linewidth=1)
        axis.set(title=title, ylim=(0, 400))
    curve, seeds = np.array(base["curve"], dtype=float), axes[8]
    seeds.plot(base["steps"], curve, color=COLORS[0], alpha=0.35, linewidth=0.8)
    seeds.plot(base["steps"], np.nanmedian(curve, axis=1), color=COLORS[1], linewidth=2, label="median")
    seeds.set(title=f"base, {curve.shape[1]} seeds", xlabel="environment steps", ylim=(0, 505))
    for axis, (task, runs) in zip(axes[9:], details.items(), strict=False):
        dots(axis, runs, next(iter(runs)))
        axis.set(title=f"details on {task}")
        axis.tick_params(axis="x", labelsize=6)
    axes[11].set_visible(False)
    for axis in (axes[0], axes[4], axes[9]):
        axis.set_ylabel("mean return over the training")
    seeds.set_ylabel("return of the episodes of a rollout")
    save(figure, __file__, [seeds])


def claims(results: dict[str, Any]) -> dict[str, bool]:
    """Return the claims about the results."""
    means = {
        name: {value: float(np.mean(run["mean"])) for value, run in runs.items()}
        for name, runs in results["hyperparameters"].items()
    }
    final = results["base"]["final"]
    claims = {
        "λ = 0 learns less than half of what λ = 0.95 does": means["gae_lambda"]["0.0"]
        < means["gae_lambda"]["0.95"] / 2,
        "one epoch learns less than three quarters of what five do": means["num_epochs"]["1"]
        < 0.75 * means["num_epochs"]["5"],
        f"the best of 20 seeds ends with twice the score of the worst ({max(final):.0f}, {min(final):.0f})": max(final)
        >= 2.0 * min(final),
    }
    expected = {
        ("CartPole-v1", "no standardized\nadvantages"): "worse",
        ("CartPole-v1", "no orthogonal\ninitialization"): "worse",
        ("Pendulum-v1", "no orthogonal\ninitialization"): "better",
    }
    for (task, name), outcome in expected.items():
        whole, without = (np.array(results["details"][task][kind]["mean"]) for kind in (next(iter(WITHOUT)), name))
        change = (without.mean() - whole.mean()) / np.hypot(standard_error(whole), standard_error(without))
        text = name.replace("\n", " ")
        claims[f"{task}, {text}: {outcome} by more than three standard errors ({change:+.1f})"] = bool(
            (change if outcome == "better" else -change) > 3.0
        )
    return claims


def main() -> None:
    """Train missing cases, store and plot the results; fail if a claim does not hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--afresh", action="store_true", help="train everything again")
    afresh, file = parser.parse_args().afresh, Path(__file__).with_suffix(".json")
    before = {} if afresh or not file.exists() else json.loads(file.read_text())["results"]
    torch.set_num_threads(1)
    base = before.get("base", {})
    if "curve" not in base:
        run = follow("CartPole-v1", range(20), BUDGET, **BASE)
        base = {name: run[name] for name in ("steps", "mean", "final", "curve")}
    results = {
        "budget": BUDGET,
        "base": base,
        "hyperparameters": sweep(base, before.get("hyperparameters", {})),
        "details": ablate(before.get("details", {})),
    }
    draw(base, results["hyperparameters"], results["details"])
    conclude(__file__, results, [], claims(results))


if __name__ == "__main__":
    main()
