"""Helpers of the tests of SAC, discrete SAC and TD3: probes with continuous actions, and checks of all seeds."""

import gymnasium
import numpy as np
import pytest
import torch

from control.learners import poison
from control.probes import Constant, Delayed, Endless, Lasting, Observed, Pendular, Probe
from operant.runtime.training import train

QUICK = {
    "num_envs": 4,
    "learning_starts": 64,
    "rounds_per_iteration": 4,
    "batch_size": 32,
    "buffer_size": 2000,
    "hidden_sizes": (16, 16),
    "learning_rate": 3e-3,
    "tau": 0.05,
}


def continuous(probe):
    """Return a probe with actions of two numbers in [-2, 2], which have no effect."""
    space = gymnasium.spaces.Box(np.float32(-2), np.float32(2), (2,))
    return type(f"Continuous{probe.__name__}", (probe,), {"action_space": space})


VALUE_PROBES = [continuous(probe) for probe in (Constant, Observed, Delayed, Lasting, Endless, Pendular)]


def replay_index(learner, samples, seed=0):
    """Return random indices `[S, M]` of the replay buffer of a learner."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(learner.experience.replay.size, (len(learner.seeds), samples), generator=generator)


def a_batch(learner, samples=32, seed=0):
    """Return transitions from the replay buffer of a learner."""
    return learner.experience.replay.take(replay_index(learner, samples, seed), gamma=learner.config.gamma)


def only(batch, k):
    """Return the transitions of one seed."""
    parts = {name: value[k : k + 1] for name, value in vars(batch).items() if value is not None}
    return type(batch)(**{**dict.fromkeys(vars(batch)), **parts})


def transplant(block, alone, k):
    """Copy the networks, optimizers and random streams of seed k among several to a learner of one seed."""
    for name, parameters in alone.parameters.items():
        parameters.copy_(block.parameters[name][k : k + 1])
    for name, optimizer in alone.optimizers.items():
        for field, value in optimizer.state_dict().items():
            value.copy_(block.optimizers[name].state_dict()[field][k : k + 1])
    for name in ("action_streams", "update_streams"):
        for stream in getattr(alone, name, []):
            stream.set_state(getattr(block, name)[k].get_state())


def assert_one_update_is_the_same_alone(block, alone):
    """Check that one update of the middle one of three seeds equals that of a learner with this seed alone."""
    for _ in range(2):
        block.iterate()
    batch = a_batch(block)
    transplant(block, alone, 1)
    before = {name: parameters.clone() for name, parameters in alone.parameters.items()}
    for _ in range(2):  # an update of the policy may be due in every second only
        block.update(batch)
        alone.update(only(batch, 1))
    for name, parameters in alone.parameters.items():
        assert not torch.equal(parameters, before[name])
        torch.testing.assert_close(block.parameters[name][1:2], parameters, rtol=1e-5, atol=1e-7)


def assert_seeds_learn_the_same_in_any_company(fresh):
    """Check that a seed of `fresh(seeds)` does not depend on the others."""
    block, alone, pair = (fresh(seeds) for seeds in [(3, 5, 8), (5,), (5, 3)])
    for _ in range(4):
        reports = [learner.iterate() for learner in (block, alone, pair)]
    updates = block.config.rounds_per_iteration * block.config.gradient_steps * len(block.optimizers)
    assert reports[0]["health/updates"].max() <= updates
    assert reports[0]["health/updates"].min() > updates / 3, "an update of the policy may be due in every second only"
    for name, parameters in block.parameters.items():
        torch.testing.assert_close(parameters[1], alone.parameters[name][0], rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(parameters[[1, 0]], pair.parameters[name], rtol=1e-3, atol=1e-5)


def assert_bad_targets_stop_their_own_seed_alone(fresh):
    """Check that a batch with a NaN target leaves the critics of its seed unchanged."""
    clean, hit = fresh(), fresh()
    clean.iterate()
    hit.iterate()
    batch = a_batch(clean)
    before = hit.parameters["critics"][1].clone()
    clean.update(batch)
    bad = batch.rewards.clone()
    bad[1, 3] = torch.nan
    hit.update(type(batch)(**{**vars(batch), "rewards": bad}))
    assert torch.equal(hit.parameters["critics"][1], before)
    assert hit.counts[1].tolist() == [0, 1]
    for name, parameters in hit.parameters.items():
        assert torch.equal(parameters[0], clean.parameters[name][0])
        assert parameters.isfinite().all()


def assert_one_bad_reward_harms_nobody_else(fresh):
    """Check that a reward of NaN is not used and does not end training of `fresh(wrap)`."""
    clean, hit = fresh(None), fresh(poison(row=5, when=20))
    train(clean, budget=200, seeds=2, progress="silent")
    train(hit, budget=200, seeds=2, progress="silent")
    for name, parameters in hit.parameters.items():
        torch.testing.assert_close(parameters[0], clean.parameters[name][0], rtol=1e-3, atol=1e-5)
        assert parameters.isfinite().all()


def assert_pictures_and_masks_are_refused(fresh, actions, name):
    """Check that `fresh(probe)` raises an error for images and masks, which names algorithms that support them."""
    picture = gymnasium.spaces.Box(0, 255, (9, 9, 3), np.uint8)
    with pytest.raises(
        ValueError, match=f"{name} needs vectors, .*Odd are images, .*FlattenObservation; these support .* ppo,"
    ):
        fresh(type("Odd", (Probe,), {"observation_space": picture, "action_space": actions}))
    if isinstance(actions, gymnasium.spaces.Discrete):
        masked = gymnasium.spaces.Dict(seen=Probe.observation_space, action_mask=gymnasium.spaces.MultiBinary(2))
        with pytest.raises(ValueError, match=f"{name} does not support action masks, .*Odd have one; .* ppo,"):
            fresh(type("Odd", (Probe,), {"observation_space": masked, "action_space": actions}))


class Named(Observed):
    """Probe with observations in a dictionary, as a number and as an element of a discrete space."""

    observation_space = gymnasium.spaces.Dict(number=Probe.observation_space, name=gymnasium.spaces.Discrete(2))

    def _named(self, obs):
        return {"number": obs, "name": (obs.squeeze(1) > 0).long()}

    def reset(self, seeds=None):
        return self._named(super().reset(seeds))

    def step(self, actions):
        step = super().step(actions)
        return step._replace(obs=self._named(step.obs), final_obs=self._named(step.final_obs))


def assert_dictionaries_are_learned_from(fresh, actions):
    """Check that `fresh(probe)` concatenates the parts of a dictionary in training and in evaluation."""
    learner = fresh(type("Named", (Named,), {"action_space": actions}))
    metrics = learner.iterate()
    assert metrics["losses/critic"].isfinite().all()
    seen = learner.experience.replay.fields["obs"][: learner.experience.replay.filled]
    assert set(map(tuple, seen.flatten(0, 2).tolist())) == {(0.0, 1.0, 1.0), (1.0, 0.0, -1.0)}, "name, then number"
    obs = {"number": torch.tensor([[[1.0], [-1.0]]] * 2), "name": torch.tensor([[1, 0]] * 2)}
    assert learner.act(obs, None, None)[0].shape[:2] == (2, 2)
