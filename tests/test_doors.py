"""Extensions work like built-in parts: they are trained, resumed, evaluated, compared and listed."""

import json
import shutil
import tomllib
from dataclasses import dataclass

import pytest
import torch

import operant
from operant import doors, envs
from operant.cli import main
from operant.cli.watching import _stage
from operant.control import PPO, PPOConfig
from operant.runtime.run import Run, RunError
from outside import SMALL, same

MY_PPO = '''
from dataclasses import dataclass, replace

from operant.control import PPO, PPOConfig


@dataclass(frozen=True)
class MyConfig(PPOConfig):
    """Hyperparameters of mine."""

    keep: float = 1.0
    """Share of each reward that is kept. Lower forgets more."""


class MyPPO(PPO):
    """PPO with smaller rewards."""

    config: MyConfig

    def estimate_advantages(self, rollout):
        return super().estimate_advantages(replace(rollout, rewards=rollout.rewards * self.config.keep))
'''
MY_TABLE = '''
from dataclasses import dataclass

from operant.tabular import OneStepConfig, QLearning


@dataclass(frozen=True)
class MyConfig(OneStepConfig):
    """Hyperparameters of mine."""

    shrink: float = 1.0
    """Factor of every value after an iteration."""


class MyTable(QLearning):
    """Q-learning that forgets."""

    CATALOG = {"budget": 400, "seeds": 2}

    config: MyConfig

    def iterate(self):
        metrics = super().iterate()
        self.agent.table.q[:] *= self.config.shrink
        return metrics
'''
FLAGS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture
def file(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "my_ppo.py").write_text(MY_PPO)
    return folder / "my_ppo.py"


@pytest.fixture
def train(tmp_path):
    def train(algorithm, name, task="CartPole-v1", **options):
        options = {"seeds": 2, "budget": 192, "run": tmp_path / name, "progress": "silent"} | options
        return operant.train(algorithm, task, **({} if "shrink" in options else SMALL) | options)

    return train


@dataclass(frozen=True)
class HereConfig(PPOConfig):
    """Hyperparameters."""


class Here(PPO):
    """PPO in the file of a test."""

    config: HereConfig


def test_an_algorithm_in_a_file_is_trained_with_its_own_configuration(file, train, tmp_path, monkeypatch):
    monkeypatch.chdir(file.parent)
    trained = train("./my_ppo.py:MyPPO", "own", keep=0.5)
    asked = tomllib.loads((tmp_path / "own" / "config.toml").read_text())
    assert asked["settings"]["algorithm"] == f"{file}:MyPPO"
    assert asked["config"]["keep"] == 0.5
    (entry,) = json.loads((tmp_path / "own" / "run.json").read_text())["inputs"]
    assert (entry["name"], entry["path"]) == ("algorithm", str(file))
    assert same(trained, train(f"{file}:MyPPO", "again", keep=0.5))
    assert not same(trained, train(f"{file}:MyPPO", "other", keep=1.0))
    with pytest.raises(ValueError, match="keeep: there is no such key; did you mean keep"):
        train(f"{file}:MyPPO", "wrong", keeep=0.5)


def test_a_class_is_trained_like_its_name_and_a_copy_of_a_built_in_one_like_that(file, train):
    assert same(train(Here, "class"), train("ppo", "built-in"))
    assert Run.open(file.parents[1] / "class").settings.algorithm.endswith("test_doors.py:Here")
    assert same(train(f"{file}:MyPPO", "named"), train("ppo", "once-more"))


def test_an_interrupted_run_resumes_bit_for_bit(file, train, tmp_path):
    whole = train(f"{file}:MyPPO", "whole", keep=0.5)
    asked = iter([False] * 2)
    part = train(f"{file}:MyPPO", "part", keep=0.5, interrupted=lambda: next(asked, True))
    assert 0 < part.outcome.consumed < whole.outcome.consumed
    assert same(operant.resume(tmp_path / "part", progress="silent"), whole)


