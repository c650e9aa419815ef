"""Readable copy of a preference store: `preferences.events.jsonl`, one line per item or event.

The database is authoritative. The copy is updated durably after every commit and when the store is opened, so it is
incomplete only between a commit and its update, or while the disk is full. An incomplete last line, left by a crash, is
removed. `operant.language.preferences.recovery` rebuilds a database from it.
"""

import json
import logging
import os
import sqlite3
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import lock_descriptor, unlock_descriptor

from operant.language.preferences.items import Completion, Event, Item, encode
from operant.language.preferences.schema import LAST, VERSION, StoreError

logger = logging.getLogger(__name__)

BINARY: int = getattr(os, "O_BINARY", 0)
"""Flag without which Windows converts line ends."""


def journal_path(database: Path) -> Path:
    """Return the path of a database's copy: `preferences.events.jsonl` next to `preferences.sqlite`."""
    return database.with_name(f"{database.stem}.events.jsonl")


def item_record(item: Item, sequence: int) -> dict[str, Any]:
    """Return the line of an item."""
    return {
        "type": "item",
        "sequence": sequence,
        "item_id": item.item_id,
        "prompt": item.prompt,
        "completions": [{"text": c.text, "provenance": dict(c.provenance)} for c in item.completions],
        "gold": item.gold,
        "provenance": dict(item.provenance),
    }


def event_record(event: Event) -> dict[str, Any]:
    """Return the line of an event."""
    return {"type": "event", **vars(event)}


def item_of(record: Mapping[str, Any]) -> Item:
    """Return the item of a line.

    Raises:
        ValueError: a field is missing or wrong, or the id does not match the texts.
    """
    try:
        completions = [Completion(c["text"], c["provenance"]) for c in record["completions"]]
        item = Item.of(record["prompt"], completions, gold=record["gold"], provenance=record["provenance"])
        if item.item_id != record["item_id"]:
            raise ValueError(f"the texts of item {record['item_id']} were changed: they belong to {item.item_id}")
    except (KeyError, TypeError) as error:
        raise ValueError(f"an item lacks {error}") from error
    return item


def event_of(record: Mapping[str, Any]) -> Event:
    """Return the event of a line.

    Raises:
        ValueError: a field is missing or unknown.
    """
    fields = {name: value for name, value in record.items() if name != "type"}
    try:
        ranks = fields.pop("ranks")
        return Event(ranks=None if ranks is None else tuple(ranks), shown=tuple(fields.pop("shown")), **fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"an event has missing or unknown fields: {error}") from error


class Journal:
    """The copy of one database. Several processes may update it concurrently."""

    def __init__(self, database: Path):
        """Open the copy of `database`, and create it if needed.

        Raises:
            StoreError: opening fails.
        """
        self.path = journal_path(database)
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        except OSError as error:
            raise StoreError(f"the copy of the preferences {self.path} cannot be opened: {error.strerror}") from error
        self._offset = 0  # bytes of complete lines read
        self._sequence = 0  # number of the last line
        self._warned = False

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Append all entries that the copy lacks, durably. A full disk only logs a warning.

        Raises:
            StoreError: the copy has more entries than the database, which has lost some.
        """
        try:
            lock_descriptor(self._descriptor, poll_interval=0.005)
            try:
                self._look()
                with snapshot(connection):
                    self._append(connection)
            finally:
                unlock_descriptor(self._descriptor)
        except StoreError:
            raise
        except OSError as error:
            if not self._warned:
                logger.warning("%s lags behind the database until it can be written: %s", self.path, error.strerror)
            self._warned = True

    def close(self) -> None:
        """Close the file. Repeated calls are safe."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _look(self) -> None:
        """Read lines from other processes and remove an incomplete last line."""
        size = os.fstat(self._descriptor).st_size
        if size == self._offset:
            return
        data = _read(self._descriptor, self._offset, size)
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.ftruncate(self._descriptor, self._offset + whole)
        lines = data[:whole].splitlines()
        if lines:
            try:
                self._sequence = max(self._sequence, int(json.loads(lines[-1])["sequence"]))
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(
                    f"the last line of {self.path} is damaged; the database is whole, so move this copy "
                    "away to have it written again"
                ) from error
        self._offset += whole

    def _append(self, connection: sqlite3.Connection) -> None:
        last = connection.execute(LAST).fetchone()[0]
        if last < self._sequence:
            raise StoreError(
                f"{self.path} holds {self._sequence} entries and the database only {last}: it was lost or replaced; "
                "`operant label RUN --rebuild` rebuilds it from the copy"
            )
        records = [] if self._offset else [header(connection)]
        records += log_records(connection, after=self._sequence)
        lines = b"".join(encode(record).encode() + b"\n" for record in records)
        while lines:
            os.lseek(self._descriptor, self._offset, os.SEEK_SET)
            written = os.write(self._descriptor, lines)
            if written == len(lines):
                self._offset, self._sequence = self._offset + written, last
                os.fsync(self._descriptor)
                return
            os.ftruncate(self._descriptor, self._offset)  # remove an incomplete write
            raise OSError(0, "the disk is full")


def header(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the first line of the copy."""
    (key,) = connection.execute("SELECT value FROM settings WHERE name = 'pseudonyms'").fetchone()
    return {"type": "header", "schema_version": VERSION, "sequence": 0, "pseudonyms": key}


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Generator[None]:
    """Let several queries read one state of the database, whatever other processes commit between them."""
    if connection.in_transaction:
        yield
        return
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def log_records(connection: sqlite3.Connection, *, after: int = 0) -> list[dict[str, Any]]:
    """Return the items and events later than `after`, in insertion order; call it in a `snapshot`."""
    items = [item_record(item, sequence) for sequence, item in stored_items(connection, after)]
    rows = connection.execute("SELECT * FROM events WHERE sequence > ? ORDER BY sequence", (after,))
    events = [event_record(stored_event(row)) for row in rows]
    return sorted(items + events, key=lambda record: record["sequence"])


def stored_items(connection: sqlite3.Connection, after: int = 0) -> Iterator[tuple[int, Item]]:
    """Yield the items later than `after` with their sequence."""
    rows = connection.execute("SELECT * FROM items WHERE sequence > ? ORDER BY sequence", (after,)).fetchall()
    for row in rows:
        yield row["sequence"], stored_item(connection, row)


def stored_item(connection: sqlite3.Connection, row: sqlite3.Row) -> Item:
    """Return the item of a row of `items`."""
    texts = connection.execute("SELECT * FROM completions WHERE item_id = ? ORDER BY place", (row["item_id"],))
    return Item(
        item_id=row["item_id"],
        prompt=json.loads(row["prompt"]),
        completions=tuple(Completion(json.loads(c["text"]), json.loads(c["provenance"])) for c in texts),
        gold=None if row["gold"] is None else tuple(json.loads(row["gold"])),
        provenance=json.loads(row["provenance"]),
    )


def stored_event(row: sqlite3.Row) -> Event:
    """Return the event of a row of `events`."""
    fields = dict(zip(row.keys(), row, strict=True))
    ranks = fields.pop("ranks")
    shown = tuple(json.loads(fields.pop("shown")))
    return Event(ranks=None if ranks is None else tuple(json.loads(ranks)), shown=shown, **fields)


def _read(descriptor: int, begin: int, end: int) -> bytes:
    parts: list[bytes] = []
    os.lseek(descriptor, begin, os.SEEK_SET)
    while begin < end and (part := os.read(descriptor, end - begin)):
        parts.append(part)
        begin += len(part)
    return b"".join(parts)
