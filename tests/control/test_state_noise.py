"""Noise that is a function of the state (gSDE): normal in every state, the same in the same state, and resumable."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from operant import ops
from operant.control import A2C, PPO, SAC, TD3, A2CConfig, PPOConfig, SACConfig, TD3Config
from operant.control.off_policy import exploration_noise
from operant.control.state_noise import StateNoise
from operant.envs import make
from operant.nets import StackedMLP
from operant.state import clone

SEEDS = (3, 5)
SMALL = {"hidden_sizes": (8,), "use_sde": True}
REPLAY = {
    **SMALL,
    "learning_starts": 0,
    "train_freq": 8,
    "rounds_per_iteration": 2,
    "batch_size": 8,
    "buffer_size": 100,
}
CASES = [
    (PPO, PPOConfig(num_envs=2, num_steps=16, num_minibatches=2, num_epochs=1, **SMALL)),
    (A2C, A2CConfig(num_envs=2, **SMALL)),
    (SAC, SACConfig(num_envs=2, **REPLAY)),
    (TD3, TD3Config(num_envs=2, **REPLAY)),
]


def learner(kind, config, seeds=SEEDS, task="Pendulum-v1"):
    return kind(config, make(task, config.num_envs, seeds), seeds=seeds, budget=1000)


def acting(found):
    """Return the function that chooses the actions of the next round."""
    chosen = []
    found.experience.collect = lambda steps, act, stacked=None: chosen.append(act)
    found.collect()
    return partial(chosen[0], envs=slice(None))


def noise_of(steps=8, every=-1, rows=4, width=6):
    streams = [torch.Generator().manual_seed(seed) for seed in SEEDS]
    network = StackedMLP([3, width, 2], activation="tanh")
    return StateNoise(streams, steps=steps, rows=rows, network=network, actions=2, every=every)


def test_noise_by_hand():
    """φ = (3, 4) has length 5: ε = (0.6, 0.8) W."""
    weights = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert_close(ops.state_dependent_noise(torch.tensor([3.0, 4.0]), weights), torch.tensor([0.6, 1.6]))
    for nothing in (0.0, 1e-25):  # squares of which are 0 in 32 bits
        assert_close(ops.state_dependent_noise(torch.full((2,), nothing), weights), torch.zeros(2))


def test_noise_is_standard_normal_and_correlates_as_features_do():
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(20_000, 5, 2, generator=generator)
    one, other = torch.randn(2, 5, generator=generator)
    first, second = (ops.state_dependent_noise(part.expand(20_000, 5), weights) for part in (one, other))
    for noise in (first, second):
        assert_close(noise.mean(0), torch.zeros(2), atol=0.03, rtol=0)
        assert_close(noise.T.cov(), torch.eye(2), atol=0.04, rtol=0)
    cosine = torch.cosine_similarity(one, other, dim=0)
    assert_close((first * second).mean(), cosine, atol=0.03, rtol=0)


def test_weights_are_kept_as_long_as_is_asked_for():
    hidden = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(1))
    kept = noise_of()
    assert len(kept) == 8
    assert all(torch.equal(kept.at(hidden, 0), kept.at(hidden, t)) for t in range(8))
    drawn = noise_of(every=3)
    same = [torch.equal(drawn.at(hidden, t), drawn.at(hidden, t + 1)) for t in range(7)]
    assert same == [True, True, False, True, True, False, True]
    again = noise_of(every=3)
    assert torch.equal(drawn.at(hidden, 5), again.at(hidden, 5))


@pytest.mark.parametrize(("kind", "config"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_runs_resume_bit_for_bit(kind, config):
    whole, half = learner(kind, config), learner(kind, config)
    for each in (whole, half):
        each.iterate()
    again = learner(kind, config)
    again.load_state_dict(clone(half.state_dict()))
    for each in (whole, again):
        each.iterate()
    for name, tensor in whole.learned.items():
        assert torch.equal(tensor, again.learned[name]), name


@pytest.mark.parametrize(("kind", "config"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_noise_is_the_one_that_acts(kind, config):
    """Compare with a learner without the noise: its actions and what is learned differ."""
    with_it, without = learner(kind, config), learner(kind, replace(config, use_sde=False))
    assert torch.equal(with_it.learned[next(iter(with_it.learned))], without.learned[next(iter(without.learned))])
    for each in (with_it, without):
        each.iterate()
    changed = [not torch.equal(with_it.learned[name], without.learned[name]) for name in with_it.learned]
    assert any(changed)


def test_actions_of_sac_follow_the_state_within_a_round():
    found = learner(SAC, CASES[2][1])
    act = acting(found)
    obs = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(2))
    assert torch.equal(act(obs, 0), act(obs, 7))
    assert not torch.equal(act(obs, 0), act(obs + 0.5, 0))
    mean, log_std = found.policy(obs)
    hidden = found.actor.trace(obs)[-2]
    generators = [torch.Generator().manual_seed(9) for _ in SEEDS]
    noise = exploration_noise(found.config, generators, found.shapes["actor"], 1, every=found.config.sde_every)()
    expected = ops.tanh_gaussian_sample(mean, log_std, noise([hidden, mean], 0))
    for stream in found.action_streams:
        stream.manual_seed(9)
    assert torch.equal(acting(found)(obs, 0), expected)


def test_noise_of_ppo_is_within_its_distribution():
    """(action - mean) / std of a rollout is the noise computed from the hidden layer: standard normal over seeds."""
    seeds = tuple(range(200))
    found = learner(PPO, CASES[0][1], seeds=seeds)
    rollout = found.agent.collect(16)
    actions, means = (part.view(16, 200, 2) for part in rollout.kept)
    noise = (actions - means) / found.agent.networks.free.exp()
    assert_close(noise[0].mean(), torch.tensor(0.0), atol=0.15, rtol=0)
    assert_close(noise[0].std(), torch.tensor(1.0), atol=0.12, rtol=0)
    assert torch.corrcoef(torch.stack([noise[0].flatten(), noise[1].flatten()]))[0, 1] > 0.8


@pytest.mark.parametrize(
    ("kind", "config", "task", "message"),
    [
        (
            PPO,
            CASES[0][1],
            "CartPole-v1",
            "use_sde needs continuous actions, but ppo has discrete ones here: leave it out",
        ),
        (SAC, replace(CASES[2][1], hidden_sizes=()), "Pendulum-v1", "reads the last hidden layer of a perceptron"),
        (A2C, replace(CASES[1][1], sde_sample_freq=0), "Pendulum-v1", "sde_sample_freq must be at least 1, or -1"),
    ],
)
def test_unsupported_combinations_are_rejected(kind, config, task, message):
    with pytest.raises(ValueError, match=message):
        learner(kind, config, task=task)
