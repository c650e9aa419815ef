import json

from operant import catalog
from operant.control.ppo import PRESETS


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
    assert "20000 prompts a seed" in out
    assert "  dapo: " in out
    assert "the small models that are built here get learning_rate = " in out
    assert "model of the world" not in out


def test_an_unknown_algorithm(cli):
    assert cli("list", "pppo") == (2, "", "operant: error: no algorithm is called 'pppo'; did you mean 'ppo'?\n")
