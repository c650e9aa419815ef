"""Detection of processes that no longer respond although their connections are open: `Heartbeats`.

A killed process closes its connections, which the others notice immediately. A stopped one, or one on a machine that is
frozen or cut off, does not, and operations that wait for it have no time limit, since evaluations may take hours.
"""

import os
import sys
import threading
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist

INTERVAL = 2.0
"""Seconds between two heartbeats of a process."""

SILENCE = 300.0
"""Seconds without a sign of life after which a process counts as lost. They must cover what blocks all threads."""

_KEY = "operant/heartbeats"
_Store = cast(Any, dist).TCPStore  # its types are not exported


class Heartbeats:
    """Signs of life of all processes of a group, exchanged by a thread through torchrun's key-value store.

    Args:
        rank: index of this process.
        size: number of processes.
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        self._found = [b""] * size
        self._ages = [0.0] * size
        self._known = list(self._found)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._exchange, name="heartbeats", daemon=True)
        self._thread.start()

    def require(self, seconds: float) -> None:
        """End this process with status 1 and a message if others have given no sign of life for a long time.

        Args:
            seconds: time since the last call. Processes that were all stopped meanwhile, as by Ctrl-Z, are not silent.
        """
        for rank, sign in enumerate(self._found):
            self._ages[rank] = 0.0 if sign != self._known[rank] else self._ages[rank] + seconds
            self._known[rank] = sign
        silent = [rank for rank, age in enumerate(self._ages) if age > SILENCE]
        if not silent:
            return
        if self._rank in silent:  # the store does not even return this process's own signs
            _tell(f"no reply for {SILENCE:g} seconds from the key-value store of the processes, {self._place}")
        elif self._rank == min(set(range(self._size)) - set(silent)):  # one message suffices
            names = ", ".join(map(str, silent))
            _tell(f"no sign of life for {SILENCE:g} seconds from process {names} of {self._size}")
        os._exit(1)

    def close(self) -> None:
        """End the exchange; a thread that is blocked by a lost store ends with this process."""
        self._ended.set()
        self._thread.join(INTERVAL)

    def _exchange(self) -> None:
        """Publish signs of this process and read those of all, until closed.

        A store that is cut off may block this thread for hours, or raises an error: then no sign of any other process
        is read.
        """
        host, _, port = self._place.rpartition(":")
        keys, count, store = [f"{_KEY}/{rank}" for rank in range(self._size)], 0, None
        while not self._ended.wait(INTERVAL):
            count += 1
            try:
                store = store or _Store(host, int(port), wait_for_workers=False, timeout=timedelta(seconds=INTERVAL))
                store.set(keys[self._rank], str(count))
                self._found = store.multi_get(keys)
            except dist.DistError:
                store = None


def _tell(what: str) -> None:
    sys.stderr.write(
        f"operant: error: {what}: it was stopped, or its machine is frozen or unreachable; `operant resume RUN` "
        "continues from the latest checkpoint, on any number of processes\n"
    )
    sys.stderr.flush()
