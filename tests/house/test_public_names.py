"""Public names exist, have docstrings, and appear on the pages of docs/."""

import ast
import importlib
import inspect
import pkgutil
import re

import pytest

import operant
import operant.ops

PACKAGES = ["operant", *(m.name for m in pkgutil.walk_packages(operant.__path__, "operant.") if m.ispkg)]


def sort_key(name: str) -> tuple[int, str]:
    """Order constants before classes before the rest, as isort and ruff's RUF022 do."""
    return (0 if name.isupper() else 1 if name.lstrip("_")[:1].isupper() else 2), name


def documented_assignments(tree: ast.Module) -> set[str]:
    """Return the module-level names that are followed by a string that describes them."""
    names = set()
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        described = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        if described and isinstance(following.value.value, str):
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def has_docstring(value: object) -> bool:
    """Return whether ``value`` has its own docstring: Python gives a dataclass its signature as a docstring."""
    return bool(value.__doc__) and not value.__doc__.startswith(f"{value.__name__}(")


@pytest.mark.parametrize("package", PACKAGES)
def test_all_resolves_and_is_sorted(package):
    module = importlib.import_module(package)
    names = getattr(module, "__all__", [])
    assert [name for name in names if not hasattr(module, name)] == []
    assert list(names) == sorted(set(names), key=sort_key)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_that_re_exports_lists_it_in_all(package, sources):
    (source,) = (s for s in sources if s.module == package)
    blocks = [source.tree, *(node for node in source.tree.body if isinstance(node, ast.If))]  # if TYPE_CHECKING
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    own = [node for node in imports if (node.module or "").startswith("operant")]
    re_exported = {alias.asname or alias.name for node in own for alias in node.names}
    if own and package != "operant.cli":
        assert re_exported <= set(importlib.import_module(package).__all__)


def test_every_public_name_has_a_docstring(sources):
    described = set().union(*(documented_assignments(source.tree) for source in sources))
    missing = []
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", []):
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value):
                if not has_docstring(value):
                    missing.append(f"{package}.{name}")
            elif name not in described and not name.startswith("__"):
                missing.append(f"{package}.{name}")
    assert not missing, "\n".join(missing)


def test_a_dataclass_without_a_docstring_is_seen():
    class Bare:
        __doc__ = "Bare(x: int)"

    assert not has_docstring(Bare)


def test_docstrings_are_markdown(sources):
    sphinx = re.compile(r":(?:attr|class|data|func|meth|mod):`|::$|^ *={3,} +={3,}", re.MULTILINE)
    found = [str(source.path) for source in sources if sphinx.search(source.text)]
    assert not found, "\n".join(found)


def test_every_equation_is_documented(root):
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (root / "docs" / "ops").glob("*.md")}
    for module in pkgutil.iter_modules(operant.ops.__path__):
        page = pages.get(module.name, "")
        assert f"::: operant.ops.{module.name}" in page, (
            f"docs/ops/{module.name}.md must show operant.ops.{module.name}"
        )
        public = [
            name
            for name, value in vars(importlib.import_module(f"operant.ops.{module.name}")).items()
            if inspect.isfunction(value) and inspect.unwrap(value).__module__ == f"operant.ops.{module.name}"
        ]
        missing = [name for name in public if not name.startswith("_") and not re.search(rf"(`|ops\.){name}\b", page)]
        assert missing == [], f"docs/ops/{module.name}.md does not speak of {missing}"
