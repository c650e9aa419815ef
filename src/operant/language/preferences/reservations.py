"""Reservations of items on screen: two windows of one annotator never show the same item.

A reservation belongs to a process. It ends with an answer, when the process closes its store, and when the process
ends, which the operating system reports for this machine; a reservation of another machine expires after ten minutes.
"""

import os
import socket
import sqlite3
from pathlib import Path

RESERVED_SECONDS = 600.0
"""Lifetime in seconds of reservations of other machines, and on systems without process information."""

TABLE = """
CREATE TABLE IF NOT EXISTS reservations (
    item_id TEXT NOT NULL,
    annotator TEXT NOT NULL,
    round INTEGER NOT NULL,
    host TEXT NOT NULL,
    process INTEGER NOT NULL,
    started TEXT NOT NULL,
    reserved_at REAL NOT NULL,
    PRIMARY KEY (item_id, annotator, round)
) STRICT, WITHOUT ROWID
"""
"""Older versions of operant, which lack this table, can still use the database."""


class Reservations:
    """The reservations of this process in a database; call every method within a transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._own = (socket.gethostname(), os.getpid(), _started(os.getpid()))

    def elsewhere(self, annotator: str, round: int, *, now: float) -> list[str]:  # noqa: A002 - its name in the log
        """Return the items reserved by other processes for an annotator in a round; delete expired reservations."""
        rows = self._connection.execute("SELECT * FROM reservations WHERE annotator = ?", (annotator,)).fetchall()
        for row in rows:
            if self._has_ended(row, now):
                self.release(row["item_id"], annotator, row["round"])
        query = (
            "SELECT item_id FROM reservations "
            "WHERE annotator = ? AND round = ? AND NOT (host = ? AND process = ? AND started = ?)"
        )
        return [row["item_id"] for row in self._connection.execute(query, (annotator, round, *self._own))]

    def reserve(self, item_id: str, annotator: str, round: int, *, now: float) -> None:  # noqa: A002 - its name in the log
        """Reserve an item for this process, overriding others."""
        self._connection.execute(
            "INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?, ?, ?)",
            (item_id, annotator, round, *self._own, now),
        )

    def release(self, item_id: str, annotator: str, round: int) -> None:  # noqa: A002 - its name in the log
        """Release an item reserved by any process."""
        key = (item_id, annotator, round)
        self._connection.execute("DELETE FROM reservations WHERE item_id = ? AND annotator = ? AND round = ?", key)

    def release_all(self) -> None:
        """Release all reservations of this process."""
        self._connection.execute("DELETE FROM reservations WHERE host = ? AND process = ? AND started = ?", self._own)

    def _has_ended(self, row: sqlite3.Row, now: float) -> bool:
        if row["host"] == self._own[0] and os.name == "posix":
            return not _alive(row["process"], row["started"])
        return row["reserved_at"] <= now - RESERVED_SECONDS


def _alive(process: int, started: str) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # of another user
    return _started(process) == started


def _started(process: int) -> str:
    """Return the start time of a process, in ticks since boot, to detect reused process numbers."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # on systems other than Linux
        return ""
    state, *fields = text.rpartition(")")[2].split()
    return "ended" if state == "Z" else fields[18]
