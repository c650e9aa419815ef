"""From names and numbers to the configuration of an algorithm of this package: `configuration`."""

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
"""How the step size of a policy that is built here rises and falls. Without a warmup the first steps of Adam, whose
moments have seen one gradient, undo the imitation that training starts from; without a decay the last ones keep shaking
it; a second moment over 1 000 steps is older than most of these runs."""

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
"""What a randomly initialized model of a million parameters wants, by algorithm: the default for the models that are
built here. Step sizes of policies are those of `step_size`."""

STEP_SIZES: Mapping[str, float] = {"grpo": 1.4e-4, "iterative-grpo": 1.4e-4, "rlhf": 4e-4}
"""Step sizes of policies that are built here, where an optimizer step sees `ANSWERS` answers. Those of RLHF, whose
critic tells its answers apart token by token, may be larger."""

ANSWERS = 256
"""Answers of a step that `STEP_SIZES` are for."""

LEARNED_REWARD = {"beta": 0.15}
"""What a learned reward wants: it is right near the answers that it has learned from, and a policy without a price for
leaving them finds others that it is wrong about (DeepSeekMath: 0.04, for a model of 7 billion parameters)."""

PROMPTS: Mapping[str, int] = {"arithmetic": 6_000}
"""Prompts that policies are trained on, by the names of tasks without options, where there are more than the default.
They cost nothing, and answers to those that were imitated before are right more often than answers to others."""


def step_size(base: float, answers: float) -> float:
    """Return the largest step size of Adam where a step sees so many answers.

    Steps of Adam are as long whatever the gradient is. Where noise outweighs the signal, as in policy gradients, a step
    has a useful part that grows with the root of the answers that it is made from. Over a fixed number of answers both
    the useful and the useless way that the weights go is then proportional to the step size over that root, so the root
    keeps them the same (the square-root rule of Krizhevsky 2014, arXiv:1404.5997; for Adam Malladi et al. 2022,
    arXiv:2205.10287).

    Args:
        base: step size for `ANSWERS` answers.
        answers: that an optimizer step sees.
    """
    return base * math.sqrt(answers / ANSWERS)


def configuration(algorithm: Algorithm, task: str, preset: str | None = None, **values: Any) -> Any:
    """Return the configuration of an algorithm: its defaults, what small models want, the preset, and single values.

    Args:
        algorithm: from the catalog.
        task: what is trained on; of some, policies see more prompts.
        preset: named choices of the algorithm; `"paper"` is the defaults alone.
        **values: fields of the configuration. `model` and `init` tell whether the model is one that is built here, and
            wants other step sizes than a pretrained one.

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
