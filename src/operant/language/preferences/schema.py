"""The database of a preference store: its tables, the queries that assign items, and opening it.

SQLite in WAL mode with `synchronous=FULL`: commits survive a crash of the process and a loss of power. Items,
completions and events are append-only; triggers reject any other change. On a network file system, where WAL does not
work, a rollback journal is used instead.
"""

import os
import secrets
import sqlite3
import time
from pathlib import Path

from operant.errors import ExplainedError
from operant.language.preferences.reservations import TABLE as RESERVATIONS

VERSION = 1
"""Version of the tables, in `PRAGMA user_version`."""

APPLICATION = 0x4F507266
"""Mark of a preference store, in `PRAGMA application_id`."""

BUSY_SECONDS = 10.0
"""Timeout of a writer that waits for another one."""

_NETWORK = (
    "9p",
    "afs",
    "ceph",
    "cifs",
    "fuse.sshfs",
    "gfs2",
    "glusterfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "smb",
    "smb3",
)

_TABLES = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;

CREATE TABLE items (
    sequence INTEGER PRIMARY KEY,
    item_id TEXT NOT NULL UNIQUE,
    prompt TEXT NOT NULL,
    gold TEXT,
    provenance TEXT NOT NULL
) STRICT;

CREATE TABLE completions (
    item_id TEXT NOT NULL REFERENCES items (item_id),
    place INTEGER NOT NULL,
    text TEXT NOT NULL,
    provenance TEXT NOT NULL,
    PRIMARY KEY (item_id, place)
) STRICT, WITHOUT ROWID;

CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    event_id TEXT NOT NULL UNIQUE CHECK (event_id <> ''),
    kind TEXT NOT NULL CHECK (kind IN ('label', 'undo')),
    item_id TEXT NOT NULL REFERENCES items (item_id),
    annotator TEXT NOT NULL CHECK (annotator <> ''),
    round INTEGER NOT NULL CHECK (round >= 0),
    outcome TEXT CHECK (outcome IN ('A', 'B', 'tie', 'both-bad', 'skip', 'ranking')),
    ranks TEXT,
    shown TEXT NOT NULL,
    shown_at REAL NOT NULL,
    answered_at REAL NOT NULL CHECK (answered_at >= shown_at),
    supersedes TEXT UNIQUE REFERENCES events (event_id),
    CHECK ((kind = 'label') = (outcome IS NOT NULL)),
    CHECK ((outcome IS 'ranking') = (ranks IS NOT NULL)),
    CHECK (kind = 'label' OR supersedes IS NOT NULL)
) STRICT;
CREATE INDEX events_of_an_item ON events (item_id, annotator, round);
CREATE INDEX events_of_an_annotator ON events (annotator, round, sequence);

CREATE VIEW labels AS
    SELECT * FROM events AS label
    WHERE kind = 'label' AND NOT EXISTS (SELECT 1 FROM events WHERE supersedes = label.event_id);

CREATE TABLE assignments (
    number INTEGER PRIMARY KEY,
    item_id TEXT NOT NULL REFERENCES items (item_id),
    annotator TEXT NOT NULL,
    round INTEGER NOT NULL,
    shown TEXT NOT NULL,
    assigned_at REAL NOT NULL,
    UNIQUE (item_id, annotator, round)
) STRICT;
CREATE INDEX assignments_of_an_annotator ON assignments (annotator, round, number);

CREATE TRIGGER one_label_each BEFORE INSERT ON events
    WHEN NEW.kind = 'label' AND EXISTS (
        SELECT 1 FROM labels
        WHERE item_id = NEW.item_id AND annotator = NEW.annotator AND round = NEW.round
        AND event_id IS NOT NEW.supersedes
    )
    BEGIN SELECT RAISE(ABORT, 'this annotator has labeled this item already'); END;
"""

LAST = """
    SELECT max((SELECT coalesce(max(sequence), 0) FROM items), (SELECT coalesce(max(sequence), 0) FROM events))
"""
"""The last used index of the log."""

SHOWN = "SELECT shown FROM assignments WHERE item_id = ? AND annotator = ? AND round = ?"
"""The order in which an annotator saw the completions of an item."""

HELD = "SELECT event_id FROM labels WHERE item_id = ? AND annotator = ? AND round = ?"
"""The valid label of an item by an annotator."""

_HAS_LABEL = "SELECT 1 FROM labels AS l WHERE l.item_id = {0} AND l.annotator = :annotator AND l.round = :round"

_FREE = """{0} NOT IN (SELECT value FROM json_each(:elsewhere))
    AND (:among IS NULL OR {0} IN (SELECT value FROM json_each(:among)))"""
"""Items that no other window shows, `:elsewhere`, of those in `:among`, or of all if it is null."""

OPEN = f"""
    SELECT a.item_id FROM assignments AS a
    WHERE a.annotator = :annotator AND a.round = :round AND NOT EXISTS ({_HAS_LABEL.format("a.item_id")})
    AND {_FREE.format("a.item_id")}
    ORDER BY a.number LIMIT 1
