"""The preference store: items to compare, their assignments to annotators, and an append-only log of answers.

Guarantees:

- An answer that `record` has returned is on disk; one whose `record` has raised `StoreError` was not stored.
- Repeating an event id has no effect, so a client without a response can send the event again.
- An annotator has at most one label of an item (and round). Undoing and correcting are events that supersede another;
  nothing is changed or removed. The view `labels` has the valid labels.
- Every change is one `BEGIN IMMEDIATE` transaction, so threads and processes take turns.
- A readable copy of the log is next to the database (`operant.language.preferences.journal`).

Each process opens its own store; the threads of one process may share it.
"""

import json
import logging
import math
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from operant.errors import ExplainedError
from operant.language.preferences.items import (
    Event,
    Item,
    Outcome,
    Presentation,
    check_answer,
    encode,
    presentation_order,
)
from operant.language.preferences.journal import Journal, log_records, snapshot, stored_event, stored_item, stored_items
from operant.language.preferences.reservations import Reservations
from operant.language.preferences.schema import FRESH, HELD, LAST, OPEN, REPEATED, SHOWN, StoreError, connect

logger = logging.getLogger(__name__)

LEASE_SECONDS = 3600.0
"""Time in seconds for which a presented item counts as being labeled."""


class ConflictError(ExplainedError, ValueError):
    """An answer contradicts stored ones; the message explains. Nothing was stored."""


