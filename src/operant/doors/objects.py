"""Names such as `object:lambda_1` of Python objects that no file contains: `hold`, `bind`.

The process that trains a run assigns these names. In another process, the objects of each run are passed again, under
separate names, `object.run1:lambda_1`, so runs never use each other's objects.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import Any, cast

OBJECT = "object:"

_NAME = re.compile(r"object(?:\.run\d+)?:(?P<name>.+)")
_held: dict[str, Any] = {}
_prefixes: dict[str, str] = {}
"""Prefix of the names of a run's objects in this process, by the folder of the run."""

_numbers = count(1)


class DoorError(ValueError):
    """Raised if a name refers to no object, or to an unsuitable one."""


def is_object(text: str) -> bool:
    """Return whether a string is the name of a passed Python object, `object:name`."""
    return _NAME.fullmatch(text) is not None


def held(text: str) -> bool:
    """Return whether this process has the object of a name."""
    return text in _held


def object_of(text: str) -> Any:
    """Return the object of a name.

    Raises:
        DoorError: this process does not have it.
    """
    if text not in _held:
        raise _lost([_bare(text)])
    return _held[text]


def hold(thing: Any) -> str:
    """Keep an object for the rest of this process, and return its name for `load`.

    Names consist of the object's name and a number, so the same program assigns the same names.
    """
    known = next((text for text, other in _held.items() if other is thing and text.startswith(OBJECT)), None)
    if known is not None:
        return known
    stem = re.sub(r"\W+", "", getattr(thing, "__name__", "") or type(thing).__name__)
    number = 1 + sum(text.startswith(OBJECT) for text in _held)
    text = f"{OBJECT}{stem}_{number}"
    _held[text] = thing
    return text


def own(run: str) -> None:
    """Let the new run in a folder use the objects of this process by the names that the run records."""
    _prefixes[run] = OBJECT


def bind(run: str, needed: Collection[str], objects: Mapping[str, Any]) -> None:
    """Assign objects to a run; those that are left out remain as passed before.

    Args:
        run: folder of the run.
        needed: names of its objects, without `object:`.
        objects: objects by these names.

    Raises:
        DoorError: the run needs no object of a name, or an object is missing.
    """
    if unknown := [name for name in objects if name not in needed]:
        needs = f"it needs {', '.join(needed)}" if needed else "it needs none"
        raise DoorError(f"objects: {run} needs no object {unknown[0]!r}; {needs}")
    before = _prefixes.get(run)
    known = {name: _held[f"{before}{name}"] for name in needed if before and f"{before}{name}" in _held}
    if missing := [name for name in needed if name not in {**known, **objects}]:
        raise _lost(missing)
    if objects:
        prefix = _prefixes[run] = f"object.run{next(_numbers)}:"
        _held.update({f"{prefix}{name}": thing for name, thing in {**known, **objects}.items()})


def bound(table: Mapping[str, Any], run: str) -> dict[str, Any]:
    """Replace the recorded names of a run's objects in a table by those of this process (see `bind`)."""
    return _renamed(table, _prefixes.get(run, OBJECT))


def unbound(table: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the names of objects in a table by those that a run records."""
    return _renamed(table, OBJECT)


def names_in(values: Iterable[Any]) -> list[str]:
    """Return the names of objects, without `object:`, in values and lists of values."""
    return list(dict.fromkeys(_bare(text) for text in _texts(values) if is_object(text)))


def described(values: Iterable[Any]) -> dict[str, str]:
    """Return descriptions of the objects that values name, by their names without `object:`."""
    return {_bare(text): _described(_held[text]) for text in _texts(values) if text in _held}


def _texts(values: Iterable[Any]) -> list[str]:
    """Return the strings in values and lists of values."""
    parts = [part for value in values for part in (cast(Any, value) if isinstance(value, list | tuple) else (value,))]
    return [part for part in parts if isinstance(part, str)]


def _renamed(table: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    def rename(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(cast(Any, value))(map(rename, cast(Any, value)))
        return f"{prefix}{_bare(value)}" if isinstance(value, str) and is_object(value) else value

    return {name: rename(value) for name, value in table.items()}


def _bare(text: str) -> str:
    match = _NAME.fullmatch(text)
    return match["name"] if match else text


def _lost(names: Collection[str]) -> DoorError:
    texts = ", ".join(f"{OBJECT}{name}" for name in names)
    again = ", ".join(f"{name!r}: ..." for name in names)
    return DoorError(
        f"{texts} was passed as a Python object, which no file contains: pass it again, as in "
        f"operant.load(RUN, objects={{{again}}}) or operant.resume(RUN, objects={{{again}}})"
    )


def _described(thing: Any) -> str:
    """Return the name and place of a function; the representation of other objects."""
    code = getattr(thing, "__code__", None)
    name = getattr(thing, "__qualname__", f"{thing!r:.200}")
    return f"{name}, {code.co_filename}, line {code.co_firstlineno}" if code else name
