"""Helpers of the tests of SAC, discrete SAC and TD3: probes with continuous actions, and checks of all seeds."""

import gymnasium
import numpy as np
import torch

from control.probes import Constant, Delayed, Endless, Lasting, Observed, Pendular, Probe
from operant.control import off_policy
from operant.runtime.encoding import digest
from operant.state import clone

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


def assert_random_actions_are_divided(build, monkeypatch, limit, expected):
    """Check the steps after each iteration, the state after the last, and a resume amid the random actions.

    Args:
        build: function that creates the learner.
        monkeypatch: the fixture.
        limit: maximum number of random steps of an iteration.
        expected: steps consumed after each iteration with that limit.
    """
    whole = build()
    while whole.consumed < expected[-1]:
        whole.iterate()
    assert whole.consumed == expected[-1]
    monkeypatch.setattr(off_policy, "EXPLORED", limit)
    parts, found = build(), []
    for _ in expected:
        again = build()
        again.load_state_dict(clone(parts.state_dict()))
        parts = again
        parts.iterate()
        found.append(parts.consumed)
    assert found == expected
    assert digest(parts.state_dict()) == digest(whole.state_dict())
