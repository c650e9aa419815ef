"""Compiled code, cached by a digest of all its sources: `keyed_by_sources`.

numba caches the compiled code of a kernel next to its source, and checks only that file for changes. But functions
from other files are inlined. So the cache key here is a digest of all sources of the packages with called functions:
after an edit, or an update of operant, everything is compiled again, and old code is removed.
"""

import atexit
import hashlib
import logging
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import numba

from operant.runtime.files import replace_durably

logger = logging.getLogger(__name__)

Kernel = TypeVar("Kernel", bound=Callable[..., object])
"""A compiled function with the type of its Python function."""


class Compile(Protocol):
    """numba's decorator with its options."""

    def __call__(self, function: Callable[..., object], /) -> object:
        """Return the compiled function."""
        ...


njit = cast(Callable[..., Compile], numba.njit)
"""numba's decorator with given options, which have no types."""

_OUTSIDE = "operant.doors."
"""Prefix of module names of user files (`operant.doors`)."""
_MARKER = "kernels.sha256"
"""File with the source digest next to cached code."""


def keyed_by_sources(compile_: Compile, *folders: Path) -> Callable[[Kernel], Kernel]:
    """Return a decorator that compiles kernels, and recompiles them after a change of any of their sources.

    Args:
        compile_: numba's decorator, with `cache=True`.
        *folders: packages whose functions are inlined.
    """

    def decorate(function: Kernel) -> Kernel:
        dispatcher: Any = _compiled(compile_, function)
        digest = digest_of(*folders)
        cache = dispatcher._cache
        # numba has no public way to extend its key; without this private attribute, this line raises.
        file = cache._cache_file
        file._source_stamp = (file._source_stamp, digest)
        file.save, file._load_index = partial(_save, file.save), partial(_load_index, file._load_index)
        if Path(function.__code__.co_filename).parent in folders:  # do not remove compiled code of other packages
            _remove_stale(Path(cache.cache_path), digest)
        return cast(Kernel, dispatcher)

    return decorate


def _compiled(compile_: Compile, function: Callable[..., object]) -> object:
    """Compile a function; cache in a temporary folder if neither its folder nor the home folder is writable."""
    try:
        return compile_(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
    # A random folder name, because code from a folder that others can write would run as this user.
    folder = tempfile.mkdtemp(prefix="operant-kernels-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    cast(Any, numba).config.CACHE_DIR = folder
    logger.warning(
        "The compiled kernels cannot be cached next to operant or in the home folder, so every program compiles "
        "them again: set NUMBA_CACHE_DIR to a writable folder"
    )
    return compile_(function)


def python_of(kernel: Kernel) -> Kernel:
    """Return the Python function of a kernel, which also accepts arrays instead of numbers."""
    compiled: Any = kernel
    return compiled.py_func


def _save(save: Callable[[Any, Any], None], key: Any, data: Any) -> None:
    """Cache compiled code, unless it is for types of a user file (`operant.doors`).

    A copy of an algorithm calls operant's functions with its own named tuples. The index names such types and becomes
    unreadable once the file is deleted; the copy's kernels, with operant's inlined, are cached next to the copy.
    """
    arguments, *_ = key
    if not any(map(_is_from_outside, arguments)):
        save(key, data)


def _is_from_outside(type_: Any) -> bool:
    """Return whether a numba type is or contains a named tuple of a user file."""
    module = getattr(getattr(type_, "instance_class", None), "__module__", "")
    return module.startswith(_OUTSIDE) or any(map(_is_from_outside, getattr(type_, "types", ())))


def _load_index(load: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """Return the cache; empty if unreadable, since it is then recompiled."""
    try:
        return load()
    except Exception:  # a damaged file can raise anything
        return {}


@cache
def digest_of(*folders: Path) -> str:
    """Return the SHA-256 of the names and bytes of all Python files right in `folders`, at the first call.

    Functions come from imported modules, so a process keeps its first digest.
    """
    hashed = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        content = path.read_bytes()
        hashed.update(f"{path.name} {len(content)}\n".encode())
        hashed.update(content)
    return hashed.hexdigest()


@cache
def _remove_stale(cached: Path, digest: str) -> None:
    """Remove cached code of other sources from a folder, once per process; other files are overwritten."""
    marker = cached / _MARKER
    with suppress(OSError):
        if not marker.exists() or marker.read_text(encoding="utf-8") != digest:
            for path in cached.glob("*.nb[ic]"):
                path.unlink(missing_ok=True)
            replace_durably(marker, digest.encode())
