"""Python objects that no file holds, such as lambdas, by names `object:lambda_1`: `hold`, `bind`.

The process that trains a run gives its objects such names. In another process the objects of each run are passed again
and get names of their own, `object.run1:lambda_1`, so that runs never use each other's objects.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from itertools import count
from typing import Any, cast

OBJECT = "object:"

_NAME = re.compile(r"object(?:\.run\d+)?:(?P<name>.+)")
_held: dict[str, Any] = {}
_prefixes: dict[str, str] = {}
"""What the names of a run's objects begin with in this process, by the folder of the run."""

_numbers = count(1)


class DoorError(ValueError):
    """A name leads nowhere, or to something else than is needed; the message says what is there."""


def is_object(text: str) -> bool:
    """Whether a text is the name of a passed Python object, `object:name`."""
    return _NAME.fullmatch(text) is not None


def held(text: str) -> bool:
    """Whether this process holds the object of a name."""
    return text in _held


def object_of(text: str) -> Any:
    """Return the object of a name.

    Raises:
        DoorError: if this process does not hold it.
    """
    if text not in _held:
        raise _lost([_bare(text)])
    return _held[text]


def hold(thing: Any) -> str:
    """Keep an object that no file holds for the rest of this process, and return the name by which `load` gives it.

    Names are made from those of objects and are never given twice, so that the same program gives the same ones.
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
    """Let a new run in a folder use the objects that this process holds by the names in the run."""
    _prefixes[run] = OBJECT


def bind(run: str, needed: Collection[str], objects: Mapping[str, Any]) -> None:
    """Give a run its objects; those that are left out stay as passed before.

    Args:
        run: folder of the run.
        needed: names of its objects, without `object:`.
        objects: objects by these names.

    Raises:
        DoorError: if the run needs no object of a name, or an object is missing.
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
    """Return a table with the names of a run's objects in this process (see `bind`)."""
    return _renamed(table, _prefixes.get(run, OBJECT))


def unbound(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table with the names of objects as a run records them."""
    return _renamed(table, OBJECT)


def names_in(values: Iterable[Any]) -> list[str]:
    """Return the names of objects among values, also in lists, without `object:`."""
    return list(dict.fromkeys(_bare(text) for text in _texts(values) if is_object(text)))


def described(values: Iterable[Any]) -> dict[str, str]:
    """Return which objects of this process values name, by the name without `object:`, and what each looks like."""
    return {_bare(text): _described(_held[text]) for text in _texts(values) if text in _held}


def _texts(values: Iterable[Any]) -> list[str]:
    """Return the texts among values, also in lists."""
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
