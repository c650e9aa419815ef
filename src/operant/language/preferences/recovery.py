"""Making a preference database anew from its readable copy."""

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
    """Yield the objects of a JSON Lines file with the numbers of their lines.

    Args:
        path: of the file.
        torn: whether a damaged last line without an end, such as a crash leaves, is left out.

    Raises:
        ValueError: a line is no JSON object.
        OSError: the file cannot be read.
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
    """Make the database at `path` anew from the copy beside it; what was there is kept as `<name>.damaged-<n>`.

    The new database takes the place of the old one at the very end: a crash leaves things as they were. Nobody may have
    the store open.

    Args:
        path: of the SQLite file, which may be damaged or missing.

    Returns:
        How many items and events it holds.

    Raises:
        StoreError: there is no copy, or it cannot be used.
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
        raise StoreError(f"{path} cannot be made anew from {journal.name}: {error}") from error
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
    """Add what a line says, and tell whether that is an item or an event."""
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
            raise ValueError(f"event {event.event_id} is not at its place {event.sequence}: lines are missing")
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
