"""From names and numbers to the configuration of an algorithm of this chapter: `configuration`."""

from collections.abc import Mapping
from typing import Any

from operant.catalog import Algorithm
from operant.language.configs import ModelOptions
from operant.language.models import BUILT_IN
from operant.language.runs import base_model
from operant.runtime import experiments

SMALL: Mapping[str, Mapping[str, Any]] = {
    "sft": {"learning_rate": 1e-3, "weight_decay": 0.1, "schedule": "cosine", "warmup": 0.05},
    "reward-model": {"learning_rate": 3e-4, "schedule": "cosine", "warmup": 0.05},
    "process-reward-model": {"learning_rate": 1e-3, "schedule": "cosine", "warmup": 0.05},
    "dpo": {"learning_rate": 3e-5},
    "rlhf": {
        "learning_rate": 5e-4,
        "critic_learning_rate": 1e-3,
        "critic_warmup": 2,
        "schedule": "linear",
        "epochs": 1,
        "minibatches": 4,
        "kl_coefficient": 0.1,
    },
    "iterative-grpo": {"learning_rate": 3e-4, "reward_learning_rate": 1e-4, "warmup": 0.02},
    "grpo": {"learning_rate": 3e-4, "warmup": 0.02},
}
"""What a randomly initialised model of a million parameters wants, by algorithm: the default for the models that are
built here."""


def configuration(algorithm: Algorithm, task: str, preset: str | None = None, **values: Any) -> Any:
    """Return the configuration of an algorithm: its defaults, what small models want, the preset, and single values.

    Args:
        algorithm: from the catalog.
        task: means nothing here.
        preset: named choices of the algorithm; `"paper"` is the defaults alone.
        **values: fields of the configuration. `model` and `init` tell whether the model is one that is built here, and
            wants other step sizes than a pretrained one.

    Raises:
        RunError: `init` is not the folder of a run.
        ValueError: there is no such preset or field, or a value is out of its range.
    """
    model, init = values.get("model", ModelOptions.model), values.get("init", "")
    small = preset != "paper" and base_model(model, init) in BUILT_IN
    wanted = SMALL.get(algorithm.name, {}) if small else {}
    return experiments.configuration(algorithm, task, "paper" if preset is None else preset, under=wanted, **values)
