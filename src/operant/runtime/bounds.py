"""Allowed values of configuration fields, declared in their types: `PositiveFloat`, `Interval`, `require`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import Annotated, Any, Literal, cast, get_args, get_origin, get_type_hints

_INTERVAL = re.compile(r"([\[(])(\S+), (\S+)([\])])")


@dataclass(frozen=True)
class Interval:
    """Interval of numbers, for the annotation of a field: `Annotated[float, Interval("[0, 1)")]`.

    Attributes:
        text: interval in mathematical notation: `[` and `]` include an end, `(` and `)` exclude it; `inf` is allowed.

    Raises:
        ValueError: `text` is not an interval.
    """

    text: str

    def __post_init__(self) -> None:
        """Validate."""
        if _INTERVAL.fullmatch(self.text) is None:
            raise ValueError(f"an interval must have a form such as '[0, 1)' or '(0, inf)', got {self.text!r}")

    def __contains__(self, value: object) -> bool:
        """Return whether a value is a number in the interval."""
        if not isinstance(value, Real) or value is True or value is False:
            return False
        number = cast(float, value)
        left, low, high, right = cast(re.Match[str], _INTERVAL.fullmatch(self.text)).groups()
        above = float(low) <= number if left == "[" else float(low) < number
        below = number <= float(high) if right == "]" else number < float(high)
        return above and below


PositiveInt = Annotated[int, Interval("[1, inf)")]
NonNegativeInt = Annotated[int, Interval("[0, inf)")]
PositiveFloat = Annotated[float, Interval("(0, inf)")]
NonNegativeFloat = Annotated[float, Interval("[0, inf)")]
UnitFloat = Annotated[float, Interval("[0, 1]")]

_FINITE = Interval("(-inf, inf)")
_INTEGER = "an integer in "


def require(config: Any, **bounds: str | Sequence[str | None]) -> None:
    """Validate the fields of a configuration against their types, and against additional bounds.

    A number must be in the interval of its annotation, or of that in the nearest base class that has one, or finite if
    there is none; an integer must be whole; a `Literal` must have one of its values. The same applies to every element
    of a tuple, which has the length of its type; None is allowed if the type includes it.

    Args:
        config: a dataclass; for other classes only `bounds` are checked.
        **bounds: additional bounds by name of the field: an interval, which may depend on other fields, after
            `"an integer in "` if only integers are allowed, and followed by `" or None"` if None is allowed; or a list
            of strings.

    Raises:
        ValueError: a value has another type or is out of bounds; the message contains field, value and bounds.
    """
    for name, rule in _rules(config.__class__).items():
        rule.check(name, getattr(config, name))
    for name, bound in bounds.items():
        value = getattr(config, name)
        if isinstance(bound, str):
            interval = Interval(bound.removesuffix(" or None").removeprefix(_INTEGER))
            many, whole = isinstance(value, tuple), bound.startswith(_INTEGER)
            rule = _Rule(interval=interval, whole=whole, many=many, optional=bound.endswith(" or None"))
        else:
            rule = _Rule(words=tuple(bound))
        rule.check(name, value)


@dataclass(frozen=True)
class _Rule:
    """Allowed values of a field: numbers in an interval, integers, booleans or strings; single or tuples; or None."""

    interval: Interval | None = None
    words: tuple[Any, ...] = ()
    whole: bool = False
    flag: bool = False
    many: bool = False
    length: int | None = None
    optional: bool = False

    def check(self, name: str, value: Any) -> None:
        if value is None and self.optional:
            return
        is_many = self.many and isinstance(value, tuple | list)
        items = cast(Sequence[Any], value if is_many else (value,))
        expected = self._unmet(items, is_many=is_many)
        if expected:
            raise ValueError(f"{name} must {expected}{' or None' if self.optional else ''}, got {value!r}")

    def _unmet(self, items: Sequence[Any], *, is_many: bool) -> str:
        fits = is_many == self.many and self.length in (None, len(items))
        if (self.whole and not (fits and all(map(_whole, items)))) or (self.length and not fits):
            count = f"{self.length} " if self.length else ""
            return f"be a tuple of {count}{'integers' if self.whole else 'numbers'}" if self.many else "be an integer"
        if self.interval and not all(item in self.interval for item in items):
            if self.interval == _FINITE:
                return "contain finite numbers" if self.many else "be a finite number"
            return f"{'hold numbers' if self.many else 'be'} in {self.interval.text}"
        if self.flag and not all(isinstance(item, bool) for item in items):
            return "be true or false"
        if self.words and not all(item in self.words for item in items):
            *others, last = map(str, self.words)
            return f"be {', '.join(others)} or {last}"
        return ""


@cache
def _rules(kind: type[Any]) -> dict[str, _Rule]:
    """Return the rules of a dataclass's fields by name, for types that have one."""
    hints = get_type_hints(kind, include_extras=True) if is_dataclass(kind) else {}
    found = {name: _rule(hint) for name, hint in hints.items()}
    return {name: _within_bases(kind, name, rule) for name, rule in found.items() if rule is not None}


def _within_bases(kind: type[Any], name: str, rule: _Rule) -> _Rule:
    """Return the rule of a field, with the interval of the nearest base class if its own type has none."""
    if rule.interval not in (None, _FINITE) or not (rule.whole or rule.interval):
        return rule
    bases = (_rules(base).get(name) for base in kind.__mro__[1:])
    interval = next((base.interval for base in bases if base and base.interval not in (None, _FINITE)), rule.interval)
    return replace(rule, interval=interval)


def _rule(hint: Any) -> _Rule | None:
    """Return the rule of `T`, `tuple[T, ...]`, or either with None, where T is a number, boolean or Literal."""
    options = set(get_args(hint)) if NoneType in get_args(hint) else {hint}
    optional = NoneType in options
    options.discard(NoneType)
    only = next(iter(options))
    many = get_origin(only) is tuple
    items = {item for item in get_args(only) if item is not ...} if many else {only}
    item = next(iter(items), None)
    if len(options) > 1 or len(items) != 1:
        return None
    base, *marks = get_args(item) if get_origin(item) is Annotated else (item,)
    interval = next((mark for mark in marks if isinstance(mark, Interval)), None)
    words = get_args(item) if get_origin(item) is Literal else ()
    if base in (int, float, bool) or words:
        interval = interval or (_FINITE if base is float else None)
        numbers = base in (int, float) and many and ... not in get_args(only)
        length = len(get_args(only)) if numbers else None
        return _Rule(interval, words, base is int, base is bool, many, length, optional)
    return None


def _whole(value: object) -> bool:
    return isinstance(value, Integral) and value is not True and value is not False
