import json

import pytest

from operant import catalog, doors
from operant.catalog.bonuses import BONUSES
from operant.control.ppo import PRESETS


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
@pytest.mark.parametrize("arguments", [["list"], ["list", "ppo"], ["list", "rnd"], ["--help"]])
def test_lines_fit_the_terminal(columns, arguments, cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = cli(*arguments)
    assert status == 0
    assert max(map(len, out.splitlines())) <= columns


@pytest.mark.parametrize("arguments", [["train"], ["train", "ppo"], ["solve"], ["compare"], ["resume"], ["doctor"]])
def test_help_texts_fit_80_columns_also_in_a_pipe(arguments, cli, monkeypatch):
    monkeypatch.delenv("COLUMNS")
    status, out, _ = cli(*arguments, "--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80


def test_every_algorithm_is_named(cli, answer):
    status, out, _ = cli("list")
    assert status == 0
    for algorithm in catalog.ALGORITHMS:
        assert any(line.split()[:1] == [algorithm.name] and algorithm.paper in line for line in out.splitlines())
    assert [entry["name"] for entry in answer("list")["algorithms"]] == [a.name for a in catalog.ALGORITHMS]


def test_one_algorithm_in_full(cli, answer):
    status, out, _ = cli("list", "ppo")
    assert status == 0
    assert catalog.find("ppo").idea in out
    assert "paper: the defaults" in out
    assert all(f"  {name}: " in out for name in PRESETS)
    presets = {"paper": {}} | {name: dict(values) for name, values in PRESETS.items()}
    assert answer("list", "ppo")["presets"] == json.loads(json.dumps(presets))


def test_an_algorithm_for_language_models(cli):
    status, out, _ = cli("list", "grpo")
    assert status == 0
    assert "tasks   arithmetic, " in out
    assert "20000 prompts per seed (40000 on arithmetic, 4000 on preference, 40000 on steps)" in " ".join(out.split())
    assert "  dapo: " in out
    assert "small built-in models use learning_rate = " in out
    assert "model of the world" not in out


def test_an_unknown_algorithm(cli):
    assert cli("list", "pppo") == (2, "", "operant: error: no algorithm is called 'pppo'; did you mean 'ppo'?\n")


def test_bonuses_are_named(cli, answer):
    _, said, _ = cli("list")
    told = answer("list")["bonuses"]
    assert [bonus["name"] for bonus in told] == list(BONUSES)
    for name, bonus in BONUSES.items():
        assert f"  {name} " in said
        assert bonus.idea in said


@pytest.mark.parametrize("name", BONUSES)
def test_a_bonus_in_full(name, cli, answer):
    bonus = BONUSES[name]
    status, out, _ = cli("list", name)
    assert status == 0
    assert out.startswith(f"{name}: exploration bonus")
    assert all(text in out for text in (bonus.idea, bonus.paper, bonus.module, f"--bonus {name}`"))
    told = answer("list", name)
    kind = doors.load(bonus.place, expected="a bonus")
    assert kind.__module__ == told["module"]
    lines = {line.split(" = ")[0].strip(): line for line in out.splitlines() if " = " in line}
    for parameter, value in told["parameters"].items():
        assert f"  {parameter} = {value}  " in lines[parameter], "a description follows"
    assert {"weight", "episodic", "channel", "gamma"} <= {*told["parameters"]}
    assert "mixed" not in told["parameters"]


def test_the_command_of_a_file_with_spaces_is_quoted(cli, tmp_path):
    assert cli("copy", "ppo", path := tmp_path / "my ppo.py")[0] == 0
    assert f"`operant train '{path}:PPO' --help` explains all options." in cli("list", f"{path}:PPO")[1]
