"""Atomic, durable file writes."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Container, Generator, Mapping, Sequence
from pathlib import Path

_BESIDE = re.compile(r"\..+-[0-9a-f]{16}")
_OLD = 60.0
"""Age in seconds from which a temporary folder counts as abandoned."""


def beside(path: Path) -> Path:
    """Return an unused temporary path next to `path`, to be renamed to `path` later.

    In contrast to `tempfile`, whose files are private to the user, files have default permissions.
    """
    return path.with_name(f".{path.name}-{secrets.token_hex(8)}")


def meant(path: str) -> str:
    """Return the target path of a temporary path of `beside`; other paths are unchanged."""
    folder, _, name = path.rpartition(os.sep)
    return os.path.join(folder, name[1:-17]) if _BESIDE.fullmatch(name) else path  # noqa: PTH118 - of a text


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed processes in `folder`. Needs write access."""
    for path in folder.glob(".*"):
        if _BESIDE.fullmatch(path.name) and path.is_file():
            with contextlib.suppress(OSError):
                path.unlink()


def remove_old_leftovers(path: Path, contents: Container[str]) -> None:
    """Remove temporary folders of killed processes next to `path` that are at least a minute old.

    Args:
        path: path of the folder to be created.
        contents: names in such folders; folders with other contents are kept.
    """
    for folder in path.parent.glob(".*"):
        with contextlib.suppress(OSError):
            if not _BESIDE.fullmatch(folder.name) or not folder.is_dir() or folder.is_symlink():
                continue
            young = time.time() - folder.stat().st_mtime < _OLD
            if not young and all(part.name in contents for part in folder.iterdir()):
                shutil.rmtree(folder)


def make_folder(path: Path, folders: Sequence[str], files: Mapping[str, bytes]) -> None:
    """Create a folder atomically, or fill an empty one, which may be the working folder or a mount point.

    Args:
        path: path of the folder.
        folders: names of empty subfolders, at least one.
        files: contents of files, by name; the first one identifies the folder, and is written last.

    Raises:
        OSError: the folder cannot be created, or the path is not empty.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "there is a file with this name", str(path))
    remove_old_leftovers(path, (*folders, *files))
    if path.is_dir():
        _fill(path, folders, files)
        return
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


def _fill(path: Path, folders: Sequence[str], files: Mapping[str, bytes]) -> None:
    """Create subfolders and files in an empty folder, as `make_folder`."""
    if any(path.iterdir()):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path))
    made: list[Path] = []
    try:
        for name in folders:
            (path / name).mkdir()  # of two processes, one creates the first, and the other ends here
            made.append(path / name)
        for name in reversed([*files]):
            replace_durably(path / name, files[name])
            made.append(path / name)
    except BaseException:
        for part in made:
            shutil.rmtree(part) if part.is_dir() else part.unlink()
        raise


def sync_folder(folder: Path) -> None:
    """Flush the names in `folder` to disk, if the file system supports it."""
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flush the contents of a file to disk."""
    with path.open("rb+") as file:  # Windows cannot flush a file opened for reading
        os.fsync(file.fileno())


def require_regular(path: Path) -> None:
    """Raise an error for paths that are not regular files, such as pipes, devices and folders.

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


@contextlib.contextmanager
def named_in_errors(path: Path) -> Generator[None]:
    """Return a context manager that adds a path to errors of the system without one, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file and flush it to disk."""
    with named_in_errors(path), path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically: after a crash, the file has the old or the new contents."""
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
