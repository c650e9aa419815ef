"""Policies that are exported as graphs act as in operant, and errors name those that cannot be exported."""

import json
from contextlib import closing

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import operant
from needs import needs_onnx
from operant.cli import main

SOURCE = """
import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import nn


class Both(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.embed, self.norm = nn.Linear(1, 8), nn.LayerNorm(8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.policy, self.value = nn.Linear(8, outputs), nn.Linear(8, 1)

    def forward(self, obs):
        tokens = self.norm(self.embed(obs.unsqueeze(-1)))
        seen = nn.functional.silu(self.attention(tokens, tokens, tokens)[0].mean(1))
        return 3 * self.policy(seen), self.value(seen)


class Deciding(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.policy = nn.Linear(inputs, outputs + 1)

    def forward(self, obs):
        outputs = self.policy(obs) if len(obs) % 2 else -self.policy(obs)
        return outputs[:, :-1], outputs[:, -1:]


class Images(gymnasium.Env):
    observation_space = spaces.Box(0, 255, (9, 8, 3), np.uint8)
    action_space = spaces.MultiDiscrete([2, 3], start=[3, -1])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.observation_space.sample(), {}

    def step(self, action):
        self.left -= 1
        return self.observation_space.sample(), 1.0, self.left == 0, False, {}


class Tall(gymnasium.Env):
    observation_space = spaces.Box(-np.inf, np.inf, (2, 3), np.float64)
    action_space = spaces.Box(np.array([[-2.0, 0.0]]), np.array([[1.0, np.inf]]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return self.np_random.normal(3.0, 10.0, size=(2, 3)), {}

    def step(self, action):
        self.left -= 1
        return self.np_random.normal(3.0, 10.0, size=(2, 3)), 1.0, self.left == 0, False, {}
"""
ROLLOUT = {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "num_epochs": 2, "hidden_sizes": (8, 8)}
REPLAYED = {"hidden_sizes": (8, 8), "learning_starts": 20, "batch_size": 8}
LATENT = {"learning_starts": 20, "batch_size": 4, "hidden_sizes": (8,), "latent_size": 8, "joint_size": 8}
LATENT |= {"encoder_hidden_sizes": (8,), "critic_hidden_sizes": (8,), "target_update_interval": 4}
CASES = {
    "perceptron": ("ppo", "CartPole-v1", ROLLOUT),
    "whole network": ("ppo", "CartPole-v1", {**ROLLOUT, "network": "mine.py:Both"}),
    "images and choices": ("ppo", "mine.py:Images", ROLLOUT),
    "normalized box": ("ppo", "mine.py:Tall", {**ROLLOUT, "normalize_obs": True}),
    "numbers of states": ("a2c", "FrozenLake-v1", {"num_envs": 2, "hidden_sizes": (8,)}),
    "dueling": ("dueling-dqn", "CartPole-v1", {**REPLAYED, "scale_obs": True}),
    "squashed": ("sac", "Pendulum-v1", REPLAYED),
    "choices of sac": ("sac-discrete", "CartPole-v1", REPLAYED),
    "squashed and normalized by layer": ("mrq", "Pendulum-v1", LATENT),
    "choices on an image": ("mrq", "operant/PixelCatch-v0", {**LATENT, "depth": 2}),
}


def run_torchscript(folder, observations):
    loaded = torch.jit.load(str(folder / "policy.pt"))
    return [part.numpy() for part in loaded(torch.from_numpy(observations))]


def run_onnx(folder, observations):
    from onnx import load
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(load(str(folder / "policy.onnx"))).run(None, {"observation": observations})


RUNNERS = {"torchscript": run_torchscript, "onnx": run_onnx}


@pytest.fixture
def trained(tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SOURCE, encoding="utf-8")
    algorithm, task, options = request.param
    common = {"seeds": 2, "budget": 64, "evaluate_episodes": 1, "evaluate_every": 64, "progress": "silent"}
    with closing(operant.train(algorithm, task, run="run", **common, **options)) as found:
        yield found


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("form", ["torchscript", pytest.param("onnx", marks=needs_onnx)])
@pytest.mark.parametrize("trained", CASES.values(), ids=CASES, indirect=True)
def test_a_graph_acts_as_predict(trained, form, tmp_path):
    assert main(["export", "run", "policy", "--format", form, "--seed", "1"]) == 0
    folder = tmp_path / "policy"
    about = json.loads((folder / "policy.json").read_text(encoding="utf-8"))
    assert sorted(path.name for path in folder.iterdir()) == sorted([about["file"], "policy.json"])
    env = gymnasium.make(trained.run.settings.task) if ":" not in trained.run.settings.task else None
    space = env.observation_space if env else trained.experiment.env.observation_space
    shape, dtype = about["observation"]["shape"], about["observation"]["dtype"]
    rng = np.random.default_rng(0)
    if isinstance(space, spaces.Discrete):
        observations = rng.integers(0, space.n, size=50)
    elif dtype == "uint8":
        observations = rng.integers(0, 256, size=(50, *shape), dtype=np.uint8)
    else:
        observations = rng.normal(0.0, 2.0, size=(50, *shape)).astype(dtype)
    action, *scores = RUNNERS[form](folder, observations)
    expected = trained.predict(observations, seed_index=1)[0]
    assert (action.shape, action.dtype) == (expected.shape, expected.dtype)
    differ = ~np.isclose(action, expected, rtol=1e-4, atol=1e-4).reshape(50, -1).all(1)
    assert differ.mean() < 0.05, "ties may be broken in another way"
    assert len(about["outputs"]) == 1 + len(scores)
    if about["outputs"][1:] == ["probabilities"]:
        assert np.allclose(scores[0].sum(1), 2 if "Images" in trained.run.settings.task else 1, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("form", ["torchscript", pytest.param("onnx", marks=needs_onnx)])
@pytest.mark.parametrize("trained", [("ppo", "CartPole-v1", {**ROLLOUT, "network": "mine.py:Deciding"})], indirect=True)
def test_a_network_that_no_graph_can_say_is_named_and_nothing_is_left(trained, form, tmp_path, capsys):
    assert main(["export", "run", "policy", "--format", form]) == 2
    assert "use `operant.load(run).predict`" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "policy").exists()
    assert main(["export", "run", "policy"]) == 2
    assert "--format onnx or torchscript" in " ".join(capsys.readouterr().err.split())


def test_tables_are_no_graphs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    operant.train("q-learning", "FrozenLake-v1", run="run", budget=100, progress="silent")
    assert main(["export", "run", "policy", "--format", "torchscript"]) == 2
    assert "is for network policies: leave it out for a table" in " ".join(capsys.readouterr().err.split())
