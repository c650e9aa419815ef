"""What commands leave behind on this machine: processes, ports, shared memory. Needs /proc.

Processes are found by a mark in their environment, which everything that they start inherits. What other programs do
meanwhile does not count.
"""

import contextlib
import os
from pathlib import Path

MARK = "OPERANT_LEFTOVERS"
SHARED = Path("/dev/shm")  # noqa: S108 - only listed


def marked(mark):
    """Return the ids of the processes with a mark, and their commands; this process is none of them."""
    found = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            own = f"{MARK}={mark}".encode() in (place / "environ").read_bytes().split(b"\0")
            if own and int(place.name) != os.getpid():
                found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def ports(processes):
    """Return the addresses that some processes listen at, as in /proc/net/tcp."""
    sockets = {link for number in processes for link in _links(Path(f"/proc/{number}/fd"))}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text(encoding="utf-8").splitlines()[1:]:
            words = line.split()
            if words[3] == "0A" and f"socket:[{words[9]}]" in sockets:
                found.add(words[1])
    return found


def shared(mark):
    """Return the names of shared memory, without what processes without the mark use."""
    names = {path.name for path in SHARED.iterdir()}
    own = {*marked(mark), os.getpid()}
    for place in Path("/proc").glob("[0-9]*"):
        if names and int(place.name) not in own:
            with contextlib.suppress(OSError):
                used = (place / "maps").read_text(encoding="utf-8", errors="replace")
                names -= {name for name in names if f"{SHARED}/{name}" in used}
    return names


def _links(folder):
    with contextlib.suppress(OSError):
        for link in folder.iterdir():
            with contextlib.suppress(OSError):
                yield str(link.readlink())
