import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from operant.cli.runs import age, listing
from operant.control import PPOConfig
from operant.runtime.files import beside
from operant.runtime.run import Run
from operant.runtime.run_folders import Entry
from operant.runtime.settings import Settings

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, seeds in (("one", (0, 1)), ("two", (2,))):
        Run.create(tmp_path / "runs" / name, Settings("ppo", "CartPole-v1", seeds=seeds, budget=100), PPOConfig())
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def entry(**changes):
    name = "recurrent-ppo-a-task-of-a-package-with-a-long-name-Environment-v5-17"
    values = {"path": Path(name), "algorithm": "recurrent-ppo", "task": "a.package:with-a-long-name-Environment-v5"}
    values |= {"seeds": (0,), "state": "interrupted", "score": -12345.678, "consumed": 99, "budget": 100, "unit": "x"}
    values |= {"bytes": 123_456_789, "changed": NOW - timedelta(days=399)}
    return Entry(**{**values, **changes})


def test_a_list_fits_eighty_columns():
    lines = listing([entry(), entry(path=Path("short"), score=None, consumed=0)], NOW, columns=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["run", "algorithm", "task", "state", "score", "used", "size", "age"]
    assert lines[1].split()[-7:] == ["-12346", "99", "%", "118", "MiB", "399", "d"]
    assert "5-17 " in lines[1]


def test_names_are_shortened_last_and_in_a_pipe_not_at_all(cli, folder, monkeypatch):
    narrow = listing([entry(path=Path("my-first-run"))], NOW, columns=80)
    assert "my-first-run " in narrow
    assert "with-a-long-name" not in narrow
    name = entry().path.name
    assert name in listing([entry()], NOW, columns=None)
    (folder / "one").rename(folder / name)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert name in cli("runs")[1]


def test_a_list_has_the_names_of_links_and_no_control_characters(cli, folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    (folder / "alias").symlink_to(folder / "one")
    (folder / "two").rename(folder / "two\x1b[31m\nlines")
    lines = cli("runs")[1].splitlines()
    assert [line.split()[0] for line in lines] == ["run", "alias", "one", r"two\x1b[31m\nlines"]


def test_ages():
    assert [age(s) for s in (-1, 90, 121, 7200, 86400, 200_000)] == ["0 s", "90 s", "2 min", "2 h", "24 h", "2 d"]


def test_runs_are_listed(cli, answer, folder):
    status, out, err = cli("runs")
    assert (status, err) == (0, "")
    assert [line.split()[:4] for line in out.splitlines()[1:]] == [
        [name, "ppo", "CartPole-v1", "unfinished"] for name in ("one", "two")
    ]
    found = answer("runs", "list", folder, "--sort", "size")
    assert {run["path"] for run in found["runs"]} == {str(folder / "one"), str(folder / "two")}
    assert found["runs"][0]["score"] is None
    assert cli("runs", "nowhere")[2] == "operant: error: there is no folder nowhere; pass the folder of your runs\n"
    (folder.parent / "empty").mkdir()
    assert cli("runs", "empty")[1] == "There is no run in empty yet.\n"
    assert cli("runs", "--sort", "x")[0] == 2


def test_a_run_or_a_sweep_is_no_folder_of_runs(cli, folder):
    assert "runs/one is a run, not a folder of runs: use `operant runs show runs/one`" in cli("runs", "runs/one")[2]
    (folder / "sweep.toml").touch()
    assert "runs is a sweep: use `operant runs runs/runs`" in cli("runs", "runs")[2]
    (folder / "sweep.toml").rename(folder / "study.toml")
    assert "runs is a study: use `operant runs runs/trials`" in cli("runs", "runs")[2]


def test_runs_of_sweeps_and_studies_are_found(cli, folder):
    for path in ("all/sweep-grid/runs", "all/tune-ppo/trials"):
        (folder.parent / path).mkdir(parents=True)
    places = "`operant runs all/sweep-grid/runs`, `operant runs all/tune-ppo/trials`"
    assert cli("runs", "all")[1] == f"There is no run in all yet; sweeps and studies list theirs: {places}.\n"


def test_a_damaged_run_is_a_warning_and_can_be_deleted(cli, folder):
    (folder / "one" / "run.json").write_text("{", encoding="utf-8")
    status, out, err = cli("runs")
    assert (status, [line.split()[0] for line in out.splitlines()]) == (0, ["run", "two"])
    assert err.startswith(f"operant: warning: {folder / 'one' / 'run.json'} cannot be read: ")
    assert cli("runs", "delete", "runs/one", "--yes")[0] == 0
    assert [path.name for path in folder.iterdir()] == ["two"]


def test_runs_are_renamed_deleted_and_merged(cli, answer, folder, monkeypatch):
    assert cli("runs", "rename", "runs/one", "three")[:2] == (0, "runs/three\n")
    status, _, err = cli("runs", "delete", "runs/three")
    assert (status, "There is no terminal for confirmation: pass --yes" in err) == (2, True)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: "n\n", raising=False)
    assert cli("runs", "delete", "runs/three")[0] == 1
    assert (folder / "three").exists()
    assert cli("runs", "delete", "runs/three", "runs/two", "--yes")[0] == 0
    assert list(folder.iterdir()) == []
    assert "pass one or more runs" in cli("runs", "delete")[2]


@pytest.mark.parametrize("command", [("delete", "--yes"), ("clean",)])
def test_nothing_is_changed_unless_all_runs_can_be(command, cli, folder):
    word, *flags = command
    (rest := beside(folder / "one" / "config.toml")).touch()  # removed by `clean`
    assert cli("runs", word, "runs/one", "runs/no-such", *flags)[0] == 2
    with Run.open(folder / "two").lock():
        status, _, err = cli("runs", word, "runs/one", "runs/two", *flags)
        assert (status, "is being trained by" in err) == (2, True)
    assert rest.exists()


def test_what_was_deleted_before_an_error_is_reported(cli, folder):
    (folder / ".one.removed").touch()  # a run cannot be renamed to the name of a file
    status, out, err = cli("runs", "delete", "runs/one", "runs/two", "runs/../runs/two", "--yes", "--json")
    answer = json.loads(out)
    assert (status, answer["deleted"]) == (1, [str(folder / "two")])
    assert list(answer["failed"]) == [str(folder / "one")]
    assert f"{folder / 'one'} cannot be deleted: Not a directory" in err
    assert not (folder / "two").exists()


def test_what_was_freed_before_an_error_is_reported(cli, folder):
    (folder / "one" / "checkpoints" / "step_000000000100").mkdir()
    status, out, err = cli("runs", "clean", "runs/one", "runs/two")
    assert (status, out) == (1, "runs/two: 0 B freed\n")
    assert "checkpoint" in err


def test_a_run_with_an_empty_configuration_can_be_deleted(cli, folder):
    (folder / "one" / "config.toml").write_bytes(b"")
    assert cli("runs", "delete", "runs/one", "--yes")[0] == 0
    assert [path.name for path in folder.iterdir()] == ["two"]


def test_a_link_is_not_followed(cli, folder):
    (folder / "link").symlink_to(folder / "one")
    status, _, err = cli("runs", "delete", "runs/link", "--yes")
    assert (status, "is a link" in err) == (2, True)
    assert (folder / "one").exists()


def test_a_trained_run_is_cleaned_and_shown(cli, answer, run):
    (rest := Path(run).with_name(".old.removed")).mkdir()
    (rest / "run.json").write_text("{}", encoding="utf-8")
    assert answer("runs", "clean", run)["freed"][str(rest)] == 2
    assert not rest.exists()
    assert answer("runs", "show", run)["algorithm"] == "ppo"
