import dataclasses

import numpy as np
import pytest

import operant
from operant import mdp
from operant.mdp.environment import ModelEnv, task_of

TABLE = """s,a,s',p,r,terminates
left,wait,left,1,0,0
left,go,right,1,0,0
right,wait,right,1,0,0
right,go,right,1,1,1
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "model.csv"
    path.write_text(TABLE)
    return path


def test_the_environment_samples_from_the_model(table):
    env = ModelEnv(str(table))
    env.reset(seed=0, options={"state": 0})
    assert env.step(1)[:3] == (1, 0.0, False)
    assert env.step(1)[:3] == (1, 1.0, True)
    model = mdp.MDP.from_table(str(table))
    again = mdp.MDP.from_gymnasium(env)
    np.testing.assert_array_equal(again.successors, model.successors)
    np.testing.assert_array_equal(again.start, model.start)


def test_the_step_limit_is_that_of_the_model_or_a_given_one(table, tmp_path):
    model = dataclasses.replace(mdp.MDP.from_table(str(table)), max_steps=7)
    name, kwargs = task_of(model, {}, tmp_path / "objects")
    assert kwargs["max_episode_steps"] == 7
    assert mdp.MDP.from_gymnasium(name, **kwargs).max_steps == 7
    assert task_of(model, {"max_episode_steps": 3}, tmp_path / "objects")[1] == {**kwargs, "max_episode_steps": 3}
    assert [path.name for path in (tmp_path / "objects").iterdir()] == [kwargs["file"].rpartition("/")[2]]
    assert "max_episode_steps" not in task_of(str(table), {}, tmp_path)[1]


def test_tables_are_trained_on_files_and_models(table, tmp_path):
    options = {"budget": 2000, "gamma": 0.5, "progress": "silent"}
    trained = operant.train("q-learning", str(table), run=tmp_path / "a", **options)
    np.testing.assert_allclose(trained.q[0].max(axis=1), [0.5, 1.0], atol=0.05)
    assert operant.load(tmp_path / "a").evaluate().mean == 1.0
    assert operant.resume(tmp_path / "a", budget=3000, progress="silent").q[0, 1, 1] == pytest.approx(1.0, abs=0.05)
    same = operant.train("q-learning", mdp.MDP.from_table(str(table)), run=tmp_path / "b", **options)
    np.testing.assert_array_equal(same.q, trained.q)
    records = operant.load(tmp_path / "a").run.facts()["inputs"]
    assert [(record["name"], record["path"]) for record in records] == [("model", str(table))]


def test_a_file_that_is_no_model_is_named(tmp_path):
    (tmp_path / "wrong.csv").write_text("a,b")
    with pytest.raises(ValueError, match=r"wrong.csv cannot be read as a table"):
        operant.train("q-learning", str(tmp_path / "wrong.csv"), run=tmp_path / "run")
    with pytest.raises(FileNotFoundError):
        operant.train("q-learning", str(tmp_path / "none.csv"), run=tmp_path / "run")


def test_a_model_may_be_moved_with_its_run(table, tmp_path):
    (tmp_path / "one").mkdir()
    table.rename(tmp_path / "one" / "model.csv")
    operant.train("q-learning", str(tmp_path / "one" / "model.csv"), run=tmp_path / "one" / "run", budget=2000)
    (tmp_path / "one").rename(tmp_path / "two")
    assert operant.load(tmp_path / "two" / "run").evaluate().mean == 1.0