def test_a_change_of_the_file_is_reported_and_must_be_accepted(file, train, tmp_path):
    train(f"{file}:MyPPO", "run").close()
    file.write_text(f"{MY_PPO}\n    NAME = 'changed'\n")
    with pytest.raises(RunError, match=r"algorithm .*my_ppo\.py has changed"):
        operant.load(tmp_path / "run")
    with pytest.raises(RunError, match=r"algorithm .*my_ppo\.py has changed"):
        operant.resume(tmp_path / "run", budget=256, progress="silent")
    loaded = operant.load(tmp_path / "run", accept_changes=True)
    assert loaded.experiment.learner.NAME == "changed"
    loaded.close()
    file.unlink()
    with pytest.raises(RunError, match=r"algorithm .*my_ppo\.py is missing"):
        operant.load(tmp_path / "run")


def test_the_summary_of_a_run_needs_no_file(file, train, tmp_path, capfd):
    train(f"{file}:MyPPO", "run").close()
    file.unlink()
    for command in ("show", "compare"):
        assert main([command, str(tmp_path / "run")]) == 0
        assert "MyPPO" in capfd.readouterr().out


def test_a_file_that_moves_with_its_run_is_found(file, train, tmp_path):
    train(f"{file}:MyPPO", "mine/run").close()
    shutil.move(file.parent, tmp_path / "moved")
    loaded = operant.load(tmp_path / "moved" / "run")
    assert loaded.run.settings.algorithm == f"{tmp_path / 'moved' / 'my_ppo.py'}:MyPPO"
    assert loaded.run.entry.learner_class is type(loaded.experiment.learner)
    loaded.close()


def test_a_run_of_another_algorithm_begins_with_what_it_has_learned(file, train, tmp_path):
    train(f"{file}:MyPPO", "first").close()
    train("ppo", "second", init=tmp_path / "first").close()
    train(f"{file}:MyPPO", "third", init=tmp_path / "second").close()
    with pytest.raises(ValueError, match=r"dqn cannot start from the weights of .*MyPPO"):
        operant.train("dqn", "CartPole-v1", init=tmp_path / "first", run=tmp_path / "fourth")


def test_a_custom_tabular_learner_is_trained_and_resumes_bit_for_bit(tmp_path, train):
    file = tmp_path / "my_table.py"
    file.write_text(MY_TABLE)
    name, task, own = f"{file}:MyTable", "FrozenLake-v1", {"shrink": 0.9, "budget": None, "steps_per_iteration": 50}
    whole = train(name, "whole", task, **own)
    assert whole.run.settings.budget == 400
    asked = iter([False] * 2)
    part = train(name, "part", task, interrupted=lambda: next(asked, True), **own)
    assert part.outcome.consumed < 400
    assert same(operant.resume(tmp_path / "part", progress="silent"), whole)
    assert not same(train(name, "kept", task, **{**own, "shrink": 1.0}), whole)


OBJECTIVES = """
from operant import ops


def clipped(log_probs, batch, clip, beta, kl):
    return ops.clipped_surrogate(log_probs, batch.old_log_probs, batch.advantages, clip_low=clip[0], clip_high=clip[1])


def plain(log_probs, batch, clip, beta, kl):
    return -(log_probs - batch.old_log_probs).exp() * batch.advantages + beta * kl()


def total(log_probs, batch, clip, beta, kl):
    return clipped(log_probs, batch, clip, beta, kl).mean()
"""


