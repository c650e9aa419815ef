import json
from typing import get_args

import pytest

from operant import mdp
from operant.cli import main
from operant.cli.solving import Method

METHODS = [
    "auto",
    "value-iteration",
    "gauss-seidel",
    "q-value-iteration",
    "policy-iteration",
    "modified-policy-iteration",
    "inexact-policy-iteration",
    "asynchronous-value-iteration",
    "prioritized-sweeping",
    "linear-programming",
]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_finds_the_value_of_the_lake(method, capsys):
    assert main(["solve", "FrozenLake-v1", "--method", method, "--gamma", "0.99", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["values"][0] == pytest.approx(0.542026, abs=2e-6)
    assert answer["converged"]
    assert answer["task"] == "FrozenLake-v1"
    if answer["lower"] is not None:
        rows = zip(answer["lower"], answer["values"], answer["upper"], strict=True)
        assert all(low <= value <= high for low, value, high in rows)


def test_a_grid_is_drawn_with_arrows_and_values(capsys):
    assert main(["solve", "FrozenLake-v1", "--method", "modified-policy-iteration"]) == 0
    text = capsys.readouterr().out
    assert "value at the start (state 0): 0.542" in text
    assert "certified to" in text
    map_ = text.splitlines()[-4:]
    assert map_[0].startswith("←↑↑↑")
    assert [line[:4] for line in map_][3].endswith("G")


def test_a_model_without_a_map_is_listed(tmp_path, capsys):
    path = tmp_path / "chain.csv"
    path.write_text("s,a,s',p,r\n0,0,1,1.0,2.5\n0,1,0,1.0,0.0\n")
    assert main(["solve", "--mdp", str(path), "--gamma", "0.9"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-3].split() == ["state", "value", "lower", "upper", "action"]
    assert lines[-2].split()[:2] == ["0", "2.5"]
    assert lines[-1].split()[-1] == "end"


def test_every_method_of_the_library_can_be_named():
    assert set(mdp.solving.METHODS) < set(get_args(Method)) == {*METHODS}


NAMED = "s;a;s';p;r\nhome;go;work;1;0\nwork;rest;home;0.33333334;1\nwork;rest;work;0.6666667;2\n"


@pytest.fixture
def named(tmp_path):
    """Return a table with names, other separators, and probabilities rounded to float32."""
    path = tmp_path / "named.csv"
    path.write_text(NAMED)
    return path


def test_a_table_with_names_is_listed_by_them(named, cli, caplog):
    status, out, _ = cli("solve", "--mdp", named, "--gamma", "0.9")
    assert status == 0
    assert "value at the start (mean over 2 states): " in out
    assert [line.split()[::4] for line in out.splitlines()[-2:]] == [["home", "go"], ["work", "rest"]]
    assert caplog.text.count("float32") == 1
    named.write_text(NAMED.replace(";", "|"))
    assert cli("solve", "--mdp", named, "--separator", "|")[0] == 0
    named.write_text(NAMED.replace("0.33333334", "0.3333"))
    status, _, err = cli("solve", "--mdp", named)
    assert status == 2
    assert "state 1, action 1: the probabilities sum to 0.9999667" in err


def test_the_average_reward(named, answer, cli, tmp_path):
    found = answer("solve", "--mdp", named, "--criterion", "average")
    assert found["gain"] == pytest.approx(1.25, abs=2e-6)  # 5/3 per step in work, where it is 3/4 of the time
    assert found["state_names"] == ["home", "work"]
    path = tmp_path / "two.csv"
    path.write_text("s,a,s',p,r\n0,0,0,1,1\n1,0,1,1,2\n")
    status, out, _ = cli("solve", "--mdp", path, "--criterion", "average")
    assert status == 1
    assert "NOT converged: the model has 2 closed classes" in out


def test_a_finite_horizon(answer, cli):
    found = answer("solve", "FrozenLake-v1", "--horizon", "100")
    assert found["start_value"] == pytest.approx(0.744190, abs=1e-6)
    assert (len(found["values"]), len(found["policy"]), found["gamma"]) == (101, 100, 1.0)
    assert "horizon 2, gamma 0.5" in cli("solve", "FrozenLake-v1", "--horizon", "2", "--gamma", "0.5")[1]


def test_a_drawing_is_solved(tmp_path, capsys):
    path = tmp_path / "grid.txt"
    path.write_text("S.#\n..G\n")
    assert main(["solve", "--map", str(path), "--gamma", "0.9"]) == 0
    text = capsys.readouterr().out
    assert "#" in text.splitlines()[-2]
    assert "G" in text.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "exactly one model"),
        (["CartPole-v1"], "CartPole"),
        (["FrozenLake-v1", "--gamma", "1.5"], "gamma"),
        (["--mdp", "missing.json"], "missing.json"),
        (["FrozenLake-v1", "--criterion", "average"], "state 5 is terminal"),
        (["FrozenLake-v1", "--horizon", "0"], "horizon is 0, expected at least 1"),
    ],
)
def test_wrong_use_is_said_in_one_line(arguments, message, capsys):
    assert main(["solve", *arguments]) in (1, 2)
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


@pytest.mark.parametrize(
    "flags",
    [
        ["--criterion", "average", "--gamma", "1"],
        ["--criterion", "average", "--horizon", "1"],
        ["--horizon", "3", "--method", "policy-iteration"],
        ["--out", "values.txt"],
    ],
)
def test_options_that_do_not_go_together(flags, cli):
    assert cli("solve", "FrozenLake-v1", *flags)[:2] == (2, "")


def test_a_file_that_cannot_be_written_is_an_error_before_the_solution(cli, tmp_path):
    (tmp_path / "file").touch()
    status, out, err = cli("solve", "FrozenLake-v1", "--out", tmp_path / "file" / "values.csv")
    assert (status, out) == (2, "")
    assert "values.csv cannot be written: " in err
