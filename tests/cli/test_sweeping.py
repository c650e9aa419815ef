"""`operant sweep`: every cell is the run of one command on any launcher, and no cell runs twice."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from operant.cli import main
from operant.runtime.files import beside
from operant.runtime.locks import held, is_held
from operant.scale.sweep import Sweep

GRID = """
algorithm = "q-learning"
task = "FrozenLake-v1"
seeds = 2
budget = 400

[grid]
step_size = [0.1, 0.5]
exploration_initial_eps = [0.2]

[config]
gamma = 0.9

[settings]
evaluate_episodes = 2
"""
CELLS = [f"q-learning-FrozenLake-v1-step_size-{a}-exploration_initial_eps-0.2" for a in (0.1, 0.5)]


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text(GRID, encoding="utf-8")
    return path


def digests(run):
    checkpoint = sorted((run / "checkpoints").glob("step_*"))[-1]
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    return {name: file["sha256"] for name, file in manifest["files"].items()}


def test_inline_processes_and_single_commands_give_the_same_bytes(cli, grid, tmp_path):
    outcomes = []
    for executor in ("processes", "inline"):
        out = tmp_path / executor
        status, text, _ = cli("sweep", grid, "--out", out, "--executor", executor, "--workers", 2, "--json")
        assert status == 0
        outcomes.append(json.loads(text)["cells"])
    assert [cell["cell"] for cell in outcomes[0]] == CELLS
    assert outcomes[0] == outcomes[1]
    assert {cell["outcome"] for cell in outcomes[0]} == {"finished"}
    words = ["--step-size", 0.5, "--exploration-initial-eps", 0.2, "--gamma", 0.9, "--seeds", 2, "--budget", 400]
    words += ["--evaluate-episodes", 2, "--progress", "silent", "--run", tmp_path / "alone"]
    assert cli("train", "q-learning", "FrozenLake-v1", *words)[0] == 0
    assert digests(tmp_path / "processes" / "runs" / CELLS[1]) == digests(tmp_path / "inline" / "runs" / CELLS[1])
    assert digests(tmp_path / "inline" / "runs" / CELLS[1]) == digests(tmp_path / "alone")


def test_finished_cells_are_not_repeated_and_single_cells_run_alone(cli, grid, tmp_path):
    out = tmp_path / "sweep"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("operant.scale.sweep.Sweep.run", lambda self, **_: True)  # written, but not run
        status, text, _ = cli("sweep", grid, "--out", out)
    assert status == 1
    assert text.count("  not begun") == 2
    assert cli("sweep", out, "--cell", 1)[0] == 0
    written = (out / "runs" / CELLS[1] / "run.json").read_bytes()
    assert not (out / "runs" / CELLS[0]).exists()
    status, text, err = cli("sweep", out, "--executor", "inline")
    assert status == 0
    assert text.count("  finished") == 2
    assert f"{CELLS[0]}: finished" in err
    assert f"{CELLS[1]}: finished" not in err
    assert (out / "runs" / CELLS[1] / "run.json").read_bytes() == written
    assert cli("sweep", out, "--cell", 1)[0] == 0
    assert cli("sweep", grid, "--out", out)[0] == 0


@pytest.mark.parametrize("options", [["--workers", "1"], ["--executor", "inline"]])
def test_a_stopped_sweep_saves_and_resumes(grid, tmp_path, options):
    grid.write_text(GRID.replace("budget = 400", "budget = 900_000_000"), encoding="utf-8")
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "operant", "sweep", str(grid), "--out", str(out), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first = out / "runs" / CELLS[0]
    end = time.monotonic() + 120
    while not (first / "metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 75, err
    assert "operant: interrupted; continue with" in err
    assert json.loads((first / "run.json").read_text(encoding="utf-8"))["sessions"][-1]["outcome"] == "interrupted"
    assert not (out / "runs" / CELLS[1]).exists()


def test_the_cells_of_a_killed_sweep_save_and_end(grid, tmp_path):
    grid.write_text(GRID.replace("budget = 400", "budget = 900_000_000"), encoding="utf-8")
    out = tmp_path / "sweep"
    command = [sys.executable, "-m", "operant", "sweep", str(grid), "--out", str(out), "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    first = out / "runs" / CELLS[0]
    end = time.monotonic() + 120
    while not (first / "metrics.jsonl").exists() and time.monotonic() < end:
        time.sleep(0.1)
    process.kill()
    process.wait()
    end = time.monotonic() + 60
    while is_held(first) and time.monotonic() < end:
        time.sleep(0.1)
    session = json.loads((first / "run.json").read_text(encoding="utf-8"))["sessions"][-1]
    assert session["outcome"] == "interrupted"
    assert session["command"][:3] == ["operant", "train", "q-learning"]


def test_a_sweep_waits_for_a_cell_that_another_process_trains(cli, grid, tmp_path, caplog):
    out = tmp_path / "sweep"
    assert cli("sweep", grid, "--out", out, "--cell", 0)[0] == 0
    facts = out / "runs" / CELLS[0] / "run.json"
    written = json.loads(facts.read_bytes())
    facts.write_text(json.dumps({**written, "sessions": [{"outcome": "unfinished"}]}), encoding="utf-8")
    with held(facts.parent):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("operant.scale.sweep.Sweep.run", lambda self, **_: False)
            status, text, _ = cli("sweep", out, "--json")
        assert (status, json.loads(text)["cells"][0]["outcome"]) == (75, "running")
        sweep = Sweep(out)
        waiting, told = [(sweep.cells[0], 1)], []
        assert sweep._ready(waiting, lambda *told_now: told.append(told_now)) is None
        assert len(waiting) == 1
    facts.write_text(json.dumps(written), encoding="utf-8")
    assert f"{CELLS[0]} is being trained by another process: the sweep waits for it" in caplog.text
    assert sweep._ready(waiting, lambda *told_now: told.append(told_now)) is None
    assert (waiting, told) == ([], [(sweep.cells[0], 0)])


def test_a_damaged_cell_fails_alone(cli, grid, tmp_path):
    out = tmp_path / "sweep"
    assert cli("sweep", grid, "--out", out, "--cell", 0)[0] == 0
    (out / "runs" / CELLS[0] / "run.json").write_bytes(b"")
    status, text, err = cli("sweep", out, "--executor", "inline", "--json")
    assert status == 1
    assert [cell["outcome"] for cell in json.loads(text)["cells"]] == ["failed", "finished"]
    assert f"{CELLS[0]}: {out / 'runs' / CELLS[0] / 'run.json'} cannot be read" in err


def test_status_75_is_tried_again_and_failures_are_reported(cli, grid, tmp_path, monkeypatch):
    asked = []

    def failing(words):
        asked.append(words[0])
        return 75 if len(asked) < 3 else 1

    monkeypatch.setattr("operant.cli.main", lambda words: failing(words) if words[0] != "sweep" else main(words))
    status, _, err = cli("sweep", grid, "--out", tmp_path / "sweep", "--executor", "inline", "--attempts", 2)
    assert status == 1
    assert asked == ["train"] * 4
    assert err.count("status 75") + err.count("status 1") == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("algorithm =", "algorithms ="), "a sweep has no key 'algorithms'; valid keys: algorithm"),
        (('task = "FrozenLake-v1"', ""), "a sweep needs task, such as"),
        (("step_size = [0.1, 0.5]", "step_size = 0.1"), "[grid] step_size must be a list of values, got 0.1"),
        (("step_size", "stepsize"), "grid.toml: [grid] stepsize: there is no such key"),
        (("gamma", "gama"), "grid.toml: [config] gama: there is no such key"),
        (("evaluate_episodes", "episodes"), "grid.toml: [settings] episodes: there is no such key"),
        (("budget = 400", 'budget = "x"'), "grid.toml: budget: 'x' is not a value of type int"),
        (("0.5]", "-3.0]"), "grid.toml: step_size must be in"),
        (('task = "FrozenLake-v1"', 'task = ["FrozenLake-v1", "FrozenLak-v1"]'), "'FrozenLak-v1' is not a registered"),
        (('task = "FrozenLake-v1"', 'task = ["FrozenLake-v1", "no.py:Env"]'), "to take Env from"),
        (('task = "FrozenLake-v1"', 'task = ["FrozenLake-v1", "CartPole-v1"]'), "CartPole-v1-step_size-0.1"),
        (("evaluate_episodes = 2", 'callbacks = ["no.py:Name"]'), "to take Name from"),
    ],
)
def test_a_wrong_grid_is_rejected_before_anything_is_trained(cli, grid, tmp_path, change, message):
    grid.write_text(GRID.replace(*change), encoding="utf-8")
    status, _, err = cli("sweep", grid, "--out", tmp_path / "sweep")
    assert status == 2
    assert message in err
    assert not (tmp_path / "sweep").exists()


def test_a_folder_in_which_no_cell_has_begun_takes_another_grid(cli, grid, tmp_path, monkeypatch):
    out = tmp_path / "sweep"
    with monkeypatch.context() as patch:
        patch.setattr("operant.cli.main", lambda words: 2 if words[0] == "train" else main(words))
        status, text, err = cli("sweep", grid, "--out", out, "--executor", "inline", "--json")
    assert status == 1
    assert [cell["outcome"] for cell in json.loads(text)["cells"]] == ["failed", "failed"]
    assert f"{CELLS[0]}: status 2, see its error above" in err
    assert ".log" not in err
    grid.write_text(GRID.replace("[0.1, 0.5]", "[0.3]"), encoding="utf-8")
    (cell,) = json.loads(cli("sweep", grid, "--out", out, "--executor", "inline", "--json")[1])["cells"]
    assert cell["outcome"] == "finished"
    assert [file.stem for file in (out / "cells").iterdir()] == [cell["cell"]]


def test_the_algorithm_may_be_a_file_in_the_working_folder(cli, grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli("copy", "q-learning", "mine.py")[0] == 0
    grid.write_text(GRID.replace("q-learning", "mine.py:QLearning"), encoding="utf-8")
    status, out, err = cli("sweep", "grid.toml", "--out", "sweep", "--cell", 0, "--json")
    assert (status, json.loads(out)["cells"][0]["outcome"]) == (0, "finished"), err


def test_one_cell_answers_in_json(cli, grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for arguments in ([grid, "--out", "sweep"], ["sweep"]):  # the second time it is finished
        status, text, _ = cli("sweep", *arguments, "--cell", 1, "--json")
        (line,) = text.splitlines()
        assert status == 0
        assert json.loads(line)["sweep"] == str(tmp_path / "sweep")
        assert [(cell["cell"], cell["outcome"]) for cell in json.loads(line)["cells"]] == [(CELLS[1], "finished")]


def test_a_folder_with_hidden_files_is_left_alone_and_one_with_a_torn_write_is_used(cli, grid, tmp_path):
    (tmp_path / "own" / ".git").mkdir(parents=True)
    (tmp_path / "torn").mkdir()
    beside(tmp_path / "torn" / "sweep.toml").touch()
    grid.write_text(GRID.replace("q-learning", "qq"), encoding="utf-8")
    for name, message in (("own", "is no sweep, and not empty"), ("torn", "'qq'")):
        status, _, err = cli("sweep", grid, "--out", tmp_path / name)
        assert status == 2
        assert message in err
    assert (tmp_path / "own" / ".git").is_dir()


def test_other_folders_are_left_alone(cli, grid, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for words, message in (
        ([grid, "--out", tmp_path / "full"], "is no sweep, and not empty"),
        ([tmp_path / "full"], "is no sweep, and not empty"),
        ([tmp_path / "nothing.toml"], "nothing.toml cannot be read: No such file or directory"),
        ([grid, "--workers", 0], "must be at least 1"),
    ):
        status, _, err = cli("sweep", *words)
        assert status == 2
        assert message in err
    assert cli("sweep", grid, "--out", tmp_path / "one", "--executor", "inline")[0] == 0
    grid.write_text(GRID.replace("0.9", "0.8"), encoding="utf-8")
    status, _, err = cli("sweep", grid, "--out", tmp_path / "one")
    assert status == 2
    assert "has another sweep: continue with" in err
    status, _, err = cli("sweep", tmp_path / "one", "--cell", 2)
    assert "cell must be from 0 to 1, got 2" in err
