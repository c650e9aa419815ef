"""What several test files of this chapter need: a small learner, and environments that misbehave."""

import pytest
import torch

from operant.control import PPO, PPOConfig
from operant.envs import make
from operant.runtime.encoding import flatten
from operant.streams import row_seeds

TASKS = pytest.mark.parametrize("task", ["CartPole-v1", "Pendulum-v1"])
SMALL = {"environments": 4, "steps": 16, "epochs": 2, "minibatches": 4, "hidden": (8, 8), "learning_rate": 1e-3}


def learner(task="CartPole-v1", seeds=(3, 5), *, budget=10_000, backend="auto", wrap=None, **config):
    """Return a small learner; a probe or a task of Gymnasium, ``wrap`` changes the environment."""
    config = PPOConfig(**{**SMALL, **config})
    if isinstance(task, type):
        env = task(row_seeds(seeds, config.environments, "environment"))
    else:
        env = make(task, config.environments, seeds, backend=backend)
    return PPO(config, env if wrap is None else wrap(env), seeds=seeds, budget=budget)


def same(left, right):
    """Whether two states are equal bit for bit."""
    (structure, tensors), (other_structure, others) = flatten(left), flatten(right)
    return structure == other_structure and all(torch.equal(tensors[name], others[name]) for name in tensors | others)


class Changed:
    """An environment whose steps are changed by a function of the step and the number of steps before it."""

    def __init__(self, env, change):
        self.env, self.change, self.time = env, change, 0

    def __getattr__(self, name):
        return getattr(self.env, name)

    def step(self, actions):
        self.time += 1
        return self.change(self.env.step(actions), self.time - 1)
