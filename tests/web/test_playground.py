import base64
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from operant import mdp
from operant.cli import main
from operant.mdp import maps
from operant.web import playground
from operant.web.simulating import LEARNERS
from operant.web.worlds import WORLDS

HERE = Path()
TRAP = WORLDS[0].drawing


def numbers(text, kind="<f8"):
    return np.frombuffer(base64.b64decode(text), kind)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_the_exact_numbers_are_those_of_solve(world, tmp_path, capsys):
    drawing = tmp_path / "world.txt"
    drawing.write_text(world.drawing, encoding="utf-8")
    found = playground.exact(HERE, world.drawing, world.gamma)
    assert main(["solve", "--map", str(drawing), "--gamma", str(world.gamma), "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    np.testing.assert_allclose(numbers(found["values"]), expected["values"], atol=1e-9, rtol=0)
    assert [0 if a < 0 else 1 << a for a in expected["policy"]] == numbers(found["policy"], "<u2").tolist()


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_world_is_the_task_that_it_is_called(world):
    """FrozenLake orders its actions differently, which does not change the values."""
    values = mdp.solve(maps.read(world.task).mdp, gamma=world.gamma, tolerance=1e-9).values
    found = playground.exact(HERE, world.drawing, world.gamma)
    np.testing.assert_allclose(numbers(found["values"]), values, atol=1e-9, rtol=0)


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.name)
def test_a_world_survives_being_described(world):
    (described,) = [found for found in playground.presets(HERE) if found["name"] == world.name]
    rules = {"slip": 0.0, "step": 0.0, "goal": 1.0, "hole": 0.0, "cliff": -100.0} | described["rules"]
    lines = [f"{name}: {rules[name]!r}" for name in ("step", "goal", "hole", "cliff", "slip")]
    lines += [] if rules["bump"] is None else [f"bump: {rules['bump']!r}"]
    lines += [f"wind: {' '.join(map(str, rules['wind']))}"] if rules["wind"] else []
    lines += [f"jump: {jump}" for jump in described["jumps"]]
    lines += [" ".join(row) for row in described["cells"]]
    again = playground.exact(HERE, "\n".join(lines), world.gamma)
    assert again["values"] == playground.exact(HERE, world.drawing, world.gamma)["values"]


def test_the_page_lists_the_same_algorithms_with_the_same_parameters():
    script = (Path(playground.__file__).parent / "static" / "js" / "algorithms.js").read_text(encoding="utf-8")
    fields = dict(re.findall(r'^  (\w+): \{ .*field: "(\w+)"', script, re.MULTILINE))
    rows = re.findall(r'^    \["([\w-]+)", "[^"]+", \[(.*)\]\],$', script, re.MULTILINE)
    found = {name: {fields.get(knob, knob) for knob in re.findall(r'"(\w+)"', knobs)} for name, knobs in rows}
    assert set(found) == {*playground.SOLVERS, *LEARNERS}
    for name, parameters in LEARNERS.items():
        assert found[name] == {*parameters, "initial_value", "seed", "stride"}


@pytest.mark.parametrize("algorithm", playground.SOLVERS)
def test_a_solver_ends_at_the_exact_solution_and_its_bounds_hold(algorithm):
    found = playground.frames(HERE, TRAP, algorithm, 0.9)
    assert found["complete"]
    assert found["errors"][-1] < 1e-9
    assert found["errors"][0] > 0.1
    assert all(bound >= error - 1e-12 for error, bound in zip(found["errors"], found["bounds"], strict=True))
    values = numbers(found["values"]).reshape(found["frames"], -1)
    np.testing.assert_allclose(values[-1], numbers(found["exact"]["values"]), atol=1e-9, rtol=0)
    assert found["ticks"] == sorted(found["ticks"])


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_frames_of_a_learner_do_not_depend_on_how_many_there_are(algorithm):
    fine = playground.frames(HERE, TRAP, algorithm, 0.9, seed=3, stride=50, count=20)
    coarse = playground.frames(HERE, TRAP, algorithm, 0.9, seed=3, stride=500, count=2)
    assert (fine["frames"], coarse["frames"]) == (21, 3)
    assert fine["ticks"][::10] == coarse["ticks"] == [0, 500, 1000]
    a, b = (numbers(found["values"]).reshape(found["frames"], -1) for found in (fine, coarse))
    np.testing.assert_array_equal(a[::10], b)
    assert fine["predicts"] is (algorithm in ("td-lambda", "monte-carlo-prediction"))


def test_a_learner_learns_what_train_learns(tmp_path):
    """The printed command gives the same table."""
    from operant.api import load

    found = playground.frames(HERE, WORLDS[6].drawing, "q-learning", 0.95, step_size=0.5, seed=2, stride=100, count=10)
    drawing = tmp_path / "world.txt"
    drawing.write_text(WORLDS[6].drawing, encoding="utf-8")
    words = found["command"].replace("world.txt", str(drawing)).split()[1:]
    assert main([*words, "--run", str(tmp_path / "run"), "--progress", "silent"]) == 0
    trained = load(tmp_path / "run")
    table = np.where(trained.experiment.learner.feasible, trained.experiment.learner.q[0], -np.inf)
    trained.close()
    last = numbers(found["q"]).reshape(found["frames"], *table.shape)[-1]
    np.testing.assert_array_equal(last, table)


def test_an_exported_world_is_read_by_solve(tmp_path):
    path = tmp_path / "world.json"
    path.write_text(playground.export(HERE, TRAP)["text"], encoding="utf-8")
    solution = mdp.solve(mdp.load(path), gamma=0.9, tolerance=1e-9)
    np.testing.assert_array_equal(solution.values, numbers(playground.exact(HERE, TRAP, 0.9)["values"]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"algorithm": "magic"}, "algorithm must be one of"),
        ({"algorithm": "q-learning", "step_size": 3.0}, "step_size"),
        ({"algorithm": "q-learning", "stride": 0}, "stride and count must be at least 1"),
        ({"algorithm": "q-learning", "stride": 10**6, "count": 10**3}, "at most 5000000 steps in total"),
        ({"algorithm": "value-iteration", "gamma": 1.5}, "gamma"),
        ({"algorithm": "value-iteration", "drawing": "\n".join(["." * 101] * 100)}, "cells, got 10100"),
    ],
)
def test_invalid_requests_are_rejected(arguments, message):
    with pytest.raises(ValueError, match=message):
        playground.frames(HERE, **{"drawing": TRAP, "gamma": 0.9, **arguments})


def test_tokens_keep_their_numbers():
    described = playground.read(HERE, "S . +0.1 -2.5e-3 (+7) #")
    assert described["cells"] == [["S", ".", "+0.1", "-0.0025", "(+7)", "#"]]


def test_planning_and_labels_do_without_torch():
    code = "import sys; from operant.web import labels, playground as p; from operant.web.worlds import WORLDS"
    code += "; p.presets(None); p.frames(None, WORLDS[0].drawing, 'policy-iteration', 0.9)"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
