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
"""Names of the inputs of a model other than training data and rewards."""


def pin(settings: Settings, config: C) -> tuple[C, list[Input]]:
    """Return a configuration with absolute paths, and its input files.

    The path of a data set that is given as the task is an input; the name of the task does not change.

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
