"""The lock of a folder, which ends with the process that holds it: `held`.

The library `filelock` knows the locks of every platform. It closes them in processes that are forked off, so that a
worker that outlives a killed trainer holds nothing.
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
    """Hold the lock of a folder, `lock`; who holds it stands in `lock.holder`, as Windows lets nobody read the former.

    Raises:
        HeldError: another process holds it, or another object of this one.
        OSError: the folder cannot be written.
    """
    if not folder.is_dir():  # filelock would make it
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
    lock = FileLock(folder / "lock", thread_local=False)
    holder = folder / "lock.holder"
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise HeldError(_named(holder)) from None
    try:
        with contextlib.suppress(OSError):  # of a full disk: it is locked all the same
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
