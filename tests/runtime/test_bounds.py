import importlib
import re
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Annotated, Literal, get_type_hints

import numpy as np
import pytest

from operant import catalog
from operant.runtime.bounds import (
    Interval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitFloat,
    require,
)


@dataclass
class Config:
    """Configuration with every kind of field."""

    steps: int = 4
    most: int | None = None
    hidden: tuple[int, ...] = (64, 64)
    shape: tuple[int, int] | None = None
    ends: tuple[float, float] | None = None
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
        (float("nan"), "[-inf, inf]"),
        (None, "(0, inf)"),
        (0, "(0, inf) or None"),
    ],
)
def test_values_outside_are_rejected_by_name(value, bound):
    with pytest.raises(ValueError, match=r"^field must be in ") as error:
        require(SimpleNamespace(field=value), field=bound)
    assert bound in str(error.value)
    assert repr(value) in str(error.value)


def test_every_number_of_a_tuple_is_within_the_bounds():
    with pytest.raises(ValueError, match=r"^field must hold numbers in \[1, inf\), got \(64, 0\)$"):
        require(SimpleNamespace(field=(64, 0)), field="[1, inf)")


@pytest.mark.parametrize("value", [(1.0,), (1.0, 2.0, 3.0), (), 1.0])
def test_a_tuple_has_the_length_of_its_type(value):
    with pytest.raises(ValueError, match=re.escape(f"ends must be a tuple of 2 numbers or None, got {value!r}")):
        require(replace(Config(), ends=value))
    with pytest.raises(ValueError, match=r"^shape must be a tuple of 2 integers or None, got \(1, 2, 3\)$"):
        require(replace(Config(), shape=(1, 2, 3)))


def test_words():
    require(SimpleNamespace(mode="none"), mode=("none", "batch", "both"))
    with pytest.raises(ValueError, match=r"^mode must be none, batch or both, got 'all'$"):
        require(SimpleNamespace(mode="all"), mode=("none", "batch", "both"))


@dataclass
class Typed:
    """Configuration with every kind of type that limits the values."""

    many: PositiveInt = 1
    few: NonNegativeInt | None = None
    widths: tuple[PositiveInt, ...] = (64,)
    share: UnitFloat = 0.5
    rate: PositiveFloat | None = 1e-3
    weight: NonNegativeFloat = 0.0
    betas: tuple[Annotated[float, Interval("[0, 1)")], ...] = (0.9, 0.999)
    shift: float = 0.0
    mode: Literal["none", "batch"] = "none"
    kind: Literal["a", "b"] | None = None
    flag: bool = False
    either: Literal["mlp"] | str = "mlp"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("many", 0, "be in [1, inf)"),
        ("many", None, "be an integer"),
        ("few", -1, "be in [0, inf) or None"),
        ("widths", (64, 0), "hold numbers in [1, inf)"),
        ("widths", 64, "be a tuple of integers"),
        ("share", 1.5, "be in [0, 1]"),
        ("share", "0.5", "be in [0, 1]"),
        ("rate", 0.0, "be in (0, inf) or None"),
        ("rate", True, "be in (0, inf) or None"),
        ("weight", float("nan"), "be in [0, inf)"),
        ("betas", (0.9, 1.0), "hold numbers in [0, 1)"),
        ("shift", float("inf"), "be a finite number"),
        ("mode", "all", "be none or batch"),
        ("kind", "c", "be a or b or None"),
        ("flag", 1.5, "be true or false"),
        ("flag", "yes", "be true or false"),
    ],
)
def test_a_type_limits_the_values(name, value, expected):
    with pytest.raises(ValueError, match=re.escape(f"{name} must {expected}, got {value!r}")):
        require(replace(Typed(), **{name: value}))


@pytest.mark.parametrize(
    "values",
    [{}, {"few": 0, "rate": None, "kind": "b", "either": "my.py:Net", "shift": -2, "share": 1, "betas": [0.0, 0.5]}],
)
def test_valid_values_pass(values):
    require(replace(Typed(), **values))


@dataclass
class Derived(Typed):
    """Configuration with other defaults."""

    many: int = 8
    widths: tuple[int, ...] = (8,)
    rate: float = 0.1
    weight: UnitFloat = 0.5


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("many", 0, "be in [1, inf)"),
        ("widths", (64, 0), "hold numbers in [1, inf)"),
        ("rate", -0.1, "be in (0, inf)"),
        ("weight", 1.5, "be in [0, 1]"),
    ],
)
def test_another_default_does_not_remove_the_bounds_of_a_field(name, value, expected):
    with pytest.raises(ValueError, match=re.escape(f"{name} must {expected}, got {value!r}")):
        require(replace(Derived(), **{name: value}))


def test_a_misspelt_interval_is_a_mistake_of_the_programmer():
    with pytest.raises(ValueError, match="an interval must have a form such as"):
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
        ("shape", (2.5, 3), "a tuple of 2 integers or None"),
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
        {"steps": np.int64(3), "hidden": [8, 4], "most": 7, "shape": (1, 2), "ends": [0, 1]},
        {"rate": 1, "share": 2, "either": "word", "flag": True, "hidden": ()},
    ],
)
def test_integers_and_fields_of_other_kinds_pass(values):
    require(replace(Config(), **values), steps="[1, inf)")


ENTRIES = {(entry.module, entry.config): entry for entry in catalog.ALGORITHMS if entry.config}


@pytest.mark.parametrize("place", ENTRIES, ids="{0[1]}".format)
def test_every_configuration_rejects_a_fraction_of_an_integer(place):
    kind = getattr(importlib.import_module(place[0]), place[1])
    integers = [field.name for field in fields(kind) if get_type_hints(kind)[field.name] in (int, int | None)]
    for name in integers:
        with pytest.raises(ValueError, match=rf"^{name} must be an integer( or None)?, got 2\.5$"):
            kind(**{name: 2.5})


@pytest.mark.parametrize("place", ENTRIES, ids="{0[1]}".format)
def test_every_configuration_rejects_a_learning_rate_of_zero(place):
    kind = getattr(importlib.import_module(place[0]), place[1])
    if "learning_rate" in {field.name for field in fields(kind)}:
        with pytest.raises(ValueError, match=r"^learning_rate must be in \(0, "):
            kind(learning_rate=0.0)
