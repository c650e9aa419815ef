"""Names with options, such as `arithmetic:digits=3,steps=2`: `build`, `split`, `Choices`."""

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

Made = TypeVar("Made")


class Choices(tuple[int, ...]):
    """Integers to sample from, with probabilities proportional to their counts in the tuple.

    Syntax: `4` (always 4), `2-6` (uniform from 2 to 6) or `2/2/3/5-6` (a list of both).
    """

    __slots__ = ()

    def __str__(self) -> str:
        """Return the integers in the syntax of the command line."""
        return "/".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> "Choices":
        """Parse choices in the syntax of the command line.

        Raises:
            ValueError: the text is no list of integers and ranges.
        """
        numbers: list[int] = []
        for part in text.split("/"):
            low, dash, high = part.partition("-")
            if not low.isdecimal() or (dash and not high.isdecimal()) or (dash and int(high) < int(low)):
                raise ValueError(f"expected whole numbers such as 4, 2-6 or 2/2/3-5, got {text!r}")
            numbers += range(int(low), int(high or low) + 1)
        return cls(numbers)


def split(text: str) -> tuple[str, dict[str, str]]:
    """Split `name:key=value,key=value` into the name and its options.

    A comma is part of the value before it unless a new `key=` follows.

    Raises:
        ValueError: an option has no `=` or is given twice.
    """
    name, _, rest = text.partition(":")
    options: dict[str, str] = {}
    parts: list[str] = []
    for part in rest.split(",") if rest else []:
        if parts and not re.match(r"[A-Za-z_]\w*=", part):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    for part in parts:
        key, equals, value = part.partition("=")
        if not equals or not key.isidentifier():
            raise ValueError(f"options are written name:key=value,key=value; got {part!r} in {text!r}")
        if key in options:
            raise ValueError(f"the option {key!r} is given twice in {text!r}")
        options[key] = value
    return name, options


def build(text: str, factories: Mapping[str, Callable[..., Made]], kind: str, **defaults: Any) -> Made:
    """Call a factory by name, with options.

    Args:
        text: `name` or `name:key=value,key=value`.
        factories: factories by name; their options are keyword-only parameters annotated with `int`, `float`, `str`,
            `bool` or `Choices`, or with `| None` if the default is None.
        kind: noun for error messages, such as `task`.
        **defaults: values of options that `text` does not set, if the factory accepts them.

    Raises:
        ValueError: the name or an option is unknown (the message suggests a similar one), a value is invalid, or an
            option without a default is missing.
    """
    name, given = split(text)
    if name not in factories:
        raise ValueError(f"there is no {kind} {name!r}{_nearest(name, factories)}; there are {', '.join(factories)}")
    parameters = inspect.signature(factories[name]).parameters
    for key in given:
        if key not in parameters:
            known = f"; it has {', '.join(parameters)}" if parameters else "; it has none"
            raise ValueError(f"the {kind} {name} has no option {key!r}{_nearest(key, parameters)}{known}")
    values = {key: value for key, value in defaults.items() if key in parameters}
    for key, value in given.items():
        try:
            values[key] = _convert(value, parameters[key].annotation)
        except ValueError as error:
            raise ValueError(f"the option {key} of the {kind} {name}: {error}") from None
    missing = [key for key, p in parameters.items() if p.default is p.empty and key not in values]
    if missing:
        raise ValueError(f"the {kind} {name} needs {' and '.join(missing)}: write {name}:{missing[0]}=...")
    return factories[name](**values)


def _convert(text: str, annotation: Any) -> Any:
    """Parse the value of an option by its annotation."""
    kind = next((kind for kind in get_args(annotation) if kind is not type(None)), annotation)
    if kind is Choices:
        return Choices.parse(text)
    if kind is bool:
        if text not in ("true", "false"):
            raise ValueError(f"expected true or false, got {text!r}")
        return text == "true"
    try:
        return kind(text)
    except ValueError:
        expected = {int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"expected {expected}, got {text!r}") from None


def _nearest(name: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
