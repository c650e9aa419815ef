"""Refusing configurations that cannot work: `require`."""

import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Any, cast, get_args, get_origin, get_type_hints

_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])( or None)?")


def require(config: Any, **bounds: str | Sequence[str]) -> None:
    """Check fields of a configuration against what they may be, and that all that are declared as integers are.

    Args:
        config: has a field for every name.
        **bounds: by name of the field, the interval of its values, or the words that it may be. An interval is written
            as in mathematics, `"(0, inf)"` or `"[0, 1]"`, with `" or None"` behind it where there may be no value; it
            holds for every number of a tuple.

    Raises:
        ValueError: a value is outside, or no integer. The message names field, value and bounds.
    """
    for name, (many, optional) in _integers(config.__class__).items():
        value = getattr(config, name)
        if not ((value is None and optional) or _whole(value, many=many)):
            what = "a tuple of integers" if many else "an integer"
            raise ValueError(f"{name} must be {what}{' or None' if optional else ''}, got {value!r}")
    for name, bound in bounds.items():
        value = getattr(config, name)
        if isinstance(bound, str):
            many = isinstance(value, tuple)
            if not all(_within(item, bound) for item in (value if many else (value,))):
                raise ValueError(f"{name} must {'hold numbers' if many else 'be'} in {bound}, got {value!r}")
        elif value not in bound:
            raise ValueError(f"{name} must be {', '.join(bound[:-1])} or {bound[-1]}, got {value!r}")


@cache
def _integers(kind: type) -> dict[str, tuple[bool, bool]]:
    """Return by name the fields of a dataclass that hold integers: whether they hold many, and whether None too."""
    found: dict[str, tuple[bool, bool]] = {}
    for name, hint in get_type_hints(kind).items() if is_dataclass(kind) else ():
        options = set(get_args(hint)) if NoneType in get_args(hint) else {hint}
        optional = NoneType in options
        options.discard(NoneType)
        if len(options) == 1:
            (only,) = options
            many = get_origin(only) is tuple and set(get_args(only)) <= {int, ...}
            if many or only is int:
                found[name] = many, optional
    return found


def _whole(value: Any, *, many: bool) -> bool:
    values = value if many else (value,)
    if not isinstance(values, tuple | list):
        return False
    return all(
        isinstance(item, Integral) and item is not True and item is not False for item in cast(list[Any], values)
    )


def _within(value: Any, interval: str) -> bool:
    match = _INTERVAL.fullmatch(interval)
    if match is None:
        raise ValueError(f"an interval is written like '[0, 1)' or '(0, inf) or None', got {interval!r}")
    left, low, high, right, optional = match.groups()
    if value is None:
        return optional is not None
    if not isinstance(value, Real):
        return False
    number = cast(float, value)
    above = float(low) <= number if left == "[" else float(low) < number
    below = number <= float(high) if right == "]" else number < float(high)
    return above and below
