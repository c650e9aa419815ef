import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from operant.runtime.comparison import learning_curve
from operant.runtime.locks import held
from operant.runtime.run import RunError
from operant.web import runs
from operant.web.workers import NotFoundError
from web.folders import make_run  # type: ignore[import-not-found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with two runs, one of them in a subfolder, a video, and files that are not runs."""
    path = tmp_path_factory.mktemp("web") / "runs"
    first = make_run(path / "first", [[0.1, 0.2, 0.3], [0.4, 0.5, 0.9]], metrics=30)
    make_run(path / "set" / "second", [[0.2, 0.2, 0.2], [0.7, 0.8, 0.9]], gamma=0.9)
    (first.media_path / "film.mp4").write_bytes(b"film")
    (first.media_path / "page.html").write_text("<script>", encoding="utf-8")
    (path / "empty").mkdir()
    (path / "note.txt").write_text("no run", encoding="utf-8")
    return path


def test_every_run_is_listed(folder):
    found = {entry["name"]: entry for entry in runs.index(folder)["runs"]}
    assert set(found) == {"first", "set/second"}
    first = found["first"]
    assert (first["algorithm"], first["task"], first["seeds"]) == ("q-learning", "FrozenLake-v1", 3)
    assert (first["outcome"], first["consumed"], first["budget"]) == ("finished", 2000, 2000)
    assert first["iqm"] == pytest.approx(0.6)


def test_a_folder_that_is_not_there_has_no_runs(tmp_path):
    assert runs.index(tmp_path / "runs") == {"folder": str(tmp_path / "runs"), "found": False, "runs": [], "hidden": {}}


def test_the_description_of_a_run(folder):
    found = runs.show(folder, "first")
    assert found["config"]["gamma"] == 0.99
    assert found["metrics"] == ["rollout/episode_return"]
    assert [medium["name"] for medium in found["media"]] == ["film.mp4"]
    assert found["commands"]["show"] == f"operant show {folder / 'first'}"
    assert "resume" not in found["commands"]
    json.dumps(found, allow_nan=False)


