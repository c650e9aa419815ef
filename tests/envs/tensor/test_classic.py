import types

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import acrobot, cartpole, continuous_mountain_car, mountain_car, pendulum

from operant.envs.tensor import CLASSIC_CONTROL

MODULES = (acrobot, cartpole, continuous_mountain_car, mountain_car, pendulum)
ROWS, STEPS = 12, 300


@pytest.fixture
def gymnasium_in_double(monkeypatch):
    """Keep Gymnasium's classic control from rounding its states and observations to float32."""
    double = types.SimpleNamespace(**{**vars(np), "float32": np.float64})
    for module in MODULES:
        monkeypatch.setattr(module, "np", double)


def spread(task, rng):
    """Return a state [D] in corners that random actions rarely reach: walls, goals, wraps, speed limits."""
    scale = {
        "CartPole-v1": [3.0, 3.0, 0.25, 3.0],
        "Pendulum-v1": [9.0, 8.0],
        "Acrobot-v1": [np.pi, np.pi, 4 * np.pi, 9 * np.pi],
    }
    if task in scale:
        return rng.uniform(-1, 1, len(scale[task])) * scale[task]
    return np.array([rng.uniform(-1.2, 0.6), rng.uniform(-0.07, 0.07)])


def random_actions(space, rows, rng):
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.n, size=rows)
    return rng.uniform(1.5 * space.low, 1.5 * space.high, size=(rows, *space.shape))


@pytest.mark.usefixtures("gymnasium_in_double")
@pytest.mark.parametrize("task", CLASSIC_CONTROL)
def test_every_step_equals_gymnasiums_from_the_same_state(task):
    rng = np.random.default_rng(0)
    env = CLASSIC_CONTROL[task](range(ROWS), dtype=torch.float64)
    singles = [gymnasium.make(task, disable_env_checker=True).unwrapped for _ in range(ROWS)]
    for row, single in enumerate(singles):
        single.reset(seed=row)
    ends = 0
    for step in range(STEPS):
        if step % 30 == 20:
            for single in singles:
                single.state = spread(task, rng)
        saved = env.state_dict()
        saved["state"] = torch.tensor(np.stack([single.state for single in singles]).T)
        env.load_state_dict(saved)
        actions = random_actions(env.action_space, ROWS, rng)
        ours = env.step(torch.tensor(actions))
        for row, single in enumerate(singles):
            obs, reward, terminated, _, _ = single.step(actions[row])
            np.testing.assert_allclose(ours.final_obs[row].numpy(), obs, rtol=0, atol=1e-9)
            assert ours.reward[row].item() == pytest.approx(float(reward), abs=1e-9)
            assert bool(ours.terminated[row]) == terminated
            if terminated:
                ends += 1
                single.reset()
    assert ends > 0 or task == "Pendulum-v1"


@pytest.mark.parametrize("task", CLASSIC_CONTROL)
def test_spaces_and_time_limit_are_those_of_gymnasium(task):
    env, theirs = CLASSIC_CONTROL[task]([0]), gymnasium.make(task)
    assert env.observation_space == theirs.observation_space
    assert env.action_space == theirs.action_space
    assert env.max_episode_steps == theirs.spec.max_episode_steps
    assert env.task == task


@pytest.mark.parametrize("task", CLASSIC_CONTROL)
def test_starts_have_gymnasiums_distribution(task):
    rows = 4096
    env = CLASSIC_CONTROL[task](range(rows))
    starts = env.state_dict()["state"].to(torch.float64)
    single = gymnasium.make(task).unwrapped
    sample = np.zeros((len(env.STARTS), 2000))
    for episode in range(sample.shape[1]):
        single.reset(seed=episode)
        sample[:, episode] = single.state
    for ours, theirs, (low, high) in zip(starts, sample, env.STARTS, strict=True):
        width = high - low
        assert low - 1e-6 <= ours.min() <= low + 0.01 * width
        assert high - 0.01 * width <= ours.max() <= high + 1e-6
        assert low - 1e-6 <= theirs.min()
        assert theirs.max() <= high + 1e-6
        assert ours.mean().item() == pytest.approx((low + high) / 2, abs=5 * width / (12 * rows) ** 0.5 + 1e-9)
        assert ours.var().item() == pytest.approx(width**2 / 12, rel=0.05)
        assert theirs.var() == pytest.approx(width**2 / 12, rel=0.1)
        assert width == 0 or len(ours.unique()) > 0.99 * rows


@pytest.mark.parametrize("task", CLASSIC_CONTROL)
def test_observations_stay_in_the_space(task):
    env = CLASSIC_CONTROL[task](range(16))
    rng = np.random.default_rng(0)
    for _ in range(100):
        space = env.action_space
        actions = random_actions(space, 16, rng)
        step = env.step(torch.tensor(actions) if isinstance(space, spaces.Discrete) else torch.tensor(actions).float())
        assert all(obs in env.observation_space for obs in step.obs.numpy())
        assert step.reward.dtype == step.obs.dtype == torch.float32
        assert step.reward.shape == step.terminated.shape == step.truncated.shape == step.valid.shape == (16,)


def test_parameters_change_the_physics_of_their_own_row():
    overrides = {"length": torch.tensor([0.5, 1.0]), "force_mag": 12.0}
    env = CLASSIC_CONTROL["CartPole-v1"]([5, 5], dtype=torch.float64, **overrides)
    single = gymnasium.make("CartPole-v1").unwrapped
    start = env.state_dict()["state"][:, 1].numpy()
    ours = env.step(torch.tensor([1, 1]))
    single.reset(seed=0)
    single.state, single.length, single.force_mag = start, 1.0, 12.0
    single.polemass_length = single.masspole * single.length
    single.step(1)
    np.testing.assert_allclose(ours.final_obs[1].numpy(), single.state, rtol=0, atol=1e-12)
    assert (ours.final_obs[0] != ours.final_obs[1]).any()
