import json

import pytest

from operant.cli import main

METHODS = [
    "auto",
    "value-iteration",
    "gauss-seidel",
    "q-value-iteration",
    "policy-iteration",
    "modified-policy-iteration",
    "prioritised-sweeping",
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
    assert "value of the first state: 0.542" in text
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
    ],
)
def test_wrong_use_is_said_in_one_line(arguments, message, capsys):
    assert main(["solve", *arguments]) in (1, 2)
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
