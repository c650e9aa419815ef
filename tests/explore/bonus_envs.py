"""Environments with bonuses for tests."""

import torch

from operant.envs import make, start
from operant.explore import Episodic, ForwardError, HashedCounts, InverseCuriosity, RandomDistillation

SEEDS = (3, 5)
KINDS = [HashedCounts, Episodic, RandomDistillation, ForwardError, InverseCuriosity]


def sea(kind, rows=1, seeds=SEEDS, **options):
    env = kind(make("operant/DeepSea-v0", rows, seeds, env_kwargs={"size": 3}), **options)
    start(env, seeds)
    env.reset()
    return env


def dive(env, actions):
    """Return the bonus of each of some `actions`, the same in all rows, as a list of steps."""
    rewards = []
    for action in actions:
        step = env.step(torch.full((env.rows,), action))
        rewards.append(step.extras["intrinsic"].tolist())
    return rewards
