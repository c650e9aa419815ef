"""Files are short, functions are short, and the tests mirror the package."""

import ast
import re
from pathlib import Path

import pytest

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 60

# Modules without a test file, with the reason.
UNTESTED = {
    "src/operant/catalog/control.py": "data: tests/catalog/test_algorithm.py looks at every entry",
    "src/operant/catalog/foreign_names.py": "data: tests/catalog/test_names.py looks at every entry",
    "src/operant/catalog/language.py": "data: tests/catalog/test_algorithm.py looks at every entry",
    "src/operant/catalog/tabular.py": "data: tests/catalog/test_algorithm.py looks at every entry",
    "src/operant/runtime/learner.py": "protocols: no code runs in them",
    "src/operant/scale/remote.py": "tests/scale/test_tinker_server.py runs it against a service",
}
# Functions over the limit, with the reason.
LONG_FUNCTIONS: dict[str, str] = {}

TEXT_FOLDERS = (".ci", ".github", "benchmarks", "docs", "experiments", "src", "tests")
MACHINE_PATH = re.compile(r"(?<![\w.$}-])/(?:work|root|home|Users)/")

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def function_lines(function: FUNCTION) -> int:
    """Count the lines of a function without its decorators and its docstring."""
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is not None:
        docstring = function.body[0]
        lines -= docstring.end_lineno - docstring.lineno + 1
    return lines


def functions(tree: ast.Module) -> list[FUNCTION]:
    return [node for node in ast.walk(tree) if isinstance(node, FUNCTION)]


def test_function_lines_leave_the_docstring_out():
    (function,) = functions(ast.parse('def f():\n    """One.\n\n    Two.\n    """\n    x = 1\n    return x\n'))
    assert function_lines(function) == 3


def test_files_are_short(sources):
    lengths = {str(source.path): len(source.text.splitlines()) for source in sources}
    assert {path: lines for path, lines in lengths.items() if lines > MAX_FILE_LINES} == {}


def test_functions_are_short(sources):
    found = {
        f"{source.module}.{function.name}": function_lines(function)
        for source in sources
        for function in functions(source.tree)
        if function_lines(function) > MAX_FUNCTION_LINES
    }
    assert {name: lines for name, lines in found.items() if name not in LONG_FUNCTIONS} == {}
    assert set(LONG_FUNCTIONS) <= set(found), "remove the functions that are short now"


def mirror(path: Path) -> Path:
    """Return the test file of a module; both are relative to the repository."""
    return "tests" / path.parent.relative_to("src/operant") / f"test_{path.name}"


def test_the_tests_mirror_the_package(root, sources):
    modules = [source.path for source in sources if source.path.name != "__init__.py"]
    missing = [
        str(mirror(path)) for path in modules if str(path) not in UNTESTED and not (root / mirror(path)).exists()
    ]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("path", UNTESTED)
def test_the_list_of_untested_modules_is_true(root, path):
    assert (root / path).exists(), f"{path} does not exist: remove it from UNTESTED"
    assert not (root / mirror(Path(path))).exists(), f"{path} has a test: remove it from UNTESTED"


@pytest.mark.parametrize(
    ("text", "hit"), [("cd /home/me/x", True), ("https://a.org/home/x", False), ("a/root/b", False)]
)
def test_the_pattern_of_machine_paths(text, hit):
    assert bool(MACHINE_PATH.search(text)) is hit


def test_no_text_names_a_folder_of_one_machine(root):
    files = [path for path in root.iterdir() if path.is_file()]
    files += [path for folder in TEXT_FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
    found = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # not a text
        if path != root / "tests" / "house" / "test_layout.py" and MACHINE_PATH.search(text):
            found.append(str(path.relative_to(root)))
    assert found == []
