from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.envs import CartPole, GymnasiumEnv, Normalize, Pendulum
from operant.envs.making import make
from operant.envs.normalize import Moments

GAMMA, EPSILON = 0.9, 1e-8


def pendulums(seeds, rows=3, **kwargs):
    env = Pendulum([10 * seed + row for seed in seeds for row in range(rows)], max_episode_steps=7)
    return Normalize(env, seeds=len(seeds), gamma=GAMMA, **kwargs)


def torques(steps, rows, seed=0):
    return torch.rand(steps, rows, 1, generator=torch.Generator().manual_seed(seed)) * 4 - 2


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=6), st.integers(0, 2**31), st.booleans())
def test_moments_of_batches_are_those_of_all_numbers(steps, seed, masked):
    generator = torch.Generator().manual_seed(seed)
    moments, parts = Moments(2, (3,), torch.device("cpu")), [[], []]
    for rows in steps:
        x = torch.randn(2, rows, 3, generator=generator) * 5 + 1e3
        valid = torch.rand(2, rows, generator=generator) < 0.6 if masked else torch.ones(2, rows, dtype=torch.bool)
        poisoned = torch.where(valid.unsqueeze(2), x, torch.nan)
        moments.update(poisoned, valid if masked else None)
        for s in range(2):
            parts[s].append(x[s][valid[s]].double())
    for s in range(2):
        numbers = torch.cat(parts[s])
        assert moments.count[s].item() == len(numbers)
        if len(numbers):
            torch.testing.assert_close(moments.mean[s, 0], numbers.mean(0), rtol=1e-12, atol=0)
            torch.testing.assert_close(moments.variance()[s, 0], numbers.var(0, correction=0), rtol=1e-6, atol=1e-9)
        else:
            assert (moments.variance()[s] == 1).all()


