import json
import multiprocessing
import re
import shutil
import signal
from dataclasses import fields, replace

import gymnasium
import numpy as np
import pytest
import torch

import operant
from operant import api, check, streams
from operant.control import PPO, PPOConfig
from operant.envs import RestoreError
from operant.language.sft import SFTConfig
from operant.runtime.checkpoints import CheckpointError
from operant.runtime.encoding import flatten
from operant.runtime.metrics import read_records
from operant.runtime.run import Run, RunError
from operant.runtime.settings import Settings
from operant.runtime.weights import Best

SMALL = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "num_epochs": 2, "hidden_sizes": (8,)}
QUICK = {"budget": 320, "evaluate_every": 160, "evaluate_episodes": 2, "progress": "silent", **SMALL}


def train(folder, **changes):
    return operant.train("ppo", "CartPole-v1", **{"run": folder, "seeds": 2, **QUICK, **changes})


def interrupted_after(iterations):
    """Return an ``interrupted`` that is true after `iterations` iterations."""
    questions = iter(range(10**9))
    return lambda: next(questions) >= iterations


def test_the_library_in_four_lines(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = operant.train("ppo", "CartPole-v1", seeds=2, **QUICK)
    assert repr(trained).startswith(
        f"Trained(Run('{trained.run.path}': ppo on CartPole-v1, 2 seeds from 0, budget 320), consumed=320, Evaluation("
    )
    assert len(repr(trained).replace(str(trained.run.path), "")) < 240
    score = trained.evaluate(episodes=10)
    again = operant.load(trained.run.path)
    assert again.evaluate(episodes=10) == score
    assert score.episodes == 10
    assert len(score.scores) == 2
    assert score.mean > 5


def test_a_run_holds_what_was_asked_for_and_what_came_of_it(tmp_path):
    trained = train(tmp_path / "run", seeds=3, seed=7, gamma=0.9, env_backend="gymnasium", command=("python", "x.py"))
    assert trained.run.settings.seeds == (7, 8, 9)
    assert trained.run.settings.env_backend == "gymnasium"
    assert trained.experiment.learner.config == PPOConfig(
        **api.configure("ppo", "CartPole-v1", **SMALL, gamma=0.9).__dict__
    )
    assert Run.open(tmp_path / "run").config(PPOConfig) == trained.experiment.learner.config
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["resolved"] == {"device": "cpu", "threads": 1, "precision": "highest", "compile": False}
    assert facts["sessions"][0]["command"] == ["python", "x.py"]
    outcome = trained.outcome
    assert outcome.consumed == trained.experiment.learner.consumed == 320
    assert not outcome.interrupted
    assert outcome.checkpoint.is_dir()
    assert outcome.evaluation.episodes == 2
    assert [r["consumed"] for r in read_records(trained.run.evaluations_path)] == [160, 320]
    records = read_records(trained.run.metrics_path)
    assert records[-1]["consumed"] == 320
    assert len(records[-1]["losses/policy"]) == 3


def test_runs_without_a_name_are_counted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [operant.train("ppo", "CartPole-v1", **QUICK).run.path for _ in range(2)]
    assert paths == [tmp_path / "runs" / f"ppo-CartPole-v1-{n}" for n in (1, 2)]


@pytest.mark.parametrize("seeds", [(11, 4), np.array([11, 4]), list(np.array([11, 4]))])
def test_seeds_can_be_named(tmp_path, seeds):
    assert train(tmp_path / "run", seeds=seeds).experiment.learner.seeds == [11, 4]
    assert Run.open(tmp_path / "run").settings.seeds == (11, 4)


def test_a_whole_configuration_can_be_given(tmp_path):
    config = PPOConfig(**SMALL, gamma=0.8)
    quick = {name: value for name, value in QUICK.items() if name not in SMALL}
    trained = operant.train("ppo", "CartPole-v1", run=tmp_path / "run", config=config, **quick)
    assert trained.experiment.learner.config is config


@pytest.mark.parametrize("iterations", [1, 4])
@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_an_interrupted_run_is_resumed_to_the_same_end(tmp_path, iterations, backend):
    whole = train(tmp_path / "whole", env_backend=backend, normalize_obs=True)
    part = train(
        tmp_path / "part",
        env_backend=backend,
        normalize_obs=True,
        interrupted=interrupted_after(iterations),
    )
    assert part.outcome.interrupted
    assert part.outcome.exit_code != 0
    assert part.outcome.consumed < 320
    resumed = operant.resume(tmp_path / "part", progress="silent", command=("again",))
    assert not resumed.outcome.interrupted
    assert resumed.outcome.consumed == 320
    assert torch.equal(resumed.experiment.learner.agent.parameters, whole.experiment.learner.agent.parameters)
    assert resumed.evaluate(4) == whole.evaluate(4)
    evaluations = [read_records(run / "eval" / "evaluations.jsonl") for run in (tmp_path / "whole", tmp_path / "part")]
    assert [r["scores"] for r in evaluations[0]] == [r["scores"] for r in evaluations[1]]
    assert [session["command"] for session in resumed.run.facts()["sessions"]][1:] == [["again"]]


@pytest.mark.parametrize("call", ["train", "resume"])
def test_a_keyboard_interrupt_saves_the_state_before_it_propagates(tmp_path, monkeypatch, call):
    if call == "resume":
        train(tmp_path / "run", interrupted=interrupted_after(2))
    iterate = PPO.iterate

    def interrupt(learner):
        if learner.consumed >= 160:
            signal.raise_signal(signal.SIGINT)
        return iterate(learner)

    monkeypatch.setattr(PPO, "iterate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run") if call == "train" else operant.resume(tmp_path / "run", progress="silent")
    monkeypatch.undo()
    assert operant.load(tmp_path / "run").experiment.learner.consumed == 192
    resumed, whole = operant.resume(tmp_path / "run", progress="silent"), train(tmp_path / "whole")
    assert torch.equal(resumed.experiment.learner.agent.parameters, whole.experiment.learner.agent.parameters)


def test_a_finished_run_can_be_resumed_and_stays_as_it_is(tmp_path):
    finished = train(tmp_path / "run")
    before = finished.run.metrics_path.read_bytes()
    again = operant.resume(tmp_path / "run", progress="silent")
    assert again.outcome.consumed == 320
    assert torch.equal(again.experiment.learner.agent.parameters, finished.experiment.learner.agent.parameters)
    assert again.run.metrics_path.read_bytes() == before


class Dice(gymnasium.Env):
    """Environment with a generator that cannot be seeded."""

    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    dice = np.random.default_rng()

    def reset(self, *, seed=None, options=None):
        self.left = 5
        return self.dice.random(1, np.float32), {}

    def step(self, action):
        self.left -= 1
        return self.dice.random(1, np.float32), 1.0, self.left == 0, False, {}


@pytest.mark.parametrize(
    ("algorithm", "values"), [("ppo", SMALL | {"normalize_obs": True}), ("dqn", {"learning_starts": 20})]
)
def test_a_policy_of_an_unseeded_environment_can_be_evaluated(tmp_path, monkeypatch, algorithm, values):
    spec = gymnasium.envs.registration.EnvSpec("OperantTestDice-v0", Dice)
    monkeypatch.setitem(gymnasium.registry, "OperantTestDice-v0", spec)
    options = {"run": tmp_path / "run", "budget": 64, "evaluate_episodes": 2, "progress": "silent"}
    trained = operant.train(algorithm, "OperantTestDice-v0", **options, **values)
    assert trained.evaluate(4).scores == operant.load(tmp_path / "run").evaluate(4).scores == (5.0,)
    with pytest.raises(RestoreError, match="`operant resume --new-episodes` continues with new episodes"):
        operant.resume(tmp_path / "run", progress="silent")
    longer = operant.resume(tmp_path / "run", budget=128, new_episodes=True, progress="silent")
    assert longer.outcome.consumed == 128
    assert [session.get("new_episodes", False) for session in longer.run.facts()["sessions"]] == [False, True]


def test_a_finished_run_continues_to_a_larger_budget_and_saves_it(tmp_path):
    train(tmp_path / "run", lr_schedule="linear")
    for _ in range(2):
        longer = operant.resume(tmp_path / "run", budget=640, progress="silent")
        assert longer.outcome.consumed == longer.experiment.learner.budget == 640
    assert Run.open(tmp_path / "run").settings == longer.run.settings
    assert longer.run.settings.budget == 640
    assert [session.get("budget") for session in longer.run.facts()["sessions"]] == [320, 640, 640]
    assert operant.load(tmp_path / "run").evaluate(2) == longer.evaluate(2)


@pytest.mark.parametrize(("budget", "error"), [(319, RunError), (0, ValueError), (1.5, ValueError)])
def test_an_invalid_budget_is_rejected_and_changes_nothing(tmp_path, budget, error):
    run = train(tmp_path / "run").run
    before = {path: path.read_bytes() for path in run.path.glob("*.*")}
    with pytest.raises(error, match=f"budget .*got {budget}"):
        operant.resume(run.path, budget=budget, progress="silent")
    assert {path: path.read_bytes() for path in run.path.glob("*.*")} == before


def test_a_loaded_run_is_what_was_trained(tmp_path):
    trained = train(tmp_path / "run", normalize_obs=True, normalize_reward=True)
    loaded = operant.load(tmp_path / "run")
    assert loaded.outcome is None
    assert loaded.run.settings == trained.run.settings
    assert loaded.experiment.learner.config == trained.experiment.learner.config
    assert torch.equal(loaded.experiment.learner.agent.parameters, trained.experiment.learner.agent.parameters)
    assert loaded.evaluate(4) == trained.evaluate(4) == loaded.evaluate(4)
    assert loaded.evaluate(2, backend="gymnasium").episodes == 2


class Aiming(gymnasium.Env):
    """Environment that rewards actions close to an observed array, and asserts the action mask."""

    def __init__(self, actions):
        self.action_space = actions
        seen = {"aim": gymnasium.spaces.Box(-1.0, 1.0, actions.shape)}
        if isinstance(actions, gymnasium.spaces.MultiDiscrete):
            seen["action_mask"] = gymnasium.spaces.MultiBinary(int(actions.nvec.sum()))
        self.observation_space = gymnasium.spaces.Dict(seen)

    def look(self):
        obs = {"aim": self.np_random.uniform(-1.0, 1.0, self.action_space.shape).astype(np.float32)}
        if "action_mask" in self.observation_space.spaces:
            self.mask = np.ones(5, np.int8)
            self.mask[2 + self.np_random.integers(3)] = 0
            obs["action_mask"] = self.mask
        return obs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.obs, self.steps = self.look(), 0
        return self.obs, {}

    def step(self, action):
        assert "action_mask" not in self.obs or (self.mask[[action[0], 3 + action[1]]] == 1).all()
        assert np.shape(action) == self.action_space.shape
        reward = -float(np.square(action - self.obs["aim"]).sum())
        self.obs, self.steps = self.look(), self.steps + 1
        return self.obs, reward, self.steps == 5, False, {}


@pytest.fixture
def aiming():
    dials = gymnasium.spaces.MultiDiscrete([2, 3], start=[0, -1])
    made = {"OperantTestDials-v0": dials, "OperantTestLevers-v0": gymnasium.spaces.Box(-2.0, 2.0, (2, 2))}
    for name, actions in made.items():
        gymnasium.register(name, Aiming, kwargs={"actions": actions})
    yield
    for name in made:
        gymnasium.registry.pop(name)


def played(trained, **options):
    """Return the score of an episode of ``predict`` in the first environment of an evaluation."""
    env = gymnasium.make(trained.run.settings.task)
    place = options.get("seed_index", 0)
    (row,) = streams.row_seeds([trained.run.settings.seeds[place]], 1, "evaluation")
    (obs, _), hidden_state, score, over = env.reset(seed=streams.episode_seed(row, 0)), None, 0.0, False
    while not over:
        action, hidden_state = trained.predict(obs, hidden_state, **options)
        assert env.action_space.contains(action)
        obs, reward, terminated, truncated, _ = env.step(action)
        score, over = score + reward, terminated or truncated
    env.close()
    return score


@pytest.mark.parametrize(
    ("algorithm", "task", "values"),
    [
        ("ppo", "CartPole-v1", {**SMALL, "normalize_obs": True}),
        ("ppo", "Pendulum-v1", SMALL),
        (
            "recurrent-ppo",
            "operant/HiddenCartPole-v0",
            {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "rnn_hidden_size": 8},
        ),
        ("ppo", "OperantTestDials-v0", SMALL),
        ("sac", "OperantTestLevers-v0", {"learning_starts": 64, "hidden_sizes": (8,)}),
        ("dqn", "CartPole-v1", {"learning_starts": 64, "hidden_sizes": (8,)}),
        ("q-learning", "Blackjack-v1", {}),
    ],
)
def test_a_run_acts_in_gymnasium_as_it_is_evaluated(tmp_path, aiming, algorithm, task, values):
    quick = {**QUICK, "evaluate_every": 10_000}
    for name in SMALL:
        del quick[name]
    trained = operant.train(algorithm, task, seeds=2, run=tmp_path / "run", env_backend="gymnasium", **quick, **values)
    scores = trained.evaluate(1, backend="gymnasium").scores
    assert tuple(played(trained, seed_index=place) for place in range(2)) == pytest.approx(scores)


OFF_POLICY = {"learning_starts": 64, "hidden_sizes": (8,), "batch_size": 16}
TEACHERS = pytest.mark.parametrize(
    ("algorithm", "task", "values"),
    [
        ("ppo", "CartPole-v1", {**SMALL, "normalize_obs": True, "normalize_reward": True}),
        ("recurrent-ppo", "CartPole-v1", {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "rnn_hidden_size": 8}),
        ("a2c", "Pendulum-v1", {"num_envs": 2, "hidden_sizes": (8,)}),
        ("a3c", "CartPole-v1", {"num_envs": 2, "hidden_sizes": (8,), "workers": 1}),
        ("impala", "CartPole-v1", {"num_envs": 2, "num_steps": 16, "hidden_sizes": (8,)}),
        ("trpo", "CartPole-v1", {"num_envs": 2, "num_steps": 32, "hidden_sizes": (8,), "critic_minibatches": 2}),
        ("reinforce-baseline", "CartPole-v1", {"num_envs": 2, "hidden_sizes": (8,)}),
        ("dueling-dqn", "CartPole-v1", OFF_POLICY),
        ("sac", "Pendulum-v1", OFF_POLICY),
        ("sac-discrete", "CartPole-v1", OFF_POLICY),
        ("td3", "Pendulum-v1", OFF_POLICY),
    ],
)


@TEACHERS
def test_a_run_begins_with_what_another_has_learned(tmp_path, algorithm, task, values):
    options = {"evaluate_episodes": 2, "progress": "silent", "seeds": 1 if algorithm == "a3c" else 2, **values}
    first = operant.train(algorithm, task, budget=160, run=tmp_path / "first", **options)
    begun = operant.train(
        algorithm, task, budget=320, run=tmp_path / "begun", init=first.run.path, interrupted=lambda: True, **options
    )
    assert begun.experiment.learner.consumed == 0
    learned, before = begun.experiment.learner.learned, first.experiment.learner.learned
    assert learned.keys() == before.keys()
    assert all(torch.equal(learned[name], before[name]) for name in learned)
    assert begun.evaluate(2).scores == first.evaluate(2).scores
    assert begun.run.resolved()["init"] == str(first.run.path)
    resumed = operant.resume(begun.run.path, progress="silent")
    assert resumed.outcome.consumed >= 320
    after = resumed.experiment.learner.learned
    assert not all(torch.equal(after[name], before[name]) for name in after)


def test_a_run_initialized_by_another_resumes_after_a_crash_as_if_uninterrupted(tmp_path, monkeypatch):
    train(tmp_path / "first")
    whole = train(tmp_path / "whole", init=tmp_path / "first")
    with monkeypatch.context() as patch:
        patch.setattr(PPO, "iterate", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "cut", init=tmp_path / "first")
    resumed = operant.resume(tmp_path / "cut", progress="silent")
    states = [trained.experiment.learner.state_dict() for trained in (whole, resumed)]
    assert all(torch.equal(*pair) for pair in zip(*(flatten(state)[1].values() for state in states), strict=True))


def test_a_run_that_has_lost_what_it_was_to_begin_with_is_not_resumed(tmp_path, monkeypatch):
    train(tmp_path / "first")
    train(tmp_path / "cut", init=tmp_path / "first", interrupted=lambda: True)
    with monkeypatch.context() as patch:
        patch.setattr(PPO, "iterate", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "crashed", init=tmp_path / "first")
    for name, message in (
        ("cut", r"the checkpoints of .* are missing"),
        ("crashed", r"has no checkpoint, not even of its initial networks: .* --init"),
    ):
        for path in Run.open(tmp_path / name).checkpoints.paths():
            shutil.rmtree(path)
        with pytest.raises(RunError, match=message):
            operant.resume(tmp_path / name, progress="silent")


@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_the_first_observations_are_normalized_with_the_loaded_statistics(tmp_path, backend):
    options = {"normalize_obs": True, "env_backend": backend}
    first = train(tmp_path / "first", **options).experiment.learner.agent
    begun = train(tmp_path / "begun", init=tmp_path / "first", interrupted=lambda: True, **options)
    agent = begun.experiment.learner.agent
    raw = agent.normalizer.env.reset()
    assert torch.equal(agent.collector.obs, first.normalizer.normalize(raw).view_as(agent.collector.obs))


def test_a_run_in_a_random_environment_begins_with_another(tmp_path, monkeypatch):
    spec = gymnasium.envs.registration.EnvSpec("OperantTestDice-v0", Dice)
    monkeypatch.setitem(gymnasium.registry, "OperantTestDice-v0", spec)
    options = {"budget": 64, "evaluate_episodes": 2, "progress": "silent", **SMALL}
    operant.train("ppo", "OperantTestDice-v0", run=tmp_path / "first", **options)
    begun = operant.train("ppo", "OperantTestDice-v0", run=tmp_path / "begun", init=tmp_path / "first", **options)
    assert begun.outcome.consumed == 64


def test_seeds_begin_with_their_own_networks_where_both_runs_have_the_same(tmp_path):
    first = train(tmp_path / "first", seeds=[4, 7])
    begun = train(tmp_path / "begun", seeds=[7, 4], init=tmp_path / "first", interrupted=lambda: True)
    other = train(tmp_path / "other", seeds=[1, 2], init=tmp_path / "first", interrupted=lambda: True)
    parameters = first.experiment.learner.learned["parameters"]
    assert torch.equal(begun.experiment.learner.learned["parameters"], parameters.flip(0))
    assert torch.equal(other.experiment.learner.learned["parameters"], parameters)


def test_on_policy_methods_begin_with_each_other_and_one_seed_teaches_all(tmp_path):
    one = train(tmp_path / "one", seeds=1)
    values = {"num_envs": 2, "hidden_sizes": (8,), "share_features": False}
    many = operant.train(
        "a2c",
        "CartPole-v1",
        seeds=3,
        budget=64,
        run=tmp_path / "many",
        init=tmp_path / "one",
        progress="silent",
        interrupted=lambda: True,
        **values,
    )
    parameters = one.experiment.learner.learned["parameters"]
    assert torch.equal(many.experiment.learner.learned["parameters"], parameters.expand(3, -1))


@pytest.mark.parametrize(
    ("algorithm", "task", "values", "message"),
    [
        (
            "ppo",
            "CartPole-v1",
            {"hidden_sizes": (9,)},
            r"'parameters' has shape .* in that run, but .* Use the same networks",
        ),
        ("ppo", "CartPole-v1", {"seeds": 3}, "do not fit: that run has 2 seeds and this one 3; only a single seed"),
        ("ppo", "CartPole-v1", {"activation": "relu"}, "activation is tanh in that run, but relu in this one"),
        ("ppo", "CartPole-v1", {"normalize_obs": True}, "only one of the runs has 'observations.count'"),
        ("ppo", "CartPole-v1", {"normalize_reward": True}, "only one of the runs has 'rewards.count'"),
        ("ppo", "CartPole-v1", {"hidden_sizes": (2, 8, 2)}, r"hidden_sizes is \(8,\) in that run, but \(2, 8, 2\)"),
        (
            "reinforce",
            "CartPole-v1",
            {"hidden_sizes": (8,), "advantage_kind": "q"},
            "critic prediction is V in that run, but Q in this one",
        ),
        ("ppo", "Acrobot-v1", {}, r"choices is \[2\] in that run, but \[3\] in this one"),
        ("dqn", "CartPole-v1", {}, "dqn cannot start from the weights of ppo"),
        ("q-learning", "FrozenLake-v1", {}, "q-learning cannot start from the weights of ppo"),
    ],
)
def test_a_run_that_does_not_fit_is_not_begun_with(tmp_path, algorithm, task, values, message):
    train(tmp_path / "first")
    own = {**SMALL, **values} if algorithm == "ppo" else values
    with pytest.raises(ValueError, match=message):
        operant.train(algorithm, task, run=tmp_path / "run", init=tmp_path / "first", **{"seeds": 2, **own})
    assert not (tmp_path / "run").exists()


@TEACHERS
def test_the_best_policies_are_kept(tmp_path, algorithm, task, values):
    options = {"evaluate_every": 64, "evaluate_episodes": 2, "progress": "silent", **values}
    seeds = 1 if algorithm == "a3c" else 2
    trained = operant.train(algorithm, task, budget=320, run=tmp_path / "run", seeds=seeds, **options)
    records = read_records(trained.run.evaluations_path)
    best = operant.load(trained.run.path, best=True)
    for place in range(seeds):
        scores = [record["scores"][place] for record in records]
        assert best.consumed[place] == records[scores.index(max(scores))]["consumed"]
        assert best.experiment.evaluate(2).scores[place] == pytest.approx(max(scores))
    assert operant.load(trained.run.path).consumed is None
    best.close()


def test_the_best_policies_are_evaluated_in_other_episodes_than_those_that_selected_them(tmp_path):
    trained = train(tmp_path / "run", evaluate_every=64, evaluate_episodes=2)
    best = operant.load(trained.run.path, best=True)
    selecting = best.experiment.evaluate(20, backend="gymnasium")
    scored = best.evaluate(20, backend="gymnasium")
    assert scored.scores != selecting.scores
    assert scored.scores == best.evaluate(20, backend="gymnasium").scores
    last = operant.load(trained.run.path)
    assert last.evaluate(20).scores == last.experiment.evaluate(20).scores == trained.evaluate(20).scores
    for each in (best, last, trained):
        each.close()


def test_sampled_actions_are_evaluated_in_the_same_episodes_and_are_the_same_every_time(tmp_path):
    """The policy is untrained, so its samples are worse or better than its greedy actions, but not the same."""
    trained = train(tmp_path / "run", budget=64)
    first, second = (trained.evaluate(20, deterministic=False) for _ in range(2))
    assert first == second
    assert first.episode_scores != trained.evaluate(20).episode_scores
    trained.close()
    table = operant.train("q-learning", "FrozenLake-v1", budget=64, seeds=1, run=tmp_path / "table", progress="silent")
    with pytest.raises(ValueError, match="sampled actions are for deep control, but this is a run of q-learning"):
        table.evaluate(deterministic=False)


def test_the_best_policies_are_the_same_after_an_interruption(tmp_path):
    whole = train(tmp_path / "whole", budget=640, evaluate_every=64)
    cut = train(tmp_path / "cut", budget=640, evaluate_every=64, interrupted=interrupted_after(25))
    assert 0 < cut.outcome.consumed < 640
    operant.resume(cut.run.path, progress="silent")
    kept = [Best(trained.run).load() for trained in (whole, cut)]
    assert torch.equal(kept[0].learned["parameters"], kept[1].learned["parameters"])
    assert torch.equal(kept[0].consumed, kept[1].consumed)


def test_every_record_and_evaluation_is_reported_as_it_is_written(tmp_path):
    told = []
    trained = train(tmp_path / "run", report=told.append, checkpoint_seconds=0, interrupted=interrupted_after(3))
    operant.resume(tmp_path / "run", progress="silent", report=told.append)
    for path, kind in ((trained.run.metrics_path, "losses/value"), (trained.run.evaluations_path, "scores")):
        written = read_records(path)
        assert [record["consumed"] for record in told if kind in record] == [record["consumed"] for record in written]
        assert written
    (last,) = [record for record in told if record["consumed"] == 320 and "losses/value" in record]
    assert last["losses/value"].shape == (2,)


def test_an_error_of_the_report_costs_no_training(tmp_path, caplog):
    told = []

    def full(record):
        told.append(record)
        raise ArithmeticError("the connection is closed")

    trained = train(tmp_path / "run", report=full)
    assert trained.outcome.consumed == 320
    assert trained.outcome.report_error.startswith("ArithmeticError: the connection is closed (")
    assert len(told) == 1
    (text,) = [record.getMessage() for record in caplog.records]
    assert "report is disabled, since it raised ArithmeticError" in text
    (kept,) = read_records(trained.run.path / "warnings.jsonl")
    assert kept["text"] == text


def test_a_rollout_beyond_the_budget_is_announced(tmp_path, caplog):
    trained = train(tmp_path / "run", budget=30)
    (text,) = [record.getMessage() for record in caplog.records]
    assert f"the budget is 30: each seed uses {trained.outcome.consumed - 30} steps more" in text


def test_tables_keep_no_best_policies(tmp_path):
    quick = {"seeds": 2, "budget": 1000, "progress": "silent", "evaluate_episodes": 2}
    trained = operant.train("q-learning", "FrozenLake-v1", run=tmp_path / "run", **quick)
    with pytest.raises(RunError, match="has no best policies"):
        operant.load(trained.run.path, best=True)


class Hole(gymnasium.Env):
    """Environment whose observation is NaN in the middle of every episode of 20 steps."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def look(self):
        return np.full(1, np.nan if self.steps == 10 else self.steps / 20, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.look(), {}

    def step(self, action):
        assert np.isfinite(action).all()
        self.steps += 1
        return self.look(), 1.0, self.steps == 20, False, {}


@pytest.mark.parametrize(
    ("algorithm", "iterations", "values"),
    [
        ("sac", 2, {"learning_starts": 64, "hidden_sizes": (8,), "batch_size": 16, "rounds_per_iteration": 5}),
        ("td3", 2, {"learning_starts": 64, "hidden_sizes": (8,), "batch_size": 16, "rounds_per_iteration": 5}),
        ("ppo", 15, {"num_envs": 1, "num_steps": 5, "num_minibatches": 1, "hidden_sizes": (8,)}),
        ("recurrent-ppo", 15, {"num_envs": 1, "num_steps": 5, "num_minibatches": 1, "rnn_hidden_size": 8}),
    ],
)
def test_a_state_after_an_observation_of_nan_is_saved_and_resumed(tmp_path, algorithm, iterations, values):
    gymnasium.register("OperantTestHole-v0", Hole)
    try:
        cut = operant.train(
            algorithm,
            "OperantTestHole-v0",
            seeds=2,
            budget=150,
            run=tmp_path / "run",
            evaluate_every=1000,
            evaluate_episodes=1,
            checkpoint_seconds=0,
            progress="silent",
            interrupted=interrupted_after(iterations),
            **values,
        )
        assert cut.outcome.consumed % 20 > 11, "after the NaN and before the end of the episode"
        assert operant.resume(tmp_path / "run", progress="silent").outcome.consumed >= 150
    finally:
        del gymnasium.registry["OperantTestHole-v0"]


def test_a_run_that_cannot_continue_to_another_budget_is_unchanged(tmp_path):
    run = train(tmp_path / "run").run
    file, facts = run.path / "config.toml", run.facts()
    text = file.read_text()
    file.write_text(text.replace("    8,\n", "    5,\n"))
    before = file.read_bytes()
    assert before != text.encode()
    with pytest.raises(ValueError, match="saved by a different configuration"):
        operant.resume(run.path, budget=640, progress="silent", accept_changes=True)
    assert file.read_bytes() == before
    assert Run.open(run.path).facts() == facts


def test_runs_that_start_together_get_separate_folders(tmp_path, monkeypatch):
    first = train(tmp_path / "ppo-1").run
    found = iter([first.path, tmp_path / "ppo-2"])  # the first folder did not exist when the second run checked
    monkeypatch.setattr("operant.api.default_run_path", lambda *_: next(found))
    assert operant.train("ppo", "CartPole-v1", **QUICK).run.path == tmp_path / "ppo-2"


def test_a_configuration_takes_the_tasks_of_training():
    made = operant.configure("ppo", lambda: gymnasium.make("CartPole-v1"), gamma=0.5)
    assert made == operant.configure("ppo", "Own-v0", gamma=0.5)
    assert operant.configure("ppo", gymnasium.spec("CartPole-v1")) == operant.configure("ppo", "CartPole-v1")
    with pytest.raises(ValueError, match="7 is not a task"):
        operant.configure("ppo", 7)


def test_hyperparameters_may_be_numbers_of_numpy():
    numbers = {"learning_rate": np.float64(1e-3), "num_epochs": np.int64(3), "hidden_sizes": (np.int64(8), 4)}
    config = operant.configure("ppo", "CartPole-v1", **numbers)
    assert (config.learning_rate, config.num_epochs, config.hidden_sizes) == (1e-3, 3, (8, 4))
    assert [type(number) for number in (config.learning_rate, config.num_epochs, *config.hidden_sizes)] == [
        float,
        int,
        int,
        int,
    ]
    with pytest.raises(ValueError, match=r"ppo.num_epochs: 2.5 is not a value of type int"):
        operant.configure("ppo", "CartPole-v1", num_epochs=np.float32(2.5))


def test_a_language_model_takes_no_observations_and_no_other_budget(tmp_path):
    trained = operant.train("sft", "arithmetic", run=tmp_path / "run", **SPEAKING, batch_size=16)
    with pytest.raises(ValueError, match="another budget; continue from its model with `operant train sft TASK --init"):
        operant.resume(tmp_path / "run", budget=128, progress="silent")
    with pytest.raises(ValueError, match="takes prompts instead of observations"):
        trained.predict(np.zeros(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gama": 0.9}, "ppo.gama: there is no such key; did you mean gamma"),
        ({"lr": 3e-4}, "ppo.lr: there is no such key: PPO calls it learning_rate"),
        ({"total_timesteps": 1000}, "ppo.total_timesteps: there is no such key: PPO calls it budget"),
        ({"evaluate_evry": 1000}, "ppo.evaluate_evry: there is no such key; did you mean evaluate_every"),
        ({"gamma": 1.5}, r"gamma must be in \[0, 1\], got 1.5"),
        ({"clip_range": 0.0}, r"clip_range must be in \(0, 1\], got 0.0"),
        ({"lr_schedule": "sometimes"}, "ppo.lr_schedule: 'sometimes' is not one of 'constant', 'linear'"),
        ({"num_minibatches": 3}, r"minibatches \(3\) must divide the rollout"),
        ({"hidden_sizes": (0,)}, r"hidden_sizes must hold numbers in \[1, inf\)"),
        ({"activation": "gelu"}, "ppo.activation: 'gelu' is not one of 'tanh', 'relu'"),
        ({"max_grad_norm": -1.0}, "max_grad_norm must be in"),
        ({"preset": "fast"}, "no preset 'fast'"),
        ({"budget": 0}, r"budget must be in \[1, inf\), got 0"),
        ({"budget": 2.5}, r"budget must be an integer, got 2\.5"),
        ({"seeds": 0}, "seeds must be one or more"),
        ({"seeds": (1, 1)}, "seeds must be one or more different"),
        ({"seeds": 1.5}, r"seeds must be their number, or a list of integers, got 1\.5"),
        ({"seeds": np.array([0.5])}, r"seeds must be a tuple of integers, got \(0\.5,\)"),
        ({"seed": -1}, "seeds must be .*non-negative"),
        ({"seed": "1"}, "seed, the first of the seeds, must be an integer, got '1'"),
        ({"seeds": (3, 4), "seed": 5}, "seed=5 is the first seed"),
        ({"evaluate_episodes": 0}, r"evaluate_episodes must be in \[1, inf\), got 0"),
        ({"env_backend": "jax"}, "backend must be"),
        ({"config": PPOConfig()}, "config is complete: leave out preset and parameters, got num_envs"),
    ],
)
def test_bad_input_leaves_nothing_behind(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        train(tmp_path / "runs" / "run", **changes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("algorithm", "task", "message"),
    [
        ("pppo", "CartPole-v1", "no algorithm is called 'pppo'; did you mean"),
        ("ppo", "CartPol-v1", "did you mean CartPole-v1"),
        ("ppo", "CartPole-v0", "out of date"),
        ("ppo", "", "task must be named"),
    ],
)
def test_a_misspelt_name_leaves_nothing_behind(tmp_path, monkeypatch, algorithm, task, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        operant.train(algorithm, task)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_does_not_say_how_it_is_made_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"is not a task: pass .* a function that creates an environment"):
        operant.train("ppo", gymnasium.make("CartPole-v1").unwrapped.__class__())
    assert list(tmp_path.iterdir()) == []


def test_a_configuration_of_another_kind_leaves_nothing_behind(tmp_path):
    with pytest.raises(TypeError, match="ppo needs a configuration of PPOConfig"):
        operant.train("ppo", "CartPole-v1", config={"gamma": 0.9}, run=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_something_in_it_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("precious")
    with pytest.raises(RunError, match="already exists and is not empty"):
        train(tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(("name", "message"), [("my run", "not a valid name"), ("taken", "already exists")])
def test_the_folder_of_a_run_is_checked_before_anything_is_loaded_or_written(tmp_path, name, message):
    (tmp_path / "taken" / "thesis").mkdir(parents=True)
    rows = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(4)]
    with pytest.raises(RunError, match=message):
        operant.train("sft", dataset=rows, init=tmp_path / "no such run", run=tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("call", [operant.load, operant.resume])
def test_a_folder_without_a_run_is_rejected(tmp_path, call):
    with pytest.raises(RunError, match="is not the folder of a run"):
        call(tmp_path)


@pytest.mark.parametrize("call", [operant.load, operant.resume])
@pytest.mark.parametrize("path", [None, 3])
def test_a_run_is_named_by_a_path(call, path):
    with pytest.raises(RunError, match=f"'{path}' is not a path: "):
        call(path)


@pytest.mark.parametrize("name", [None, 5, ["ppo"]])
def test_an_algorithm_is_a_name_or_a_class(name):
    with pytest.raises(ValueError, match=r"given by its name, such as 'ppo', or by its class, got "):
        operant.train(name, "CartPole-v1")


def bare_run(folder):
    """Make a run before its training."""
    settings = Settings("ppo", "CartPole-v1", budget=320, evaluate_every=160, evaluate_episodes=2)
    return Run.create(
        folder, settings, PPOConfig(**SMALL), resolved={"device": "cpu", "threads": 1, "precision": "highest"}
    )


def test_a_run_that_lost_its_checkpoints_is_not_told_to_be_resumed(tmp_path):
    train(tmp_path / "run", budget=160)
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    with pytest.raises(RunError, match=r"checkpoints is missing, but it was trained before\. Restore the folder"):
        operant.load(tmp_path / "run")


def test_a_run_is_loaded_though_its_training_replaces_checkpoints(tmp_path, monkeypatch):
    """Building the experiment takes long enough for another process to save and delete checkpoints."""
    trained = train(tmp_path / "run", checkpoint_seconds=0.0)
    older, newer = sorted(trained.run.checkpoints.paths())
    kept = shutil.move(newer, tmp_path / newer.name)
    build = api.reassemble

    def slowly(*arguments):
        experiment = build(*arguments)
        shutil.move(kept, newer)
        shutil.rmtree(older)
        return experiment

    monkeypatch.setattr(api, "reassemble", slowly)
    assert api.load(tmp_path / "run").experiment.learner.consumed == trained.experiment.learner.consumed


def test_the_command_that_continues_from_a_language_model_is_quoted(tmp_path):
    (tmp_path / "my runs").mkdir()
    model = Run.create(tmp_path / "my runs" / "one", Settings("sft", "arithmetic"), SFTConfig())
    with pytest.raises(ValueError, match=r"`operant train sft TASK --init '/.*/my runs/one'`"):
        api._require_budget(model)


def test_a_run_that_cannot_be_loaded_leaves_no_workers_behind(tmp_path):
    path, values = tmp_path / "run", {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "num_epochs": 1}
    workers = {"vectorization": "async", "num_workers": 2, "env_backend": "gymnasium", "evaluate_episodes": 1}
    operant.train("ppo", "CartPole-v1", seeds=1, budget=16, run=path, progress="silent", **values, **workers).close()
    before = set(multiprocessing.active_children())
    with pytest.raises(ValueError, match="at must be an integer between 0 and 16"):
        operant.load(path, at=10**9)
    shutil.rmtree(path / "best")
    with pytest.raises(RunError, match="has no best policies"):
        operant.load(path, best=True)
    (path / "best").mkdir()
    with pytest.raises(RunError, match="has no best policies"):
        operant.load(path, best=True)  # known only with the learner
    hashes = path / "history" / "hashes.jsonl"
    hashes.write_text('{"consumed": 16, "sha256": "0"}\n', encoding="utf-8")
    with pytest.raises(RunError):
        operant.load(path, at=16)
    assert set(multiprocessing.active_children()) == before


def test_a_run_without_a_checkpoint_cannot_be_loaded_but_resumed(tmp_path, caplog):
    bare_run(tmp_path / "run")
    with pytest.raises(RunError, match="has no checkpoint yet; train it with `operant resume"):
        operant.load(tmp_path / "run")
    resumed = operant.resume(tmp_path / "run", progress="silent")
    assert "has no checkpoint yet: training starts from the beginning" in caplog.text
    assert resumed.outcome.consumed == 320
    assert torch.equal(
        resumed.experiment.learner.agent.parameters, operant.load(tmp_path / "run").experiment.learner.agent.parameters
    )


def test_a_run_whose_checkpoints_are_damaged_is_rejected(tmp_path):
    trained = train(tmp_path / "run")
    for path in trained.run.checkpoints.paths():
        (path / "state.safetensors").write_bytes(b"")
    for call in (operant.load, operant.resume):
        with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be used"):
            call(tmp_path / "run")


def test_a_run_that_another_process_trains_cannot_be_resumed(tmp_path):
    train(tmp_path / "run")
    with Run.open(tmp_path / "run").lock(), pytest.raises(RunError, match="is being trained by process"):
        operant.resume(tmp_path / "run", progress="silent")


def test_the_public_names_are_there():
    assert operant.train is api.train
    assert set(operant.__all__) - {"__version__", "check_learner"} <= set(dir(api))
    assert operant.check_learner is check.check_learner
    with pytest.raises(AttributeError, match="has no attribute 'teach'"):
        operant.teach  # noqa: B018


SPEAKING = {"train_examples": 48, "held_out": 6, "max_completion_length": 6, "budget": 64, "evaluate_every": 32}
SPEAKING |= {"progress": "silent", "checkpoint_seconds": 0}


def bytes_of(run):
    """Return the latest checkpoint of a run and its answers in evaluations, as bytes."""
    checkpoint, _ = run.checkpoints.latest()
    files = {path.name: path.read_bytes() for path in checkpoint.iterdir()}
    return files, run.samples_path.read_bytes()


@pytest.mark.parametrize("in_evaluation", [True, False], ids=["in an evaluation", "after it"])
@pytest.mark.parametrize(
    ("algorithm", "values"),
    [("sft", {"batch_size": 8}), ("grpo", {"prompts_per_batch": 8, "num_generations": 2, "beta": 0.1})],
)
def test_an_interrupted_language_model_is_resumed_to_the_same_end(tmp_path, algorithm, values, in_evaluation):
    def speak(folder, **changes):
        return operant.train(algorithm, "arithmetic", run=tmp_path / folder, seeds=2, **SPEAKING, **values, **changes)

    whole = speak("whole")
    records, again = tmp_path / "part" / "eval" / "evaluations.jsonl", interrupted_after(5 if in_evaluation else 1)

    def once_evaluated():
        evaluations = len(read_records(records))
        return evaluations >= (1 if in_evaluation else 2) and again()

    part = speak("part", interrupted=once_evaluated)
    assert part.outcome.interrupted
    assert part.outcome.consumed == 32 if in_evaluation else 32 < part.outcome.consumed < 64
    resumed = operant.resume(tmp_path / "part", progress="silent")
    assert bytes_of(resumed.run) == bytes_of(whole.run)
    assert resumed.evaluate() == whole.evaluate() == operant.load(tmp_path / "part").evaluate()
    assert resumed.evaluate().episodes == 6
    assert resumed.evaluate(2).episodes == 2


def test_samples_of_a_language_model_are_saved_and_rewound(tmp_path):
    trained = operant.train("sft", "arithmetic", run=tmp_path / "run", **SPEAKING, batch_size=8)
    before = trained.run.samples_path.read_bytes()
    samples = read_records(trained.run.samples_path)
    assert {record["consumed"] for record in samples} == {0, 32, 64}
    assert samples[0].keys() == {"consumed", "seed", "prompt", "completion", "reward", "truncated", "temperature"}
    of_a_prompt = [s for s in samples if (s["consumed"], s["prompt"]) == (64, samples[0]["prompt"])]
    assert sorted(s["temperature"] for s in of_a_prompt) == [0.0, 1.0, 1.0]
    assert [s for s in samples if s["consumed"] == 64] == [{"consumed": 64, **s} for s in trained.experiment.samples]
    shutil.rmtree(trained.run.checkpoints.paths()[-1])
    records = trained.run.evaluations_path.read_bytes().splitlines(True)
    trained.run.evaluations_path.write_bytes(b"".join(records[:-1]))
    resumed = operant.resume(tmp_path / "run", progress="silent")
    assert resumed.run.samples_path.read_bytes() == before, "samples of a repeated evaluation are written once"


# Messages of language model runs


@pytest.mark.parametrize(
    ("algorithm", "values"),
    [
        ("sft", {"batch_size": 8}),
        ("dpo", {"batch_size": 8, "task": "preference"}),
        ("reward-model", {"batch_size": 8, "task": "preference"}),
        ("grpo", {"prompts_per_batch": 8, "num_generations": 2, "num_minibatches": 2}),
        ("rlhf", {"prompts_per_batch": 8, "task": "preference"}),
    ],
)
def test_evaluations_and_metrics_do_not_change_training(tmp_path, monkeypatch, algorithm, values):
    options = SPEAKING | {"task": "arithmetic", "algorithm": algorithm} | values
    often = operant.train(run=tmp_path / "often", **options | {"evaluate_every": 8})
    assert read_records(often.run.evaluations_path)[0]["consumed"] == 0
    with monkeypatch.context() as patch:
        patch.setattr("operant.api.hints_of", lambda *_, **__: None)
        patch.setattr("operant.language.grpo.kl_of_batch", lambda *_, **__: 0.0)
        patch.setattr("operant.language.rlhf.kl_of_batch", lambda *_, **__: 0.0)
        patch.setattr("operant.language.divergence.LARGEST", 0)
        once = operant.train(run=tmp_path / "once", **options)
    assert len(read_records(once.run.evaluations_path)) < len(read_records(often.run.evaluations_path))
    files = [run.run.checkpoints.paths()[-1] / "state.safetensors" for run in (often, once)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_evaluations_of_a_reward_model_run_contain_both_scores_and_the_kl(tmp_path):
    common = SPEAKING | {"evaluate_every": 32, "budget": 32}
    operant.train("reward-model", "preference", run=tmp_path / "model", batch_size=8, **common)
    values = {"reward_model": str(tmp_path / "model"), "prompts_per_batch": 8, "num_generations": 2}
    run = operant.train("grpo", "preference", run=tmp_path / "run", **values, **common).run
    first, last = read_records(run.evaluations_path)
    assert first["metrics"].keys() == last["metrics"].keys()
    assert last["metrics"].keys() == {"eval/reward", "eval/rewards/reward_model/mean", "objective/kl_start", "kl_start"}
    assert (first["metrics"]["kl_start"], first["consumed"]) == ([0.0], 0)
    assert last["metrics"]["objective/kl_start"][0] > 0
    learned = last["metrics"]["eval/rewards/reward_model/mean"]
    assert last["metrics"]["eval/reward"] == pytest.approx(learned, rel=1e-5)
    assert learned != [last["mean"]], "the task's own reward is the score"


def test_a_whole_configuration_of_a_language_model_can_start_from_a_run(tmp_path):
    settings = {name: value for name, value in SPEAKING.items() if name not in {f.name for f in fields(SFTConfig)}}
    config = operant.configure("sft", "arithmetic", batch_size=8, train_examples=48, held_out=6)
    operant.train("sft", "arithmetic", run=tmp_path / "first", config=config, **settings)
    second = operant.train(
        "sft", "arithmetic", run=tmp_path / "second", config=config, init=tmp_path / "first", **settings
    )
    assert second.experiment.learner.learners[0].config == replace(config, init=str(tmp_path / "first"))
    with pytest.raises(ValueError, match="config is complete: leave out preset and parameters, got batch_size"):
        operant.train("sft", "arithmetic", run=tmp_path / "third", config=config, batch_size=4, **settings)
    with pytest.raises(TypeError, match=r"sft needs a configuration of SFTConfig, got \{\}"):
        operant.train("sft", "arithmetic", run=tmp_path / "third", config={}, init=tmp_path / "first", **settings)


def test_a_policy_that_gets_worse_causes_a_warning(tmp_path, caplog):
    rows = [{"prompt": f"{i}+1=", "completion": str(i + 1)} for i in range(100)]
    data = tmp_path / "sums.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = {"batch": 8, "progress": "silent", "keep_best": False}
    first = operant.train("sft", str(data), budget=64, run=tmp_path / "first", **options)
    caplog.clear()
    begun = {"init": tmp_path / "first", "learning_rate": 1.0}
    worse = operant.train("sft", str(data), budget=32, run=tmp_path / "worse", **begun, **options)
    assert worse.outcome.evaluation.mean < first.outcome.evaluation.mean
    assert "is below the start" in caplog.text
    assert "the start is the best so far (saved: --best). Try a smaller --learning-rate (now 1)" in caplog.text
    best = operant.load(tmp_path / "worse", best=True)
    assert best.consumed == (0,)
    assert best.evaluate().scores == first.evaluate().scores


# Custom environments

OWN = """
import gymnasium, numpy as np

class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), 1.0, self.t == 5, False, {}

