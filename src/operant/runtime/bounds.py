"""Refusing configurations that cannot work: `require`."""

import re
from collections.abc import Sequence
from typing import Any

_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])( or None)?")


def require(config: Any, **bounds: str | Sequence[str]) -> None:
    """Check fields of a configuration against what they may be.

    Args:
        config: has a field for every name.
        **bounds: by name of the field, the interval of its values, or the words that it may be. An interval is written
            as in mathematics, `"(0, inf)"` or `"[0, 1]"`, with `" or None"` behind it where there may be no value.

    Raises:
        ValueError: a value is outside. The message names field, value and bounds.
    """
    for name, bound in bounds.items():
        value = getattr(config, name)
        if isinstance(bound, str):
            if not _within(value, bound):
                raise ValueError(f"{name} must be in {bound}, got {value!r}")
        elif value not in bound:
            raise ValueError(f"{name} must be {', '.join(bound[:-1])} or {bound[-1]}, got {value!r}")


def _within(value: float | None, interval: str) -> bool:
    match = _INTERVAL.fullmatch(interval)
    if match is None:
        raise ValueError(f"an interval is written like '[0, 1)' or '(0, inf) or None', got {interval!r}")
    left, low, high, right, optional = match.groups()
    if value is None:
        return optional is not None
    above = float(low) <= value if left == "[" else float(low) < value
    below = value <= float(high) if right == "]" else value < float(high)
    return above and below
