"""Default configurations of language-model algorithms: `configuration`."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from operant.catalog import Algorithm
from operant.language.configs import ModelOptions
from operant.language.models import BUILT_IN
from operant.language.runs import base_model
from operant.runtime import configuration as configuration_module

POLICY: Mapping[str, Any] = {"lr_schedule": "linear", "warmup_ratio": 0.2, "betas": (0.9, 0.99)}
"""Learning-rate schedule and betas of built-in policies. Without warm-up, the first steps of Adam, whose moments are
estimated from few gradients, undo the initial SFT; without decay, the last steps are noisy; the default second moment
averages over 1 000 steps, more than most of these runs have."""

SMALL: Mapping[str, Mapping[str, Any]] = {
    "sft": {"learning_rate": 1e-3, "weight_decay": 0.1, "lr_schedule": "cosine", "warmup_ratio": 0.05},
    "reward-model": {"learning_rate": 3e-4, "lr_schedule": "cosine", "warmup_ratio": 0.05},
    "process-reward-model": {
        "learning_rate": 1e-3,
        "lr_schedule": "cosine",
        "warmup_ratio": 0.05,
        "lm_coef": 1.0,
        "step_log_probs": True,
        "train_examples": 20_000,
    },
    "dpo": {"learning_rate": 3e-5},
    "rlhf": {
        **POLICY,
        "critic_learning_rate": 1e-3,
        "critic_warmup": 2,
        "num_iterations": 1,
        "num_minibatches": 4,
        "beta": 0.1,
    },
    # The answers of a trained policy differ little, and the reward model guesses which is better: divided by their
    # standard deviation, its small differences would count as much as large ones.
    "iterative-grpo": {**POLICY, "reward_learning_rate": 1e-4, "advantage": "mean"},
    "grpo": POLICY,
}
"""Defaults of built-in models (about a million parameters, randomly initialized) by algorithm. Learning rates of
policies are computed by `step_size`."""

STEP_SIZES: Mapping[str, float] = {"grpo": 1.4e-4, "iterative-grpo": 1.4e-4, "rlhf": 2e-4}
"""Learning rates of built-in policies for `ANSWERS` answers per optimizer step. That of RLHF is larger because it
trains on a quarter of the answers: a run with fewer answers needs larger steps, and adds less noise in total."""

ANSWERS = 256
"""Number of answers per optimizer step for `STEP_SIZES`."""

LEARNED_REWARD = {"beta": 0.15}
"""KL penalty with a reward model, which is accurate only near its training answers: a policy without penalty exploits
its errors elsewhere (DeepSeekMath: 0.04, for a model with 7 billion parameters)."""

PROMPTS: Mapping[str, int] = {"arithmetic": 6_000, "steps": 10_000}
"""Number of training prompts of policies on tasks without options, if above the default. They are generated at no cost,
and the answers to prompts used in SFT are correct more often than others."""


def step_size(base: float, answers: float) -> float:
    """Scale a learning rate of Adam by the square root of the number of answers per step.

    The length of Adam's steps does not depend on the gradient norm. If noise dominates the gradient, as in policy
    gradients, the signal in a step grows with the square root of the number of answers. Over a fixed number of answers,
    progress and noise are then both proportional to the learning rate divided by that root, so scaling with the root
    preserves them (square-root rule: Krizhevsky 2014, arXiv:1404.5997; for Adam: Malladi et al. 2022,
    arXiv:2205.10287).

    Args:
        base: learning rate for `ANSWERS` answers.
        answers: number of answers per optimizer step.
    """
    return base * math.sqrt(answers / ANSWERS)


def configuration(algorithm: Algorithm, task: str, preset: str | None = None, **values: Any) -> Any:
    """Return the configuration of an algorithm: defaults, overridden by those of small models, preset and values.

    The learning rate of a built-in policy is for the number of answers in a minibatch (`step_size`), also with `step`
    vpg, whose policy step uses all minibatches of a batch: its rate is on purpose that of a quarter of its answers,
    with which the scores in docs/language_defaults.md were measured.

    Args:
        algorithm: catalog entry of the algorithm.
        task: training task, on which the number of prompts may depend.
        preset: name of a preset; `"paper"` selects only the defaults.
        **values: values of single fields. `model` and `init` determine whether the model is built-in, which needs
            other learning rates than a pretrained one. With fewer `prompts_per_batch` than the minibatches of the
            defaults or the preset, their number is that of the prompts.

    Raises:
        RunError: `init` is not the folder of a run.
        ValueError: there is no such preset or field, or a value is out of its range.
    """
    model, init = values.get("model", ModelOptions.model), values.get("init", "")
    chosen = "paper" if preset is None else preset
    is_small, is_policy = preset != "paper" and base_model(model, init) in BUILT_IN, algorithm.root in STEP_SIZES
    wanted = dict(SMALL.get(algorithm.root, {})) if is_small else {}
    if is_small and is_policy:
        wanted |= LEARNED_REWARD if values.get("reward_model") else {}
        wanted |= {"train_examples": PROMPTS[task]} if task in PROMPTS else {}
    prompts = values.get("prompts_per_batch")
    if is_policy and isinstance(prompts, int) and "num_minibatches" not in values:
        usual = configuration_module.configuration(algorithm, task, chosen, under=wanted)
        if 1 <= prompts < getattr(usual, "num_minibatches", 1):
            values["num_minibatches"] = prompts
    found = configuration_module.configuration(algorithm, task, chosen, under=wanted, **values)
    if not is_small or not is_policy or "learning_rate" in values:
        return found
    answers = found.prompts_per_batch * found.num_generations / found.num_minibatches
    return replace(found, learning_rate=step_size(STEP_SIZES[algorithm.root], answers))
