import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from operant.envs import WorkerPool, make


@pytest.mark.parametrize("task", ["Acrobot-v1", "FrozenLake-v1", "Pendulum-v1"])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_environments_in_workers_are_those_that_share_a_process(task, workers):
    options = {"backend": "gymnasium", "purpose": "x"}
    async_ = make(task, 5, [3], vectorization="async", pool=(pool := WorkerPool(workers)), **options)
    sync = make(task, 5, [3], **options)
    assert torch.equal(async_.reset(), sync.reset())
    discrete = isinstance(sync.action_space, spaces.Discrete)
    for t in range(210):
        actions = torch.arange(t, t + 5) % 3 if discrete else torch.zeros(5, 1)
        here, there = (env.step(actions) for env in (async_, sync))
        for name in ("obs", "reward", "terminated", "truncated", "final_obs", "valid"):
            assert torch.equal(getattr(here, name), getattr(there, name)), name
    async_.close()
    pool.close()
    sync.close()


class Mixed(gymnasium.Env):
    """Environment whose observations contain its actions in a dictionary."""

    observation_space = spaces.Dict({"box": spaces.Box(-9, 9, (2, 3), np.float64), "count": spaces.Discrete(9)})
    action_space = spaces.MultiDiscrete([3, 4])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(self.np_random.integers(3)), {}

    def step(self, action):
        return self._obs(action[0] + action[1]), float(action[1]), bool(action[0] == 2), False, {}

    def _obs(self, number):
        return {"box": np.full((2, 3), number, np.float64), "count": int(number)}


def test_dictionaries_and_several_choices_are_shared():
    gymnasium.register("OperantTestMixed-v0", Mixed)
    pool = WorkerPool(2)
    try:
        env, sync = (make("OperantTestMixed-v0", 3, [0], vectorization=v, pool=pool) for v in ("async", "sync"))
        first, second = env.reset(), sync.reset()
        actions = torch.tensor([[0, 1], [2, 3], [1, 0]])
        for one, other in ((first, second), (env.step(actions).obs, sync.step(actions).obs)):
            for key in ("box", "count"):
                assert torch.equal(one[key], other[key])
        assert env.step(actions).reward.tolist() == [1.0, 3.0, 0.0]
        env.close()
    finally:
        pool.close()
        gymnasium.registry.pop("OperantTestMixed-v0")
