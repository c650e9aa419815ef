"""Fixtures for the house rules: the sources of the package, parsed once."""

import ast
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]


class Source(NamedTuple):
    path: Path  # relative to the repository
    module: str
    text: str
    tree: ast.Module


def read_source(path: Path) -> Source:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text(encoding="utf-8")
    return Source(path.relative_to(ROOT), module, text, ast.parse(text))


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def sources() -> list[Source]:
    return [read_source(path) for path in sorted((ROOT / "src" / "operant").rglob("*.py"))]
