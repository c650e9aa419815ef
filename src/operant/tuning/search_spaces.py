"""Search spaces: tuned fields of a configuration, and their values.

A field has the same space for all algorithms (`SPACES`), because its name has one meaning everywhere; an algorithm
tunes those of its fields that are listed here and have an effect. Choices and the ranges of `SPACES` always include the
initial value, that of the preset; custom ranges keep their bounds.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast, get_args, get_type_hints

from operant.catalog.names import hint
from operant.runtime.idle import CONDITIONS, Condition
from operant.runtime.tables import NONE, from_table
from operant.tuning.limits import fits


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`.

    Attributes:
        low: minimum.
        high: maximum.
        log: whether the initial distribution is uniform in the logarithm.
        whole: whether the values are integers.

    Raises:
        ValueError: if the range is empty or infinite, or on a logarithmic scale not positive.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ValueError(f"a range needs finite numbers low < high, got {self.low} and {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"low must be positive on a logarithmic scale, got {self.low}")
        if self.whole and (self.low % 1 or self.high % 1):
            raise ValueError(f"low and high of a range of integers must be integers, got {self.low} and {self.high}")

    def around(self, value: Any) -> "Range":
        """Return the range, which keeps its bounds.

        Raises:
            ValueError: if the initial value is not a number, or not positive on a logarithmic scale.
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or (self.log and value <= 0):
            raise ValueError(f"the initial value {value} cannot be part of a range; use choices")
        return self

    def nearest(self, value: Any) -> Any:
        """Return the number of the range closest to a value."""
        return value if self.contains(value) else self.rounded(min(max(value, self.low), self.high))

    def contains(self, value: Any) -> bool:
        """Return whether a value, as in TOML, is a number of the range."""
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.low <= value <= self.high

    def rounded(self, value: float) -> int | float:
        """Return a number of the range with three digits, or as many more as a narrow range needs."""
        if self.whole:
            return round(value)
        size = max(abs(self.low), abs(self.high)) / (self.high - self.low)
        digits = 3 + max(0, math.floor(math.log10(size)))
        return min(max(float(f"{value:.{digits}g}"), self.low), self.high)


