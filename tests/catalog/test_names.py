import dataclasses
import importlib

import pytest

from operant import catalog
from operant.catalog.foreign_language import LANGUAGE
from operant.catalog.foreign_names import COMMON, CONTROL, TABULAR
from operant.catalog.names import Suggestion, hint, suggest
from operant.runtime.settings import Settings

PPO, Q_LEARNING = catalog.find("ppo"), catalog.find("q-learning")
FIELDS = {"learning_rate", "gamma", "environments", "steps", "entropy_coefficient"}


def fields_of(package):
    """Return the fields of all configurations of a package."""
    found = set()
    for algorithm in catalog.ALGORITHMS:
        if algorithm.package == package:
            kind = getattr(importlib.import_module(algorithm.module), algorithm.config)
            found |= {field.name for field in dataclasses.fields(kind)}
    return found


@pytest.mark.parametrize(
    ("table", "package"), [(COMMON, ""), (CONTROL, "control"), (TABULAR, "tabular"), (LANGUAGE, "language")]
)
def test_every_foreign_name_leads_to_a_field_of_ours(table, package):
    ours = {field.name for field in dataclasses.fields(Settings)} | {"seed", "run", "init", "preset", "progress"}
    ours |= fields_of(package)
    assert {name: own for name, own in table.items() if not set(own.split()) <= ours} == {}


@pytest.mark.parametrize(
    ("word", "package", "own"),
    [
        ("lr", "control", "learning_rate"),
        ("--n-envs", "control", "environments"),
        ("--total-timesteps", "control", None),
        ("N_STEPS", "control", "steps"),
        ("ent_coef", "control", "entropy_coefficient"),
        ("lr", "tabular", None),
        ("lr", "", None),
    ],
)
def test_names_of_other_libraries(word, package, own):
    assert suggest(word, FIELDS, package) == (own and Suggestion(own, foreign=True))


def test_the_first_field_that_the_algorithm_has_counts():
    assert suggest("n_steps", {"steps", "n"}, "control").name == "steps"
    assert suggest("n_steps", {"n"}, "control").name == "n"


@pytest.mark.parametrize(
    ("word", "own"), [("learn", "learning_rate"), ("gama", "gamma"), ("--entropy", "entropy_coefficient")]
)
def test_abbreviations_and_misspellings(word, own):
    assert suggest(word, FIELDS) == Suggestion(own, foreign=False)


def test_how_an_error_goes_on():
    assert hint("lr", FIELDS, PPO) == ": PPO calls it learning_rate"
    assert hint("--lr", FIELDS, PPO, flags=True) == ": PPO calls it --learning-rate"
    assert hint("alpha", {"step_size"}, Q_LEARNING) == ": q-learning calls it step_size"
    assert hint("gama", FIELDS, PPO) == "; did you mean gamma?"
    assert hint("xyz", {"b", "a"}) == "; known are: a, b"
