"""Lossless conversion of frozen dataclasses to TOML tables and back.

TOML has no null: None is written as the string `"none"`, and read as None if the type of the field allows it. Enums are
written by name, nested dataclasses as tables, tuples and lists as arrays. Missing keys use the field's default.
Mappings are tables; without a more precise type, they contain numbers, strings, booleans, None, lists and tables.
"""

import dataclasses
import enum
import types
from collections.abc import Mapping
from typing import Any, Literal, TypeGuard, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from operant.catalog import Algorithm, names, old_names

C = TypeVar("C")

NONE = "none"
"""Representation of None in a file."""


def to_table(config: Any) -> dict[str, Any]:
    """Return a dataclass instance as nested dicts of TOML values.

    Raises:
        TypeError: `config` is not a dataclass instance, or a field has a type that a file cannot represent.
        ValueError: a value would be read back differently (the string "none" in an optional field, or NaN).
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"a configuration must be an instance of a dataclass, got {config!r}")
    table = _encode(config, type(config).__name__)
    hints = get_type_hints(type(config))
    for name, value in table.items():
        where = f"{type(config).__name__}.{name}"
        again = _decode(hints[name], value, where)
        if again != getattr(config, name):
            raise ValueError(
                f"{where} = {getattr(config, name)!r} would be read back as {again!r}; "
                "choose a value that a file can represent uniquely"
            )
    return table


def from_table(
    kind: type[C],
    table: Mapping[str, Any],
    *,
    base: C | None = None,
    where: str = "config",
    algorithm: Algorithm | None = None,
) -> C:
    """Create an instance of `kind` from a TOML table.

    Args:
        kind: a dataclass.
        table: fields by name, as from `to_table`; may be incomplete.
        base: instance that supplies missing fields. Default: the defaults of `kind`.
        where: name of the table in errors.
        algorithm: algorithm of the configuration; errors about unknown keys then recognize names of other libraries.

    Raises:
        ValueError: an unknown key, a missing value without default, or a value of the wrong type.
    """
    fields = {field.name: field for field in _fields(kind)}
    table = old_names.current(kind, table)
    for key in table:
        if key not in fields:
            raise ValueError(f"{where}.{key}: there is no such key{names.hint(key, fields, algorithm)}")
    values: dict[str, Any] = {} if base is None else {name: getattr(base, name) for name in fields}
    hints = get_type_hints(kind)
    for name, value in table.items():
        inner = values.get(name)
        if dataclasses.is_dataclass(inner) and not isinstance(inner, type) and _is_table(value):
            values[name] = from_table(type(inner), value, base=inner, where=f"{where}.{name}")
        else:
            try:
                values[name] = _decode(hints[name], value, f"{where}.{name}")
            except ValueError as error:
                raise ValueError(f"{error}{names.hint_for_value(name, value, fields)}") from error
    needed = [name for name, field in fields.items() if _required(field) and name not in values]
    if needed:
        raise ValueError(f"{where}: {', '.join(needed)} must be given")
    try:
        return kind(**values)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _fields(kind: type) -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(kind) if field.init]


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_table(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def _encode(value: Any, where: str) -> Any:
    if value is None:
        return NONE
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [_encode(item, f"{where}[{i}]") for i, item in enumerate(cast(list[Any], value))]
    if isinstance(value, Mapping):
        mapping = cast(Mapping[Any, Any], value)
        return {str(key): _encode(_plain(item), f"{where}.{key}") for key, item in mapping.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _encode(getattr(value, f.name), f"{where}.{f.name}") for f in _fields(type(value))}
    raise TypeError(
        f"{where} contains {value!r}, which a configuration file cannot represent; "
        "use numbers, strings, booleans, None, enums, tuples, lists and dataclasses of them"
    )


def _plain(value: Any) -> Any:
    """Return a NumPy number or array as a Python number or list, and other values unchanged."""
    return value.tolist() if type(value).__module__ == "numpy" and hasattr(value, "tolist") else value


def _decode(hint: Any, value: Any, where: str) -> Any:
    origin, value = get_origin(hint), _plain(value)
    if origin is Union or origin is types.UnionType:
        return _decode_union(get_args(hint), value, where)
    if origin is Literal:
        return _decode_literal(get_args(hint), value, where)
    if isinstance(origin, type):
        decode = _decode_mapping if issubclass(origin, Mapping) else _decode_array
        return decode(origin, get_args(hint), value, where)
    if hint is Any:
        return _decode_anything(value, where)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return from_table(hint, value, where=where) if _is_table(value) else _refuse(where, value, "a table")
    if isinstance(hint, type):
        return _decode_scalar(hint, value, where)
    raise TypeError(f"{where} is annotated as {hint!r}, which a configuration file cannot represent")


def _decode_scalar(hint: type[Any], value: Any, where: str) -> Any:
    if issubclass(hint, enum.Enum):
        names = hint.__members__
        return names[value] if value in names else _refuse(where, value, f"one of {', '.join(names)}")
    if hint is types.NoneType:
        return None if value == NONE else _refuse(where, value, NONE)
    if hint is float and type(value) is int:
        return float(value)
    if hint in (bool, int, float, str) and type(value) is hint:
        return value
    return _refuse(where, value, f"a value of type {hint.__name__}")


def _decode_literal(choices: tuple[Any, ...], value: Any, where: str) -> Any:
    if any(choice == value and type(choice) is type(value) for choice in choices):
        return value
    return _refuse(where, value, f"one of {', '.join(map(repr, choices))}")


def _decode_union(members: tuple[Any, ...], value: Any, where: str) -> Any:
    if types.NoneType in members and value == NONE:
        return None
    exact = [member for member in members if member is type(value)]
    reasons: list[str] = []
    for member in exact + [member for member in members if member not in exact]:
        try:
            return _decode(member, value, where)
        except ValueError as error:
            reasons.append(str(error).removeprefix(f"{where}: "))
    raise ValueError(f"{where}: {'; or '.join(reasons)}")


def _decode_array(origin: Any, items: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple):
        return _refuse(where, value, "an array")
    elements = cast(list[Any], value)
    repeated = origin is list or (len(items) == 2 and items[1] is Ellipsis)
    hints = [items[0]] * len(elements) if repeated else list(items)
    if len(hints) != len(elements):
        return _refuse(where, elements, f"an array of {len(hints)} elements")
    pairs = enumerate(zip(hints, elements, strict=True))
    decoded = [_decode(hint, element, f"{where}[{i}]") for i, (hint, element) in pairs]
    return tuple(decoded) if origin is tuple else decoded


def _decode_mapping(_: Any, items: tuple[Any, ...], value: Any, where: str) -> Any:
    if not _is_table(value):
        return _refuse(where, value, "a table")
    return {key: _decode(items[1], item, f"{where}.{key}") for key, item in value.items()}


def _decode_anything(value: Any, where: str) -> Any:
    """Return a value from a file unchanged, except None; tuples become lists."""
    if isinstance(value, list | tuple):
        return [_decode_anything(item, f"{where}[{i}]") for i, item in enumerate(cast(list[Any], value))]
    if _is_table(value):
        return {key: _decode_anything(item, f"{where}.{key}") for key, item in value.items()}
    if value is None or value == NONE:
        return None
    return (
        value
        if isinstance(value, bool | int | float | str)
        else _refuse(where, value, "a value that files can represent")
    )


def _refuse(where: str, value: Any, expected: str) -> Any:
    raise ValueError(f"{where}: {value!r} is not {expected}")