def test_a_custom_objective_replaces_the_built_in_one(tmp_path, train, monkeypatch):
    (tmp_path / "mine.py").write_text(OBJECTIVES)
    monkeypatch.chdir(tmp_path)
    built_in = train("ppo", "built-in")
    own = train("ppo", "own", objective="mine.py:clipped")
    assert same(own, built_in)
    asked = tomllib.loads((tmp_path / "own" / "config.toml").read_text())
    assert asked["config"]["objective"] == f"{tmp_path / 'mine.py'}:clipped"
    whole = train("ppo", "plain", objective="mine.py:plain")
    assert not same(whole, built_in)
    stops = iter([False] * 2)
    train("ppo", "part", objective="mine.py:plain", interrupted=lambda: next(stops, True))
    assert same(operant.resume(tmp_path / "part", progress="silent"), whole)
    with pytest.raises(
        ValueError, match=r"mine\.py:total must return a tensor of losses of shape \(2, 32\), seeds and"
    ):
        train("ppo", "total", objective="mine.py:total")
    with pytest.raises(ValueError, match=r"mine\.py has no 'none', expected a function \(log_probs, batch, clip, beta"):
        train("ppo", "none", objective="mine.py:none")
    with pytest.raises(ValueError, match=r"objective must be clip, .* or a custom function, path/to/file\.py:name"):
        train("ppo", "wrong", objective="clipp")
    (tmp_path / "mine.py").write_text(f"{OBJECTIVES}# changed\n")
    with pytest.raises(RunError, match=r"objective .*mine\.py has changed"):
        operant.load(tmp_path / "own")


def here(log_probs, batch, clip, beta, kl):
    """Objective in the file of a test."""
    return -log_probs * batch.advantages


def test_a_function_is_named_by_its_file(train, tmp_path):
    trained = train("ppo", "object", objective=here)
    assert trained.experiment.learner.config.objective == doors.name_of(here)
    with pytest.raises(ValueError, match=r"objective object:lambda_\d+ must return a tensor of losses .*, got 0"):
        train("ppo", "lambda", objective=lambda *_: 0)


MY_WORLD = """
import gymnasium
import numpy as np
import torch

from operant.envs import Wrapper


class Line(gymnasium.Env):
    def __init__(self, size=5):
        self.observation_space = gymnasium.spaces.Box(0, size, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.size = size

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(self.size))
        return np.array([self.place], np.float32), {}

    def step(self, action):
        self.place += 2 * int(action) - 1
        ended = not 0 <= self.place < self.size
        return np.array([min(max(self.place, 0), self.size)], np.float32), 1.0, ended, False, {}


class Counted(Wrapper):
    STATE = ("steps",)
    in_evaluation = False

    def __init__(self, env, scale=0.0):
        super().__init__(env)
        self.scale = scale

    def start(self, seeds):
        self.steps = torch.zeros(self.rows)

    def step(self, actions):
        step = super().step(actions)
        self.steps += 1
        return step._replace(reward=step.reward + self.scale * self.steps)


class Shifted(Wrapper):
    def observation(self, obs):
        return obs + 1


def nothing(env):
    return env
"""

LIMITED = {"size": 3, "max_episode_steps": 20}


@pytest.fixture
def world(tmp_path):
    path = tmp_path / "my_world.py"
    path.write_text(MY_WORLD)
    return path


