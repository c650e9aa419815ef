"""Objects by name, such as `file.py:Name`, and names of objects: `load`, `name_of`."""

import ast
import importlib
import importlib.metadata
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from inspect import isroutine
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from operant.doors import importing, objects
from operant.doors.objects import DoorError

_PART = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
_NAME = re.compile(rf"(?P<where>.+\.py|{_PART}):(?P<name>{_PART})")
_named: dict[str, tuple[Any, str]] = {}
"""Classes and functions by their names from `name_of`, with the digest of their source; `load` returns them."""

_SCRIPT = "__main__"
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class ChangedError(DoorError):
    """Raised if a file has changed since it was imported, so it differs from the code in this process."""


@dataclass(frozen=True)
class Place:
    """Location of a named object.

    Attributes:
        where: the path of a file that ends in `.py`, or the name of a module.
        name: name of the object in it; nested names are separated by dots.
    """

    where: str
    name: str

    @property
    def path(self) -> Path | None:
        """The absolute path of the file; None for a module. Symbolic links are kept, since their targets may change."""
        if not self.where.endswith(".py"):
            return None
        return Path(os.path.abspath(Path(self.where).expanduser()))  # noqa: PTH100 - see above

    def __str__(self) -> str:
        """Return the name with an absolute path, which is valid in every working directory."""
        return f"{self.path or self.where}:{self.name}"


def place_of(text: str) -> Place | None:
    """Parse `file.py:Name` or `package.module:Name`; return None for other strings."""
    match = _NAME.fullmatch(text)
    return Place(match["where"], match["name"]) if match else None


def is_name(text: str) -> bool:
    """Return whether a string has the form `file.py:Name`, `package.module:Name` or `file.py`."""
    return place_of(text) is not None or is_file(text)


def is_file(text: str) -> bool:
    """Return whether a string has the form `file.py:Name` or `file.py`."""
    place = place_of(text)
    return text.endswith(".py") if place is None else place.path is not None


def absolute(text: str) -> str:
    """Return a name with an absolute path; other strings unchanged."""
    place = place_of(text)
    return text if place is None else str(place)


def label(text: str) -> str:
    """Return the part of a name after the colon, for tables and folders; other strings unchanged."""
    place = place_of(text)
    return text if place is None else place.name


def entry_points(group: str) -> dict[str, importlib.metadata.EntryPoint]:
    """Return the entry points of a group by name, the first of each name."""
    found: dict[str, importlib.metadata.EntryPoint] = {}
    for point in importlib.metadata.entry_points(group=group):
        found.setdefault(point.name, point)
    return found


def load(text: str, *, expected: str, accepts: Callable[[Any], bool] = callable, group: str = "") -> Any:
    """Return the object of a name.

    Args:
        text: `file.py:Name`, `package.module:Name`, or the name of an entry point.
        expected: description of the expected object for messages, such as `"a function of rewards [P, G]"`.
        accepts: returns whether the object is as expected.
        group: group of entry points. Default: none.

    Raises:
        DoorError: there is no such file, module or object, its import fails, or the object is not as expected.
    """
    if objects.is_object(text):
        return _accepted(objects.object_of(text), text, text, expected, accepts)
    point = entry_points(group).get(text) if group else None
    place = place_of(point.value if point else text)
    if place is None:
        raise DoorError(_unreadable(text, expected))
    if (known := str(place)) in _named:
        return _accepted(_named[known][0], place.where, known, expected, accepts)
    module = _module(place, f"{text!r}, an entry point of {_package(point)}, is {point.value}: " if point else "")
    return _accepted(_attribute(module, place, expected), place.where, place.name, expected, accepts)


def choices(
    table: Iterable[str], value: Any, group: str, what: str = "a custom function, path/to/file.py:name"
) -> tuple[str, ...]:
    """Return the values of a field for built-in or external parts, for `operant.runtime.bounds`.

    Args:
        table: names of the built-in parts.
        value: value of the field.
        group: group of entry points, whose names are valid values.
        what: description of an external part, for messages.
    """
    table = tuple(table)
    if value in table or not isinstance(value, str):
        return (*table, what)
    offered = tuple(entry_points(group))
    return (*table, *offered, what, *([value] if is_name(value) else []))


