"""Whole networks from users learn, resume and initialize other runs, and errors name those that do not fit."""

import gymnasium
import numpy as np
import pytest
import torch

import operant
from outside import same

SOURCE = """
import torch
from torch import nn


class Body(nn.Sequential):
    def __init__(self, inputs, outputs):
        super().__init__(nn.Linear(inputs, 8), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, outputs))


class Both(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = Body(inputs, outputs + 1)

    def forward(self, obs):
        outputs = self.body(obs)
        return outputs[..., :-1], outputs[..., -1]


class Critic(nn.Module):
    def __init__(self, inputs, actions):
        super().__init__()
        self.body = Body(inputs + actions, 1)

    def forward(self, obs, actions):
        return self.body(torch.cat((obs, actions), -1))


class Renamed(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.layers = Body(inputs, outputs + 1)

    def forward(self, obs):
        outputs = self.layers(obs)
        return outputs[..., :-1], outputs[..., -1]
"""
ROLLOUT = {"num_envs": 2, "num_steps": 32}
BUFFER = {"num_envs": 2, "learning_starts": 16, "batch_size": 8, "buffer_size": 100}
REPLAYED = {**BUFFER, "rounds_per_iteration": 8, "budget": 128}
DISCRETE, CONTINUOUS = "CartPole-v1", "Pendulum-v1"
PAIR = {"actor_network": "net.py:Body", "critic_network": "net.py:Critic"}
BOTH = {"network": "net.py:Both"}
CASES = {
    "ppo": (DISCRETE, {**ROLLOUT, "num_minibatches": 2, "num_epochs": 2, **BOTH}),
    "ppo-continuous": (CONTINUOUS, {**ROLLOUT, "num_minibatches": 2, "num_epochs": 2, "normalize_obs": True, **BOTH}),
    "a2c": (DISCRETE, {"num_envs": 4, "num_steps": 8, **BOTH}),
    "reinforce": (DISCRETE, {"num_envs": 2, "advantage_kind": "gae", **BOTH}),
    "trpo": (DISCRETE, {**ROLLOUT, "critic_minibatches": 2, "critic_epochs": 2, "sub_sampling_factor": 2, **BOTH}),
    "trpo-continuous": (CONTINUOUS, {**ROLLOUT, "critic_minibatches": 2, "critic_epochs": 2, **BOTH}),
    "dqn": (DISCRETE, {**BUFFER, "train_freq": 8, "network": "net.py:Body"}),
    "sac": (CONTINUOUS, {**REPLAYED, **PAIR}),
    "td3": (CONTINUOUS, {**REPLAYED, "critic_network": "net.py:Critic", "hidden_sizes": (8,)}),
    "ddpg": (CONTINUOUS, {**REPLAYED, "actor_network": "net.py:Body", "hidden_sizes": (8,)}),
    "sac-discrete": (DISCRETE, {**REPLAYED, "actor_network": "net.py:Body", "critic_network": "net.py:Body"}),
}


@pytest.fixture(autouse=True)
def source(tmp_path, monkeypatch):
    (tmp_path / "net.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


def options_of(name):
    algorithm, (task, options) = name.removesuffix("-continuous"), CASES[name]
    return algorithm, task, {"budget": 256, "evaluate_episodes": 2, "progress": "silent", **options}


@pytest.mark.parametrize("name", CASES)
def test_a_whole_network_trains_resumes_exactly_and_hands_on_what_it_has_learned(name):
    algorithm, task, options = options_of(name)
    whole = operant.train(algorithm, task, run="whole", seeds=2, **options)
    assert whole.outcome.consumed >= options["budget"]
    stops = iter([False, False])
    part = operant.train(algorithm, task, run="part", seeds=2, interrupted=lambda: next(stops, True), **options)
    assert part.experiment.learner.consumed < whole.outcome.consumed
    assert same(operant.resume("part", progress="silent"), whole)
    loaded = operant.load("whole")
    assert loaded.evaluate(2).scores == whole.evaluate(2).scores
    space = gymnasium.spec(task).make()
    action, _ = loaded.predict(np.zeros(space.observation_space.shape, np.float32))
    assert space.action_space.contains(action)
    more = operant.train(algorithm, task, run="more", seeds=2, init="whole", interrupted=lambda: True, **options)
    for key, tensor in whole.experiment.learner.learned.items():
        assert torch.equal(more.experiment.learner.learned[key], tensor), key


@pytest.mark.parametrize("name", ["ppo", "trpo-continuous", "sac"])
def test_a_whole_network_keeps_the_contract_of_learners(name):
    algorithm, task, options = options_of(name)
    short = {"num_steps": 8} if "num_steps" in options else {"rounds_per_iteration": 2, "learning_starts": 8}
    config = {key: value for key, value in options.items() if key not in ("budget", "evaluate_episodes", "progress")}
    operant.check_learner(algorithm, task, **config | short)


def test_a_whole_network_learns():
    """Check that episodes of CartPole become several times longer than at random (22 steps)."""
    trained = operant.train("ppo", DISCRETE, seeds=3, budget=16384, progress="silent", **BOTH)
    assert min(trained.evaluate(20).scores) > 100


@pytest.mark.parametrize(
    ("algorithm", "task", "options", "message"),
    [
        ("ppo", DISCRETE, {"network": "net.py:Body"}, r"forward of Body must return \(policy outputs \[3, 2\], value"),
        ("ppo", DISCRETE, {"network": "net.py:Nobody"}, r"net.py has no 'Nobody'.* did you mean Body"),
        ("ppo", DISCRETE, {"network": "Both"}, r"network must be None or .*path/to/file.py:Name, got 'Both'"),
        ("dqn", DISCRETE, {"network": "net.py:Both"}, r"forward of Both must return \[3, 2\] for 3 samples"),
        ("dqn", DISCRETE, {"network": "net.py:Body", "dueling": True}, "leave out dueling=True"),
        ("sac", CONTINUOUS, {"critic_network": "net.py:Body"}, "Body does not take observations and actions of shape"),
        ("sac", CONTINUOUS, {**PAIR, "encoder": "net.py:Body"}, "leave out encoder=.*net.py:Body'"),
        ("sac", CONTINUOUS, {**PAIR, "use_sde": True}, "leave out encoder, network and actor_network"),
        ("recurrent-ppo", DISCRETE, BOTH, "leave out the GRU of recurrent policies"),
        ("reinforce", DISCRETE, {**BOTH, "advantage_kind": "q"}, "use advantage_kind='baseline', 'td' or 'gae'"),
        ("a2c", DISCRETE, {**BOTH, "critic_ensemble_size": 2}, "leave out 2 critics"),
    ],
)
def test_unsuitable_networks_are_named_before_training(algorithm, task, options, message):
    with pytest.raises(ValueError, match=message):
        operant.train(algorithm, task, run="run", budget=5000, progress="silent", **options)


def test_weights_of_another_network_do_not_fit():
    algorithm, task, options = options_of("ppo")
    operant.train(algorithm, task, run="whole", **options)
    with pytest.raises(ValueError, match=r"do not fit: layout of the network is .*body.*layers.* in this one"):
        operant.train(algorithm, task, run="own", init="whole", **{**options, "network": "net.py:Renamed"})