class PreferenceStore:
    """A preference store on disk. Use it as a context manager, or close it.

    Attributes:
        path: path of the SQLite file.
        seed: random seed of the order in which completions are shown; orders that were shown before stay.
    """

    def __init__(self, path: str | Path, *, seed: int = 0):
        """Open the store at `path`, and create it if needed.

        Raises:
            StoreError: opening fails, the file is damaged, or has lost entries that its copy has.
        """
        self.path = Path(path).absolute()
        self.seed = seed
        self._lock = threading.RLock()
        self._depth = 0
        self._process = os.getpid()
        self._connection = connect(self.path)
        try:
            self._reservations = Reservations(self._connection)
            self._inode = self.path.stat().st_ino
            self._journal = Journal(self.path)
            with self._reading() as connection:
                self._journal.catch_up(connection)
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> "PreferenceStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store, and release its reservations. Repeated calls are safe."""
        with self._lock:
            # Reservations that cannot be released (closed connection, full disk, lost file) end with the process.
            with suppress(sqlite3.Error, OSError), self.transaction():
                self._reservations.release_all()
            self._connection.close()
            self._journal.close()

    @contextmanager
    def transaction(self) -> Generator[sqlite3.Connection]:
        """Combine changes: all are stored at the end, or none if there is an exception. Transactions may be nested.

        Raises:
            StoreError: the disk is full, the file is locked, gone or not writable; nothing was stored.
        """
        with self._reading("; nothing was stored") as connection:
            if self._depth:
                yield connection
                return
            connection.execute("BEGIN IMMEDIATE")
            self._depth = 1
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                self._depth = 0
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            try:
                self._journal.catch_up(connection)
            except (StoreError, sqlite3.Error) as error:
                logger.warning("stored, but not in the copy: %s", error)

    def add_item(self, item: Item) -> bool:
        """Add an item; an existing one stays.

        Returns:
            Whether it is new.
        """
        with self.transaction() as connection:
            if connection.execute("SELECT 1 FROM items WHERE item_id = ?", (item.item_id,)).fetchone():
                return False
            gold = None if item.gold is None else encode(item.gold)
            row = (_next(connection), item.item_id, encode(item.prompt), gold, encode(dict(item.provenance)))
            connection.execute("INSERT INTO items VALUES (?, ?, ?, ?, ?)", row)
            connection.executemany(
                "INSERT INTO completions VALUES (?, ?, ?, ?)",
                [
                    (item.item_id, place, encode(c.text), encode(dict(c.provenance)))
                    for place, c in enumerate(item.completions)
                ],
            )
        return True

    def add_items(self, items: Iterable[Item]) -> int:
        """Add items in one transaction and return the number of new ones."""
        with self.transaction():
            return sum([self.add_item(item) for item in items])

    def items(self) -> list[Item]:
        """Return all items in insertion order."""
        with self._reading() as connection:
            return [item for _, item in stored_items(connection)]

    def item(self, item_id: str) -> Item:
        """Return one item.

        Raises:
            KeyError: there is none with that id.
        """
        with self._reading() as connection:
            row = connection.execute("SELECT * FROM items WHERE item_id = ?", (item_id,)).fetchone()
            if row is None:
                raise KeyError(f"there is no item {item_id!r}")
            return stored_item(connection, row)

    def next_item(
        self,
        annotator: str,
        *,
        overlap: int = 1,
        repeat: bool = False,
        among: Iterable[str] | None = None,
        now: float | None = None,
    ) -> Presentation | None:
        """Return the next item for an annotator, and reserve it.

        Items that this annotator was shown and has not answered come first; then the first item that fewer than
        `overlap` other annotators have labeled or are being shown. No item is shown twice unless `repeat` is set. Items
        with a known answer are shown to every annotator. Items that another process shows this annotator, in a second
        window, are reserved until they are answered or that process ends.

        Args:
            annotator: name of the annotator.
            overlap: target number of annotators per item; skips do not count.
            repeat: whether to repeat labeled items, in another order, to measure consistency.
            among: ids of allowed items. Default: all.
            now: seconds since 1970. Default: the clock. An item that another annotator was shown `LEASE_SECONDS` ago
                without answering is available.

        Returns:
            None if nothing is left, or only items that other processes show (`waiting`).

        Raises:
            ValueError: `overlap` is below 1 or the annotator has no name.
        """
        if overlap < 1 or not annotator:
            raise ValueError(f"need overlap >= 1 and a name of the annotator, got {overlap} and {annotator!r}")
        now = time.time() if now is None else now
        names: dict[str, Any] = {"annotator": annotator, "round": int(repeat), "overlap": overlap}
        names |= {"since": now - LEASE_SECONDS, "among": None if among is None else encode(sorted(among))}
        with self.transaction() as connection:
            names["elsewhere"] = encode(self._reservations.elsewhere(annotator, int(repeat), now=now))
            row = connection.execute(OPEN, names).fetchone()
            row = row or connection.execute(REPEATED if repeat else FRESH, names).fetchone()
            return None if row is None else self.present(row[0], annotator, round=int(repeat), now=now)

    def waiting(self, annotator: str, *, repeat: bool = False) -> int:
        """Return the number of items that other processes show an annotator, which `next_item` skips."""
        with self.transaction():
            return len(self._reservations.elsewhere(annotator, int(repeat), now=time.time()))

    def present(self, item_id: str, annotator: str, *, round: int = 0, now: float | None = None) -> Presentation:  # noqa: A002 - its name in the log
        """Return an item as an annotator sees it, in a fixed order, and reserve it.

        Args:
            item_id: id of the item.
            annotator: name of the annotator.
            round: round, as in `Presentation`.
            now: seconds since 1970. Default: the clock.

        Raises:
            KeyError: there is no such item.
        """
        with self.transaction() as connection:
            item = self.item(item_id)
            now = time.time() if now is None else now
            shown = presentation_order(self.seed, item_id, annotator, round, len(item.completions))
            row = (item_id, annotator, round, encode(shown), now)
            self._reservations.reserve(item_id, annotator, round, now=now)
            (kept,) = connection.execute(
                "INSERT INTO assignments (item_id, annotator, round, shown, assigned_at) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET assigned_at = excluded.assigned_at RETURNING shown",
                row,
            ).fetchone()
        shown: tuple[int, ...] = tuple(json.loads(kept))
        texts = tuple(item.completions[place].text for place in shown)
        return Presentation(item_id, annotator, round, item.prompt, texts, shown)

    def record(
        self,
        presentation: Presentation,
        outcome: Outcome,
        *,
        event_id: str,
        shown_at: float,
        answered_at: float,
        ranks: Sequence[int] | None = None,
        supersedes: str | None = None,
    ) -> Event:
        """Store an answer durably.

        Args:
            presentation: presentation of the item.
            outcome: the answer, relative to the order shown.
            event_id: unique id chosen by the client; see `new_event_id`.
            shown_at: time of showing, seconds since 1970.
            answered_at: time of the answer, not before.
            ranks: for a ranking, the rank of each completion in the order shown, 1 is best.
            supersedes: the label that this one corrects.

        Returns:
            The stored event.

        Raises:
            ValueError: the answer does not fit the presentation.
            ConflictError: this annotator has already labeled the item and that label is not superseded; or the
                superseded one is no longer valid; or the id belongs to another event.
            StoreError: it could not be stored.
        """
        at = presentation
        answer = check_answer(outcome, ranks, len(at.shown))
        return self.append(
            Event(
                event_id=event_id,
                kind="label",
                item_id=at.item_id,
                annotator=at.annotator,
                round=at.round,
                outcome=outcome,
                ranks=answer,
                shown=at.shown,
                shown_at=shown_at,
                answered_at=answered_at,
                supersedes=supersedes,
            )
        )

    def undo(
        self, annotator: str, *, event_id: str, label: str | None = None, now: float | None = None
    ) -> Event | None:
        """Undo a label durably, so that its item is shown to this annotator again.

        Args:
            annotator: owner of the label.
            event_id: id of the undo, chosen by the client.
            label: event id of the label. Default: the latest valid one of this annotator.
            now: seconds since 1970. Default: the clock.

        Returns:
            The event, whose `supersedes` is the undone label; None if there is nothing to undo.

        Raises:
            ConflictError: the label is no longer valid or by another annotator, or the id belongs to another event.
            StoreError: it could not be stored.
        """
        with self.transaction() as connection:
            before = self._event(event_id)
            if before is not None:
                if (before.kind, before.annotator, label or before.supersedes) != (
                    "undo",
                    annotator,
                    before.supersedes,
                ):
                    raise ConflictError(f"event {event_id} already exists with other contents")
                return before
            query = "SELECT * FROM labels WHERE annotator = ? AND ? IN ('', event_id) ORDER BY sequence DESC LIMIT 1"
            row = connection.execute(query, (annotator, label or "")).fetchone()
            if row is None:
                if label is None:
                    return None
                raise ConflictError(f"{label} is not a valid label of {annotator}: it was undone or corrected before")
            held, when = stored_event(row), time.time() if now is None else now
            undone = replace(held, event_id=event_id, kind="undo", outcome=None, ranks=None, supersedes=held.event_id)
            return self.append(replace(undone, answered_at=max(when, held.shown_at)))

    def append(self, event: Event) -> Event:
        """Store a complete event (except its `sequence`); clients call `record` and `undo`.

        Raises:
            ValueError: the event is invalid.
            ConflictError: it contradicts the log.
            StoreError: it could not be stored.
        """
        with self.transaction() as connection:
            before = self._event(event.event_id)
            if before is not None:
                if replace(event, sequence=before.sequence) != before:
                    raise ConflictError(f"event {event.event_id} already exists with other contents: {before}")
                return before
            self._check(event)
            event = replace(event, sequence=_next(connection))
            ranks = None if event.ranks is None else encode(event.ranks)
            fields = vars(event) | {"ranks": ranks, "shown": encode(event.shown)}
            connection.execute(
                f"INSERT INTO events ({', '.join(fields)}) VALUES ({', '.join(':' + name for name in fields)})",  # noqa: S608  the names are those of Event
                fields,
            )
            if event.kind == "label":
                self._reservations.release(event.item_id, event.annotator, event.round)
            return event

    def labels(self) -> list[Event]:
        """Return the valid labels, in the order of the log."""
        with self._reading() as connection:
            return [stored_event(row) for row in connection.execute("SELECT * FROM labels ORDER BY sequence")]

    def events(self) -> list[Event]:
        """Return the whole log of events."""
        with self._reading() as connection:
            return [stored_event(row) for row in connection.execute("SELECT * FROM events ORDER BY sequence")]

    def log(self) -> list[dict[str, Any]]:
        """Return items and events as plain records, in insertion order."""
        with self._reading() as connection, snapshot(connection):
            return log_records(connection)

    def pseudonym_key(self) -> str:
        """Return the secret of the annotators' pseudonyms."""
        with self._reading() as connection:
            return connection.execute("SELECT value FROM settings WHERE name = 'pseudonyms'").fetchone()[0]

    def _check(self, event: Event) -> None:
        """Check that an event fits the item and the log."""
        count = len(self.item(event.item_id).completions)
        if sorted(event.shown) != list(range(count)):
            raise ValueError(f"shown must have every index 0 .. {count - 1} of the item once, got {event.shown}")
        if not (math.isfinite(event.shown_at) and event.shown_at <= event.answered_at < math.inf):
            raise ValueError(f"answered_at must be no earlier than shown_at: {event.answered_at}, {event.shown_at}")
        if event.kind == "label":
            check_answer(str(event.outcome), event.ranks, count)
        with self._reading() as connection:
            key = (event.item_id, event.annotator, event.round)
            row = connection.execute(SHOWN, key).fetchone()
            if row is not None and tuple(json.loads(row["shown"])) != event.shown:
                raise ConflictError(f"{event.annotator} was shown the completions as {row['shown']}, not {event.shown}")
            row = connection.execute(HELD, key).fetchone()
        held = None if row is None else row["event_id"]
        if held != event.supersedes:
            holds = "there is no valid label" if held is None else f"the valid label is {held}"
            raise ConflictError(f"{event.annotator}, item {event.item_id}: {holds}, not {event.supersedes}")

    def _event(self, event_id: str) -> Event | None:
        with self._reading() as connection:
            row = connection.execute("SELECT * FROM events WHERE event_id = ?", (event_id,)).fetchone()
            return None if row is None else stored_event(row)

    @contextmanager
    def _reading(self, consequence: str = "") -> Generator[sqlite3.Connection]:
        if os.getpid() != self._process:
            raise StoreError(f"{self.path} was opened by another process: open a store in each of them")
        with self._lock:
            if not (self._depth or (self.path.exists() and self.path.stat().st_ino == self._inode)):
                raise StoreError(f"{self.path} was removed or replaced while it was open: open it again")
            try:
                yield self._connection
            except sqlite3.Error as error:
                raise StoreError(f"{self.path}: {error}{consequence}") from error


def new_event_id() -> str:
    """Return a unique event id."""
    return str(uuid.uuid4())


def _next(connection: sqlite3.Connection) -> int:
    """Return the next index of the log, which items and events share."""
    return connection.execute(LAST).fetchone()[0] + 1
