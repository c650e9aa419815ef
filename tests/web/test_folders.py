import importlib
import os
import shutil

import pytest

from operant.web.folders import DEPTH, folder_of, hidden_in, names_of, searched
from operant.web.workers import NotFoundError
from web.folders import make_run  # type: ignore[import-not-found]


@pytest.fixture
def runs(tmp_path):
    """Return a folder with runs at two depths, one behind a link, and with other files."""
    path = tmp_path / "runs"
    for name in ("one", "set/two", "a/b/three"):
        make_run(path / name, [[0.1]])
    make_run(tmp_path / "outside", [[0.1]])
    (path / "link").symlink_to(tmp_path / "outside")
    (path / "set" / "link").symlink_to(tmp_path / "outside")
    (path / "one" / "checkpoints" / "config.toml").write_text("", encoding="utf-8")
    make_run(path / "a" / "b" / "c" / "deep", [[0.1]])
    return path


def test_runs_are_found_by_name(runs):
    assert sorted(names_of(runs)) == ["a/b/three", "one", "set/two"]
    for name in names_of(runs):
        assert folder_of(runs, name) == runs / name


@pytest.mark.parametrize("name", ["batches.index", "completions.index", "labels.index", "models.models"])
def test_a_run_that_is_deleted_during_a_listing_is_left_out(name, runs, monkeypatch):
    module, _, function = name.partition(".")
    listing = importlib.import_module(f"operant.web.{module}")

    def vanishing(*arguments):
        for found in names_of(*arguments):
            shutil.rmtree(runs / found)
            yield found

    monkeypatch.setattr(listing, "names_of", vanishing)
    answer = getattr(listing, function)(runs)
    assert answer.get("runs", []) == answer.get("policies", []) == []
    assert list(names_of(runs)) == []


def test_runs_are_searched_in_folders_without_a_run(runs):
    assert list(searched(runs)) == ["", "a", "set", "a/b"]
    assert list(searched(runs / "missing")) == [""]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "",
            ".",
            "..",
            "/",
            "one/",
            "/one",
            "one/..",
            "../outside",
            "set",
            "set/../one",
            "link",
            "set/link",
            "a/b/c/deep",
        ),
        *(
            "one\0",
            "one\\",
            "..\\outside",
            "%2e%2e/outside",
            "C:/x",
            "one/checkpoints/..",
            "\\\\host\\share",
            "~",
            "x" * 300,
        ),
        *(None, 3, ["one"]),
    ],
)
def test_nothing_else_is(runs, name):
    with pytest.raises(NotFoundError):
        folder_of(runs, name)


def test_runs_that_are_not_shown_are_named_with_the_reason(runs):
    (runs / "one").rename(runs / "with space")
    assert hidden_in(runs) == {"link": "it is a symbolic link", "with space": "its name has other characters"}
    assert hidden_in(runs / "missing") == {}


def test_a_folder_that_is_not_there_has_none(tmp_path):
    assert list(names_of(tmp_path / "none")) == []


@pytest.mark.skipif(os.name != "posix", reason="rights are those of POSIX")
def test_the_depth_is_that_of_names(runs):
    assert max(name.count("/") for name in names_of(runs)) == DEPTH - 1
