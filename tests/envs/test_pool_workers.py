"""Workers in other processes: the same environments with and without memory that is shared with this process."""

import time

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from host_here import HostHere
from operant import hosts
from operant.envs import EnvError, GymnasiumEnv, WorkerError, make
from operant.envs.pool_workers import Lost
from operant.envs.worker_pool import WorkerPool


class Nested(gymnasium.Env):
    """Environment with observations in dictionaries that depend on its seed and its actions."""

    observation_space = spaces.Dict({"a": spaces.Box(-np.inf, np.inf, (2,), np.float64), "b": spaces.Discrete(2000)})
    action_space = spaces.Discrete(3)
    seconds = 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 9))
        return self._obs(0), {}

    def step(self, action):
        time.sleep(self.seconds)
        self.left -= 1
        if self.left < -100:
            raise ZeroDivisionError("one by nought")
        return self._obs(action), float(action), self.left == 0, False, {"is_success": True}

    def _obs(self, action):
        return {"a": self.np_random.normal(size=2) + action, "b": abs(self.left)}


class Slow(Nested):
    seconds = 3.0


class Changing(Nested):
    """Environment that differs each time it is made."""

    def reset(self, *, seed=None, options=None):
        super().reset()
        self.left = 1000
        return self._obs(0), {}


def course(env, host=None, losses=(), steps=30):
    generator, found = torch.Generator().manual_seed(3), [env.reset()]
    for t in range(steps):
        if t in losses:
            [actor for actor in host.actors if not actor.lost][-1].kill()
        step = env.step(torch.randint(3, (env.rows,), generator=generator))
        found += [step.obs, step.final_obs, {"r": step.reward, "t": step.terminated, "v": step.valid}]
    env.close()
    return [part for tree in found for part in tree.values()]


def adapted(pool, kind=Nested):
    return GymnasiumEnv(pool.make(kind, 5, task="Nested"), range(5), task="Nested")


def assert_same(left, right):
    assert all(torch.equal(*pair) for pair in zip(left, right, strict=True))


@pytest.mark.parametrize("losses", [(), (4,), (2, 3, 11, 29)])
def test_environments_elsewhere_are_those_of_this_machine(losses):
    here = WorkerPool(2)
    expected = course(adapted(here))
    here.close()
    host = HostHere()
    with hosts.within(host):
        pool = WorkerPool(2, lost_workers="replay")
    assert_same(course(adapted(pool), host, losses), expected)
    assert len(host.actors) == 2 + len(losses)
    assert pool.restarts == len(losses)
    assert pool.processes == []
    pool.close()
    assert all(actor.lost for actor in host.actors)


def test_one_name_is_enough():
    envs = [make("CartPole-v1", 3, [0], backend="gymnasium")]
    with hosts.within(HostHere()):
        envs += [make("CartPole-v1", 3, [0], backend="gymnasium", vectorization="async")]
    actions = torch.tensor([0, 1, 1])
    for _ in range(30):
        one, other = (env.step(actions) if env._obs is not None else env.reset() for env in envs)
    assert torch.equal(one.obs, other.obs)
    for env in envs:
        env.close()


def test_a_lost_actor_ends_training_unless_something_else_is_asked_for():
    host = HostHere()
    with hosts.within(host):
        pool = WorkerPool(2)
    with pytest.raises(WorkerError, match=r"environments 3, 4 \(the actor is lost\).*`operant resume` continues"):
        course(adapted(pool), host, (2,))
    pool.close()


def test_new_episodes_may_begin_instead():
    host = HostHere()
    with hosts.within(host):
        pool = WorkerPool(2, lost_workers="restart")
    env = adapted(pool)
    env.reset()
    host.actors[1].kill()
    assert env.step(torch.zeros(5, dtype=torch.int64)).valid.tolist() == [True] * 3 + [False] * 2
    pool.close()


def test_a_slow_actor_has_until_the_deadline():
    with hosts.within(HostHere()):
        pool = WorkerPool(1, deadline=0.5)
    pool.make(Nested, 1, task="Nested").close()  # it has started
    env = pool.make(Slow, 1, task="Slow")
    env.reset(seed=[1])
    with pytest.raises(WorkerError, match=r"environments 0 have not replied for 0.5 seconds"):
        env.step(np.zeros(1, np.int64))
    pool.close()


def test_other_observations_are_no_replay():
    host = HostHere()
    with hosts.within(host):
        pool = WorkerPool(1, lost_workers="replay")
    with pytest.raises(WorkerError, match="not deterministic"):
        course(adapted(pool, Changing), host, (3,))
    pool.close()


def test_a_mistake_of_an_environment_elsewhere_is_shown():
    with hosts.within(HostHere()):
        pool = WorkerPool(1)
    vector = pool.make(Nested, 1, task="Nested")
    vector.reset(seed=[1])
    env = GymnasiumEnv(vector, [1], task="Nested")
    env.reset()
    pool._workers[0]._actor.made.result()._groups[vector.number].envs[0].left = -100
    with pytest.raises(EnvError, match=r"Nested: step\(\).*ZeroDivisionError in environments 0: one by nought"):
        env.step(torch.zeros(1, dtype=torch.int64))
    pool.close()


def test_a_loss_contains_its_cause():
    assert str(Lost(None)) == "no reply"
    assert str(Lost(-9, EOFError())) == "exit code -9"
    assert str(Lost(None, ConnectionError("the node failed"))) == "the node failed"
