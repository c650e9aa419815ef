"""Grids: their cells with names and commands, and retries."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from operant.runtime.run_paths import check_name
from operant.scale.sweep import Grid, Sweep

GIVEN = {
    "algorithm": ["q-learning", "sarsa"],
    "task": "FrozenLake-v1",
    "seeds": [3, 5],
    "budget": 100,
    "preset": "paper",
    "grid": {"step_size": [0.1, 0.2], "traces": ["a b", "a/b"]},
    "config": {"gamma": 0.9},
}


def test_every_combination_is_a_separate_cell():
    cells = list(Grid.of(GIVEN).cells())
    assert len(cells) == len({name for name, *_ in cells}) == 8
    assert cells[0][0] == "q-learning-FrozenLake-v1-step_size-0.1-traces-a-b"
    assert cells[1][0] == "q-learning-FrozenLake-v1-step_size-0.1-traces-a-b-2"
    assert [cell[1] for cell in cells] == ["q-learning"] * 4 + ["sarsa"] * 4
    assert cells[3][3] == {"step_size": 0.2, "traces": "a/b"}


def test_without_a_grid_there_is_one_cell_for_each_task():
    cells = list(Grid.of({"algorithm": "my dir/my.py:Mine", "task": ["A-v0", "B-v0"]}).cells())
    assert [cell[0] for cell in cells] == ["my-A-v0", "my-B-v0"]
    assert Grid.of({"algorithm": "ppo", "task": "A-v0"}).seeds == tuple(range(8))


def test_names_of_cells_are_names_of_runs():
    cells = list(Grid.of({**GIVEN, "algorithm": "häufig.py:Mine", "task": "größe.py:Env"}).cells())
    for name, *_ in cells:
        check_name(Path(name))
    assert cells[0][0] == "h-ufig-gr-e.py-Env-step_size-0.1-traces-a-b"


def test_a_folder_contains_the_definition_of_the_sweep(tmp_path):
    sweep = Sweep(tmp_path / "one", GIVEN)
    sweep.write()
    again = Sweep(tmp_path / "one")
    assert again.grid == sweep.grid
    cell = again.cells[0]
    tables = tomllib.loads((tmp_path / "one" / "cells" / f"{cell.name}.toml").read_text(encoding="utf-8"))
    assert tables["settings"] == {"algorithm": "q-learning", "task": "FrozenLake-v1", "budget": 100, "seeds": [3, 5]}
    assert tables["config"] == {"gamma": 0.9, "step_size": 0.1, "traces": "a b"}
    assert cell.command[:3] == ("train", "q-learning", "FrozenLake-v1")
    assert cell.command[5:7] == ("--preset", "paper")
    assert not cell.is_finished


def test_the_command_that_continues_a_sweep_is_quoted(tmp_path):
    sweep = Sweep(tmp_path / "my sweep", GIVEN)
    sweep.write()
    sweep.cells[0].path.mkdir(parents=True)
    with pytest.raises(ValueError, match=r"continue with `operant sweep '/.*/my sweep'`"):
        Sweep(tmp_path / "my sweep", GIVEN | {"seeds": 2})


def test_jobs_of_an_array_never_read_half_a_file(tmp_path):
    sweep = Sweep(tmp_path / "one", GIVEN)
    sweep.write()
    files = [tmp_path / "one" / "sweep.toml", *(tmp_path / "one" / "cells").iterdir()]
    before = [(file.stat().st_ino, file.stat().st_mtime_ns) for file in files]
    Sweep(tmp_path / "one").write()
    assert [(file.stat().st_ino, file.stat().st_mtime_ns) for file in files] == before
    expected = files[1].read_bytes()
    files[1].write_bytes(expected[:-9])
    with files[1].open("rb") as reader:  # a job that has begun to read
        sweep.write()
        assert reader.read() == expected[:-9]
    assert files[1].read_bytes() == expected


def test_a_damaged_grid_of_a_sweep_is_named(tmp_path):
    (tmp_path / "sweep.toml").write_text("algorithm = =", encoding="utf-8")
    with pytest.raises(ValueError, match=r"sweep\.toml is not TOML: Invalid value \(at line 1, column 13\)"):
        Sweep(tmp_path)


@pytest.mark.parametrize("error", [ValueError, ModuleNotFoundError, KeyboardInterrupt])
def test_a_cell_that_cannot_be_trained_leaves_no_folder(tmp_path, error):
    def parse(words):
        raise error("no such preset")

    with pytest.raises(error, match="no such preset"):
        Sweep(tmp_path / "one", GIVEN).check(parse)
    assert not (tmp_path / "one").exists()
    sweep = Sweep(tmp_path / "two", GIVEN)
    sweep.write()
    with pytest.raises(error):
        sweep.check(parse)
    assert Sweep(tmp_path / "two").grid == sweep.grid


def test_only_status_75_is_tried_again_and_not_for_ever(tmp_path):
    sweep, asked, told = Sweep(tmp_path / "one", {**GIVEN, "algorithm": "sarsa", "grid": {}}), [], []
    answers = iter([75, 75, 75, 75])
    done = sweep.run(
        workers=1,
        attempts=3,
        report=lambda cell, status: told.append((cell.name, status)),
        interrupted=lambda: False,
        execute=lambda words: asked.append(words) or next(answers),
    )
    assert done
    assert len(asked) == 3
    assert told == [("sarsa-FrozenLake-v1", 75)]


def test_nothing_begins_after_a_stop(tmp_path):
    sweep, asked = Sweep(tmp_path / "one", GIVEN), []
    stopped = lambda: bool(asked)  # noqa: E731 - after the first cell
    done = sweep.run(
        workers=1,
        attempts=3,
        report=lambda *_: None,
        interrupted=stopped,
        execute=lambda words: asked.append(words) or 75,
    )
    assert not done
    assert len(asked) == 1


@pytest.mark.parametrize("place", ["report", "start"])
def test_an_error_leaves_no_process_behind(tmp_path, monkeypatch, place):
    """The first cell ends, the second one sleeps, and an error occurs in the report of the first or the third start."""
    sweep, started = Sweep(tmp_path / "one", GIVEN), []

    def start(_):
        if len(started) == 2:
            raise OSError("start")
        seconds = 60 if started else 0
        started.append(subprocess.Popen([sys.executable, "-S", "-c", f"import time; time.sleep({seconds})"]))
        return started[-1]

    def report(*_):
        if place == "report":
            raise OSError("report")

    monkeypatch.setattr(sweep, "_start", start)
    try:
        with pytest.raises(OSError, match=place):
            sweep.run(workers=2, attempts=1, report=report, interrupted=lambda: False)
        assert [process.returncode for process in started] == [0, -signal.SIGTERM]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "A-v0"}, "a sweep needs algorithm, such as"),
        ({**GIVEN, "grids": {}}, "a sweep has no key 'grids'"),
        ({**GIVEN, "grid": {"gamma": []}}, r"\[grid\] gamma must be a list of values, got \[\]"),
        ({**GIVEN, "grid": 3}, r"grid must be a table, \[grid\], got 3"),
        ({**GIVEN, "settings": "x"}, r"settings must be a table, \[settings\], got 'x'"),
        ({**GIVEN, "config": []}, r"config must be a table, \[config\], got \[\]"),
        ({**GIVEN, "preset": 3}, 'preset must be a name, such as "paper", got 3'),
        ({**GIVEN, "algorithm": 5}, 'algorithm must be one or more names, such as "ppo", got 5'),
        ({**GIVEN, "algorithm": ["ppo", 3]}, r"algorithm must be one or more names, .* got \['ppo', 3\]"),
        ({**GIVEN, "task": []}, r"task must be one or more names, such as .*, got \[\]"),
        ({**GIVEN, "seeds": 0}, r"seeds must be their number, such as 5, or a list, such as \[0, 3\], got 0"),
        ({**GIVEN, "seeds": True}, "seeds must be their number, .*, got True"),
        ({**GIVEN, "seeds": 1.5}, "seeds must be their number, .*, got 1.5"),
        ({**GIVEN, "seeds": "all"}, "seeds must be their number, .*, got 'all'"),
        ({**GIVEN, "seeds": 10**12}, "a run can have at most 1000000 seeds, got 1000000000000"),
    ],
)
def test_invalid_grids_are_rejected(given, message):
    with pytest.raises(ValueError, match=message):
        Grid.of(given)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": {"step_size": [0.1, 0.2, 0.10]}}, r"\[grid\] step_size has the value 0\.1 twice"),
        ({"grid": {"steps": [1, 2, 1.0]}}, r"\[grid\] steps has the value 1\.0 twice"),
        ({"algorithm": ["sarsa", "ppo", "sarsa"]}, "algorithm has the value 'sarsa' twice, which would train the same"),
        ({"task": ["A-v0", "A-v0"]}, "task has the value 'A-v0' twice, which would train the same cell twice"),
        ({"grid": {"gamma": [0.9, 0.8]}}, r"gamma is in \[grid\] and in \[config\]"),
    ],
)
def test_a_grid_that_would_train_other_cells_than_it_names_is_rejected(changes, message):
    with pytest.raises(ValueError, match=message):
        Grid.of({**GIVEN, **changes})
    assert len(list(Grid.of({**GIVEN, "grid": {"flag": [True, 1]}}).cells())) == 4
