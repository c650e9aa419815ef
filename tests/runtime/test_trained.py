import math
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

import operant
from operant.envs import Wrapper
from operant.language import SFTConfig
from operant.runtime.evaluation import Evaluation
from operant.runtime.metrics import RecordWriter
from operant.runtime.run import Run
from operant.runtime.settings import Settings

QUICK = {"budget": 320, "evaluate_every": 160, "evaluate_episodes": 2, "progress": "silent", "num_envs": 2}
SMALL = {"num_steps": 16, "num_minibatches": 2, "num_epochs": 2, "hidden_sizes": (8,)}


def train(folder, **changes):
    return operant.train("ppo", "CartPole-v1", **{"run": folder, "seeds": 2, **QUICK, **SMALL, **changes})


def test_the_best_seed_acts_where_that_is_asked_for(tmp_path):
    trained = train(tmp_path / "run", seeds=3)
    scores = trained.outcome.evaluation.scores
    assert trained.best_seed == scores.index(max(scores))
    obs = np.array([0.1, 0.2, -0.1, 0.3], np.float32)
    assert trained.predict(obs, seed_index="best") == trained.predict(obs, seed_index=trained.best_seed)


def test_sampled_actions_come_from_a_separate_stream(tmp_path):
    trained = train(tmp_path / "run")
    obs = np.zeros((64, 4), np.float32)
    likeliest, _ = trained.predict(obs)
    assert len(set(likeliest.tolist())) == 1
    draws = [operant.load(tmp_path / "run") for _ in range(2)]
    first, second = ([run.predict(obs, deterministic=False)[0].tolist() for _ in range(2)] for run in draws)
    assert first == second
    assert first[0] != first[1]
    assert {*first[0]} == {0, 1}


def test_sampled_actions_of_a_seed_do_not_depend_on_the_others(tmp_path):
    obs = np.zeros((64, 4), np.float32)
    both, alone = (train(tmp_path / str(len(seeds)), seeds=seeds) for seeds in ([0, 1], [1]))
    both.predict(obs, deterministic=False)
    draws = [both.predict(obs, seed_index=1, deterministic=False)[0], alone.predict(obs, deterministic=False)[0]]
    assert draws[0].tolist() == draws[1].tolist()
    assert both.evaluate(20, deterministic=False).scores[1] == alone.evaluate(20, deterministic=False).scores[0]


def test_a_language_model_is_talked_to_with_a_quoted_command(tmp_path):
    (tmp_path / "my runs").mkdir()
    model = Run.create(tmp_path / "my runs" / "one", Settings("sft", "arithmetic"), SFTConfig())
    with pytest.raises(
        ValueError,
        match=r"use `find_chat_model` and .*`operant export '/.*/my runs/one'`.*try `operant chat '/.*/my runs/one'`",
    ):
        replace(train(tmp_path / "run"), run=model).predict(np.zeros(4, np.float32))


@pytest.mark.parametrize(("algorithm", "first"), [("ppo", 50), ("q-learning", 100)])
def test_a_changing_task_of_a_best_policy_is_that_of_its_seed(algorithm, first, tmp_path):
    options = {"num_envs": 2, **SMALL} if algorithm == "ppo" else {}
    options |= {"seeds": 2, "budget": 320, "evaluate_episodes": 1, "evaluate_max_steps": 20, "progress": "silent"}
    trained = operant.train(algorithm, "operant/BlockingMaze-v0", run=tmp_path / "run", **options)
    latest = trained.evaluation_kwargs
    assert latest == {"frozen_at": trained.experiment.learner.consumed // (100 // first)}
    best = replace(trained, consumed=(100, 200))
    assert [best.evaluation_kwargs_of(index) for index in range(2)] == [{"frozen_at": n * first} for n in (1, 2)]
    assert trained.evaluation_kwargs_of(1) == best.evaluation_kwargs == latest


class Leftward(Wrapper):
    """Always pushes to the left, also in evaluations."""

    in_evaluation = True

    def step(self, actions):
        return self.env.step(0 * actions)


def test_wrappers_of_an_evaluation_are_classes_or_names(tmp_path):
    trained = train(tmp_path / "run")
    found = [trained.evaluate(2, wrappers=wrappers).scores for wrappers in ([Leftward], f"{__file__}:Leftward")]
    assert found[0] == found[1]
    assert max(found[0]) < 11


def test_the_repr_fits_a_screen(tmp_path):
    assert len(repr(train(tmp_path / "run"))) < 2000


def test_values_of_other_types_are_named(tmp_path):
    trained = train(tmp_path / "run")
    for episodes in ("2", 2.5):
        with pytest.raises(ValueError, match=f"episodes must be an integer, got {episodes!r}"):
            trained.evaluate(episodes)
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        trained.evaluate(0)
    with pytest.raises(ValueError, match="seed_index must be an integer or \"best\", got 'first'"):
        trained.predict(np.zeros(4, np.float32), seed_index="first")
    with pytest.raises(ValueError, match="hidden_state is for recurrent policies, and this policy has none"):
        trained.predict(np.zeros(4, np.float32), np.zeros(8, np.float32))
    with pytest.raises(
        ValueError, match="at must be an integer between 0 and 320, the budget used by run, got 'start'"
    ):
        operant.load(tmp_path / "run", at="start")
    with pytest.raises(ValueError, match=r"the observation is a pair, as env\.reset\(\) returns: pass its first part"):
        trained.predict((np.zeros(4, np.float32), {}))


def test_the_best_seed_has_a_score(tmp_path):
    trained = train(tmp_path / "run")
    with closing(RecordWriter(trained.run.evaluations_path)) as writer:
        writer.write({"consumed": 320} | Evaluation.of([[1.0], [math.nan]]).record())
    assert operant.load(tmp_path / "run").best_seed == 0
