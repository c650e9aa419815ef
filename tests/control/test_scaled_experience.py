"""Scaled inputs of off-policy methods, against statistics of the whole buffer."""

import numpy as np
import pytest
import torch

from control.learners import assert_resumes_exactly, build
from control.off_policy import QUICK, a_batch, replay_index
from operant.control import SAC, TD3, DiscreteSAC, DiscreteSACConfig, SACConfig, TD3Config
from operant.control.scaled_experience import CLIP, VARIANCE, ScaledExperience
from operant.envs import make

CONFIGS = {
    "td3": (TD3, TD3Config, "operant/Reach-v0"),
    "sac": (SAC, SACConfig, "operant/Reach-v0"),
    "sac-discrete": (DiscreteSAC, DiscreteSACConfig, "CartPole-v1"),
}


def learner(name="td3", seeds=(3, 5), **values):
    kind, config, task = CONFIGS[name]
    return build(kind, config(**{**QUICK, "normalize_obs": True, **values}), task, seeds)


def stored(experience):
    """Return all observations in the buffer, `[S, M, D]` in float64."""
    obs = experience.replay.fields["obs"][: experience.replay.filled]
    return obs.movedim(1, 0).flatten(1, 2).double().numpy()


def expected(experience, obs):
    """Scale observations by the mean and the standard deviation of the whole buffer."""
    seen = stored(experience)
    mean, variance = seen.mean(1, keepdims=True), seen.var(1, keepdims=True)
    return np.clip((obs.double().numpy() - mean) / np.sqrt(variance + VARIANCE), -CLIP, CLIP)


@pytest.mark.parametrize("name", CONFIGS)
def test_batches_are_scaled_by_the_statistics_of_all_that_was_seen(name):
    learned = learner(name)
    for _ in range(3):
        learned.iterate()
    raw, index = a_batch(learned), replay_index(learned, 32)
    batch = learned.experience.take(index, gamma=learned.config.gamma)
    for field in ("obs", "next_obs"):
        assert np.allclose(getattr(batch, field), expected(learned.experience, getattr(raw, field)), atol=1e-5)
    for field in ("actions", "rewards", "terminated", "discounts"):
        assert torch.equal(getattr(batch, field), getattr(raw, field))
    assert batch.obs.dtype == torch.float32


def test_the_policy_acts_on_scaled_observations():
    learned = learner()
    learned.iterate()
    env = learned.experience.collector.env
    obs = {name: part.unflatten(0, (2, -1)) for name, part in env.reset(range(8)).items()}
    flat = torch.cat([obs[name] for name in sorted(obs)], -1)
    scaled = torch.from_numpy(expected(learned.experience, flat)).float()
    actions, _ = learned.act(obs, None, None)
    torch.testing.assert_close(actions, learned.bounds.to_env(learned.policy(scaled)), rtol=1e-4, atol=1e-5)
    seen = []
    learned.experience.collect(1, lambda obs, t, envs: seen.append(obs) or torch.zeros(2, 4, 2))
    flat = learned.experience.replay.fields["obs"][learned.experience.replay.added - 1]
    moments = learned.experience.moments
    assert seen[0].abs().max() <= CLIP
    assert not torch.allclose(seen[0], flat)
    assert moments.count.flatten().tolist() == [learned.consumed + 4] * 2


def test_goals_are_relabeled_before_they_are_scaled():
    learned = learner(hindsight="future", hindsight_ratio=1e9)
    for _ in range(3):
        learned.iterate()
    experience, relabel = learned.experience, learned.experience.relabel
    batch = experience.sample(64, gamma=0.9)
    scale = experience.moments.variance().add(VARIANCE).rsqrt()
    raw = batch.next_obs.double() / scale + experience.moments.mean
    inside = (batch.next_obs.abs() < CLIP).all(-1)
    rewards = relabel.reward(*(raw[..., part].flatten(0, 1).float() for part in (relabel.achieved, relabel.desired)))
    agree = rewards.view(2, 64) == batch.rewards
    assert inside.float().mean() > 0.5
    assert agree[inside].all()
    assert (batch.rewards == 0).any()


@pytest.mark.parametrize("name", CONFIGS)
def test_training_resumes_bit_for_bit_from_a_checkpoint(name, tmp_path):
    assert_resumes_exactly(lambda: learner(name, random_exploration=0.5), tmp_path)


def test_the_statistics_of_a_seed_do_not_depend_on_others():
    block, alone = learner(), learner(seeds=(5,))
    for each in (block, alone):
        each.experience.explore(20)
    assert torch.equal(block.experience.moments.mean[1:], alone.experience.moments.mean)
    assert torch.equal(block.experience.moments.squares[1:], alone.experience.moments.squares)


def test_the_statistics_belong_to_the_weights():
    learned = learner()
    learned.iterate()
    weights = learned.learned
    assert weights["observations.mean"] is learned.experience.moments.mean
    assert {"actor", "critics", "observations.count", "observations.squares"} < weights.keys()


def test_images_are_rejected():
    with pytest.raises(ValueError, match="normalize_obs is for vectors"):
        ScaledExperience(
            make("operant/PixelCatch-v0", 1, (3,)),
            seeds=(3,),
            rows=1,
            capacity=10,
            to_env=lambda actions: actions,
            random=lambda shape, stream: torch.zeros(shape, dtype=torch.int64),
        )
