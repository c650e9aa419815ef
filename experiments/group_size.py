"""Claim: groups of four answers give poor estimates; larger groups raise the signal-to-noise ratio and keep the signal.

Left and middle: the errors of mean, standard deviation and advantage of a group of G answers that are right with
probability p, computed exactly by summing over the number of right answers. Extra answers for the statistics alone
(`statistics`) are counted too; they cost sampling, not training.

Right: the measured gradients of GRPO for a small fixed language model, over batches of the same prompts (so that all
noise comes from the answers), and over batches with the same number of answers to different prompts. The signal is
the length of the mean gradient, the noise the root of the gradients' total variance; both are estimated without bias
from K batches. The scale is 1/G; with 1/√G both are √G times as large, and their ratio is the same.

    python experiments/group_size.py            # about three minutes; resumes where it stopped
    python experiments/group_size.py --draw
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from arms import band, gather
from checks import COLORS, conclude, panels, save
from small_models import Recorder, erring, learner_of
from torch import Tensor

from operant import ops
from operant.language import GRPOConfig
from operant.language.models import LanguageModel
from operant.language.tasks import find
from operant.state import State

RATES, SIZES = (0.1, 0.3, 0.5), (2, 4, 8, 16, 32, 64)
TASK = find("steps:terms=2-4,digits=1,operators=+")
SEEDS, BATCHES, PROMPTS, ANSWERS = range(5), 16, 8, 64
GROUPS: dict[str, dict[str, int]] = {
    **{f"{size}": {"num_generations": size} for size in SIZES[:-1]},
    "4 of 32": {"num_generations": 4, "statistics": 28},
}
"""The last: training on 4 answers, with statistics of 32."""


def groups(rate: float, size: int) -> dict[str, float]:
    """Return the expected statistics of groups of a size, for a policy that is right with probability `rate`."""
    right = torch.arange(size + 1)
    rewards = (torch.arange(size) < right.unsqueeze(1)).double()
    chance = torch.distributions.Binomial(size, torch.tensor(rate, dtype=torch.float64)).log_prob(right.double()).exp()
    spread = (rate * (1 - rate)) ** 0.5
    advantages = ops.group_advantages(rewards, eps=0.0)
    true = (rewards - rate) / spread
    mean, std = rewards.mean(1), rewards.std(1)
    of_right = (chance * (advantages * rewards).sum(1)).sum() / (size * rate)
    return {
        "error of the mean": rooted(chance, (mean - rate).square()),
        "error of the deviation": rooted(chance, (std - spread).square()) / spread,
        "bias of the deviation": float(chance @ std) / spread - 1,
        "error of the advantage": rooted(chance, (advantages - true).square().mean(1)),
        "advantage of the right": float(of_right) * spread / (1 - rate),
        "without signal": float(chance @ (~ops.has_signal(rewards)).double()),
    }


def rooted(chance: Tensor, squares: Tensor) -> float:
    """Return the root of an expectation."""
    return float((chance @ squares).sqrt())


def gradients(model: LanguageModel, *, seed: int, prompts: int, train_rows: int, **values: Any) -> dict[str, float]:
    """Return signal and noise of GRPO's gradients under a fixed policy."""
    config = GRPOConfig(prompts_per_batch=prompts, loss_aggregation="sequence_mean", **values)
    learner = learner_of(model, TASK, config, seed=seed, batches=BATCHES, train_rows=train_rows)
    learner.stepper = recorder = Recorder(learner)
    for _ in range(BATCHES):
        learner.iterate()
    found = torch.stack(recorder.gradients)
    variance = float((found - found.mean(0)).square().sum() / (len(found) - 1))
    square = float(found.mean(0).square().sum()) - variance / len(found)
    return {"signal": max(square, 0.0) ** 0.5, "noise": variance**0.5, "ratio": square / variance}


