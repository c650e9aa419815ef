"""One idea has one name and one type in every algorithm, one name has one meaning, and spelling is American."""

import importlib
import re
import runpy
import types
import typing

import pytest

from operant import catalog
from operant.catalog.old_names import FIELDS

BRITISH = re.compile(
    r"(?:behaviou|colou|favou|neighbou|flavou|honou|labou)r|\b[Cc]entr(?:e|ed|es|ing)\b|labell|modell(?:ed|ing)"
    r"|cancelled|travelled|signalled|\blearnt\b|\bgrey|judgement|licence|artefact|\bcatalogue"
    r"|(?:normal|standard|optim|maxim|minim|initial|final|summar|factor|central|penal|priorit|token|linear|recogn|regular"
    r"|parameter|synchron|vector|serial|material|organ|parallel|discret|general|random|special)"
    r"is(?:e|ed|es|er|ers|ing|ation|ations)(?![a-z])",
    re.IGNORECASE,
)
TEXTS = ("README.md", "CONTRIBUTING.md", "docs", "src", "tests", "experiments", "benchmarks")
SUFFIXES = {".py", ".md"}
TELL_OF_OLD_NAMES = ("old_names.py", "test_old_names.py", "test_words.py")

# Old names that something else is rightly called, and what.
KEPT = {"target_entropy": "an entropy in SAC; the factor that discrete SAC called so has another name now"}


def configurations():
    """Return the configurations of all algorithms by the names of their classes."""
    return {entry.config: getattr(importlib.import_module(entry.module), entry.config) for entry in catalog.ALGORITHMS}


def kind_of(hint):
    """Return what sort of value a field holds; a field that may be None holds the same sort as one that may not."""
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return "choice"
    if origin in (typing.Union, types.UnionType):
        return "|".join(sorted({kind_of(part) for part in typing.get_args(hint) if part is not type(None)}))
    return str(hint)


def test_one_name_has_one_type():
    found = {}
    for name, kind in configurations().items():
        for field, hint in typing.get_type_hints(kind).items():
            found.setdefault(field, {}).setdefault(kind_of(hint), []).append(name)
    assert {field: kinds for field, kinds in found.items() if len(kinds) > 1} == {}


def test_no_field_has_an_old_name():
    new = {name for fields in FIELDS.values() for name in fields.values()}
    old = {name for fields in FIELDS.values() for name in fields} - new - KEPT.keys()
    found = {
        f"{name}.{field}"
        for name, kind in configurations().items()
        for field in typing.get_type_hints(kind)
        if field in old
    }
    assert found == set()


@pytest.mark.parametrize(
    ("text", "hit"),
    [("normalised", True), ("normalized", False), ("optimistic", False), ("Behaviour", True), ("precision", False)],
)
def test_the_pattern_of_british_spelling(text, hit):
    assert bool(BRITISH.search(text)) is hit


def test_spelling_is_american(root):
    found = []
    for name in TEXTS:
        paths = [root / name] if (root / name).is_file() else sorted((root / name).rglob("*"))
        for path in paths:
            if path.suffix not in SUFFIXES or path.name in TELL_OF_OLD_NAMES:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found += [f"{path.relative_to(root)}:{number}: {match[0]}" for match in BRITISH.finditer(line)]
    assert found == []


def test_the_page_of_hyperparameters_is_current(root):
    page = runpy.run_path(str(root / "docs" / "hyperparameters.py"))["page"]()
    assert (root / "docs" / "hyperparameters.md").read_text(encoding="utf-8") == page, (
        "run python docs/hyperparameters.py"
    )
