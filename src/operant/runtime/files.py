"""Writing files so that they are there after a crash, whole or not at all."""

import contextlib
import hashlib
import os
import secrets
from pathlib import Path


def beside(path: Path) -> Path:
    """Return a name in the folder of `path` that nothing has yet, for what is to be renamed to `path`.

    What is made there has the rights of any new file; what `tempfile` makes is for the user alone.
    """
    return path.with_name(f".{path.name}-{secrets.token_hex(8)}")


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` durable; file systems that cannot do that are left as they are."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Make the bytes of the file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes) -> None:
    """Write a new file and make its bytes durable."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace_durably(path: Path, data: bytes) -> None:
    """Write `data` to `path` so that a reader, or a crash, meets the old bytes or the new, never a mixture."""
    temporary = beside(path)
    try:
        write_durably(temporary, data)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sha256(path: Path) -> str:
    """Return the SHA-256 of the file's bytes in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
