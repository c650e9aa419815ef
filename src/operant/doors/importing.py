"""Python files of users as modules with names of their own: `Finder`, `module_name`, `imported`."""

import hashlib
import importlib
import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "operant.doors."

_digests: dict[str, str] = {}
"""SHA-256 of each file as it was when it was imported, by the name of its module."""


def module_name(path: Path) -> str:
    """Return the name that the file at an absolute path is imported under; the same in every process.

    The folder is one part of the name, the file the last one, which tracebacks and caches of compiled code show.
    """
    return f"{PREFIX}{_encoded(str(path.parent))}.{path.stem}"


def file_of(module: str) -> Path | None:
    """Return the file whose module has this name; None for other modules."""
    folder, dot, stem = module.removeprefix(PREFIX).partition(".")
    path = Path(_decoded(folder)) / f"{stem}.py"
    return path if module.startswith(PREFIX) and dot and path.is_absolute() else None


def imported(path: Path) -> ModuleType:
    """Import the file at an absolute path, the first time in this process, and return its module.

    Modules next to it can be imported; they come after all others, so that they hide none.
    """
    name = module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    with _beside(path.parent):
        return importlib.import_module(name)


def refresh() -> None:
    """Reload every file that has changed since its import when it is next used."""
    for name, seen in list(_digests.items()):
        path = file_of(name)
        if path is None or not path.is_file() or _digest(path.read_bytes()) != seen:
            del _digests[name]
            sys.modules.pop(name, None)


class Finder(MetaPathFinder):
    """Finds the modules of `module_name`; for `sys.meta_path`."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return where a module is: a folder as a package, a file in it by `_Loader`; None for all others."""
        folder, _, rest = fullname.removeprefix(PREFIX).partition(".")
        place = _decoded(folder)
        if not fullname.startswith(PREFIX) or not Path(place).is_absolute():
            return None
        if not rest:
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [place]
            return spec
        file = str(Path(place) / f"{rest}.py")
        return spec_from_file_location(fullname, file, loader=_Loader(fullname, file)) if Path(file).is_file() else None


class _Loader(SourceFileLoader):
    """Runs the current source, never cached bytecode, and stores it."""

    def get_code(self, fullname: str) -> Any:
        source = self.get_data(self.path)
        _digests[fullname] = _digest(source)
        return self.source_to_code(source, self.path)


@contextmanager
def _beside(folder: Path) -> Generator[None]:
    """Let modules of a folder be found, after all others."""
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.reverse()
        sys.path.remove(str(folder))  # the last one
        sys.path.reverse()


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def _encoded(folder: str) -> str:
    return folder.replace("%", "%25").replace(".", "%2E")


def _decoded(folder: str) -> str:
    return folder.replace("%2E", ".").replace("%25", "%") or os.curdir


sys.meta_path.insert(0, Finder())
