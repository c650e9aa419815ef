"""Machine code on disk that knows every source that it was made from: `keyed_by_sources`.

numba caches the machine code of a kernel beside its source, and looks for a change in that one file only. But what a
kernel calls is merged into it, and stands in other files. So the key of the cache is here a digest of all sources of
the packages that kernels take their functions from: after an edit, or a new version of operant, everything is compiled
again, and what was cached before is removed.
"""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

from operant.runtime.files import replace_durably

_OUTSIDE = "operant.doors."
"""How the names of modules from outside begin (`operant.doors`)."""
_MARKER = "kernels.sha256"
"""File beside cached machine code that names the sources of it."""


def keyed_by_sources(compile_: Callable[[Any], Any], *folders: Path) -> Callable[[Any], Any]:
    """Return a decorator that compiles kernels, and compiles them again after any source of them has changed.

    Args:
        compile_: numba's decorator, with `cache=True`.
        *folders: packages whose functions are merged into the kernels.
    """

    def decorate(function: Any) -> Any:
        dispatcher = compile_(function)
        digest = digest_of(*folders)
        kept = dispatcher._cache
        # numba has no public way to add to its key; without this attribute it fails here, not in silence.
        file = kept._cache_file
        file._source_stamp = (file._source_stamp, digest)
        file.save, file._load_index = partial(_save, file.save), partial(_load_index, file._load_index)
        if Path(function.__code__.co_filename).parent in folders:  # machine code beside others is not ours to remove
            _remove_stale(Path(kept.cache_path), digest)
        return dispatcher

    return decorate


def _save(save: Callable[[Any, Any], None], key: Any, data: Any) -> None:
    """Cache machine code, unless it is for types of a file from outside (`operant.doors`).

    A copy of an algorithm calls our functions with named tuples of its own. The index names such types, so that nobody
    could read it any more once the file is gone; and the copy's kernels, into which ours are merged, are cached beside
    it.
    """
    arguments, *_ = key
    if not any(map(_is_from_outside, arguments)):
        save(key, data)


def _is_from_outside(kind: Any) -> bool:
    """Whether a type of numba is a named tuple of a file from outside, or holds one."""
    own = getattr(getattr(kind, "instance_class", None), "__module__", "")
    return own.startswith(_OUTSIDE) or any(map(_is_from_outside, getattr(kind, "types", ())))


def _load_index(load: Callable[[], dict[Any, Any]]) -> dict[Any, Any]:
    """Return what is cached: nothing if it cannot be read, since then it is only compiled again."""
    try:
        return load()
    except Exception:  # whatever numba's file holds
        return {}


@cache
def digest_of(*folders: Path) -> str:
    """Return the SHA-256 of the names and bytes of all Python files right in `folders`, as they are at the first call.

    Functions come from the modules as they were imported, so a process keeps the digest of its beginning.
    """
    hashed = hashlib.sha256()
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        content = path.read_bytes()
        hashed.update(f"{path.name} {len(content)}\n".encode())
        hashed.update(content)
    return hashed.hexdigest()


@cache
def _remove_stale(cached: Path, digest: str) -> None:
    """Remove the machine code of other sources from a folder, once a process; what cannot be removed is overwritten."""
    marker = cached / _MARKER
    with suppress(OSError):
        if not marker.exists() or marker.read_text(encoding="utf-8") != digest:
            for path in cached.glob("*.nb[ic]"):
                path.unlink(missing_ok=True)
            replace_durably(marker, digest.encode())