def test_metrics_that_the_last_record_lacks_are_offered(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    records = tmp_path / "runs" / "first" / "metrics.jsonl"
    with records.open("a", encoding="utf-8") as file:
        file.write('{"consumed": 1990, "rollout/success_rate": [0.5]}\n{"consumed": 2000, "loss": [1.0]}\n')
    expected = ["loss", "rollout/episode_return", "rollout/success_rate"]
    assert runs.show(tmp_path / "runs", "first")["metrics"] == expected


def test_curves_of_evaluations_are_those_of_compare(folder):
    from operant.runtime.run import Run

    curve = runs.curves(folder, ["first"])["curves"]["first"]
    expected = learning_curve(Run.open(folder / "first"))
    assert curve["x"] == expected.consumed.tolist()
    assert curve["center"] == expected.iqm.tolist()
    assert (curve["low"], curve["high"]) == (expected.low.tolist(), expected.high.tolist())
    assert curve["seeds"] == expected.scores.T.tolist()


def test_curves_of_a_metric(folder):
    curve = runs.curves(folder, ["first"], "rollout/episode_return")["curves"]["first"]
    assert curve["x"][:2] == [10, 20]
    assert (curve["low"][5], curve["center"][5], curve["high"][5]) == (5.0, 6.0, 7.0)
    assert runs.curves(folder, ["set/second"], "rollout/episode_return")["curves"]["set/second"]["x"] == []


def test_curves_of_damaged_records(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    records = tmp_path / "runs" / "first" / "metrics.jsonl"
    before = runs.curves(folder, ["first"], "rollout/episode_return")["curves"]["first"]
    lines = ['{"consumed": null, "rollout/episode_return": 1}', '{"consumed": [], "rollout/episode_return": 1}']
    records.write_text("\n".join([*lines, records.read_text(encoding="utf-8")]), encoding="utf-8")
    assert runs.curves(tmp_path / "runs", ["first"], "rollout/episode_return")["curves"]["first"]["x"] == before["x"]


def test_unchanged_curves_are_not_sent_again(folder, tmp_path):
    shutil.copytree(folder / "first", tmp_path / "runs" / "first")
    answer = runs.curves(tmp_path / "runs", ["first"])
    assert runs.curves(tmp_path / "runs", ["first"], known=answer["version"])["unchanged"]
    with (tmp_path / "runs" / "first" / "eval" / "evaluations.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n")
    assert "curves" in runs.curves(tmp_path / "runs", ["first"], known=answer["version"])


def test_a_comparison_is_that_of_the_library(folder):
    found = runs.compare(folder, ["first", "set/second"])
    assert found["differ"] == {"gamma": [0.99, 0.9]}
    assert found["problem"] == ""
    first, second = found["standings"]
    assert first["improvement"] == 0.5
    assert second["difference"] == pytest.approx(0.2)
    assert found["command"] == f"operant compare {folder / 'first'} {folder / 'set' / 'second'}"


def test_runs_that_cannot_be_compared_still_show_what_differs(folder, tmp_path):
    shutil.copytree(folder / "first", tmp_path / "runs" / "first")
    make_run(tmp_path / "runs" / "open", [[0.1, 0.1, 0.1]], ended=False, gamma=0.5)
    with (tmp_path / "runs" / "open" / "config.toml").open("r+", encoding="utf-8") as file:
        text = file.read().replace("budget = 1000", "budget = 9000")
        file.seek(0)
        file.write(text)
    found = runs.compare(tmp_path / "runs", ["first", "open"])
    assert "was last scored at 1000 of 9000" in found["problem"]
    assert found["standings"] == []
    assert found["differ"] == {"budget": [2000, 9000], "gamma": [0.99, 0.5]}


def test_whether_a_run_is_running(tmp_path):
    make_run(tmp_path / "runs" / "open", [[0.1]], ended=False, metrics=7)
    (entry,) = runs.index(tmp_path / "runs")["runs"]
    assert entry["outcome"] == "unfinished"  # this process is running, but does not train
    with held(tmp_path / "runs" / "open"):
        (entry,) = runs.index(tmp_path / "runs")["runs"]
        assert (entry["outcome"], entry["consumed"]) == ("running", 1000)
    file = tmp_path / "runs" / "open" / "run.json"
    facts = json.loads(file.read_text())
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    facts["sessions"][0]["process"] = ended.pid
    file.write_text(json.dumps(facts))
    (entry,) = runs.index(tmp_path / "runs")["runs"]
    assert entry["outcome"] == "unfinished"
    assert "resume" in runs.show(tmp_path / "runs", "open")["commands"]


def test_commands_quote_paths_for_the_shell(tmp_path):
    make_run(tmp_path / "my runs" / "first", [[0.1]])
    commands = runs.show(tmp_path / "my runs", "first")["commands"]
    assert shlex.split(commands["evaluate"]) == ["operant", "evaluate", str(tmp_path / "my runs" / "first")]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.toml", "[settings"),
        ("config.toml", "x = 1"),
        ("config.toml", "[settings]\nseeds = 3"),
        ("run.json", "{"),
        ("run.json", "[]"),
        ("run.json", '{"sessions": [1]}'),
        ("run.json", None),
        ("eval/evaluations.jsonl", '{"consumed": null}\n'),
        ("eval/evaluations.jsonl", '{"consumed": "much"}\n'),
    ],
)
def test_a_damaged_run_is_listed_as_what_it_is(folder, tmp_path, file, text):
    shutil.copytree(folder, tmp_path / "runs")
    damaged = tmp_path / "runs" / "first" / file
    damaged.unlink() if text is None else damaged.write_text(text, encoding="utf-8")
    found = {entry["name"]: entry for entry in runs.index(tmp_path / "runs")["runs"]}
    assert found["first"]["outcome"] == "damaged"
    assert found["first"]["problem"]
    assert found["set/second"]["outcome"] == "finished"


@pytest.mark.parametrize(
    ("file", "data", "problem"),
    [
        ("config.toml", b"[settings", "is not TOML: Expected ']'"),
        ("config.toml", b"# \xff", "is not UTF-8"),
        ("run.json", b"", "is not JSON: it is empty"),
    ],
)
def test_the_problem_of_a_damaged_run_names_the_file(folder, tmp_path, file, data, problem):
    shutil.copytree(folder, tmp_path / "runs")
    damaged = tmp_path / "runs" / "first" / file
    damaged.write_bytes(data)
    found = {entry["name"]: entry for entry in runs.index(tmp_path / "runs")["runs"]}
    assert f"{damaged} {problem}" in found["first"]["problem"]


OUTSIDE = [
    "..",
    "../runs/first",
    "first/..",
    "/etc",
    "first/../first",
    "first\\",
    "",
    ".",
    "first\0",
    "a" * 200,
    "link",
]
OUTSIDE += ["%2e%2e", "C:", "set/../../x", "nothing", "note.txt", "empty", 3, None, ["first"]]


@pytest.mark.parametrize("name", OUTSIDE, ids=repr)
def test_no_name_leads_out_of_the_folder(folder, tmp_path, name):
    link = folder / "link"
    if not link.exists():
        shutil.copytree(folder / "first", tmp_path / "elsewhere")
        link.symlink_to(tmp_path / "elsewhere")
    try:
        assert "link" not in {entry["name"] for entry in runs.index(folder)["runs"]}
        with pytest.raises(NotFoundError):
            runs.show(folder, name)
        with pytest.raises(NotFoundError):
            runs.medium(folder, name, "film.mp4")
    finally:
        link.unlink()


@pytest.mark.parametrize("name", ["page.html", "../run.json", "..", "", "film.mp4/", "nothing.mp4", "secret.mp4"])
def test_no_file_but_media_is_served(folder, name):
    link = folder / "first" / "media" / "secret.mp4"
    link.symlink_to(folder / "note.txt")
    try:
        with pytest.raises(NotFoundError):
            runs.medium(folder, "first", name)
    finally:
        link.unlink()
    assert runs.medium(folder, "first", "film.mp4")["path"].endswith("first/media/film.mp4")


def test_media_behind_a_link_are_not_served(folder, tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "private.png").write_bytes(b"image")
    media = folder / "first" / "media"
    media.rename(folder / "first" / "moved")
    try:
        media.symlink_to(tmp_path / "photos")
        assert runs.show(folder, "first")["media"] == []
        with pytest.raises(NotFoundError):
            runs.medium(folder, "first", "private.png")
        media.unlink()
        media.symlink_to("moved")
        assert runs.medium(folder, "first", "film.mp4")["path"].endswith("first/media/film.mp4")
    finally:
        media.unlink()
        (folder / "first" / "moved").rename(media)


def test_a_run_of_another_version_cannot_be_compared(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    file = tmp_path / "runs" / "first" / "config.toml"
    file.write_text(file.read_text().replace("schema_version = 2", "schema_version = 99"))
    with pytest.raises(RunError, match="schema_version 99"):
        runs.compare(tmp_path / "runs", ["first", "set/second"])


def test_a_thousand_runs_are_listed(folder, tmp_path):
    """benchmarks/web.py measures the time."""
    for i in range(1000):
        (tmp_path / f"run-{i}" / "eval").mkdir(parents=True)
        for name in ("config.toml", "run.json", "eval/evaluations.jsonl"):
            os.link(folder / "first" / name, tmp_path / f"run-{i}" / name)
    assert len(runs.index(tmp_path)["runs"]) == 1000


def test_a_look_at_a_run_never_imports_the_code_that_it_names(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "runs")
    code = tmp_path / "evil.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')", encoding="utf-8")
    for name in ("first", "set/second"):
        file = tmp_path / "runs" / name / "config.toml"
        file.write_text(file.read_text().replace('"q-learning"', f'"{code}:Evil"'))
    names = ["first", "set/second"]
    assert runs.show(tmp_path / "runs", "first")["algorithm"] == f"{code}:Evil"
    assert "which the web app does not run" in runs.compare(tmp_path / "runs", names)["problem"]
    runs.index(tmp_path / "runs")
    runs.curves(tmp_path / "runs", names)
    assert not (tmp_path / "ran").exists()


def test_a_process_is_not_interrupted_by_the_list_on_windows(monkeypatch):
    monkeypatch.setattr(runs, "os", SimpleNamespace(name="nt"))
    assert runs._alive({"host": socket.gethostname(), "process": 1})


def test_the_metric_of_a_command_is_quoted(folder):
    assert runs.compare(folder, ["first", "set/second"], "a metric")["command"].endswith(" --metric 'a metric'")
