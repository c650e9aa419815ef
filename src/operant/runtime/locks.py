"""File locks of folders, released when their process ends: `held`.

The library `filelock` supports every platform and closes locks in forked processes, so a worker that outlives a killed
trainer holds none.
"""

import contextlib
import errno
import os
import socket
from collections.abc import Generator
from pathlib import Path

from filelock import FileLock, Timeout

from operant.runtime.files import read_regular, require_regular


class HeldError(Exception):
    """Another process holds the lock; the message names it."""


@contextlib.contextmanager
def held(folder: Path) -> Generator[None]:
    """Hold the lock of a folder, `lock`; `lock.holder` names the holder, as Windows makes the former unreadable.

    Raises:
        HeldError: another process or object holds it.
        OSError: the folder cannot be written.
    """
    if not folder.is_dir():  # filelock would create it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    lock = FileLock(folder / "lock", thread_local=False)
    holder = folder / "lock.holder"
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise HeldError(_named(holder)) from None
    try:
        with contextlib.suppress(OSError):  # full disk: the lock is held anyway
            require_regular(holder)
            holder.write_text(f"process {os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
        yield
    finally:
        with contextlib.suppress(OSError):
            holder.unlink(missing_ok=True)
        lock.release()


def _named(holder: Path) -> str:
    with contextlib.suppress(OSError):
        return read_regular(holder)[:1024].decode(errors="replace").strip() or "another process"
    return "another process"
