import gymnasium
import numpy as np
import pytest
import torch

import operant.envs  # noqa: F401 - registers the worlds
from operant.envs.tensor import CART_POLES


@pytest.mark.parametrize("task", CART_POLES)
def test_one_environment_steps_as_a_row_of_the_tensor_environment(task):
    single = gymnasium.make(task)
    obs, _ = single.reset(seed=3)
    env = CART_POLES[task]([0])
    saved = env.state_dict()
    saved["state"] = env.states(torch.tensor(obs)[None])
    env.load_state_dict(saved)
    assert (single.observation_space, single.action_space) == (env.observation_space, env.action_space)
    for t in range(5):
        action = np.array([np.sin(t)], np.float32)
        obs, reward, terminated, truncated, _ = single.step(action)
        step = env.step(torch.tensor(action)[None])
        np.testing.assert_allclose(obs, step.final_obs[0].numpy(), rtol=0, atol=1e-6)
        assert reward == pytest.approx(step.reward.item(), abs=1e-6)
        assert (terminated, truncated) == (False, False)


@pytest.mark.parametrize("task", CART_POLES)
def test_seeds_draw_starts_and_the_registration_limits_the_time(task):
    env = gymnasium.make(task)
    first, again = env.reset(seed=1)[0], env.reset(seed=1)[0]
    np.testing.assert_array_equal(first, again)
    assert (env.reset()[0] != first).any()
    assert env.spec.max_episode_steps == 500


def test_a_lost_pole_ends_the_episode():
    env = gymnasium.make("operant/ContinuousCartPole-v0")
    env.reset(seed=0)
    ends = [env.step(np.ones(1, np.float32))[2] for _ in range(10)]
    assert ends.index(True) == 9


def test_parameters_reach_the_physics():
    assert gymnasium.make("operant/CartPoleSwingUp-v0", x_threshold=3.0).observation_space.high[0] == 3.0


@pytest.mark.parametrize("task", CART_POLES)
def test_they_can_be_watched(task):
    pytest.importorskip("pygame")
    env = gymnasium.make(task, render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    for _ in range(5):
        env.step(np.ones(1, np.float32))
    assert first.ndim == 3
    assert (env.render() != first).any()
    env.close()
