import csv

import numpy as np
import pytest

import operant
from operant.cli import main
from operant.runtime.exported_policy import Policy
from operant.runtime.exporting import write_policy
from operant.runtime.settings import Settings


def test_a_table_is_written_as_actions_and_as_csv(tmp_path):
    common = {"seeds": 2, "budget": 20_000, "evaluate_episodes": 2, "progress": "silent"}
    trained = operant.train("q-learning", "CliffWalking-v1", run=tmp_path / "run", **common)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "policy"), "--seed", "1"]) == 0
    q, policy = trained.q[1], Policy(tmp_path / "policy")
    best = np.isclose(q, q.max(axis=1, keepdims=True), rtol=0, atol=1e-12).sum(axis=1) == 1
    states = np.flatnonzero(best)
    assert len(states) > 10
    expected = trained.predict(states, seed_index=1)[0]
    assert (policy.predict(states) == expected).all()
    assert policy.predict(states[0]) == expected[0]
    with (tmp_path / "policy" / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(rows[20][f"q_{action}"]) for action in range(4)] == q[20].tolist()
    assert int(rows[20]["action"]) == policy.predict(20)


def test_observations_without_one_array_are_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"observations that are one array .*got Tuple"):
        write_policy(Settings("q-learning", "Blackjack-v1"), 0, ({"kind": "table"}, {}), tmp_path)
