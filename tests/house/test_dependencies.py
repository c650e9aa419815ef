"""Dependencies: everything that continuous integration runs is pinned, and every dependency has a reason."""

import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

TESTED_EXTRAS = ("language", "render", "plots", "web", "tune")


@pytest.fixture(scope="module")
def project(root):
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pins(root):
    lines = (root / "constraints.txt").read_text(encoding="utf-8").split()
    requirements = [Requirement(line) for line in lines]
    assert all(r.url is None and [s.operator for s in r.specifier] == ["=="] for r in requirements)
    return {canonicalize_name(r.name): Version(next(iter(r.specifier)).version) for r in requirements}


def test_everything_that_is_tested_is_pinned_within_its_bounds(project, pins):
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    lines = [*project["project"]["dependencies"], *(line for extra in TESTED_EXTRAS for line in extras[extra])]
    for requirement in map(Requirement, [*lines, *(line for group in groups.values() for line in group)]):
        pin = pins.get(canonicalize_name(requirement.name))
        assert pin is not None, f"{requirement.name} has no line in constraints.txt"
        assert requirement.specifier.contains(pin), f"constraints.txt pins {requirement.name}=={pin}: not {requirement}"


def test_pyproject_pins_nothing(project):
    extras = project["project"]["optional-dependencies"].values()
    lines = [*project["project"]["dependencies"], *(line for extra in extras for line in extra)]
    assert [line for line in lines if "==" in line] == []
    assert [line for line in lines if ">=" not in line] == []


def test_the_documentation_names_each_dependency(root, project):
    page = (root / "docs" / "dependencies.md").read_text(encoding="utf-8")
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    groups_of_lines = [project["project"]["dependencies"], *extras.values(), *groups.values()]
    names = {Requirement(line).name for lines in groups_of_lines for line in lines}
    assert sorted(name for name in names if f"`{name}`" not in page) == []


def test_the_lowest_versions_are_those_that_pyproject_allows(root, project):
    lines = (root / "constraints-lowest.txt").read_text(encoding="utf-8").split()
    lowest = {canonicalize_name(r.name): next(iter(r.specifier)).version for r in map(Requirement, lines)}
    wanted = {
        canonicalize_name(requirement.name): bound.version
        for extra in (
            project["project"]["dependencies"],
            *map(project["project"]["optional-dependencies"].get, TESTED_EXTRAS),
        )
        for requirement in map(Requirement, extra)
        for bound in requirement.specifier
        if bound.operator == ">="
    }
    assert {name: Version(version) for name, version in lowest.items()} == {
        name: Version(version) for name, version in wanted.items()
    }
