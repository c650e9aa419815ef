from email.message import Message
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from operant import catalog
from operant.web import documentation, explorables, playground
from operant.web.documentation import Documentation, find_documentation, page_of
from operant.web.simulating import LEARNERS
from operant.web.taxonomy import taxonomy

DOCS = Path(__file__).parents[2] / "docs"


def naming(*urls):
    """Return metadata of a package with these addresses."""
    found = Message()
    for url in urls:
        found["Project-URL"] = url
    return lambda _: found


@pytest.mark.parametrize(
    ("urls", "expected"),
    [
        ((), ""),
        (("Source, https://example.org/code",), ""),
        (("Source, https://example.org/code", "Documentation, https://example.org/docs"), "https://example.org/docs/"),
    ],
)
def test_the_address_is_the_one_that_the_package_names(monkeypatch, urls, expected):
    monkeypatch.setattr(documentation, "metadata", naming(*urls))
    assert find_documentation() == Documentation(expected)
    assert find_documentation("http://127.0.0.1:8000") == Documentation("http://127.0.0.1:8000/")


def test_a_package_that_is_not_installed_names_none(monkeypatch):
    def missing(_):
        raise PackageNotFoundError

    monkeypatch.setattr(documentation, "metadata", missing)
    assert find_documentation() == Documentation()


@pytest.mark.parametrize("address", ["javascript:alert(1)", "docs", "//example.org", "file:///docs"])
def test_an_address_is_of_a_web_site(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()  # without a start page
    with pytest.raises(ValueError, match=r"be a URL \(https:// or http://\), or a folder with an index\.html"):
        find_documentation(address)


def test_a_folder_of_a_built_site_is_served_by_the_app(tmp_path):
    (tmp_path / "index.html").write_text("site", encoding="utf-8")
    assert find_documentation(str(tmp_path)) == Documentation("/docs/", tmp_path)


def leaves(node):
    return [node] if "command" in node else [leaf for child in node["children"] for leaf in leaves(child)]


def pages():
    found = {leaf["page"] for leaf in leaves(taxonomy())} | {page_of(entry.name) for entry in catalog.ALGORITHMS}
    found |= {one["page"] for one in explorables.index(Path())["explorables"]}
    return sorted(found | {playground.page_about(name) for name in (*playground.SOLVERS, *LEARNERS)} | {"web"})


@pytest.mark.parametrize("page", pages())
def test_every_page_exists(page):
    assert (DOCS / f"{page}.md").is_file()


def test_algorithms_outside_the_catalog_have_no_page():
    assert page_of("mine.py:Learner") == ""
    assert page_of("ppo") == "algorithms/ppo"
