"""Environments with goals: numbers by hand; the tensor environments are compared with them step by step."""

import gymnasium
import numpy as np

import operant.envs  # noqa: F401 - registers the worlds


def test_a_bit_is_flipped_and_the_goal_ends_the_episode():
    env = gymnasium.make("operant/BitFlip-v0", bits=3)
    env.reset(seed=0)
    env.unwrapped.state, env.unwrapped.goal = np.array([0, 1, 0], np.float32), np.array([0, 0, 1], np.float32)
    obs, *rest = env.step(1)
    assert obs["achieved_goal"].tolist() == obs["observation"].tolist() == [0, 0, 0]
    assert (obs["desired_goal"].tolist(), rest) == ([0, 0, 1], [-1.0, False, False, {"is_success": False}])
    obs, *rest = env.step(2)
    assert (obs["achieved_goal"].tolist(), rest) == ([0, 0, 1], [0.0, True, False, {"is_success": True}])


def test_an_episode_has_as_many_steps_as_bits():
    env = gymnasium.make("operant/BitFlip-v0", bits=4)
    env.reset(seed=0)
    env.unwrapped.state, env.unwrapped.goal = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert [env.step(0)[1:4] for _ in range(4)] == [(-1.0, False, False)] * 3 + [(-1.0, False, True)]


def test_a_point_is_pushed_within_its_walls_and_stays_at_its_place():
    env = gymnasium.make("operant/Reach-v0")
    env.reset(seed=0)
    env.unwrapped.state, env.unwrapped.goal = np.array([0.95, 0.0], np.float32), np.array([1.0, 0.0], np.float32)
    obs, *rest = env.step(np.array([3.0, 0.9], np.float32))
    np.testing.assert_allclose(obs["achieved_goal"], [1.0, 0.09])
    assert rest == [0.0, False, False, {"is_success": True}]
    assert [env.step(np.array([0.0, 1.0], np.float32))[1:4] for _ in range(49)][-1] == (-1.0, False, True)