def name_of(thing: Any) -> str:
    """Return a name from which `load` returns a class or function, also in another process.

    Objects of a script, or of a module in its folder, are named by their file. In this process, `load` returns the
    object itself.

    Raises:
        ChangedError: its file has changed since it was imported; not raised for scripts.
        DoorError: it is defined in a function, has no name, or its name in the module refers to another object.
    """
    name, module = getattr(thing, "__qualname__", ""), str(getattr(thing, "__module__", ""))
    if not name or "<" in name:
        raise DoorError(
            f"{thing!r} cannot be found again when the run is resumed: let it be a class or function at the top of a "
            "file"
        )
    text = f"{_home(module)}:{name}"
    if importing.file_of(module) is None:  # `load` imports the others again
        _require_same(thing, module, text)
        _named[text] = thing, _require_current(module, text)
    return text


def refresh() -> None:
    """Forget files that have changed since their import, so that they are imported again when they are next used."""
    importing.refresh()
    for text, (_, executed) in list(_named.items()):
        place = place_of(text)
        if executed and place is not None and place.path and importing.current(place.path) != executed:
            del _named[text]


def _require_same(thing: Any, module: str, text: str) -> None:
    """Check that a name refers to this object, not to a decorated one or one of a reloaded module."""
    found: Any = sys.modules.get(module)
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    if found != thing:
        raise DoorError(
            f"{thing!r} cannot be found again when the run is resumed, since {text} is {found!r}: pass that one, or "
            "import it again after a reload"
        )


def _require_current(module: str, text: str) -> str:
    """Return the digest of the source of a user's module; empty for scripts, which cannot be reloaded, and packages."""
    path = Place(*text.rsplit(":", 1)).path
    if path is None or module == _SCRIPT or not path.is_file():
        return ""
    executed = importing.executed(module, path)
    if importing.current(path) != executed:
        raise ChangedError(
            f"{path} has changed since it was imported, and this program still has the code from before: reload it, "
            f"as in importlib.reload({module}), or start the program again"
        )
    return executed


def absence(path: Path, name: str) -> str:
    """Return the message that a file does not exist, with similar file names."""
    said = f"there is no file {path}{f' to take {name} from' if name else ''}"
    if not path.parent.is_dir():
        return f"{said}, as there is no folder {path.parent}"
    return f"{said}{_nearest(path.name, [file.name for file in path.parent.glob('*.py')], 'next to it are')}"


def named(value: Any) -> Any:
    """Replace classes and functions in a value or list by their names; return other values unchanged.

    Objects without a name, such as lambdas, are kept in this process (`hold`).
    """
    if isinstance(value, list | tuple):
        several = cast(Any, value)
        return type(several)(map(named, several))
    if isinstance(value, str) and objects.held(value):  # of a loaded run
        return objects.hold(objects.object_of(value))
    if not (isinstance(value, type) or isroutine(value) or isinstance(value, partial)):
        return value
    if _of_session(value):
        return objects.hold(value)
    try:
        return name_of(value)
    except ChangedError:
        raise
    except DoorError:
        return objects.hold(value)


def _of_session(thing: Any) -> bool:
    """Return whether an object is defined in a notebook or under `if __name__ == "__main__":`, which imports skip."""
    if getattr(thing, "__module__", None) != _SCRIPT:
        return False
    file = getattr(sys.modules.get(_SCRIPT), "__file__", None)
    if file is None or not Path(file).is_file():
        return True
    name = str(getattr(thing, "__qualname__", "")).partition(".")[0]
    return name in _guarded(Path(file)) and name not in _defined(Path(file), private=True)


def _guarded(path: Path) -> list[str]:
    """Return the classes and functions that a file defines under `if __name__ == "__main__":`."""
    conditions = [node for node in _statements(path) if isinstance(node, ast.If)]
    blocks = [
        node.body for node in conditions if "__name__" in {getattr(part, "id", "") for part in ast.walk(node.test)}
    ]
    return [node.name for body in blocks for node in body if isinstance(node, _DEFINITIONS)]


