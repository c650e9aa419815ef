"""The page on traps lists all of them, and the tests that it names exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`([\w/]+\.py)::(\w+)`")
ROW = re.compile(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
TRAPS = 90


def unknown(text: str, tests: Path) -> list[str]:
    """Return the tests that a text names and that do not exist."""
    missing = []
    for file, name in NAMED.findall(text):
        path = tests / file
        if not path.is_file() or not re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            missing.append(f"{file}::{name}")
    return missing


@pytest.fixture(scope="module")
def page():
    return (ROOT / "docs" / "traps.md").read_text(encoding="utf-8")


def test_every_trap_has_a_row(page):
    assert [int(number) for number, _, _ in ROW.findall(page)] == list(range(1, TRAPS + 1))


def test_every_trap_has_a_test_or_a_reason(page):
    bare = [number for number, _, guard in ROW.findall(page) if not NAMED.search(guard) and "apply" not in guard]
    assert bare == [], "name a test, or give the reason why the trap does not apply"


def test_the_tests_that_are_named_exist(page):
    assert len(NAMED.findall(page)) >= TRAPS
    assert page.count("::") == len(NAMED.findall(page)), "names of tests are written `folder/file.py::test_name`"
    assert unknown(page, ROOT / "tests") == []


def test_a_missing_test_is_found(tmp_path):
    (tmp_path / "test_x.py").write_text("def test_here():\n    pass\n")
    text = "`test_x.py::test_here`, `test_x.py::test_her`, `test_y.py::test_here`"
    assert unknown(text, tmp_path) == ["test_x.py::test_her", "test_y.py::test_here"]
