"""Claim: scaling the group loss by 1/√G instead of 1/G makes steps and noise √G times longer, and Adam cancels it.

The sum over a group of G answers is divided by G, so a larger group has less noise and, as some claim, a diluted
signal; it could be divided by √G. The experiment measures the updates with both scales of GRPO (`scale`) for a small
fixed language model and the same prompts. The signal is the length of the mean update over batches, and the noise the
square root of the updates' total variance, both estimated without bias, over five seeds of prompts and sampling.

There are four kinds of update: plain gradient descent; the same with a KL term, which is not scaled (so the relative
weight of the two terms changes); clipped to a norm that most gradients exceed; and Adam.
Policy and reference differ by a few batches of training.

    python experiments/group_scale.py            # about three minutes; resumes where it stopped
    python experiments/group_scale.py --draw
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from arms import band, gather
from checks import COLORS, conclude, panels, save
from small_models import Recorder, erring, learner_of, reinforce
from torch import Tensor, nn

from operant.language import GRPOConfig
from operant.language.models import LanguageModel
from operant.language.optimizer import OptimizerStep
from operant.language.tasks import find
from operant.state import State, clone

TASK = find("steps:terms=2-4,digits=1,operators=+")
SEEDS, BATCHES, PROMPTS, SIZES, SCALES = range(5), 10, 8, (4, 16, 32), ("1/G", "1/sqrt(G)")
BEFORE, BETA, CLIP = 10, 0.1, 1.0
"""Batches of training before, weight of the KL term, and the norm that gradients are clipped to."""
UNCLIPPED = 1e9
WAYS = ("plain", "with KL", "clipped", "Adam")
COMMON: dict[str, Any] = {"prompts_per_batch": PROMPTS, "loss_aggregation": "sequence_mean", "beta": BETA}


def prepared(model: LanguageModel, start: State, seed: int) -> State:
    """Return the weights after some training, so that policy and reference differ."""
    model.load_state_dict(start)
    config = GRPOConfig(prompts_per_batch=16, loss_aggregation="sequence_mean", learning_rate=2e-4)
    reinforce(learner_of(model, TASK, config, seed=seed, batches=BEFORE, train_rows=500), BEFORE)
    return clone(model.state_dict())


def gradients(model: LanguageModel, start: State, policy: State, seed: int, **values: Any) -> list[Tensor]:
    """Return the gradients of batches of the same prompts under a policy, where `start` is the reference."""
    model.load_state_dict(start)
    config = GRPOConfig(**{**COMMON, **values})
    learner = learner_of(model, TASK, config, seed=seed, batches=BATCHES, train_rows=PROMPTS)
    model.load_state_dict(policy)
    learner.stepper = recorder = Recorder(learner)
    for _ in range(BATCHES):
        learner.iterate()
    return recorder.gradients


def updates(found: list[Tensor], way: str) -> Tensor:
    """Return the update by each gradient, `[K, D]`, with a learning rate of 1."""
    if way != "Adam":
        bound = CLIP if way == "clipped" else UNCLIPPED
        return torch.stack([-g * min(1.0, bound / max(float(g.norm()), 1e-30)) for g in found])
    config = GRPOConfig(learning_rate=1.0, max_grad_norm=UNCLIPPED)
    parameter = nn.Parameter(torch.zeros_like(found[0]))
    stepper, steps = OptimizerStep({"all": parameter}, config), []
    for gradient in [*found, *found]:
        before, parameter.grad = parameter.detach().clone(), gradient.clone()
        stepper.step(1.0)
        steps.append(parameter.detach() - before)
    return torch.stack(steps[len(found) :])


def apart(table: Tensor) -> dict[str, float]:
    """Return signal and noise of updates `[K, D]`."""
    variance = float((table - table.mean(0)).square().sum() / (len(table) - 1))
    square = float(table.mean(0).square().sum()) - variance / len(table)
    return {"signal": max(square, 0.0) ** 0.5, "noise": variance**0.5}


def measure(model: LanguageModel, start: State, seed: int) -> dict[str, Any]:
    """Measure all sizes, scales and optimizers with the prompts and random numbers of one seed."""
    found: dict[str, Any] = {way: {} for way in WAYS}
    policy = prepared(model, start, seed)
    for size in SIZES:
        means = {}
        for scale in SCALES:
            alone = gradients(model, start, policy, seed, num_generations=size, group_loss_scale=scale, beta=0.0)
            both = gradients(model, start, policy, seed, num_generations=size, group_loss_scale=scale)
            for way in WAYS:
                table = updates(both if way == "with KL" else alone, way)
                means[way, scale] = table.mean(0)
                found[way].setdefault(scale, {})[f"{size}"] = apart(table)
        for way in WAYS:
            one, other = (means[way, scale] for scale in SCALES)
            cosine = torch.nn.functional.cosine_similarity(one, other, dim=0)
            found[way].setdefault("cosine", {})[f"{size}"] = float(cosine)
    return found


def draw(seeds: list[dict[str, Any]]) -> None:
    """Draw signal and noise of each way against G, as multiples of the signal of 1/G at the smallest G."""
    figure, axes = panels(len(WAYS))
    for axis, way in zip(axes, WAYS, strict=True):
        unit = np.array([[s[way][SCALES[0]][f"{SIZES[0]}"]["signal"]] for s in seeds])
        for color, scale in zip(COLORS, SCALES, strict=False):
            for kind, style in (("signal", "o-"), ("noise", "s--")):
                table = np.array([[s[way][scale][f"{size}"][kind] for size in SIZES] for s in seeds]) / unit.mean()
                label = f"{scale.replace('sqrt(G)', '√G')}, {kind}"
                band(axis, SIZES, table, color=color, label=label, style=style)
        axis.set_xscale("log", base=2)
        axis.set_xticks(SIZES, [f"{size}" for size in SIZES])
        axis.set(title=way, yscale="log", xlabel="answers to a prompt, G")
    axes[0].set_ylabel("length of the update")
    save(figure, __file__, axes[:1])


def main() -> None:
    """Measure, draw; fail if a claim does not hold."""
    cases = {f"{seed}": (seed,) for seed in SEEDS}
    begin = partial(erring, TASK, rows=5000, epochs=5, learning_rate=3e-3)
    seeds = list(gather(__file__, __doc__, cases, begin, measure).values())

    def ratios(way: str, kind: str) -> np.ndarray:
        """Return 1/√G over 1/G, divided by √G, `[S, sizes]`."""
        of = [[s[way][SCALES[1]][f"{g}"][kind] / s[way][SCALES[0]][f"{g}"][kind] for g in SIZES] for s in seeds]
        return np.array(of) / np.sqrt(SIZES)

    signal = np.array([[s["plain"][SCALES[0]][f"{g}"]["signal"] for g in SIZES] for s in seeds]).mean(0)
    cosine = {way: {f"{g}": float(np.mean([s[way]["cosine"][f"{g}"] for s in seeds])) for g in SIZES} for way in WAYS}
    mean = {
        way: {
            scale: {
                f"{g}": {k: float(np.mean([s[way][scale][f"{g}"][k] for s in seeds])) for k in ("signal", "noise")}
                for g in SIZES
            }
            for scale in SCALES
        }
        for way in WAYS
    }
    claims = {
        "plain: signal and noise are √G times as long": all(
            np.allclose(ratios("plain", kind), 1, rtol=1e-3) for kind in ("signal", "noise")
        ),
        "plain: with 1/G the signal does not fall from G = 4 to 32": signal[-1] > 0.95 * signal[0],
        "Adam: signal and noise do not depend on the scale": all(
            np.allclose(ratios("Adam", kind) * np.sqrt(SIZES), 1, rtol=0.02) for kind in ("signal", "noise")
        ),
        "clipped: the update of 1/√G is less than √G times as long": bool(
            (ratios("clipped", "signal")[:, -1] < 0.9).all()
        ),
        "with KL: another direction at G = 32": cosine["with KL"]["32"] < 0.99,
    }
    draw(seeds)
    for way in WAYS:
        print(way, mean[way], cosine[way])
    conclude(__file__, {"mean": mean, "cosine of the two scales": cosine, "seeds": seeds}, [], claims)


if __name__ == "__main__":
    main()
