import sqlite3
import stat

import pytest

from operant.language.preferences.schema import StoreError, connect, on_network


@pytest.fixture
def path(tmp_path):
    return tmp_path / "labels of ü.sqlite"


def add_item(connection):
    connection.execute("INSERT INTO items VALUES (1, 'i', '\"p\"', NULL, '{}')")
    connection.execute("INSERT INTO completions VALUES ('i', 0, '\"a\"', '{}')")


def add_event(
    connection, sequence, *, event_id=None, kind="label", outcome="A", supersedes=None, item="i", shown_at=1.0
):
    row = (
        sequence,
        event_id or f"e{sequence}",
        kind,
        item,
        "ann",
        0,
        outcome,
        None,
        "[0,1]",
        shown_at,
        2.0,
        supersedes,
    )
    connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)


def test_commits_are_durable(path):
    connection = connect(path)
    pragmas = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")}
    assert pragmas == {"journal_mode": "wal", "synchronous": 2}
    assert connection.execute("PRAGMA foreign_keys").fetchone()[0] == 1
    assert connection.execute("PRAGMA busy_timeout").fetchone()[0] == 10_000
    connection.close()


def test_other_users_cannot_read_the_labels(path):
    connect(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_tables_are_made_once(path):
    first = connect(path)
    add_item(first)
    second = connect(path)
    assert second.execute("SELECT count(*) FROM items").fetchone()[0] == 1
    first.close()
    second.close()


@pytest.mark.parametrize("statement", ["UPDATE {} SET rowid = 9", "DELETE FROM {}"])
@pytest.mark.parametrize("table", ["items", "events"])
def test_rows_can_only_be_added(path, table, statement):
    connection = connect(path)
    add_item(connection)
    add_event(connection, 2)
    with pytest.raises(sqlite3.IntegrityError, match=f"{table} can only be added"):
        connection.execute(statement.format(table))
    with pytest.raises(sqlite3.IntegrityError, match="completions can only be added"):
        connection.execute("DELETE FROM completions")
    connection.close()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"event_id": "e2"}, "UNIQUE"),
        ({"item": "nowhere"}, "FOREIGN KEY"),
        ({"supersedes": "nothing", "kind": "undo", "outcome": None}, "FOREIGN KEY"),
        ({"outcome": "C"}, "CHECK"),
        ({"outcome": "ranking"}, "CHECK"),
        ({"outcome": None}, "CHECK"),
        ({"kind": "undo"}, "CHECK"),
        ({"kind": "undo", "outcome": None, "supersedes": None}, "CHECK"),
        ({"shown_at": 3.0}, "CHECK"),
        ({"shown_at": "noon"}, "cannot store TEXT"),
        ({"supersedes": None}, "labeled this item already"),
    ],
)
def test_the_database_itself_rejects_invalid_rows(path, wrong, message):
    connection = connect(path)
    add_item(connection)
    add_event(connection, 2)
    with pytest.raises(sqlite3.IntegrityError, match=message):
        add_event(connection, 3, **({"supersedes": "e2"} | wrong))
    connection.close()


def test_a_label_is_what_nothing_supersedes(path):
    connection = connect(path)
    add_item(connection)

    def held():
        return [row[0] for row in connection.execute("SELECT event_id FROM labels")]

    add_event(connection, 2)
    add_event(connection, 3, supersedes="e2", outcome="B")
    assert held() == ["e3"]
    add_event(connection, 4, kind="undo", outcome=None, supersedes="e3")
    assert held() == []
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        add_event(connection, 5, supersedes="e3")
    add_event(connection, 5)
    assert held() == ["e5"]
    connection.close()


def test_a_file_of_something_else(path):
    path.write_bytes(b"not a database at all" * 1000)
    with pytest.raises(StoreError, match=r"cannot be opened: file is not a database; .*--rebuild"):
        connect(path)
    path.unlink()
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(StoreError, match="is another kind of database"):
        connect(path)


def test_a_later_version(path):
    connection = connect(path)
    connection.execute("PRAGMA user_version=99")
    connection.close()
    with pytest.raises(StoreError, match="has version 99 of the tables, this operant supports 1"):
        connect(path)


def test_damage_is_seen_at_opening(path):
    connection = connect(path)
    connection.execute("BEGIN")
    add_item(connection)
    for n in range(2, 400):
        connection.execute("INSERT INTO items VALUES (?, ?, ?, NULL, '{}')", (n, f"item {n}", '"' + "p" * 200 + '"'))
    connection.execute("COMMIT")
    connection.close()
    data = bytearray(path.read_bytes())
    data[len(data) // 2 : len(data) // 2 + 4096] = b"\xff" * 4096
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"cannot be opened: .*--rebuild"):
        connect(path)


def test_a_row_that_refers_to_nothing(path):
    connection = connect(path)
    connection.execute("PRAGMA foreign_keys=OFF")
    connection.execute("INSERT INTO completions VALUES ('nowhere', 0, '\"a\"', '{}')")
    connection.close()
    with pytest.raises(StoreError, match="a row of completions has a dangling reference"):
        connect(path)


@pytest.mark.parametrize("place", ["missing/labels.sqlite", "."])
def test_unwritable_places_are_rejected(tmp_path, place):
    with pytest.raises(StoreError, match="cannot be stored in"):
        connect(tmp_path / place)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/data/a", False), ("/data/net/a", True), ("/data/network", False), ("/my disk/a", True), ("/elsewhere", False)],
)
def test_file_systems_of_a_network(tmp_path, path, expected):
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "dev / ext4 rw 0 0\ndev /data xfs rw 0 0\nh:/x /data/net nfs4 rw 0 0\nh:/y /my\\040disk cifs rw 0 0\n"
    )
    assert on_network(type(tmp_path)(path), mounts) is expected


def test_without_a_list_of_mounts(tmp_path):
    assert on_network(tmp_path, tmp_path / "none") is False


def test_on_a_network_the_journal_is_not_shared_memory(path, monkeypatch):
    monkeypatch.setattr("operant.language.preferences.schema.on_network", lambda path: True)
    connection = connect(path)
    assert connection.execute("PRAGMA journal_mode").fetchone()[0] == "delete"
    connection.close()
