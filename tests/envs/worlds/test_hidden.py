import gymnasium
import numpy as np
import pytest

import operant.envs  # noqa: F401 - registers the worlds


def test_only_position_and_angle_are_seen():
    hidden, whole = gymnasium.make("operant/HiddenCartPole-v0"), gymnasium.make("CartPole-v1")
    assert hidden.observation_space.shape == (2,)
    np.testing.assert_array_equal(hidden.observation_space.high, whole.observation_space.high[[0, 2]])
    seen, _ = hidden.reset(seed=3)
    obs, _ = whole.reset(seed=3)
    np.testing.assert_array_equal(seen, obs[[0, 2]])
    for action in (0, 1, 1, 0, 1):
        seen, reward, terminated, truncated, _ = hidden.step(action)
        obs, *rest = whole.step(action)
        np.testing.assert_array_equal(seen, obs[[0, 2]])
        assert hidden.observation_space.contains(seen)
        assert [reward, terminated, truncated] == rest[:3]


def test_the_time_limit_is_that_of_cartpole():
    env = gymnasium.make("operant/HiddenCartPole-v0")
    assert env.spec.max_episode_steps == gymnasium.spec("CartPole-v1").max_episode_steps
    inner = env.unwrapped
    env.reset(seed=0)
    for step in range(1, 501):
        inner.state = np.zeros(4)
        _, _, terminated, truncated, _ = env.step(step % 2)
        assert (terminated, truncated) == (False, step == 500)


def test_it_can_be_watched():
    pytest.importorskip("pygame")
    env = gymnasium.make("operant/HiddenCartPole-v0", render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().ndim == 3
    env.close()