def _home(module: str) -> str:
    """Return the file, or the module name if installed, that names the objects of a module."""
    if known := importing.file_of(module):
        return str(known)
    file = getattr(sys.modules.get(module), "__file__", None)
    if "." in module or file is None or not file.endswith(".py"):
        return module
    path = Path(os.path.abspath(file))  # noqa: PTH100 - links stay, see `Place`
    return module if importing.is_installed(path) else str(path)


def _module(place: Place, which: str) -> ModuleType:
    """Import the file or module of a place."""
    path = place.path
    if path is not None and not path.is_file():
        raise DoorError(f"{which}{absence(path, place.name)}")
    if path is not None and "." in path.stem:
        raise DoorError(f"{which}{path} cannot be imported: rename it so that its name has no dot but that of .py")
    try:
        return importlib.import_module(place.where) if path is None else importing.imported(path)
    except SyntaxError as error:
        raise DoorError(f"{which}{error.filename}, line {error.lineno}: {error.msg}") from error
    except SystemExit as error:
        raise DoorError(
            f"{which}{place.where} ends the program when it is imported: put what it does under "
            "`if __name__ == '__main__':`"
        ) from error
    except Exception as error:
        raise DoorError(f"{which}{_failure(place, error)}") from error


def _failure(place: Place, error: Exception) -> str:
    """Return the message of a failed import, with its line."""
    missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    if place.path is None and missing and f"{place.where}.".startswith(f"{getattr(error, 'name', '')}."):
        return (
            f"there is no module {place.where!r} to take {place.name} from: install it, or name the file, "
            f"path/to/{place.where.rpartition('.')[2]}.py:{place.name}"
        )
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    line = next((f.lineno for f in reversed(frames) if place.path and f.filename == str(place.path)), None)
    at = place.where if line is None else f"{place.path}, line {line}"
    return f"{at} cannot be imported: {type(error).__name__}: {error}"


def _attribute(module: ModuleType, place: Place, expected: str) -> Any:
    """Return an attribute of a module."""
    found: Any = module
    for part in place.name.split("."):
        if not hasattr(found, part):
            names = _names(found)
            raise DoorError(
                f"{place.where} has no {place.name!r}, expected {expected}{_nearest(part, names, 'it has')}"
            )
        found = getattr(found, part)
    return found


def _accepted(found: Any, where: str, name: str, expected: str, accepts: Callable[[Any], bool]) -> Any:
    if accepts(found):
        return found
    what = f"{found!r:.80}, of type {type(found).__name__}"
    if callable(found):
        what = f"the class {found.__qualname__}" if isinstance(found, type) else "a function"
    raise DoorError(f"{name} in {where} is {what}, expected {expected}")


def _unreadable(text: str, expected: str) -> str:
    """Return the message for a string that is no name; for a file alone, with the names that it defines."""
    path = Path(text).expanduser()
    if text.endswith(".py") and path.is_file():
        return f"say what to take from {text}: {text}:NAME ({expected}){_nearest('', _defined(path), 'it defines')}"
    if text.endswith(".py"):
        return absence(path.resolve(), "")
    return f"{text!r} names nothing: expected {expected}, as path/to/file.py:Name or package.module:Name"


def _defined(path: Path, *, private: bool = False) -> list[str]:
    """Return the classes and functions that a file defines, without running it."""
    found = [node.name for node in _statements(path) if isinstance(node, _DEFINITIONS)]
    return [name for name in found if private or not name.startswith("_")]


def _statements(path: Path) -> list[ast.stmt]:
    """Return the statements at the top of a file; none if it is not Python."""
    try:
        return ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError):
        return []


def _names(found: Any) -> list[str]:
    """Return the names that a module or class defines itself, or else all its public names."""
    public: dict[str, Any] = {name: value for name, value in found.__dict__.items() if not name.startswith("_")}
    own = [name for name, value in public.items() if getattr(value, "__module__", None) == found.__name__]
    return own or list(public)


def _nearest(word: str, names: Iterable[str], otherwise: str) -> str:
    names = list(names)
    near = get_close_matches(word, names, n=3)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    return f"; {otherwise} {', '.join(sorted(names)[:12])}" if names else ""


def _package(point: importlib.metadata.EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown package"
