"""Atomic, durable file writes."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

_BESIDE = re.compile(r"\..+-[0-9a-f]{16}")
_OLD = 60.0
"""Seconds after which a folder of small files is no longer being made."""


def beside(path: Path) -> Path:
    """Return an unused name in the folder of `path`, to be renamed to `path` later.

    Files made there have default permissions; `tempfile` makes them private to the user.
    """
    return path.with_name(f".{path.name}-{secrets.token_hex(8)}")


def meant(path: str) -> str:
    """Return the target path for one of `beside`; other paths unchanged."""
    folder, _, name = path.rpartition(os.sep)
    return os.path.join(folder, name[1:-17]) if _BESIDE.fullmatch(name) else path  # noqa: PTH118 - of a text


def remove_leftovers(folder: Path) -> None:
    """Remove files in `folder` that a killed process left unrenamed. Needs write access."""
    for path in folder.glob(".*"):
        if _BESIDE.fullmatch(path.name) and path.is_file():
            with contextlib.suppress(OSError):
                path.unlink()


def remove_old_leftovers(path: Path, contents: Container[str]) -> None:
    """Remove folders next to `path` that a killed process left unrenamed: those a minute old.

    Args:
        path: of the folder to be made.
        contents: names in such folders; folders with anything else are kept.
    """
    for folder in path.parent.glob(".*"):
        with contextlib.suppress(OSError):
            if not _BESIDE.fullmatch(folder.name) or not folder.is_dir() or folder.is_symlink():
                continue
            young = time.time() - folder.stat().st_mtime < _OLD
            if not young and all(part.name in contents for part in folder.iterdir()):
                shutil.rmtree(folder)


def make_folder(path: Path, folders: Sequence[str], files: Mapping[str, bytes]) -> None:
    """Make a folder in a temporary place and rename it; an empty folder at `path` is replaced.

    Args:
        path: of the folder.
        folders: names of empty folders in it.
        files: further contents, by name.

    Raises:
        OSError: it cannot be made, or the path is not empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "there is a file of that name", str(path))
    remove_old_leftovers(path, (*folders, *files))
    temporary = beside(path)
    temporary.mkdir()
    try:
        for folder in folders:
            (temporary / folder).mkdir()
        for name, data in files.items():
            write_durably(temporary / name, data)
        sync_folder(temporary)
        temporary.rename(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, if the file system supports it."""
    if os.name == "nt":  # which cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the bytes of the file durable."""
    with path.open("rb+") as file:  # Windows cannot flush a file opened for reading
        os.fsync(file.fileno())


def require_regular(path: Path) -> None:
    """Raise for paths that would block or have no end: pipes, devices, folders.

    Raises:
        OSError: `path` exists and is not a regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file: move it away", str(path))


def read_regular(path: Path) -> bytes:
    """Return the bytes of a file.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    require_regular(path)
    return path.read_bytes()


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file and make its bytes durable."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically: a reader, or a crash, finds the old bytes or the new."""
    temporary = beside(path)
    try:
        write_durably(temporary, data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sha256(path: Path) -> str:
    """Return the SHA-256 of the file's bytes in hexadecimal.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    require_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
