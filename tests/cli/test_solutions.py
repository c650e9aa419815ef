import csv
import json
from dataclasses import replace

import numpy as np
import pytest

from operant.cli.solutions import action_name, average_answer, discounted_answer, horizon_answer, state_name, write
from operant.mdp import MDP, backward_induction, relative_value_iteration, solve
from operant.mdp.maps import Mapped

NUMBERED = MDP.from_arrays([[[0.0, 1.0], [1.0, 0.0]], [[0.5, 0.5], [0.0, 1.0]]], [[0.0, 1.0], [2.0, 0.0]], start=1)
MODEL = Mapped("two", replace(NUMBERED, state_names=("home", "work"), action_names=("go", "rest")))
ANSWERS = {
    "discounted": lambda: discounted_answer(MODEL, solve(MODEL.mdp, gamma=0.9)),
    "horizon": lambda: horizon_answer(MODEL, backward_induction(MODEL.mdp, horizon=3)),
    "average": lambda: average_answer(MODEL, relative_value_iteration(MODEL.mdp)),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_q_explains_values_and_policy(kind):
    answer = ANSWERS[kind]()
    values = answer.values[:-1] if kind == "horizon" else answer.values
    np.testing.assert_allclose(answer.q.max(axis=-1), values, atol=1e-5)
    np.testing.assert_array_equal(answer.q.argmax(axis=-1), answer.policy)


@pytest.mark.parametrize("kind", ANSWERS)
def test_files_hold_the_answer(kind, tmp_path):
    answer = ANSWERS[kind]()
    for name in ("a.csv", "a.json", "new/a.npz"):
        write(answer, tmp_path / name)
    with np.load(tmp_path / "new" / "a.npz", allow_pickle=False) as file:
        for name in ("values", "policy", "q"):
            np.testing.assert_array_equal(file[name], getattr(answer, name))
    found = json.loads((tmp_path / "a.json").read_text())
    assert found["values"] == answer.values.tolist()
    assert np.shape(found["q"]) == answer.q.shape
    with (tmp_path / "a.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == (6 if kind == "horizon" else 2)
    assert [line["state"] for line in lines[:2]] == ["home", "work"]
    assert float(lines[1]["value"]) == answer.values.reshape(-1, 2)[0, 1]
    assert lines[0]["action"] == MODEL.mdp.action_names[answer.policy.reshape(-1, 2)[0, 0]]
    assert float(lines[1]["q_rest"]) == answer.q.reshape(-1, 2, 2)[0, 1, 1]


def test_the_start_is_named():
    answer = ANSWERS["discounted"]()
    assert f"value at the start (state work): {answer.values[1]:.8g}" in answer.heading
    assert answer.record["start_value"] == answer.values[1]


def test_names_or_numbers():
    assert (state_name(MODEL, 1), action_name(MODEL, 0)) == ("work", "go")
    bare = Mapped("bare", NUMBERED)
    assert (state_name(bare, 1), action_name(bare, 0)) == ("1", "0")
