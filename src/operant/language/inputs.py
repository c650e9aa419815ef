"""What a run of a language model is made from: `pin`."""

from pathlib import Path
from typing import TypeVar

from operant.language.configs import LanguageConfig
from operant.language.datasets import source_of
from operant.language.models import BUILT_IN
from operant.runtime.inputs import Input, pinned
from operant.runtime.settings import Settings

C = TypeVar("C", bound=LanguageConfig)

MODEL = ("model", "init")
"""Inputs of a model alone, without the data and the rewards that it was trained with."""


def pin(settings: Settings, config: C) -> tuple[C, list[Input]]:
    """Return a configuration whose paths are absolute, and what is there.

    A data set that is named as the task stays so: the name belongs to the run, and the path to its inputs.

    Raises:
        OSError: one of them cannot be read.
    """
    names = ["model", "init", "dataset", "eval_dataset", "reward_model"]
    if config.init or config.model in BUILT_IN:
        names.remove("model")
    config, found = pinned(config, names)
    source = "" if config.dataset else source_of(config, settings.task)
    if source and Path(source).exists():
        found.append(Input.of("task", Path(source), fills="dataset"))
    return config, found
