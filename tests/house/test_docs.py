"""The examples of the documentation run, and print the output on the pages."""

import doctest
import pydoc
import re
import runpy
from pathlib import Path
from typing import Literal, get_origin, get_type_hints

import pytest

from operant import catalog

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    path for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))] if BLOCK.search(path.read_text(encoding="utf-8"))
]
DOCTEST_OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def blocks(page: Path, language: str) -> str:
    """Return the code of one language on a page, with blank lines instead of the rest."""
    text = page.read_text(encoding="utf-8")
    lines = [""] * len(text.splitlines())
    for match in BLOCK.finditer(text):
        if match[1] == language:
            first = text.count("\n", 0, match.start(2))
            code = match[2].splitlines()
            lines[first : first + len(code)] = code
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        if named := re.match(r"# (\w+\.py)\n", match[2]):  # a file that the page shows exists
            (tmp_path / named[1]).write_text(match[2], encoding="utf-8")
    script = tmp_path / f"{page.stem}.py"
    script.write_text(blocks(page, "python"), encoding="utf-8")
    names = runpy.run_path(str(script))
    examples = doctest.DocTestParser().get_doctest(blocks(page, "pycon"), names, page.name, str(page), 0)
    report: list[str] = []
    doctest.DocTestRunner(optionflags=DOCTEST_OPTIONS).run(examples, out=report.append)
    assert not report, "".join(report)


def test_blocks_keep_their_line_numbers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\n```pycon\n>>> x\n1\n```\n")
    assert blocks(page, "python") == "\n\n\nx = 1\n\n\n\n\n\n\n"
    assert blocks(page, "pycon").splitlines()[7:9] == [">>> x", "1"]


def test_named_classes_exist():
    pages = [*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md"]
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    assert {
        name for name in re.findall(r"`(operant(?:\.\w+)+\.[A-Z]\w+)`", text) if pydoc.locate(name) is None
    } == set()


@pytest.mark.parametrize("entry", catalog.ALGORITHMS, ids=lambda entry: entry.name)
def test_pages_have_the_defaults_of_choices(entry):
    hints, wrong = get_type_hints(entry.config_class, include_extras=True), {}
    defaults = entry.config_class(**dict(entry.values))
    page = (DOCS / "algorithms" / f"{entry.name}.md").read_text(encoding="utf-8")
    for table in re.findall(r"^\| Field \| Default \|.*\n\|-.*\n((?:\|.*\n)+)", page, re.MULTILINE):
        for fields, shown in re.findall(r"^\| (`.*?) \| (.*?) \|", table, re.MULTILINE):
            names, values = re.findall(r"`(\w+)`", fields), shown.split(", ")
            for name, value in zip(names, values, strict=False) if len(names) == len(values) else ():
                if get_origin(hints.get(name)) is Literal and value.strip("`") != getattr(defaults, name):
                    wrong[name] = value
    assert wrong == {}


def test_every_algorithm_has_a_page():
    assert [a.name for a in catalog.ALGORITHMS if not (DOCS / "algorithms" / f"{a.name}.md").exists()] == []
