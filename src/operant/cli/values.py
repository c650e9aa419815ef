"""What tyro reads in another way: integers, paths, sizes of layers, keyword arguments, and the help texts of fields."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import tyro

from operant.cli.flags import read_path

T = TypeVar("T")

_Struct = Callable[[tyro.constructors.StructTypeInfo], tyro.constructors.StructConstructorSpec | None]
_Primitive = Callable[[tyro.constructors.PrimitiveTypeInfo], tyro.constructors.PrimitiveConstructorSpec[Any] | None]
REGISTRY = tyro.constructors.ConstructorRegistry()
"""Rules of tyro for these types."""
_struct = cast(Callable[[_Struct], _Struct], REGISTRY.struct_rule)  # pyright: ignore[reportUnknownMemberType]
_primitive = cast(Callable[[_Primitive], _Primitive], REGISTRY.primitive_rule)  # pyright: ignore[reportUnknownMemberType]


def _read_by(
    read: Callable[[list[str]], T],
    kind: type[T],
    metavar: str,
    *,
    item: type | None = None,
    nargs: Literal[1, "*"] = 1,
    show: Callable[[T], list[str]] = lambda value: [str(value)],
) -> None:
    """Register the function that reads values of a type.

    Args:
        read: returns a value from the words of a flag.
        kind: type of the values; of a type with parameters, the type without them.
        metavar: the words in a help text.
        item: type of the items of a `tuple[T, ...]`.
        nargs: number of words.
        show: returns the words of a value.
    """
    spec = tyro.constructors.PrimitiveConstructorSpec[T](
        nargs=nargs,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=show,
    )

    def rule(info: tyro.constructors.PrimitiveTypeInfo) -> tyro.constructors.PrimitiveConstructorSpec[T] | None:
        found = cast(object, info.type)  # pyright: ignore[reportUnknownMemberType] - tyro declares it without its parameter
        return spec if (get_origin(found) or found) is kind and _item_of(found) is item else None

    _primitive(rule)


def _item_of(kind: object) -> object:
    """Return the type of the items of a `tuple[T, ...]`; None for other types."""
    item, *rest = get_args(kind) or (None,)
    return getattr(item, "__origin__", item) if rest == [...] else None


def sizes(words: Sequence[str]) -> tuple[int, ...]:
    """Parse the sizes of layers; `none` alone means no layers.

    No words, often a variable of a shell that is not set, would be a linear network.

    Raises:
        ValueError: a word is not an integer, or there is none.
    """
    if not words:
        raise ValueError("expected at least one size; for no hidden layers, such as in a linear policy, write none")
    if [word.lower() for word in words] == ["none"]:
        return ()
    if any("," in word or "[" in word for word in words):
        raise ValueError(f"expected values separated by spaces, without commas and brackets, got {[*words]}")
    return tuple(map(whole, words))


def parameters(arguments: Sequence[str]) -> dict[str, Any]:
    """Return keyword arguments of an environment from arguments such as `size=30`.

    Values are parsed as JSON if possible (30, 0.5, true, null, [1, 2]); Python's True, False and None are accepted,
    too. `@FILE` is replaced by the text of the file. All other values are strings.

    Raises:
        ValueError: an argument has another form, a name occurs twice, or a file is unreadable.
    """
    parsed: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not name.isidentifier() or not equals or name in parsed:
            raise ValueError(f"expected parameters such as size=30 slippery=false, each once, got {argument}")
        parsed[name] = _value(value)
    return parsed


def _value(text: str) -> Any:
    if text.startswith("@"):
        try:
            return read_path(text[1:]).read_text(encoding="utf-8-sig")
        except (OSError, ValueError) as error:
            raise ValueError(f"{text[1:]} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except ValueError:
        return text


LARGEST = 2**63
"""Bound of whole numbers, which files and tensors store in 64 bits."""


def whole(text: str) -> int:
    """Parse an integer, in digits or with an exponent.

    Raises:
        ValueError: the text is not an integer, or is too large.
    """
    try:
        number = Decimal(text)
        if number.is_finite() and number == number.to_integral_value():
            if abs(number) < LARGEST:
                return int(number)
            raise ValueError(f"expected a whole number below 2**63, about 9.2e18, got {text}")
    except ArithmeticError:
        pass
    raise ValueError(f"expected a whole number such as 100000 or 1e5, got {text}")


_read_by(lambda words: whole(words[0]), int, "INT")
_read_by(lambda words: read_path(words[0]), Path, "PATH")
_read_by(
    sizes,
    tuple,
    "INT [INT ...]|none",
    item=int,
    nargs="*",
    show=lambda value: [str(size) for size in value] or ["none"],
)
_read_by(
    parameters,
    Mapping,
    "[NAME=VALUE [NAME=VALUE ...]]",
    nargs="*",
    show=lambda value: [f"{name}={json.dumps(item)}" for name, item in value.items()],
)


@_struct
def _dataclass(info: tyro.constructors.StructTypeInfo) -> tyro.constructors.StructConstructorSpec | None:
    """Read a dataclass as tyro does, except for the line breaks of help texts."""
    kind: type = info.type  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - tyro declares no parameter
    if not is_dataclass(kind):
        return None
    hints = get_type_hints(kind, include_extras=True)
    return tyro.constructors.StructConstructorSpec(
        instantiate=kind,
        fields=tuple(
            tyro.constructors.StructFieldSpec(
                name=field.name,
                type=hints[field.name],
                default=getattr(info.default, field.name) if isinstance(info.default, kind) else _default(field),
                helptext=field.metadata.get("help") or partial(_help_text, kind, field.name),
            )
            for field in fields(kind)
            if field.init
        ),
    )


def _default(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return tyro.MISSING if field.default is MISSING else field.default


def _help_text(kind: type, name: str) -> str | None:
    """Return the docstring of a field, each paragraph in one line.

    tyro joins only lines that are not indented, as those of fields are.
    """
    text = next((found[name] for base in kind.__mro__ if name in (found := _docstrings(base))), None)
    return text and "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


@cache
def _docstrings(kind: type) -> dict[str, str]:
    """Return the docstrings of the fields that a class itself declares."""
    from docstring_parser import parse_from_object

    if kind.__module__ == "builtins":
        return {}
    return {parameter.arg_name: parameter.description or "" for parameter in parse_from_object(kind).params}