def test_wrappers_belong_to_the_run_and_resume_bit_for_bit(world, train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bare = train("ppo", "bare")
    plain = train("ppo", "plain", wrappers=["my_world.py:Counted"]).experiment.learner.learned
    assert all(torch.equal(tensor, plain[name]) for name, tensor in bare.experiment.learner.learned.items())
    names = ["my_world.py:Counted(scale=0.1)", "my_world.py:Shifted"]
    whole = train("ppo", "whole", wrappers=names)
    asked = tomllib.loads((tmp_path / "whole" / "config.toml").read_text())
    assert asked["settings"]["wrappers"] == [f"{world}:Counted(scale=0.1)", f"{world}:Shifted"]
    stops = iter([False] * 2)
    train("ppo", "part", wrappers=names, interrupted=lambda: next(stops, True))
    again = operant.resume(tmp_path / "part", progress="silent")
    assert same(again, whole)
    found = envs.wrappers(again.experiment.env)
    assert [type(wrapper).__name__ for wrapper in found] == ["Counted", "Shifted"]
    assert found[0].steps.min() == 48
    again.predict([0.0] * 4)
    scored = again.evaluate(1, backend="gymnasium")
    with _stage(again, 0, False, 1000) as stage:  # plays with the learned state of wrappers, as in evaluation
        assert stage.play(1).scores == list(scored.episode_scores[0])
    world.write_text(f"{MY_WORLD}# changed\n")
    with pytest.raises(RunError, match=r"wrappers .*my_world\.py has changed"):
        operant.load(tmp_path / "whole")


@pytest.mark.parametrize(
    ("algorithm", "wrapper", "said"),
    [
        (
            "ppo",
            "{}:Count",
            r"has no 'Count', expected a class derived from operant\.envs\.Wrapper; did you mean Counted",
        ),
        ("ppo", "{}:nothing", r"the wrapper .*nothing must be a subclass of operant\.envs\.Wrapper"),
        ("ppo", "{}:Counted(size=1)", r"the wrapper .*Counted\(size=1\) cannot wrap CartPole-v1: .*'size'"),
        ("ppo", "{}:Counted(", "expected a name with parameters or without"),
    ],
)
def test_invalid_wrappers_are_rejected(world, algorithm, wrapper, said):
    run = world.parent / "run"
    with pytest.raises(ValueError, match=said):
        operant.train(algorithm, "CartPole-v1", run=run, wrappers=[wrapper.format(world)], progress="silent")
    assert not run.exists()


def test_an_environment_in_a_file_is_a_task(world, train, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    trained = train("ppo", "run", task="my_world.py:Line", env_kwargs=LIMITED)
    assert trained.run.settings.task == f"{world}:Line"
    assert max(trained.evaluate(2).lengths) <= 20
    assert [entry["name"] for entry in json.loads((tmp_path / "run" / "run.json").read_text())["inputs"]] == ["task"]
    trained.predict([1.0])
    operant.load(tmp_path / "run").close()
    with pytest.raises(ValueError, match=r"Line has no parameter 'sise'.*did you mean size"):
        train("ppo", "wrong", task=f"{world}:Line", env_kwargs={"sise": 3})
    with pytest.raises(ValueError, match=r"has no 'Lime', expected an environment: .*; did you mean Line"):
        train("ppo", "wrong", task=f"{world}:Lime")


def test_the_environments_in_a_file_run_in_other_processes(world, train):
    here, there = (
        train("ppo", how, task=f"{world}:Line", vectorization=how, env_kwargs=LIMITED) for how in ("sync", "async")
    )
    assert same(here, there)


def test_the_command_line_tells_all_about_it(file, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "mine/my_ppo.py:MyPPO", "CartPole-v1", "--help"]) == 0
    assert "Share of each reward that is kept." in capfd.readouterr().out
    flags = [*FLAGS, "--seeds", "1", "--budget", "64", "--keep", "0.5", "--progress", "silent", "--json"]
    assert main(["train", "mine/my_ppo.py:MyPPO", "CartPole-v1", *flags]) == 0
    assert json.loads(capfd.readouterr().out)["algorithm"] == f"{file}:MyPPO"
    assert main(["train", f"{file}:MyPPO", "CartPole-v1", "--config", "runs/MyPPO-CartPole-v1-1/config.toml"]) == 0
    assert main(["evaluate", "runs/MyPPO-CartPole-v1-1", "--episodes", "2"]) == 0
    capfd.readouterr()
    assert main(["list", "mine/my_ppo.py:MyPPO", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["title"], told["base"], told["idea"]) == ("MyPPO", "ppo", "PPO with smaller rewards.")
    assert main(["train", "mine/my_ppo.py:Mine", "CartPole-v1"]) == 2
    assert "has no 'Mine'" in capfd.readouterr().err


def test_the_list_names_what_packages_offer(tmp_path, monkeypatch, capfd):
    info = tmp_path / "its_ppo-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: its-ppo\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text("[operant.algorithms]\nits-ppo = its_ppo:It\n")
    monkeypatch.syspath_prepend(tmp_path)  # there is no such module: listing imports nothing
    assert main(["list", "--json"]) == 0
    *_, last = json.loads(capfd.readouterr().out)["algorithms"]
    assert last == {"name": "its-ppo", "package": "its-ppo 2.0", "module": "its_ppo", "learner": "It"}
    assert main(["list"]) == 0
    assert "its-ppo" in capfd.readouterr().out.partition("from installed packages")[2]