def measure(model: LanguageModel, start: State, seed: int) -> dict[str, Any]:
    """Measure all sizes with the prompts and random numbers of one seed."""
    model.load_state_dict(start)
    same = {
        name: gradients(model, seed=seed, prompts=PROMPTS, train_rows=PROMPTS, **values)
        for name, values in GROUPS.items()
    }
    equal = {
        name: gradients(model, seed=seed, prompts=ANSWERS // values["num_generations"], train_rows=200, **values)
        for name, values in GROUPS.items()
        if "statistics" not in values
    }
    return {"the same prompts": same, "as many answers": equal}


def draw(exact: dict[str, Any], seeds: list[dict[str, Any]]) -> None:
    """Draw errors, advantages, and signals and noises: the mean of the seeds and its interval."""
    figure, axes = panels(4)
    for color, rate in zip(COLORS, RATES, strict=False):
        of = [exact[f"{rate}"][f"{size}"] for size in SIZES]
        axes[0].plot(SIZES, [o["error of the advantage"] for o in of], "o-", color=color, label=f"p = {rate}")
        axes[0].plot(SIZES, [o["error of the deviation"] for o in of], ":", color=color)
        axes[1].plot(SIZES, [o["advantage of the right"] for o in of], "o-", color=color, label=f"p = {rate}")
    axes[0].set(title="error of the advantage (—), deviation (··)", ylabel="root mean square")
    axes[1].set(title="mean advantage of a right answer / true one", ylim=(0, 1.05))
    sizes = SIZES[:-1]
    for color, kind in zip(COLORS, ("signal", "noise"), strict=False):
        table = np.array([[s["the same prompts"][f"{size}"][kind] for size in sizes] for s in seeds])
        band(axes[2], sizes, table, color=color, label=kind, style="o-")
    axes[2].set(title=f"length of the gradient, {PROMPTS} prompts", yscale="log")
    for color, (name, label) in zip(
        COLORS,
        (("the same prompts", f"{PROMPTS} prompts"), ("as many answers", f"{ANSWERS} answers")),
        strict=False,
    ):
        table = np.array([[s[name][f"{size}"]["ratio"] for size in sizes] for s in seeds])
        band(axes[3], sizes, table, color=color, label=label, style="o-")
    extra = np.mean([s["the same prompts"]["4 of 32"]["ratio"] for s in seeds])
    axes[3].plot(4, extra, "*", color=COLORS[2], markersize=11, label="4, and 28 for statistics")
    axes[3].set(title="signal² / noise² of the gradient", yscale="log")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_xticks(SIZES, [f"{size}" for size in SIZES])
        axis.set_xlabel("answers to a prompt, G")
    save(figure, __file__, axes)


def main() -> None:
    """Compute, measure, draw; fail if a claim does not hold."""
    exact = {f"{rate}": {f"{size}": groups(rate, size) for size in SIZES} for rate in RATES}
    cases = {f"{seed}": (seed,) for seed in SEEDS}
    begin = partial(erring, TASK, rows=5000, epochs=5, learning_rate=3e-3)
    seeds = list(gather(__file__, __doc__, cases, begin, measure).values())
    mean = {
        way: {name: {k: float(np.mean([s[way][name][k] for s in seeds])) for k in found} for name, found in of.items()}
        for way, of in seeds[0].items()
    }
    same = mean["the same prompts"]
    claims = {
        "exact: error of the mean falls as 1/√G": all(
            abs(exact[f"{p}"][f"{g}"]["error of the mean"] * (g / (p * (1 - p))) ** 0.5 - 1) < 1e-9
            for p in RATES
            for g in SIZES
        ),
        "exact: at G = 4 and p = 0.1 a right answer gets less than two thirds of its advantage": exact["0.1"]["4"][
            "advantage of the right"
        ]
        < 2 / 3,
        "measured: from G = 4 to 32 signal² / noise² grows by more than 4": same["32"]["ratio"]
        > 4 * same["4"]["ratio"],
        "measured: from G = 4 to 32 the signal does not fall": same["32"]["signal"] > 0.95 * same["4"]["signal"],
    }
    draw(exact, seeds)
    for way, of in mean.items():
        for name, found in of.items():
            print(way, name, {key: round(value, 4) for key, value in found.items()})
    conclude(__file__, {"exact": exact, "measured": mean, "seeds": seeds}, [], claims)


if __name__ == "__main__":
    main()