"""  # noqa: S608  nothing comes from outside
"""An item that `:annotator` was shown in `:round` and has not answered."""

_OTHERS = """
    SELECT annotator FROM labels AS l WHERE l.item_id = i.item_id AND l.round = 0 AND l.outcome <> 'skip'
    UNION
    SELECT annotator FROM assignments AS a
    WHERE a.item_id = i.item_id AND a.round = 0 AND a.assigned_at > :since AND NOT EXISTS (
        SELECT 1 FROM labels AS l WHERE l.item_id = a.item_id AND l.annotator = a.annotator AND l.round = 0
    )
"""

FRESH = f"""
    SELECT i.item_id FROM items AS i
    WHERE NOT EXISTS ({_HAS_LABEL.format("i.item_id")})
    AND {_FREE.format("i.item_id")}
    AND (i.gold IS NOT NULL OR (SELECT count(*) FROM ({_OTHERS})) < :overlap)
    ORDER BY i.sequence LIMIT 1
"""  # noqa: S608  nothing comes from outside
"""The first item for `:annotator` with fewer than `:overlap` other annotators, in labels or shown since `:since`."""

REPEATED = f"""
    SELECT b.item_id FROM labels AS b
    WHERE b.annotator = :annotator AND b.round = 0 AND b.outcome <> 'skip'
    AND NOT EXISTS ({_HAS_LABEL.format("b.item_id")})
    AND {_FREE.format("b.item_id")}
    ORDER BY b.sequence LIMIT 1
"""  # noqa: S608  nothing comes from outside
"""An item that `:annotator` has labeled once and not again."""


class StoreError(ExplainedError, OSError):
    """Opening, reading or writing the store fails; the message contains the reason. The change was not stored."""


def connect(path: Path) -> sqlite3.Connection:
    """Open the database at `path`, and create it if needed.

    Raises:
        StoreError: opening fails, or the file is damaged, or not a preference store of a known version.
    """
    if sqlite3.sqlite_version_info < (3, 37):
        raise StoreError(f"preferences need SQLite 3.37 or newer, this Python has {sqlite3.sqlite_version}")
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as error:
        raise StoreError(f"the preferences cannot be stored in {path}: {error.strerror}") from error
    try:
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise StoreError(
            f"{path} cannot be opened: {error}; if it is damaged, `operant label RUN --rebuild` rebuilds it "
            "from the copy of all events next to it"
        ) from error
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.row_factory = sqlite3.Row
    _set_journal(connection, "DELETE" if on_network(path) else "WAL")
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "trusted_schema=OFF"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            _create(connection)
        _check(connection, path)
        connection.execute(RESERVATIONS)
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def _set_journal(connection: sqlite3.Connection, mode: str) -> None:
    """Set the journal mode; SQLite does not wait for other processes here, so this function does."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={mode}")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _create(connection: sqlite3.Connection) -> None:
    statement = ""
    for line in _TABLES.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""
    for table in ("items", "completions", "events"):
        for change in ("UPDATE", "DELETE"):
            connection.execute(
                f"CREATE TRIGGER no_{change.lower()}_of_{table} BEFORE {change} ON {table} "
                f"BEGIN SELECT RAISE(ABORT, '{table} can only be added'); END"
            )
    connection.execute("INSERT INTO settings VALUES ('pseudonyms', ?)", (secrets.token_hex(16),))
    connection.execute(f"PRAGMA application_id={APPLICATION}")
    connection.execute(f"PRAGMA user_version={VERSION}")


def _check(connection: sqlite3.Connection, path: Path) -> None:
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION:
        raise StoreError(f"{path} is another kind of database; name the folder of a run")
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version != VERSION:
        raise StoreError(f"{path} has version {version} of the tables, this operant supports {VERSION}: update it")
    faults = [row[0] for row in connection.execute("PRAGMA integrity_check(1)")]
    faults = [fault for fault in faults if fault != "ok"]
    faults += [f"a row of {row[0]} has a dangling reference" for row in connection.execute("PRAGMA foreign_key_check")]
    if faults:
        raise sqlite3.DatabaseError(" ".join(faults[0].split()))


def on_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether `path` is on a network file system, from the list of mounts.

    Args:
        path: a file or a folder.
        mounts: the list, in Linux's format; without it, the result is False.
    """
    try:
        lines = [line.split() for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines()]
    except OSError:
        return False
    path = path.resolve()
    found = [(len(fields[1]), fields[2]) for fields in lines if len(fields) > 2 and _holds(fields[1], path)]
    return bool(found) and max(found, key=lambda mount: mount[0])[1] in _NETWORK


def _holds(mount: str, path: Path) -> bool:
    unescaped = mount.encode().decode("unicode_escape", errors="replace")  # a space is written as \\040
    return path.is_relative_to(unescaped.encode("latin-1", errors="replace").decode(errors="replace"))
