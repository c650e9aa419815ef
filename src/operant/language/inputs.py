"""Inputs of a language model run: `pin`."""

from pathlib import Path
from typing import TypeVar

from operant.language.configs import LanguageConfig
from operant.language.datasets import source_of
from operant.language.models import BUILT_IN
from operant.runtime.inputs import Input, pinned
from operant.runtime.settings import Settings

C = TypeVar("C", bound=LanguageConfig)

MODEL = ("model", "init")
"""Inputs of a model, without its training data and rewards."""


def pin(settings: Settings, config: C) -> tuple[C, list[Input]]:
    """Return a configuration with absolute paths, and its inputs.

    A data set named as the task stays so: the name is part of the run, the path of its inputs.

    Raises:
        OSError: an input is unreadable.
    """
    names = ["model", "init", "dataset", "eval_dataset", "reward_model"]
    if config.init or config.model in BUILT_IN:
        names.remove("model")
    config, found = pinned(config, names)
    source = "" if config.dataset else source_of(config, settings.task)
    if source and Path(source).exists():
        found.append(Input.of("task", Path(source), fills="dataset"))
    return config, found
