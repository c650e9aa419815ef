"""A second copy of a preference store that a person can read: `preferences.events.jsonl`, one line an item or event.

The database is the truth. The copy is brought up to date and made durable after every commit, and again whenever the
store is opened, so it lags only between a commit and the write that follows it, or while the disk is full. A torn last
line, left by a crash, is cut off. `operant.language.preferences.recovery` makes a database from it.
"""

import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import lock_descriptor, unlock_descriptor

from operant.language.preferences.items import Completion, Event, Item, encode
from operant.language.preferences.schema import LAST, VERSION, StoreError

logger = logging.getLogger(__name__)

BINARY: int = getattr(os, "O_BINARY", 0)
"""Flag without which Windows changes the ends of lines."""


def journal_path(database: Path) -> Path:
    """Return where the copy of a database lies: `preferences.events.jsonl` beside `preferences.sqlite`."""
    return database.with_name(f"{database.stem}.events.jsonl")


def item_record(item: Item, sequence: int) -> dict[str, Any]:
    """Return an item as a line of the log says it."""
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
    """Return an event as a line of the log says it."""
    return {"type": "event", **vars(event)}


def item_of(record: Mapping[str, Any]) -> Item:
    """Return the item of a line.

    Raises:
        ValueError: something is missing or wrong, or the id is not that of the texts.
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
        ValueError: something is missing or has no place there.
    """
    fields = {name: value for name, value in record.items() if name != "type"}
    try:
        ranks = fields.pop("ranks")
        return Event(ranks=None if ranks is None else tuple(ranks), shown=tuple(fields.pop("shown")), **fields)
    except (KeyError, TypeError) as error:
        raise ValueError(f"an event lacks or has too much: {error}") from error


class Journal:
    """The copy of one database. Several processes may keep it up to date at once."""

    def __init__(self, database: Path):
        """Open the copy of `database`; create it if need be.

        Raises:
            StoreError: it cannot be opened.
        """
        self.path = journal_path(database)
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | BINARY, 0o600)
        except OSError as error:
            raise StoreError(f"the copy of the preferences {self.path} cannot be kept: {error.strerror}") from error
        self._offset = 0  # of the whole lines that were looked at
        self._sequence = 0  # of the last of them
        self._warned = False

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Append everything that the database holds and the copy does not, durably. A full disk is only warned of.

        Raises:
            StoreError: the copy holds more than the database, which has lost something.
        """
        try:
            lock_descriptor(self._descriptor, poll_interval=0.005)
            try:
                self._look()
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
        """Close the file. Calling it twice does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _look(self) -> None:
        """Read what others have appended and cut off a torn last line."""
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
                    "away and it is written anew"
                ) from error
        self._offset += whole

    def _append(self, connection: sqlite3.Connection) -> None:
        last = connection.execute(LAST).fetchone()[0]
        if last < self._sequence:
            raise StoreError(
                f"{self.path} holds {self._sequence} entries and the database only {last}: it was lost or replaced; "
                "`operant label RUN --rebuild` makes it anew from the copy"
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
            os.ftruncate(self._descriptor, self._offset)  # a torn write: all or nothing
            raise OSError(0, "the disk is full")


def header(connection: sqlite3.Connection) -> dict[str, Any]:
    """Return the first line of the copy."""
    (key,) = connection.execute("SELECT value FROM settings WHERE name = 'pseudonyms'").fetchone()
    return {"type": "header", "schema_version": VERSION, "sequence": 0, "pseudonyms": key}


def log_records(connection: sqlite3.Connection, *, after: int = 0) -> list[dict[str, Any]]:
    """Return the items and events later than `after`, in the order in which they were added."""
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
