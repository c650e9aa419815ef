import importlib
import re
from dataclasses import fields

import pytest

from operant import catalog
from operant.catalog.foreign_language import LANGUAGE, OF_ALGORITHM
from operant.runtime.settings import Settings

OURS = {field.name for field in fields(Settings)} | {"run", "init"}
for entry in catalog.ALGORITHMS:
    if entry.package == "language":
        OURS |= {field.name for field in fields(getattr(importlib.import_module(entry.module), entry.config))}
WITHOUT = ("no equivalent", "always on", "every run", "the model that", "`operant resume")
"""How an answer starts that names no option."""


ANSWERS = [*LANGUAGE.items(), *(item for answers in OF_ALGORITHM.values() for item in answers.items())]


@pytest.mark.parametrize(("name", "answer"), ANSWERS)
def test_names_of_others_lead_to_options_that_exist(name, answer):
    assert name == name.lower()
    assert name.isidentifier()
    first = re.match(r"\w+", answer)
    assert answer.startswith(WITHOUT) or (first and first[0] in OURS), answer
    assert answer != name, "the default is not a valid answer"


@pytest.mark.parametrize(
    "name",
    [
        *("beta", "num_generations", "max_completion_length", "num_iterations", "epsilon", "lr"),
        *("per_device_train_batch_size", "model_name_or_path", "dataset_name", "kl_loss_coef", "n_samples_per_prompt"),
    ],
)
def test_the_names_that_are_used_most_are_known(name):
    assert name in LANGUAGE or name in OURS