def test_steps_equal_a_plain_reckoning():
    """Recompute everything from the raw environment with NumPy, keeping all numbers so far."""
    seeds, rows, clip = 2, 3, 1.5
    env = pendulums([1, 2], rows, clip=clip)
    raw = Pendulum([10, 11, 12, 20, 21, 22], max_episode_steps=7)
    seen, returns, all_returns = [raw.reset().numpy()], np.zeros(6), []

    def scaled(obs):
        out = np.zeros_like(obs)
        for s in range(seeds):
            rows_of = slice(rows * s, rows * (s + 1))
            past = np.concatenate([one[rows_of] for one in seen]).astype(np.float64)
            out[rows_of] = ((obs[rows_of] - past.mean(0)) / np.sqrt(past.var(0) + EPSILON)).clip(-clip, clip)
        return out

    np.testing.assert_allclose(env.reset().numpy(), scaled(seen[0]), rtol=1e-4, atol=1e-5)
    clipped = False
    for action in torques(30, 6):
        ours, theirs = env.step(action), raw.step(action)
        seen.append(theirs.obs.numpy())
        returns = GAMMA * returns + theirs.reward.numpy()
        all_returns.append(returns.copy())
        reward = np.zeros(6)
        for s in range(seeds):
            rows_of = slice(rows * s, rows * (s + 1))
            deviation = np.sqrt(np.var([one[rows_of] for one in all_returns]) + EPSILON)
            reward[rows_of] = (theirs.reward.numpy()[rows_of] / deviation).clip(-clip, clip)
        returns[theirs.truncated.numpy()] = 0
        np.testing.assert_allclose(ours.obs.numpy(), scaled(seen[-1]), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ours.final_obs.numpy(), scaled(theirs.final_obs.numpy()), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(ours.reward.numpy(), reward, rtol=1e-4, atol=1e-6)
        assert torch.equal(ours.score, theirs.score)
        assert torch.equal(ours.truncated, theirs.truncated)
        assert ours.reward.dtype == ours.obs.dtype == torch.float32
        clipped |= bool((ours.obs.abs() == clip).any())
    assert clipped


def parts(step):
    """Return the tensors of a step without `infos`, which these environments do not have."""
    assert step.infos is None
    return step[: step._fields.index("infos")]


def test_statistics_of_a_seed_do_not_depend_on_other_seeds():
    both, alone = pendulums([4, 7]), pendulums([7])
    torch.testing.assert_close(both.reset()[3:], alone.reset(), rtol=1e-5, atol=1e-6)
    for action in torques(40, 6):
        many, one = both.step(action), alone.step(action[3:])
        for a, b in zip(parts(many), parts(one), strict=True):
            torch.testing.assert_close(a[3:], b, rtol=1e-5, atol=1e-5)


def test_resume_is_exact():
    env, other = pendulums([1, 2]), pendulums([3, 4])
    env.reset()
    actions = torques(40, 6)
    for action in actions[:19]:
        obs = env.step(action).obs
    state = env.state_dict()
    assert torch.equal(other.load_state_dict(state), obs)
    for action in actions[19:]:
        for a, b in zip(parts(env.step(action)), parts(other.step(action)), strict=True):
            assert torch.equal(a, b)
    assert torch.equal(env.reset([5] * 6), other.reset([5] * 6))


def test_normalize_is_pure_and_takes_any_number_of_rows():
    env = pendulums([1, 2])
    env.reset()
    for action in torques(10, 6):
        step = env.step(action)
    before = env.state_dict()
    obs = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    by_seed = env.normalize(obs)
    assert by_seed.shape == (2, 5, 3)
    assert torch.equal(env.normalize(obs.view(10, 3)), by_seed.view(10, 3))
    assert not torch.allclose(env.normalize(obs[:1].expand(2, 5, 3))[0], by_seed[0] + 1)
    swapped = env.normalize(obs.flip(0))
    assert not torch.allclose(swapped.flip(0), by_seed)
    raw = env.env.load_state_dict(before["env"])
    assert torch.equal(env.normalize(raw), step.obs)
    for name in ("observations", "rewards"):
        assert all(torch.equal(before[name][key], env.state_dict()[name][key]) for key in before[name])
    for wrong in (obs.view(-1), obs[:, :, :2], obs[:1], obs.view(10, 3)[:5], obs.unsqueeze(0)):
        with pytest.raises(ValueError, match=r"\[S\*M, ...\] or \[S, M, ...\] with S = 2"):
            env.normalize(wrong)


def test_parts_can_be_left_out():
    raw = Pendulum([10, 11, 12], max_episode_steps=7)
    rewards_only, obs_only = pendulums([1], observations=False), pendulums([1], rewards=False)
    first = raw.reset()
    assert torch.equal(rewards_only.reset(), first)
    assert not torch.equal(obs_only.reset(), first)
    action = torques(1, 3)[0]
    step = raw.step(action)
    assert torch.equal(rewards_only.step(action).obs, step.obs)
    assert torch.equal(obs_only.step(action).reward, step.reward)
    assert rewards_only.observation_space == raw.observation_space
    assert obs_only.observation_space == gymnasium.spaces.Box(-10, 10, (3,), np.float32)


def test_rewards_can_be_scaled_whatever_the_observations():
    class Named(Pendulum):
        """Wrapper of Pendulum with observations in a dictionary."""

        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            self.observation_space = gymnasium.spaces.Dict({"angle": self.observation_space})

        def reset(self, seeds=None):
            return {"angle": super().reset(seeds)}

        def step(self, actions):
            step = super().step(actions)
            obs = {"angle": step.obs}
            return step._replace(obs=obs, final_obs=obs if step.final_obs is step.obs else {"angle": step.final_obs})

        def load_state_dict(self, state):
            return {"angle": super().load_state_dict(state)}

    rows = [10, 11, 12, 13]
    plain = Normalize(Pendulum(rows, max_episode_steps=5), seeds=2, gamma=GAMMA, observations=False)
    named = Normalize(Named(rows, max_episode_steps=5), seeds=2, gamma=GAMMA, observations=False)
    assert torch.equal(named.reset()["angle"], plain.reset())
    for action in torques(12, 4):
        step, expected = named.step(action), plain.step(action)
        assert torch.equal(step.reward, expected.reward)
        assert torch.equal(step.obs["angle"], expected.obs)
        assert torch.equal(step.final_obs["angle"], expected.final_obs)
    assert torch.equal(named.load_state_dict(named.state_dict())["angle"], expected.obs)
    with pytest.raises(TypeError, match=r"only observations of a Box.*Dict"):
        Normalize(Named(rows), seeds=2, gamma=GAMMA, rewards=False)


def test_invalid_rows_do_not_enter():
    """With NEXT_STEP autoreset, rewards are those of valid rows, and observations those that actions follow."""
    make_one = partial(gymnasium.make, "CartPole-v1", max_episode_steps=6)

    def fresh():
        vector = SyncVectorEnv([make_one] * 3, autoreset_mode=AutoresetMode.NEXT_STEP)
        return GymnasiumEnv(vector, [1, 2, 3], task="CartPole-v1")

    env, raw = Normalize(fresh(), seeds=1, gamma=GAMMA), fresh()
    assert not env.always_valid
    env.reset()
    obs, returns, all_returns = [raw.reset()], torch.zeros(3, dtype=torch.float64), []
    invalid = 0
    for _ in range(25):
        action = torch.ones(3, dtype=torch.int64)
        step, ours = raw.step(action), env.step(action)
        invalid += int((~step.valid).sum())
        returns = torch.where(step.valid, GAMMA * returns + step.reward, returns)
        obs.append(step.obs[~(step.terminated | step.truncated)])
        all_returns.append(returns[step.valid])
        returns = torch.where(step.terminated | step.truncated, 0.0, returns)
        assert torch.equal(ours.valid, step.valid)
    assert invalid > 6
    torch.testing.assert_close(env._obs_moments.mean[0, 0], torch.cat(obs).double().mean(0))
    torch.testing.assert_close(env._return_moments.mean[0, 0], torch.cat(all_returns).mean())
    torch.testing.assert_close(env._return_moments.variance()[0, 0], torch.cat(all_returns).var(correction=0))


class Brief(gymnasium.Env):
    """Episodes of one step, from 5 to 0."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, shape=(1,)):
        self.observation_space = gymnasium.spaces.Box(0, 5, shape)

    def reset(self, *, seed=None, options=None):
        return np.full(self.observation_space.shape, 5, np.float32), {}

    def step(self, action):
        return np.zeros(self.observation_space.shape, np.float32), 1.0, True, False, {}


@pytest.mark.parametrize("mode", AutoresetMode)
def test_every_autoreset_mode_counts_first_observations_and_not_final_ones(mode):
    env = Normalize(GymnasiumEnv(SyncVectorEnv([Brief] * 2, autoreset_mode=mode), [1, 2]), seeds=1, gamma=GAMMA)
    env.reset()
    for _ in range(6):
        step = env.step(torch.zeros(2, dtype=torch.int64))
        assert step.obs.shape == step.final_obs.shape == (2, 1)
    steps = 6 if mode is not AutoresetMode.NEXT_STEP else 3
    assert env._obs_moments.mean.item() == 5.0
    assert env._obs_moments.count.item() == 2 * (1 + steps)
    assert env._return_moments.count.item() == 2 * steps


def test_observations_without_axes_are_those_with_one():
    single, plain = (
        Normalize(GymnasiumEnv(SyncVectorEnv([partial(Brief, shape)] * 2), [1, 2]), seeds=1, gamma=GAMMA)
        for shape in ((), (1,))
    )
    assert torch.equal(single.reset(), plain.reset().squeeze(1))
    for _ in range(3):
        found, expected = (env.step(torch.zeros(2, dtype=torch.int64)).obs for env in (single, plain))
        assert torch.equal(found, expected.squeeze(1))


def test_wrong_arguments_are_named():
    env = CartPole(range(6))
    for arguments, message in (
        ({"seeds": 4, "gamma": 0.9}, "divide the 6 rows"),
        ({"seeds": 0, "gamma": 0.9}, "divide the 6 rows"),
        ({"seeds": 2, "gamma": 1.1}, "gamma"),
        ({"seeds": 2, "gamma": 0.9, "clip": 0.0}, "clip"),
        ({"seeds": 2, "gamma": 0.9, "epsilon": -1.0}, "epsilon"),
    ):
        with pytest.raises(ValueError, match=message):
            Normalize(env, **arguments)
    env.observation_space = gymnasium.spaces.Discrete(3)
    with pytest.raises(TypeError, match=r"Box.*Discrete\(3\)"):
        Normalize(env, seeds=2, gamma=0.9)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_observation_that_is_not_finite_leaves_the_statistics_alone(bad):
    env, plain = (Normalize(make("Pendulum-v1", 2, (0,)), seeds=1, gamma=0.9) for _ in range(2))
    env.reset()
    plain.reset()
    inner, actions = env.env.step, torch.zeros(2, 1)

    def poisoned(actions):
        step = inner(actions)
        obs = step.obs.clone()
        obs[0, 1] = bad
        return step._replace(obs=obs)

    env.env.step = poisoned
    last = env.step(actions).obs
    healthy = plain.env.step(actions).obs[1:]
    plain._obs_moments.update(healthy[None], None)
    assert last[1].isfinite().all()
    assert last[0].isfinite().tolist() == [True, False, True]
    for name, value in env.state_dict()["observations"].items():
        torch.testing.assert_close(value, plain.state_dict()["observations"][name], rtol=1e-12, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_passes_but_leaves_the_statistics_alone(bad):
    env = Normalize(make("Pendulum-v1", 2, (0,)), seeds=1, gamma=0.9)
    env.reset()
    actions = torch.zeros(2, 1)
    env.step(actions)
    inner = env.env.step

    def poisoned(actions):
        step = inner(actions)
        return step._replace(reward=torch.tensor([bad, 1.0]))

    env.env.step = poisoned
    assert env.step(actions).reward.isfinite().tolist() == [False, True]
    env.env.step = inner
    assert env.step(actions).reward.isfinite().all()
    assert all(value.isfinite().all() for value in env.state_dict()["rewards"].values())
