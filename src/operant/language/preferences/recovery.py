"""Recovery of a preference database from its readable copy."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from operant.language.preferences.journal import event_of, item_of, journal_path
from operant.language.preferences.schema import StoreError
from operant.language.preferences.store import PreferenceStore
from operant.runtime.files import sync_folder


def read_lines(path: Path, *, torn: bool = False) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON Lines file with their line numbers.

    Args:
        path: path of the file.
        torn: whether to ignore an incomplete last line, which a crash can leave.

    Raises:
        ValueError: a line is not a JSON object.
        OSError: the file is unreadable.
    """
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if torn and number == len(lines):
                return
            raise ValueError(f"{path}, line {number} is no JSON: {error}") from error
        if not isinstance(record, dict):
            raise ValueError(f"{path}, line {number} must be an object with named values, got {line[:80]!r}")
        yield number, record


def rebuild(path: str | Path) -> int:
    """Rebuild the database at `path` from the copy next to it; an old file is renamed to `<name>.damaged-<n>`.

    The new database replaces the old one at the end, so a crash changes nothing. No process may have the store open.

    Args:
        path: path of the SQLite file, which may be damaged or missing.

    Returns:
        Number of items and events.

    Raises:
        StoreError: there is no copy, or it is unusable.
    """
    path = Path(path).absolute()
    journal, fresh = journal_path(path), path.with_name(f"{path.stem}-rebuilt.sqlite")
    _remove(fresh)
    try:
        records = [record for _, record in read_lines(journal, torn=True)]
        with PreferenceStore(fresh) as store, store.transaction() as connection:
            count = sum([_replay(record, store, connection) for record in records])
    except (ValueError, OSError, sqlite3.Error) as error:
        _remove(fresh)
        raise StoreError(f"{path} cannot be rebuilt from {journal.name}: {error}") from error
    journal_path(fresh).unlink()
    aside = _aside(path)
    for suffix in _SUFFIXES:
        if (old := Path(f"{path}{suffix}")).exists():
            old.rename(f"{aside}{suffix}")
    fresh.rename(path)
    sync_folder(path.parent)
    with PreferenceStore(path):
        return count


_SUFFIXES = ("-wal", "-shm", "-journal", "")


def _replay(record: Mapping[str, Any], store: PreferenceStore, connection: sqlite3.Connection) -> bool:
    """Add the contents of a line, and return whether it is an item or an event."""
    kind = record.get("type")
    if kind == "header":
        update = "UPDATE settings SET value = ? WHERE name = 'pseudonyms'"
        connection.execute(update, (str(record["pseudonyms"]),))
        return False
    if kind == "item":
        store.add_item(item_of(record))
    elif kind == "event":
        event = event_of(record)
        if store.append(event).sequence != event.sequence:
            raise ValueError(f"event {event.event_id} is not at its index {event.sequence}: lines are missing")
    else:
        raise ValueError(f"the type of a line must be header, item or event, got {kind!r}")
    return True


def _aside(path: Path) -> Path:
    n = 1
    while (aside := path.with_name(f"{path.name}.damaged-{n}")).exists():
        n += 1
    return aside


def _remove(fresh: Path) -> None:
    for path in (*(Path(f"{fresh}{suffix}") for suffix in _SUFFIXES), journal_path(fresh)):
        if path.exists():
            path.unlink()
