"""Learners compute on one device: operations on meta tensors and CPU tensors together raise an error."""

import sys

import pytest
import torch

from operant import catalog, configure, streams
from operant.control import assemble
from operant.runtime.settings import Settings

SMALL = {"num_envs": 2, "hidden_sizes": (8,)}
OFF_POLICY = {**SMALL, "learning_starts": 8, "batch_size": 4, "buffer_size": 100}
CASES = [
    ("ppo", "CartPole-v1", {**SMALL, "num_steps": 8, "num_minibatches": 4}),
    ("ppo", "Pendulum-v1", {**SMALL, "num_steps": 8, "num_minibatches": 2, "normalize_reward": True}),
    ("ppo-penalty", "CartPole-v1", {**SMALL, "num_steps": 8}),
    ("recurrent-ppo", "CartPole-v1", {**SMALL, "num_steps": 8, "rnn_hidden_size": 4, "num_minibatches": 1}),
    ("a2c", "CartPole-v1", {**SMALL, "num_steps": 8}),
    ("trpo", "CartPole-v1", {**SMALL, "num_steps": 8}),
    ("dqn", "CartPole-v1", {**OFF_POLICY, "train_freq": 4}),
    ("prioritized-dqn", "CartPole-v1", {**OFF_POLICY, "train_freq": 4, "double": True, "dueling": True}),
    ("sac", "Pendulum-v1", {**OFF_POLICY, "rounds_per_iteration": 2}),
    ("sac-discrete", "CartPole-v1", {**OFF_POLICY, "rounds_per_iteration": 2}),
    ("td3", "Pendulum-v1", {**OFF_POLICY, "rounds_per_iteration": 2}),
]


class Generator(torch.Generator):
    """Generator whose device is `meta`, where no generator exists."""

    device = torch.device("meta")


@pytest.fixture
def meta(monkeypatch):
    """Make operations that read numbers return constants for meta tensors."""
    made = streams.torch_generator
    monkeypatch.setattr(
        streams, "torch_generator", lambda *a, device="cpu": made(*a) if str(device) == "cpu" else Generator()
    )
    for name, answer in (("item", 1.0), ("__int__", 1), ("__bool__", True), ("__float__", 1.0)):
        asked = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x, asked=asked, answer=answer: answer if x.is_meta else asked(x))
    tolist, exponential_ = torch.Tensor.tolist, torch.Tensor.exponential_

    def listed(x):
        return tolist(torch.zeros(x.shape, dtype=x.dtype) if x.is_meta else x)

    monkeypatch.setattr(torch.Tensor, "tolist", listed)
    for module in [module for name, module in sys.modules.items() if name.startswith("operant.")]:
        for name in [name for name, value in vars(module).items() if value is tolist]:  # the one of operant.tensors
            monkeypatch.setattr(module, name, listed)
    # A meta tensor takes no generator.
    monkeypatch.setattr(
        torch.Tensor, "exponential_", lambda x, generator: x if x.is_meta else exponential_(x, generator=generator)
    )


@pytest.mark.parametrize(("name", "task", "values"), CASES)
def test_nothing_meets_what_is_on_another_device(name, task, values, meta):
    settings = Settings(name, task, seeds=(0, 1), budget=10**6, compile="off")
    learner = assemble(catalog.find(name), settings, configure(name, task, **values), device="meta").learner
    for _ in range(2):
        learner.iterate()
    assert learner.device.type == "meta"
