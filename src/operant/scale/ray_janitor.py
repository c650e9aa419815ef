"""Removes what a Ray cluster leaves on this machine, when its driver has ended: `python ray_janitor.py FOLDER`.

It runs from the start of the cluster, in a session of its own, and reads its standard input, which ends when the driver
closes it or dies, however that dies. Then it kills the processes of the cluster that are left, and removes the folder.
It imports nothing of operant and Ray.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

MARK = "OPERANT_RAY"
"""Environment variable with the folder, which the processes of the cluster inherit."""

ROUNDS, PAUSE = 100, 0.1
"""Searches for processes, until none is found, and seconds between two."""


def processes(folder: str, driver: int) -> list[int]:
    """Return the processes that use a folder: in their arguments, their environment, or their open files (Linux).

    Args:
        folder: folder of the cluster.
        driver: its process, which does not count; nor do processes that it has forked and that have its open files.
    """
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*"):
        number = int(place.name)
        with contextlib.suppress(OSError, IndexError):  # it has ended, or belongs to another user
            if number in (os.getpid(), driver):
                continue
            own = f"{MARK}={folder}".encode() in (place / "environ").read_bytes().split(b"\0")
            forked = int((place / "stat").read_text().rpartition(")")[2].split()[1]) == driver
            if own or folder.encode() in (place / "cmdline").read_bytes() or (not forked and _opens(place, folder)):
                found.append(number)
    return found


def _opens(place: Path, folder: str) -> bool:
    for link in (place / "fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if str(link.readlink()).startswith(f"{folder}/"):
                return True
    return False


def clean(folder: str, driver: int) -> None:
    """Kill the processes of a cluster, and remove its folder."""
    for _ in range(ROUNDS):
        found = processes(folder, driver)
        if not found:
            break
        for number in found:
            with contextlib.suppress(OSError):  # it has ended
                os.kill(number, signal.SIGKILL)
        time.sleep(PAUSE)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # the end of the driver decides
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent = os.getppid()
    sys.stdin.buffer.read()
    clean(sys.argv[1], parent)
