"""Imports Python files of users as modules with unique names: `Finder`, `module_name`, `imported`.

Files that users import themselves, such as by `import alg`, keep their names; `executed` returns the digest of the
source that was imported.
"""

import hashlib
import importlib
import os
import sys
import sysconfig
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

PREFIX = "operant.doors."

_digests: dict[str, str] = {}
"""SHA-256 of the imported source of each file, by module name."""

_neighbors: dict[Path, dict[str, ModuleType]] = {}
"""Modules that the files of a folder import from that folder; other folders may have modules of the same names."""

_executed: dict[str, str] = {}
"""SHA-256 of the imported source of modules that users import themselves, and of the script of this process."""


def module_name(path: Path) -> str:
    """Return the module name of the file at an absolute path; the same in every process.

    The name consists of `PREFIX`, the folder as one part, and the name of the file.
    """
    return f"{PREFIX}{_encoded(str(path.parent))}.{path.stem}"


def file_of(module: str) -> Path | None:
    """Return the file of a module named by `module_name`; None for other modules."""
    folder, dot, stem = module.removeprefix(PREFIX).partition(".")
    path = Path(_decoded(folder)) / f"{stem}.py"
    return path if module.startswith(PREFIX) and dot and path.is_absolute() else None


def imported(path: Path) -> ModuleType:
    """Import the file at an absolute path, once per process, and return its module.

    The file can import modules from its folder. Modules on `sys.path` take precedence over these, and these over
    modules of other files' folders.
    """
    name = module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    with _beside(path.parent):
        return importlib.import_module(name)


def refresh() -> None:
    """Forget files that have changed since their import, so that they are imported again when they are next used."""
    for name, seen in list(_digests.items()):
        path = file_of(name)
        if path is None or not path.is_file() or _digest(path.read_bytes()) != seen:
            del _digests[name]
            sys.modules.pop(name, None)


def executed(module: str, file: Path) -> str:
    """Return the SHA-256 of the source that a module was imported from.

    Args:
        module: name without a dot, or `__main__`.
        file: its file; its current source is used if the import was not observed.
    """
    if module not in _executed:
        _executed[module] = _digest(file.read_bytes())
    return _executed[module]


def script_digest(file: Path) -> str:
    """Return the SHA-256 of the executed source if a file is the script of this process; else an empty string."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    same = script is not None and Path(os.path.abspath(script)) == file  # noqa: PTH100 - links stay
    return _executed.get("__main__", "") if same else ""


def current(file: Path) -> str:
    """Return the SHA-256 of the current contents of a file; an empty string if it is unreadable."""
    try:
        return _digest(file.read_bytes())
    except OSError:
        return ""


def is_built_in(kind: type) -> bool:
    """Return whether a class is part of operant, rather than user code."""
    return kind.__module__.partition(".")[0] == "operant" and file_of(kind.__module__) is None


def is_installed(file: Path) -> bool:
    """Return whether a file at an absolute path is part of Python or an installed package, rather than user code."""
    packages = {"site-packages", "dist-packages"}
    return not _installed_folders().isdisjoint(file.parents) or not packages.isdisjoint(file.parts)


@cache
def _installed_folders() -> frozenset[Path]:
    return frozenset(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


class Finder(MetaPathFinder):
    """Finder for `sys.meta_path` of modules named by `module_name`; records the source of other user modules."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a folder (a package) or of a file in it; None for other modules."""
        if path is None and fullname not in sys.stdlib_module_names:
            found = PathFinder.find_spec(fullname)
            _note(fullname, found and found.origin)
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
    """Loader that compiles the current source, never cached bytecode, and records its digest."""

    def get_code(self, fullname: str) -> Any:
        source = self.get_data(self.path)
        _digests[fullname] = _digest(source)
        return self.source_to_code(source, self.path)


@contextmanager
def _beside(folder: Path) -> Generator[None]:
    """Make the modules of a folder importable, after those on `sys.path`, and hide those of other folders."""
    own = _neighbors.setdefault(folder, {})
    hidden = {name: sys.modules.pop(name) for name in _foreign(folder)}
    sys.modules.update({name: own[name] for name in hidden if name in own})
    before = set(sys.modules)
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.reverse()
        sys.path.remove(str(folder))  # the last one
        sys.path.reverse()
        new = {name: module for name, module in sys.modules.items() if name not in before}
        own.update({name: module for name, module in new.items() if _is_below(folder, name, module)})
        for name, module in hidden.items():
            sys.modules.setdefault(name, module)


def _foreign(folder: Path) -> set[str]:
    """Return the names of modules imported from other folders that also exist in this folder."""
    others = [(name, module) for home, found in _neighbors.items() if home != folder for name, module in found.items()]
    tops = {top for top in {name.partition(".")[0] for name, _ in others} if _holds(folder, top)}
    return {name for name, module in others if name.partition(".")[0] in tops and sys.modules.get(name) is module}


def _holds(folder: Path, module: str) -> bool:
    return (folder / f"{module}.py").is_file() or (folder / module).is_dir()


def _is_below(folder: Path, name: str, module: ModuleType) -> bool:
    """Return whether a module has its file in or below a folder, and a name that is not from `module_name`."""
    file = getattr(module, "__file__", None)
    return file is not None and not name.startswith(PREFIX) and Path(file).is_relative_to(folder)


def _note(module: str, file: str | None) -> None:
    """Record the digest of the source of a top-level module if it is user code."""
    if file is None or not file.endswith(".py"):
        return
    whole = Path(os.path.abspath(file))  # noqa: PTH100 - links stay
    if not is_installed(whole):
        with suppress(OSError):
            _executed[module] = _digest(whole.read_bytes())


def _digest(source: bytes) -> str:
    return hashlib.sha256(source).hexdigest()


def _encoded(folder: str) -> str:
    return folder.replace("%", "%25").replace(".", "%2E")


def _decoded(folder: str) -> str:
    return folder.replace("%2E", ".").replace("%25", "%") or os.curdir


for _name, _module in list(sys.modules.items()):  # imported before this package
    if "." not in _name:
        _note(_name, getattr(_module, "__file__", None))
sys.meta_path.insert(0, Finder())
