"""Experiments, benchmarks and scripts of the documentation, which no test runs as a whole, import what exists."""

import ast
import importlib
from importlib.util import find_spec

import pytest

SCRIPTS = ("experiments", "benchmarks", "docs")


@pytest.mark.parametrize("folder", SCRIPTS)
def test_imported_names_exist(folder, root):
    missing = [
        f"{path.relative_to(root)}:{node.lineno}: {node.module}.{alias.name}"
        for path in sorted((root / folder).glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "operant"
        for alias in node.names
        if not exists(node.module, alias.name)
    ]
    assert not missing


def exists(module, name):
    found = importlib.import_module(module)
    return hasattr(found, name) or (hasattr(found, "__path__") and find_spec(f"{module}.{name}") is not None)
