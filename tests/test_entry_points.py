"""Entry points of installed packages are used by name like built-in parts, and runs with them resume."""

import runpy
import sys

import pytest

import operant
from outside import SMALL, same

PARTS = """
import gymnasium
import numpy as np
from torch import nn

from operant.control import PPO
from operant.envs import Wrapper


class Half(PPO):
    pass


def unclipped(log_probs, batch, clip, beta, kl):
    return -(log_probs - batch.old_log_probs).exp() * batch.advantages


def median(rewards):
    return rewards - rewards.median(dim=1, keepdim=True).values


class Doubled(Wrapper):
    def step(self, actions):
        step = super().step(actions)
        return step._replace(reward=step.reward * 2)


class Line(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 20, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.time += 1
        return np.full(1, self.time, np.float32), float(action), False, self.time == 20, {}


class Normed(nn.Sequential):
    def __init__(self, inputs):
        super().__init__(nn.Linear(inputs, 8), nn.LayerNorm(8), nn.SiLU())


def brevity(completions, **columns):
    return [-float(len(text)) for text in completions]
"""
OFFERED = {
    "algorithms": "its-ppo = parts_offered:Half",
    "objectives": "its-objective = parts_offered:unclipped",
    "advantages": "its-median = parts_offered:median",
    "wrappers": "its-wrapper = parts_offered:Doubled",
    "environments": "its-line = parts_offered:Line",
    "encoders": "its-net = parts_offered:Normed",
    "rewards": "its-brevity = parts_offered:brevity",
}
PPO = {
    "task": "its-line",
    "objective": "its-objective",
    "wrappers": ["its-wrapper"],
    "encoder": "its-net",
    "budget": 256,
}
GRPO = {
    **{"task": "arithmetic", "rewards": ["its-brevity"], "advantage": "its-median", "budget": 16, "held_out": 2},
    **{"prompts_per_batch": 8, "num_generations": 2, "max_completion_length": 3, "train_examples": 16},
}


@pytest.fixture(autouse=True)
def installed(tmp_path, monkeypatch):
    """Return a package on the path with all of these parts."""
    info = tmp_path / "site" / "parts_offered-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: its-parts\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("".join(f"[operant.{group}]\n{line}\n" for group, line in OFFERED.items()))
    (tmp_path / "site" / "parts_offered.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path / "site")
    yield
    sys.modules.pop("parts_offered", None)


@pytest.mark.parametrize(("algorithm", "options"), [("its-ppo", PPO | SMALL), ("grpo", GRPO)])
def test_parts_are_used_by_name_and_resume_bit_for_bit(algorithm, options, tmp_path):
    options = {**options, "progress": "silent", "evaluate_every": 1000}
    whole = operant.train(algorithm, run=tmp_path / "whole", **options)
    stops = iter([False])
    part = operant.train(algorithm, run=tmp_path / "part", interrupted=lambda: next(stops, True), **options)
    assert part.outcome.consumed < whole.outcome.consumed
    assert same(operant.resume(tmp_path / "part", progress="silent"), whole)
    evaluation = operant.load(tmp_path / "whole").evaluate(2)
    if algorithm == "grpo":
        assert evaluation.metrics, "the training reward is measured in addition to the task's own reward"
    else:
        assert 0 <= evaluation.mean <= 40
        assert evaluation.mean % 2 == 0, "rewards are doubled in evaluations, too"


def test_an_unknown_name_is_answered_with_the_choices():
    with pytest.raises(ValueError, match="its-objective"):
        operant.train("ppo", "CartPole-v1", objective="its-objectiv")
    with pytest.raises(ValueError, match="its-net"):
        operant.train("ppo", "CartPole-v1", encoder="its-nett")


def test_the_words_of_trl_stand_for_ours(tmp_path):
    import parts_offered

    rows = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(20)]
    small = {name: GRPO[name] for name in ("budget", "prompts_per_batch", "num_generations", "held_out")}
    given = {"train_dataset": rows, "reward_funcs": parts_offered.brevity, "max_completion_length": 3, **small}
    trained = operant.train("grpo", run=tmp_path / "run", progress="silent", **given)
    assert trained.run.asked()["rewards"] == [f"{tmp_path / 'site' / 'parts_offered.py'}:brevity"]
    with pytest.raises(ValueError, match="reward_funcs is another name of rewards"):
        operant.train("grpo", rewards=["exact"], **given)


def test_a_script_that_trains_when_it_is_imported_for_its_reward_function_does_not_start_itself(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text("import operant\noperant.train('ppo', 'CartPole-v1')\n")
    monkeypatch.setenv("OPERANT_SANDBOX", "1")
    with pytest.raises(RuntimeError, match="put the training under `if __name__ == '__main__':`"):
        runpy.run_path(str(script))


@pytest.mark.parametrize("call", ["train('ppo', 'CartPole-v1')", "resume('run')"])
def test_a_script_that_torchrun_starts_several_times_does_not_train_as_many_copies(call, tmp_path, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    script = tmp_path / "script.py"
    script.write_text(f"import operant\noperant.{call}\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RuntimeError, match=r"as one of 2 .* use `torchrun \.\.\. -m -- operant train"):
        runpy.run_path(str(script))
    assert not (tmp_path / "runs").exists()
