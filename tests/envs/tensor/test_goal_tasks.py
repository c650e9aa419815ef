"""The tensor environments with goals equal those of Gymnasium, step by step, and report success."""

import gymnasium
import numpy as np
import pytest
import torch

from operant.envs import check_batch_env, make
from operant.envs.tensor import BitFlip, Reach

WORLDS = [(BitFlip, {"bits": 4}), (Reach, {"dimensions": 2}), (Reach, {"dimensions": 3, "tolerance": 0.5})]


def random_actions(env, rng):
    if isinstance(env, BitFlip):
        return torch.from_numpy(rng.integers(0, env.goals, env.rows))
    return torch.from_numpy(rng.uniform(-1.5, 1.5, (env.rows, env.goals)).astype(np.float32))


@pytest.mark.parametrize(("kind", "options"), WORLDS)
def test_every_step_is_gymnasiums(kind, options):
    env, rng = kind(range(9), **options), np.random.default_rng(0)
    singles = [gymnasium.make(env.task, **options, disable_env_checker=True) for _ in range(9)]
    assert (env.observation_space, env.action_space) == (singles[0].observation_space, singles[0].action_space)
    successes = 0
    obs, begun = env.reset(), [True] * 9
    for _ in range(150):
        for row, single in enumerate(singles):
            if begun[row]:
                single.reset(seed=row)
                single.unwrapped.state = obs["achieved_goal"][row].numpy()
                single.unwrapped.goal = obs["desired_goal"][row].numpy()
        actions = random_actions(env, rng)
        step = env.step(actions)
        begun = (step.terminated | step.truncated).tolist()
        assert (step.infos is not None) == any(begun)
        for row, single in enumerate(singles):
            seen, reward, terminated, truncated, info = single.step(actions[row].numpy())
            for name, part in seen.items():
                np.testing.assert_allclose(step.final_obs[name][row].numpy(), part, rtol=0, atol=1e-6)
            assert (reward, terminated, truncated) == (
                *(float(step.reward[row]), bool(step.terminated[row])),
                bool(step.truncated[row]),
            )
            if begun[row]:
                assert float(step.infos["is_success"][row]) == info["is_success"]
                successes += info["is_success"]
            elif step.infos is not None:
                assert step.infos["is_success"][row].isnan()
        goals = step.final_obs["achieved_goal"], step.final_obs["desired_goal"]
        assert torch.equal(env.compute_reward(*goals), step.reward)
        assert torch.equal(env.compute_terminated(*goals), step.terminated)
        obs = step.obs
    assert successes > 0


@pytest.mark.parametrize(("kind", "options"), WORLDS)
def test_other_goals_have_the_rewards_of_gymnasium(kind, options):
    env, rng = kind([0], **options), np.random.default_rng(0)
    single = gymnasium.make(env.task, **options).unwrapped
    achieved, desired = (rng.integers(0, 2, (50, env.goals)).astype(np.float32) * 0.3 for _ in range(2))
    for name in ("compute_reward", "compute_terminated"):
        expected = getattr(single, name)(achieved, desired, {})
        found = getattr(env, name)(torch.from_numpy(achieved), torch.from_numpy(desired))
        assert found.tolist() == expected.tolist()
        assert getattr(single, name)(achieved[0], desired[0], {}) == expected[0]


def test_starts_are_uniform():
    bits = BitFlip(range(4000), bits=5).reset()
    for part in ("achieved_goal", "desired_goal"):
        assert set(bits[part].unique().tolist()) == {0.0, 1.0}
        assert bits[part].mean(0).sub(0.5).abs().max() < 0.05
    point = Reach(range(4000)).reset()
    assert point["achieved_goal"].mean(0).abs().max() < 0.05
    assert point["desired_goal"].var(0).sub(1 / 3).abs().max() < 0.02


@pytest.mark.parametrize("task", ["operant/BitFlip-v0", "operant/Reach-v0"])
@pytest.mark.parametrize("backend", ["tensor", "gymnasium"])
def test_they_keep_the_contract(task, backend):
    check_batch_env(lambda: make(task, 2, (3, 5), backend=backend), seeds=(3, 5), steps=40)


def test_custom_parameters_reach_the_tensors_and_wrong_ones_are_named():
    env = make("operant/BitFlip-v0", 1, [0], env_kwargs={"bits": 3})
    assert (type(env), env.goals, env.max_episode_steps, env.env_kwargs) == (BitFlip, 3, 3, {"bits": 3})
    assert type(make("operant/Reach-v0", 1, [0], env_kwargs={"max_episode_steps": 3})) is not Reach
    with pytest.raises(ValueError, match="which takes dimensions, tolerance alone"):
        make("operant/Reach-v0", 1, [0], backend="tensor", env_kwargs={"max_episode_steps": 3})
    for backend in ("tensor", "gymnasium"):
        for bits, place in (
            (0, "must be a whole number, at least 1,"),
            (4.5, "of operant/BitFlip-v0 must be a whole number,"),
        ):
            with pytest.raises(ValueError, match=f"bits {place} got {bits}"):
                make("operant/BitFlip-v0", 1, [0], backend=backend, env_kwargs={"bits": bits})
        for wrong in ({"tolerance": 0}, {"dimensions": 0}, {"dimensions": 2.5}):
            [(name, value)] = wrong.items()
            with pytest.raises(ValueError, match=f"{name} (of operant/Reach-v0 )?must be .*, got {value}"):
                make("operant/Reach-v0", 1, [0], backend=backend, env_kwargs=wrong)