gymnasium.register("OperantTestOwnFile-v0", Own)
"""


def test_a_changed_custom_environment_is_reported_before_a_run_resumes(tmp_path, monkeypatch, caplog):
    file, run = tmp_path / "operant_test_own_file.py", tmp_path / "run"
    file.write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    few = {"num_envs": 2, "num_steps": 8, "num_minibatches": 1, "hidden_sizes": (4,), "progress": "silent"}
    task = "operant_test_own_file:OperantTestOwnFile-v0"
    operant.train("ppo", task, seeds=1, budget=32, run=run, evaluate_episodes=2, **few)
    operant.load(run).close()
    file.write_text(OWN.replace("1.0, self.t", "2.0, self.t"))
    message = r"1 of its inputs changed \(environment .*operant_test_own_file\.py has changed\)"
    with pytest.raises(RunError, match=message):
        operant.load(run)
    with pytest.raises(RunError, match=message):
        operant.resume(run, budget=64, progress="silent")
    operant.train("ppo", task, seeds=1, budget=32, run=tmp_path / "next", init=run, evaluate_episodes=2, **few)
    assert "has changed" in caplog.text, "weights initialize another run, also in a changed environment"
    operant.resume(run, budget=64, progress="silent", accept_changes=True)
    operant.load(run).close()


def test_a_rollout_beyond_the_budget_is_reported_before_training(tmp_path, caplog):
    small = {
        "seeds": 1,
        "num_envs": 4,
        "num_steps": 16,
        "num_minibatches": 1,
        "hidden_sizes": (4,),
        "progress": "silent",
    }
    operant.train("ppo", "CartPole-v1", run=tmp_path / "run", budget=48, evaluate_episodes=1, **small)
    assert "a rollout has 64 steps per seed, but the budget is 48: each seed uses 16 steps more" in caplog.text
    caplog.clear()
    operant.train("ppo", "CartPole-v1", run=tmp_path / "whole", budget=64, evaluate_episodes=1, **small)
    assert caplog.text == ""


def test_a_wrong_display_of_progress_is_rejected_before_anything_is_written(tmp_path):
    trained = operant.train("ppo", "CartPole-v1", run=tmp_path / "run", **QUICK)
    sessions = len(trained.run.facts()["sessions"])
    with pytest.raises(ValueError, match="progress must be auto, plain or silent, got 'no'"):
        operant.resume(tmp_path / "run", progress="no")
    assert (trained.run.outcome()[0], len(trained.run.facts()["sessions"])) == ("finished", sessions)
    with pytest.raises(ValueError, match="progress must be"):
        operant.train("ppo", "CartPole-v1", run=tmp_path / "other", **{**QUICK, "progress": "no"})
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"init": 5}, "init must be the folder of a run, got 5"),
        ({"bonus": 3}, "bonus must be a name or a list of names, got 3"),
        ({"interrupted": True}, "interrupted must be a function, got True"),
        ({"report": 5}, "report must be a function, got 5"),
        ({"seeds": True}, "seeds must be their number, or a list of integers, got True"),
        ({"device": 3}, "device must be auto, cpu, "),
    ],
)
def test_arguments_of_another_type_are_rejected_before_there_is_a_run(given, said, tmp_path):
    with pytest.raises(ValueError, match=re.escape(said)):
        operant.train("ppo", "CartPole-v1", run=tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


class Shortness:
    """A reward with a method `__call__`, as TRL accepts them."""

    def __call__(self, completions, **_):
        return [-float(len(text)) for text in completions]


def test_an_object_that_can_be_called_is_a_reward_function(tmp_path):
    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(8)]
    small = {"budget": 4, "prompts_per_batch": 4, "num_generations": 2, "held_out": 2, "progress": "silent"}
    trained = operant.train("grpo", rows, rewards=[Shortness()], model="tiny", run=tmp_path / "run", **small)
    assert "Shortness" in str(trained.run.resolved()["objects"])
    assert [name for name in next(iter(read_records(trained.run.metrics_path))) if name.startswith("rewards/")] == [
        "rewards/Shortness/mean"
    ]
