import importlib
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace

import numpy as np
import pytest

from operant import catalog
from operant.runtime.bounds import require


@dataclass
class Config:
    """Of every kind of field."""

    steps: int = 4
    most: int | None = None
    hidden: tuple[int, ...] = (64, 64)
    shape: tuple[int, int] | None = None
    rate: float = 0.5
    share: float | None = None
    either: int | str = 1
    flag: bool = False


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (0, "[0, 1]"),
        (1, "[0, 1]"),
        (0.5, "(0, 1)"),
        (1e300, "(0, inf)"),
        (None, "(0, inf) or None"),
        (2, "[2, inf) or None"),
        ((64, 1), "[1, inf)"),
        ((), "[1, inf)"),
    ],
)
def test_values_within_their_bounds_pass(value, bound):
    require(SimpleNamespace(field=value), field=bound)


@pytest.mark.parametrize(
    ("value", "bound"),
    [
        (-1e-9, "[0, 1]"),
        (1.1, "[0, 1]"),
        (0, "(0, 1)"),
        (1, "(0, 1)"),
        (float("inf"), "(0, inf)"),
        (float("nan"), "(-inf, inf)"),
        (None, "(0, inf)"),
        (0, "(0, inf) or None"),
    ],
)
def test_values_outside_are_refused_by_name(value, bound):
    with pytest.raises(ValueError, match=r"^field must be in ") as error:
        require(SimpleNamespace(field=value), field=bound)
    assert bound in str(error.value)
    assert repr(value) in str(error.value)


def test_every_number_of_a_tuple_is_within_the_bounds():
    with pytest.raises(ValueError, match=r"^field must hold numbers in \[1, inf\), got \(64, 0\)$"):
        require(SimpleNamespace(field=(64, 0)), field="[1, inf)")


def test_words():
    require(SimpleNamespace(mode="none"), mode=("none", "batch", "both"))
    with pytest.raises(ValueError, match=r"^mode must be none, batch or both, got 'all'$"):
        require(SimpleNamespace(mode="all"), mode=("none", "batch", "both"))


def test_a_misspelt_interval_is_a_mistake_of_the_programmer():
    with pytest.raises(ValueError, match="an interval is written like"):
        require(SimpleNamespace(field=1), field="[0,1]")


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("steps", 2.5, "an integer"),
        ("steps", 2.0, "an integer"),
        ("steps", True, "an integer"),
        ("steps", "2", "an integer"),
        ("steps", None, "an integer"),
        ("steps", float("nan"), "an integer"),
        ("most", 1e3, "an integer or None"),
        ("hidden", (64, 2.5), "a tuple of integers"),
        ("hidden", 64, "a tuple of integers"),
        ("hidden", "64", "a tuple of integers"),
        ("shape", (2.5, 3), "a tuple of integers or None"),
    ],
)
def test_a_field_declared_as_an_integer_holds_one_whether_or_not_it_has_bounds(name, value, what):
    for bounds in ({}, {"steps": "[1, inf)"}):
        with pytest.raises(ValueError, match=rf"^{name} must be {what}, got ") as error:
            require(replace(Config(), **{name: value}), **bounds)
        assert str(error.value).endswith(repr(value))


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"steps": np.int64(3), "hidden": [8, 4], "most": 7, "shape": (1, 2)},
        {"rate": 1, "share": 2, "either": "word", "flag": True, "hidden": ()},
    ],
)
def test_integers_and_fields_of_other_kinds_pass(values):
    require(replace(Config(), **values), steps="[1, inf)")


ENTRIES = {(entry.module, entry.config): entry for entry in catalog.ALGORITHMS if entry.config}


@pytest.mark.parametrize("place", ENTRIES, ids="{0[1]}".format)
def test_every_configuration_refuses_a_fraction_of_an_integer(place):
    kind = getattr(importlib.import_module(place[0]), place[1])
    integers = [field.name for field in fields(kind) if field.type in (int, "int", int | None)]
    for name in integers:
        with pytest.raises(ValueError, match=rf"^{name} must be an integer( or None)?, got 2\.5$"):
            kind(**{name: 2.5})