@dataclass(frozen=True)
class Choices:
    """Some values, in a meaningful order if they are numbers.

    Attributes:
        choices: two or more different values, as in TOML; None is kept as `"none"`.

    Raises:
        ValueError: if there are fewer than two, or two are equal.
    """

    choices: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(NONE if value is None else value for value in self.choices))
        if len(self.choices) < 2 or any(value in self.choices[:i] for i, value in enumerate(self.choices)):
            raise ValueError(f"choices must be two or more different values, got {list(self.choices)}")

    @property
    def ordered(self) -> bool:
        """Whether all are numbers."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.choices)

    def contains(self, value: Any) -> bool:
        """Return whether a value, as in TOML, is one of the choices."""
        return value in self.choices

    def around(self, value: Any) -> "Choices":
        """Return the choices including `value`, in order."""
        if (NONE if value is None else value) in self.choices:
            return self
        found = Choices((*self.choices, value))
        return Choices(tuple(sorted(found.choices))) if found.ordered else found


Dimension = Range | Choices
"""The space of one field."""


@dataclass(frozen=True)
class Factor:
    """Numbers around the initial value, on a logarithmic scale: from it divided by `factor` to it times `factor`.

    Attributes:
        factor: factor above 1.
        most: upper bound of the range.
    """

    factor: float
    most: float = math.inf

    def around(self, value: Any) -> Range:
        """Return the range for an initial value.

        Raises:
            ValueError: if it is not a positive number.
        """
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise ValueError(f"the initial value must be a positive number, got {value}")
        return Range(value / self.factor, min(value * self.factor, self.most), log=True)


SPACES: Mapping[str, Dimension | Factor] = {
    "learning_rate": Factor(30.0),
    "critic_learning_rate": Factor(30.0),
    "lr_schedule": Choices(("constant", "linear")),
    "gamma": Choices((0.9, 0.95, 0.98, 0.99, 0.995, 0.999)),
    "gae_lambda": Choices((0.8, 0.9, 0.95, 0.98, 1.0)),
    "num_steps": Choices((16, 32, 64, 128, 256, 512, 1024)),
    "num_epochs": Choices((2, 4, 6, 10, 20)),
    "num_minibatches": Choices((1, 2, 4, 8, 16, 32)),
    "clip_range": Choices((0.1, 0.2, 0.3, 0.4)),
    "ent_coef": Choices((0.0, 0.001, 0.003, 0.01, 0.03)),
    "vf_coef": Choices((0.25, 0.5, 1.0)),
    "max_grad_norm": Choices((0.3, 0.5, 1.0, 2.0, 5.0, 10.0)),
    "target_kl": Choices((0.003, 0.01, 0.03)),
    "cg_damping": Choices((0.01, 0.03, 0.1, 0.3)),
    "critic_epochs": Choices((5, 10, 20)),
    "hidden_sizes": Choices(([32, 32], [64, 64], [128, 128], [256, 256])),
    "activation": Choices(("tanh", "relu")),
    "batch_size": Choices((32, 64, 128, 256)),
    "train_freq": Choices((1, 4, 16, 64)),
    "gradient_steps": Choices((1, 4, 16, 64)),
    "learning_starts": Choices((100, 1000, 5000)),
    "target_update_interval": Choices((10, 50, 250, 1000)),
    "tau": Factor(8.0, most=1.0),
    "n_step": Choices((1, 3, 5, 10)),
    "exploration_fraction": Choices((0.05, 0.1, 0.2, 0.5)),
    "exploration_final_eps": Choices((0.01, 0.02, 0.05, 0.1)),
    "exploration_noise": Choices((0.05, 0.1, 0.2, 0.4)),
    "rnn_hidden_size": Choices((32, 64, 128)),
    "step_size": Factor(30.0, most=1.0),
    "exploration_initial_eps": Choices((0.02, 0.05, 0.1, 0.2, 0.5, 1.0)),
    "td_lambda": Choices((0.0, 0.4, 0.8, 0.9, 0.95, 1.0)),
    "planning_steps": Choices((1, 5, 20, 50)),
    "exploration_rate": Choices((0.01, 0.03, 0.1, 0.3)),
    "bonus_coef": Factor(30.0),
    "known": Choices((1, 2, 4, 8, 16, 32)),
    "num_heads": Choices((5, 10, 20)),
    "prior_scale": Factor(10.0),
    "mask_prob": Choices((0.5, 0.75, 1.0)),
}
"""Space of each field. A field keeps an initial value of None, or of 0 if its space has factors."""

Space = Mapping[str, Dimension]
"""Spaces of fields, by name."""

_EPSILONS = ("exploration_initial_eps", "exploration_final_eps")
"""Fields that are 0 if an algorithm explores otherwise, as the heads of bootstrapped DQN do."""


def space_of(
    config: Any,
    *,
    fixed: Collection[str] = (),
    own: Mapping[str, Any] | None = None,
    budget: int | None = None,
) -> dict[str, Dimension]:
    """Return the search space of a configuration.

    Choices of `SPACES` that the configuration or the budget excludes are left out: those that no other value of one of
    the tuned fields makes valid.

    Args:
        config: the initial configuration.
        fixed: fields that keep their values.
        own: custom space instead of `SPACES`: a table per field with `low`, `high` and optionally `log = true`, or with
            `choices`.
        budget: budget of a trial; None: any.

    Raises:
        ValueError: if the configuration has no such field, a table is invalid, or nothing is left to tune.
    """
    values = {field.name: getattr(config, field.name) for field in fields(config)}
    if own is None:
        known = {name: SPACES[name] for name in values if name in SPACES and not _is_switched_off(name, values)}
    else:
        for name in own:
            if name not in values:
                raise ValueError(f"space.{name}: {type(config).__name__} has no such field{hint(name, values)}")
            if (idle := _idle(name, values)) is not None and idle.field not in own:
                raise ValueError(
                    f"space.{name}: it has no effect if {idle.field} is {values[idle.field]!r}: leave it out, or set "
                    f"{idle.field}, for example to {idle.example}"
                )
        whole = {name: not _is_float(config, name) for name in own}
        known = {name: dimension_of(table, f"space.{name}", whole=whole[name]) for name, table in own.items()}
    found: dict[str, Dimension] = {}
    for name in [name for name in known if name not in fixed]:
        try:
            found[name] = known[name].around(_plain(values[name]))
        except ValueError as error:
            raise ValueError(f"space.{name}: {error}") from error
    if own is None:
        found = _possible(config, found, budget)
    _require_types(config, found)
    if not found:
        raise ValueError(_nothing_to_tune(config, set(values) & set(SPACES if own is None else own), own is not None))
    return found


def _require_types(config: Any, space: Space) -> None:
    """Check that the values of a space have the types of their fields; other conditions may depend on other values.

    Raises:
        ValueError: if one has another type.
    """
    for name, kind in space.items():
        for value in kind.choices if isinstance(kind, Choices) else (kind.rounded(kind.low), kind.rounded(kind.high)):
            try:
                from_table(cast(type[Any], type(config)), {name: value}, base=config, where="space")
            except ValueError as error:
                if str(error).startswith(f"space.{name}: "):
                    raise


def _possible(config: Any, space: Space, budget: int | None) -> dict[str, Dimension]:
    """Return the space without the choices that are invalid with every other value of one other field."""
    chosen = {name: dimension for name, dimension in space.items() if isinstance(dimension, Choices)}

    def is_possible(name: str, value: Any) -> bool:
        if value == _plain(getattr(config, name)) or fits(config, {name: value}, budget):
            return True
        changes = ((other, each) for other, kind in chosen.items() if other != name for each in kind.choices)
        return any(fits(config, {name: value, other: each}, budget) for other, each in changes)

    found = dict(space)
    for name, dimension in chosen.items():
        left = tuple(value for value in dimension.choices if is_possible(name, value))
        if len(left) > 1:
            found[name] = Choices(left)
        else:
            del found[name]
    return found


def inside(config: Any, space: Space) -> Any:
    """Return a configuration with the values that are outside their ranges moved to the nearest bounds."""
    values = {name: getattr(config, name) for name in space}
    ranges = {name: dimension for name, dimension in space.items() if isinstance(dimension, Range)}
    moved = {name: one.nearest(values[name]) for name, one in ranges.items() if not one.contains(values[name])}
    return replace(config, **moved)


def dimension_of(table: Any, where: str, *, whole: bool = False) -> Dimension:
    """Return the space of a field from a TOML table.

    Args:
        table: the table.
        where: its name for messages.
        whole: whether a range has integers by default.

    Raises:
        ValueError: if it is invalid.
    """
    if not isinstance(table, Mapping) or ("choices" in table) == ("low" in table):
        raise ValueError(f"{where} must be a table with low and high, or with choices, got {table!r}")
    given = cast(Mapping[str, Any], table)
    kind = Choices if "choices" in given else Range
    if kind is Range and whole:
        given = {"whole": True, **given}
    return from_table(kind, given, where=where)


def table_of(dimension: Dimension) -> dict[str, Any]:
    """Return the space of a field as a TOML table, the inverse of `dimension_of`."""
    if isinstance(dimension, Choices):
        return {"choices": list(dimension.choices)}
    return asdict(dimension)


def _is_switched_off(name: str, values: Mapping[str, Any]) -> bool:
    if _idle(name, values) is not None:
        return True
    if name in (*_EPSILONS, "exploration_fraction") and all(values.get(each) == 0 for each in _EPSILONS):
        return True
    return values[name] is None or (isinstance(SPACES[name], Factor) and values[name] == 0)


def _idle(name: str, values: Mapping[str, Any]) -> Condition | None:
    """Return the condition with which a field has no effect; None if it has one."""
    found = (each for each in CONDITIONS if name in each.fields and values.get(each.field) in each.values)
    return next(found, None)


def _nothing_to_tune(config: Any, spaced: Collection[str], is_own: bool) -> str:
    """Return the message for an empty space, given the fields of the configuration with a space."""
    if is_own and not spaced:
        return "there is nothing to tune: the space is empty; add fields to the file"
    if is_own:
        return (
            f"there is nothing to tune: the fields of the space, {', '.join(sorted(spaced))}, are set on the command "
            "line; leave out their flags, or add other fields to the file"
        )
    if not spaced:
        listed = ", ".join(field.name for field in fields(config))
        return (
            f"no field of {type(config).__name__} has a predefined search space; its fields are {listed}: give the "
            "space of some of them, with --space FILE"
        )
    return (
        f"there is nothing to tune: the fields with a space, {', '.join(sorted(spaced))}, are disabled, have one "
        "possible value, or are set on the command line; select others with --space FILE"
    )


def _is_float(config: Any, name: str) -> bool:
    """Return whether a field of a configuration may be a float."""
    annotation = get_type_hints(cast(type[Any], type(config)))[name]
    return annotation is float or float in get_args(annotation)


def _plain(value: Any) -> Any:
    return list(cast(tuple[Any, ...], value)) if isinstance(value, tuple) else value
