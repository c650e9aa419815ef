import enum
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.runtime.tables import from_table, to_table


class Kind(enum.Enum):
    SMALL = 1
    LARGE = 2


@dataclass(frozen=True)
class Optimizer:
    rate: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True)
class Config:
    steps: int
    gamma: float = 0.99
    name: str = "x"
    flag: bool = False
    target: float | None = None
    choice: Literal["mean", "sum", 3] = "mean"
    kind: Kind = Kind.SMALL
    hidden: tuple[int, ...] = (64, 64)
    names: list[str] = field(default_factory=list)
    mixed: int | Literal["auto"] = "auto"
    number: float | int = 1.5
    marked: Annotated[int, "a note"] = 4
    optimizer: Optimizer = Optimizer()


configs = st.builds(
    Config,
    steps=st.integers(-(2**70), 2**70),
    gamma=st.floats(allow_nan=False),
    name=st.text(st.characters(exclude_categories=["Cs"])),
    flag=st.booleans(),
    target=st.none() | st.floats(allow_nan=False),
    choice=st.sampled_from(["mean", "sum", 3]),
    kind=st.sampled_from(Kind),
    hidden=st.lists(st.integers(0, 9)).map(tuple),
    names=st.lists(st.text("ab\"\\\n'")),
    mixed=st.just("auto") | st.integers(0, 9),
    number=st.floats(allow_nan=False) | st.integers(0, 9),
    marked=st.integers(0, 9),
    optimizer=st.builds(Optimizer, rate=st.floats(0, 1)),
)


def through_toml(config, kind):
    return from_table(kind, tomllib.loads(tomli_w.dumps(to_table(config))))


@settings(deadline=None, max_examples=60)
@given(configs)
def test_round_trip(config):
    again = through_toml(config, Config)
    assert again == config
    assert type(again.number) is type(config.number)


def test_arrays_of_numpy_are_read_as_lists():
    found = from_table(Config, {"steps": np.int64(1), "hidden": np.array([4, 8]), "names": np.array(["a"])})
    assert found == Config(1, hidden=(4, 8), names=["a"])
    with pytest.raises(ValueError, match=r"config\.hidden\[0\]: 0\.5 is not a value of type int"):
        from_table(Config, {"steps": 1, "hidden": np.array([0.5])})


def test_missing_fields_take_defaults_and_required_ones_are_asked_for():
    assert from_table(Config, {"steps": 3}) == Config(3)
    with pytest.raises(ValueError, match="config: steps must be given"):
        from_table(Config, {})


def test_a_base_fills_in_at_every_depth():
    base = Config(5, gamma=0.5, optimizer=Optimizer(rate=1.0, betas=(0.1, 0.2)))
    merged = from_table(Config, {"name": "y", "optimizer": {"rate": 2.0}}, base=base)
    assert merged == replace(base, name="y", optimizer=Optimizer(rate=2.0, betas=(0.1, 0.2)))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"steps": 1, "gama": 0.9}, "config.gama: there is no such key; did you mean gamma"),
        ({"steps": 1, "zzz": 0.9}, "known are: choice, flag"),
        ({"steps": 1, "optimizer": {"betos": 0}}, "config.optimizer.betos: .*did you mean betas"),
        ({"steps": 1, "optimizer": 3}, "config.optimizer: 3 is not a table"),
        ({"steps": 1.0}, "config.steps: 1.0 is not a value of type int"),
        ({"steps": True}, "config.steps: True is not a value of type int"),
        ({"steps": 1, "gamma": "0.9"}, "config.gamma: '0.9' is not a value of type float"),
        ({"steps": 1, "gamma": "none"}, "config.gamma: 'none' is not a value of type float"),
        ({"steps": 1, "flag": 1}, "config.flag"),
        ({"steps": 1, "choice": "max"}, "config.choice: 'max' is not one of 'mean', 'sum', 3"),
        ({"steps": 1, "kind": "TINY"}, "config.kind: 'TINY' is not one of SMALL, LARGE"),
        ({"steps": 1, "hidden": [1, "2"]}, r"config.hidden\[1\]: '2' is not a value of type int"),
        ({"steps": 1, "hidden": 1}, "config.hidden: 1 is not an array"),
        ({"steps": 1, "optimizer": {"betas": [1.0]}}, "an array of 2 elements"),
        ({"steps": 1, "mixed": 1.5}, "config.mixed: 1.5 is not a value of type int; or 1.5 is not one of 'auto'"),
    ],
)
def test_bad_tables_name_the_place(table, message):
    with pytest.raises(ValueError, match=message):
        from_table(Config, table)


def test_values_that_cannot_be_read_back_are_rejected_before_writing():
    @dataclass
    class Ambiguous:
        name: str | None = None

    assert through_toml(Ambiguous(), Ambiguous) == Ambiguous()
    with pytest.raises(ValueError, match="name = 'none' would be read back as None"):
        to_table(Ambiguous("none"))
    with pytest.raises(ValueError, match="gamma = nan would be read back"):
        to_table(Config(1, gamma=float("nan")))
    with pytest.raises(ValueError, match=r"Config\.steps: 1\.5 is not"):
        to_table(Config(1.5))  # type: ignore[arg-type]


def test_values_that_a_file_cannot_contain_are_rejected():
    @dataclass
    class Holder:
        function: object = print

    with pytest.raises(TypeError, match=r"Holder\.function contains <built-in function print>"):
        to_table(Holder())
    for thing in (3, Config):
        with pytest.raises(TypeError, match="instance of a dataclass"):
            to_table(thing)


def test_errors_of_the_dataclass_itself_say_where():
    @dataclass
    class Positive:
        n: int = 1

        def __post_init__(self):
            if self.n < 1:
                raise ValueError(f"n must be at least 1, got {self.n}")

    with pytest.raises(ValueError, match="preset: n must be at least 1, got 0"):
        from_table(Positive, {"n": 0}, where="preset")


@dataclass(frozen=True)
class Free:
    """Dataclass with any content."""

    free: Mapping[str, Any] = field(default_factory=dict)


def test_mappings_of_anything_are_tables():
    free = Free({"a": 1, "b": [0.5, True, None], "c": {"d": "x"}})
    assert to_table(free) == {"free": {"a": 1, "b": [0.5, True, "none"], "c": {"d": "x"}}}
    assert from_table(Free, tomllib.loads(tomli_w.dumps(to_table(free)))) == free
    with pytest.raises(ValueError, match="would be read back"):
        to_table(Free({"a": "none"}))
    with pytest.raises(ValueError, match=r"config.free: 3 is not a table"):
        from_table(Free, {"free": 3})
