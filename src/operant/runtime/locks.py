"""File locks of folders, which are released when their process ends: `held`, `is_held`.

The library `filelock` supports all platforms and closes locks in forked processes, so workers that survive a killed
trainer do not hold locks.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Generator
from pathlib import Path

from filelock import FileLock, Timeout

from operant.runtime.files import read_regular, require_regular

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

HOLDER = "lock.holder"
"""Name of the file that names the process that holds the lock."""

_HELD = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)
"""Error codes of a lock that is held."""


class HeldError(Exception):
    """Raised if another process holds the lock; the message contains its id and host."""


@contextlib.contextmanager
def held(folder: Path, *, patience: float = 0.0) -> Generator[None]:
    """Return a context manager that holds the lock of a folder.

    The file `lock.holder` contains the holder, since `lock` is unreadable on Windows.

    Args:
        folder: an existing folder.
        patience: seconds to wait for a lock that is held. Processes that test whether it is, hold it for an instant.

    Raises:
        HeldError: another process or object holds the lock.
        OSError: the folder is not writable.
    """
    if not folder.is_dir():  # filelock would create it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    lock = FileLock(folder / "lock", thread_local=False)
    holder = folder / HOLDER
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise HeldError(_named(holder)) from None
    try:
        with contextlib.suppress(OSError):  # if the disk is full, the lock is held anyway
            require_regular(holder)
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def is_held(folder: Path) -> bool:
    """Return whether another process or object holds the lock of a folder; nothing is written where flock exists.

    Raises:
        OSError: the lock is unreadable, or without flock, the folder is not writable.
    """
    path = folder / "lock"
    require_regular(path)
    if not path.exists():
        return False
    if fcntl is not None:
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared, so that others can test it, too
            except OSError as error:
                if error.errno in _HELD:
                    return True
                if error.errno != errno.ENOSYS:  # the file system has no flock, so `lock` itself is the lock
                    raise
            else:
                return False
    try:
        with held(folder):
            return False
    except HeldError:
        return True


def _named(holder: Path) -> str:
    with contextlib.suppress(OSError):
        return read_regular(holder)[:1024].decode(errors="replace").strip() or "another process"
    return "another process"
