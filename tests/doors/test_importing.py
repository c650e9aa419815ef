import pickle
import subprocess
import sys

import pytest

from operant.doors import importing


@pytest.fixture
def folder(tmp_path):
    """Return a folder with a dot in its name, whose file is named like a module of Python."""
    folder = tmp_path / "my.files"
    folder.mkdir()
    (folder / "random.py").write_text(
        "from dataclasses import dataclass\nimport neighbor\n\n"
        "@dataclass(frozen=True)\nclass Point:\n    x: int = neighbor.X\n"
    )
    (folder / "neighbor.py").write_text("X = 3\n")
    yield folder
    for name in [name for name in sys.modules if name.startswith(importing.PREFIX + "/") or name == "neighbor"]:
        del sys.modules[name]


def test_a_file_is_imported_once_under_a_name_that_hides_no_module(folder):
    import random

    path = folder / "random.py"
    module = importing.imported(path)
    assert module is importing.imported(path)
    assert module.Point().x == 3
    assert sys.modules["random"] is random
    assert module.__name__.endswith(".random")
    assert module.__file__ == str(path)
    assert importing.file_of(module.__name__) == path
    assert importing.file_of("operant.doors.importing") is importing.file_of("random") is None
    assert str(folder) not in sys.path


def test_another_process_can_read_what_a_file_defines(folder):
    point = importing.imported(folder / "random.py").Point(5)
    code = "import sys, pickle; print(pickle.load(sys.stdin.buffer).x, sys.modules['random'].__file__ is None)"
    (folder / "neighbor.py").unlink()  # the other process searches the path that it is given
    environment = folder.parent / "path"
    environment.mkdir()
    (environment / "neighbor.py").write_text("X = 4\n")
    result = subprocess.run(
        [sys.executable, "-c", "import random; " + code],
        input=pickle.dumps(point),
        capture_output=True,
        env={"PYTHONPATH": str(environment)},
        check=False,
    )
    assert result.stdout.split() == [b"5", b"False"], result.stderr.decode()


def test_a_changed_file_is_imported_again_on_request(folder):
    path = folder / "neighbor.py"
    first = importing.imported(path)
    importing.refresh()
    assert importing.imported(path) is first
    path.write_text("X = 4\n")  # the same length as before, and within the same second
    assert importing.imported(path).X == 3
    importing.refresh()
    assert importing.imported(path).X == 4
    path.unlink()
    importing.refresh()
    assert importing.module_name(path) not in sys.modules


def test_a_file_that_fails_leaves_no_module_behind(folder):
    path = folder / "broken.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        importing.imported(path)
    assert importing.module_name(path) not in sys.modules
    assert str(folder) not in sys.path


def test_files_in_two_folders_have_their_own_neighbors_of_one_name(tmp_path):
    def write(name):
        folder = tmp_path / name
        (folder / "parts_of").mkdir(parents=True)
        (folder / "beside_it.py").write_text(f"NAME = {name!r}\n")
        (folder / "parts_of" / "__init__.py").write_text("")
        (folder / "parts_of" / "inner.py").write_text("import beside_it\n\nNAME = beside_it.NAME\n")
        for file in ("first.py", "second.py"):
            (folder / file).write_text("import beside_it\nfrom parts_of import inner\n")
        return folder

    one, other = write("one"), write("other")
    modules = [importing.imported(folder / "first.py") for folder in (one, other)]
    assert [(module.beside_it.NAME, module.inner.NAME) for module in modules] == [("one", "one"), ("other", "other")]
    for module, folder in zip(modules, (one, other), strict=True):
        assert importing.imported(folder / "second.py").beside_it is module.beside_it
    for name in ("beside_it", "parts_of", "parts_of.inner"):
        del sys.modules[name]
