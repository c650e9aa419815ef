import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from operant import doors

FILE = """
SIZE = 3

class Mine:
    class Inner:
        pass

def median(rewards):
    return rewards
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "my_parts.py"
    path.write_text(FILE)
    return path


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return an installed package with an entry point of the group `operant.tests`."""
    (tmp_path / "its_parts.py").write_text(FILE)
    info = tmp_path / "its_parts-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: its-parts\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(
        "[operant.tests]\nmine = its_parts:Mine\nlost = its_parts:Lost\ngone = no_such_module:X\n"
    )
    monkeypatch.syspath_prepend(tmp_path)


def test_a_name_leads_to_what_a_file_or_module_holds(file, monkeypatch):
    assert doors.load(f"{file}:median", expected="a function")(4) == 4
    assert doors.load(f"{file}:Mine.Inner", expected="a class").__qualname__ == "Mine.Inner"
    assert doors.load("json:dumps", expected="a function") is json.dumps
    monkeypatch.chdir(file.parent)
    assert doors.load("my_parts.py:Mine", expected="a class") is doors.load(f"{file}:Mine", expected="a class")


def test_names_are_distinguished_from_other_texts():
    assert doors.is_name("a.py:B")
    assert doors.is_name("./a/b.py")
    assert doors.is_name("a.b:C")
    assert not any(map(doors.is_name, ("ppo", "double-dqn", "ALE/Pong-v5", "module:Name-v0", "owner/name:part", "")))
    assert doors.is_file("a.py:B")
    assert not doors.is_file("a.b:C")
    assert doors.label("a/b.py:C") == "C"
    assert doors.label("ppo") == "ppo"
    assert doors.absolute("ppo") == "ppo"
    assert doors.absolute("b.py:C") == f"{Path.cwd() / 'b.py'}:C"
    assert doors.absolute("~/b.py:C") == f"{Path.home() / 'b.py'}:C"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_part.py:median", r"there is no file .*my_part\.py to take median from; did you mean my_parts\.py\?"),
        ("nowhere/my.py:median", r"there is no file .*, as there is no folder .*nowhere"),
        ("my_parts.py:medain", r"my_parts\.py has no 'medain', expected a function; did you mean median\?"),
        ("my_parts.py:xyz", r"has no 'xyz', expected a function; it has Mine, median"),
        ("my_parts.py:SIZE", r"SIZE in my_parts\.py is 3, of type int, expected a function"),
        (
            "my_parts.py",
            r"say what to take from my_parts\.py: my_parts\.py:NAME \(a function\); it defines Mine, median",
        ),
        ("no_such_module.part:f", r"there is no module 'no_such_module\.part' to take f from: install it, or name"),
        ("json:nothing", r"json has no 'nothing', expected a function"),
        ("not a name", r"'not a name' names nothing: expected a function, as path/to/file\.py:Name"),
    ],
)
def test_a_wrong_name_is_rejected_with_the_choices(file, monkeypatch, name, said):
    monkeypatch.chdir(file.parent)
    with pytest.raises(doors.DoorError, match=said):
        doors.load(name, expected="a function")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def f(:\n", r"broken\.py, line 1: invalid syntax"),
        ("x = 1\nimport no_such_module\n", r"broken\.py, line 2 cannot be imported: ModuleNotFoundError: No module"),
        ("1 / 0\n", r"broken\.py, line 1 cannot be imported: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(3)\n", r"ends the program when it is imported: put what it does under `if __name__"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_the_line(tmp_path, text, said):
    (tmp_path / "broken.py").write_text(text)
    with pytest.raises(doors.DoorError, match=said):
        doors.load(f"{tmp_path / 'broken.py'}:f", expected="a function")


def test_a_loaded_object_must_have_the_expected_kind(file):
    def is_class(found):
        return isinstance(found, type)

    assert doors.load(f"{file}:Mine", expected="a class", accepts=is_class)
    with pytest.raises(doors.DoorError, match=r"median in .* is a function, expected a class"):
        doors.load(f"{file}:median", expected="a class", accepts=is_class)
    with pytest.raises(doors.DoorError, match=r"Mine in .* is the class Mine, expected a number"):
        doors.load(f"{file}:Mine", expected="a number", accepts=lambda found: isinstance(found, int))


def test_an_entry_point_of_an_installed_package_is_found(package):
    found = doors.entry_points("operant.tests")
    assert set(found) == {"mine", "lost", "gone"}
    assert doors.load("mine", expected="a class", group="operant.tests").__name__ == "Mine"
    with pytest.raises(doors.DoorError, match=r"its_parts has no 'Lost', expected a class"):
        doors.load("lost", expected="a class", group="operant.tests")
    with pytest.raises(doors.DoorError, match=r"'gone', an entry point of its-parts, is no_such_module:X: there is no"):
        doors.load("gone", expected="a class", group="operant.tests")
    with pytest.raises(doors.DoorError, match="names nothing"):
        doors.load("mine", expected="a class")


def test_a_file_that_has_changed_is_read_again_when_that_is_asked_for(file):
    name = f"{file}:SIZE"

    def size():
        return doors.load(name, expected="a number", accepts=lambda found: isinstance(found, int))

    assert size() == 3
    file.write_text("SIZE = 4\n")
    assert size() == 3
    doors.refresh()
    assert size() == 4


@pytest.mark.usefixtures("package")
def test_a_part_is_one_of_a_table_or_from_outside(file):
    table, wanted = {"mean": sum}, {"arguments": 1, "expected": "a function", "group": "operant.tests"}
    assert doors.chosen(table, "mean", **wanted) is sum
    assert doors.chosen(table, f"{file}:median", **wanted)(3) == 3
    assert doors.chosen(table, "mine", **wanted | {"arguments": 0}).__name__ == "Mine"
    with pytest.raises(
        doors.DoorError, match=r"test mine cannot be called: too many positional arguments; expected a f"
    ):
        doors.chosen(table, "mine", **wanted)
    with pytest.raises(doors.DoorError, match=r"has no 'mean', expected a function"):
        doors.chosen(table, f"{file}:mean", **wanted)
    assert "a.py:f" in doors.choices(table, "a.py:f", "operant.tests")
    assert "mine" in doors.choices(table, "mine", "operant.tests")
    assert "meen" not in doors.choices(table, "meen", "operant.tests")


class Here:
    """Class in a file that is imported by its own name."""


def test_an_object_is_named_by_its_file_and_found_again_without_a_second_import(file):
    name = doors.name_of(Here)
    assert name == f"{Path(__file__).resolve()}:Here"
    assert doors.load(name, expected="a class") is Here
    there = doors.load(f"{file}:Mine", expected="a class")
    assert doors.name_of(there) == f"{file}:Mine"
    assert doors.name_of(json.dumps) == "json:dumps"


def test_a_changed_file_is_loaded_again_after_refresh(file):
    doors.name_of(doors.load(f"{file}:Mine", expected="a class"))
    file.write_text("class Mine:\n    new = True\n")
    doors.refresh()
    assert doors.load(f"{file}:Mine", expected="a class").new


def test_an_object_that_cannot_be_found_again_is_rejected():
    class Local:
        pass

    for thing in (Local, lambda x: x, 3):
        with pytest.raises(doors.DoorError, match="let it be a class or function at the top of a file"):
            doors.name_of(thing)


def test_a_class_of_a_script_is_named_by_the_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("from operant import doors\n\nclass A:\n    pass\n\nprint(doors.name_of(A))\n")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert result.stdout.strip() == f"{script}:A", result.stderr


@pytest.fixture
def alg(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_alg.py").write_text("class A:\n    version = 1\n")
    yield importlib.import_module("own_alg")
    del sys.modules["own_alg"]


def test_a_module_that_has_changed_since_its_import_is_reloaded_first(alg):
    name = doors.name_of(alg.A)
    old = alg.A
    Path(alg.__file__).write_text("class A:\n    version = 22\n")
    for ask in (doors.name_of, doors.named):
        with pytest.raises(doors.DoorError, match=r"has changed since it was imported.*importlib\.reload\(own_alg\)"):
            ask(alg.A)
    importlib.reload(alg)
    assert doors.name_of(alg.A) == name
    with pytest.raises(doors.DoorError, match="import it again after a reload"):
        doors.name_of(old)


def test_the_name_of_a_file_reads_a_changed_file_again(alg):
    name = doors.name_of(alg.A)
    assert doors.load(name, expected="a class") is alg.A
    Path(alg.__file__).write_text("class A:\n    version = 22\n")
    doors.refresh()
    assert doors.load(name, expected="a class").version == 22


def test_the_digest_of_a_script_is_that_of_its_start(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from operant import doors\nfrom pathlib import Path\nfrom operant.runtime.inputs import Input, changes\n"
        "class A: pass\nbefore = Input.of('task', Path(__file__)).sha256\n"
        "Path(__file__).write_text('# changed')\n"
        "after = Input.of('task', Path(__file__))\nprint(doors.name_of(A), before == after.sha256)\n"
        "print(changes([after.record(Path())], Path()))"
    )
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert result.stdout.splitlines() == [f"{script}:A True", f"['task {script} has changed']"], result.stderr


NAMED = """
from operant import doors

def top():
    pass

if __name__ == "__main__":
    def under_the_guard():
        pass

    class Both:
        pass

    print(doors.named(top), doors.named(under_the_guard), doors.named([Both]))
"""


def test_what_an_import_of_the_script_would_skip_is_held_as_an_object(tmp_path):
    (script := tmp_path / "script.py").write_text(NAMED)
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert result.stdout.split() == [f"{script}:top", "object:under_the_guard_1", "['object:Both_2']"], result.stderr


def test_what_a_session_without_a_file_defines_is_held_as_an_object():
    text = "from operant import doors\nclass Cell: pass\nprint(doors.named(Cell), doors.named(len))"
    result = subprocess.run([sys.executable, "-"], input=text, capture_output=True, text=True, check=False)
    assert result.stdout.split() == ["object:Cell_1", "builtins:len"], result.stderr
