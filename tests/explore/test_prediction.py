"""Prediction errors fall where one has been, and noise is never predicted."""

import pytest
import torch

from operant.envs import Wrapper, make, start
from operant.explore import ForwardError, RandomDistillation

SEEDS = (3, 5)


def sea(kind, rows, **options):
    env = kind(make("operant/DeepSea-v0", rows, SEEDS, env_kwargs={"size": 3}), **options)
    start(env, SEEDS)
    env.reset()
    return env


def dive(env, actions):
    """Return the bonus of each of some `actions`, the same in all rows, as a list of steps."""
    rewards = []
    for action in actions:
        step = env.step(torch.full((env.rows,), action))
        rewards.append(step.extras["intrinsic"].tolist())
    return rewards


@pytest.mark.parametrize("kind", [RandomDistillation, ForwardError])
def test_prediction_errors_fall_where_one_has_been(kind):
    env = sea(kind, rows=2, gamma=None, every=3, learning_rate=1e-2)
    bonuses = torch.tensor(dive(env, [1, 1, 1] * 200)).mean(1)
    new = torch.tensor(dive(env, [0, 0, 0])).mean(1)
    assert bonuses[-3:].mean() < 0.01 * bonuses[:30].mean()
    assert new[:2].min() > 10 * bonuses[-3:].max()


class Television(Wrapper):
    """Shows a new picture of noise beside the pole at every step, or always the same."""

    noisy = True

    def step(self, actions):
        step = self.env.step(actions)
        obs = torch.zeros_like(step.obs) if not self.noisy else torch.rand(step.obs.shape, generator=self.stream)
        return step._replace(obs=obs, final_obs=obs)

    def start(self, seeds):
        self.stream = torch.Generator().manual_seed(0)


def test_a_forward_model_keeps_being_paid_for_noise():
    late = {}
    for noisy in (True, False):
        television = Television(make("CartPole-v1", 4, (0,)))
        television.noisy = noisy
        env = ForwardError(television, gamma=None, every=4)
        start(env, (0,))
        env.reset()
        bonuses = torch.tensor(dive(env, [0, 1] * 300)).mean(1)
        late[noisy] = (bonuses[-50:].mean() / bonuses[2:52].mean()).item()
    assert late[False] < 0.01
    assert late[True] > 0.2
