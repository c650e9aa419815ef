"""Configurations of this package's algorithms, from names and numbers: `configuration`."""

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
"""Step size schedule of a built-in policy. Without warm-up the first steps of Adam, whose moments have seen one
gradient, undo the initial imitation; without decay the last steps stay noisy; a second moment over 1 000 steps would
outlast most of these runs."""

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
    "iterative-grpo": {**POLICY, "reward_learning_rate": 1e-4},
    "grpo": POLICY,
}
"""Settings of a randomly initialized model of a million parameters, by algorithm: the defaults of built-in models. Step
sizes of policies come from `step_size`."""

STEP_SIZES: Mapping[str, float] = {"grpo": 1.4e-4, "iterative-grpo": 1.4e-4, "rlhf": 4e-4}
"""Step sizes of built-in policies for `ANSWERS` answers per optimizer step. Those of RLHF, whose critic gives
advantages token by token, may be larger."""

ANSWERS = 256
"""Answers per step that `STEP_SIZES` assume."""

LEARNED_REWARD = {"beta": 0.15}
"""KL penalty of a learned reward: it is accurate near its training answers, and a policy without a penalty finds others
where it is wrong (DeepSeekMath: 0.04, for a model of 7 billion parameters)."""

PROMPTS: Mapping[str, int] = {"arithmetic": 6_000}
"""Training prompts of policies, by tasks without options, if more than the default. They cost nothing, and answers to
prompts from imitation are correct more often than answers to others."""


def step_size(base: float, answers: float) -> float:
    """Return the largest step size of Adam for this many answers per step.

    The length of Adam's steps does not depend on the gradient's. If noise outweighs the signal, as in policy gradients,
    the useful part of a step grows with the square root of the number of answers. Over a fixed number of answers both
    the useful and the useless distance are then proportional to the step size over that root, so scaling with the root
    preserves them (the square-root rule of Krizhevsky 2014, arXiv:1404.5997; for Adam Malladi et al. 2022,
    arXiv:2205.10287).

    Args:
        base: step size for `ANSWERS` answers.
        answers: per optimizer step.
    """
    return base * math.sqrt(answers / ANSWERS)


def configuration(algorithm: Algorithm, task: str, preset: str | None = None, **values: Any) -> Any:
    """Return the configuration of an algorithm: its defaults, those of small models, the preset, and single values.

    Args:
        algorithm: entry of the catalog.
        task: training task; some have more prompts for policies.
        preset: name of a preset; `"paper"` means only the defaults.
        **values: fields of the configuration. `model` and `init` determine whether the model is built-in, and needs
            other step sizes than a pretrained one.

    Raises:
        RunError: `init` is not the folder of a run.
        ValueError: there is no such preset or field, or a value is out of its range.
    """
    model, init = values.get("model", ModelOptions.model), values.get("init", "")
    chosen = "paper" if preset is None else preset
    if preset == "paper" or base_model(model, init) not in BUILT_IN:
        return configuration_module.configuration(algorithm, task, chosen, **values)
    wanted = dict(SMALL.get(algorithm.root, {}))
    if values.get("reward_model") and algorithm.root in STEP_SIZES:
        wanted |= LEARNED_REWARD
    name = task.partition(":")[0]
    if name in PROMPTS and algorithm.root in STEP_SIZES:
        wanted["train_examples"] = PROMPTS[name]
    found = configuration_module.configuration(algorithm, task, chosen, under=wanted, **values)
    if algorithm.root not in STEP_SIZES or "learning_rate" in values:
        return found
    answers = found.prompts_per_batch * found.num_generations / found.num_minibatches
    return replace(found, learning_rate=step_size(STEP_SIZES[algorithm.root], answers))
