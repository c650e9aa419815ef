"""Environments compute the rewards of other goals, for a batch of goals."""

import gc

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from operant.envs import EnvError, Features, Wrapper, goal_end, goal_reward, make

BOX = spaces.Box(-10.0, 10.0, (2,))


class Reach(gymnasium.Env):
    """Environment that moves a point; each step gives 0 at the goal and -1 elsewhere."""

    observation_space = spaces.Dict(observation=BOX, achieved_goal=BOX, desired_goal=BOX)
    action_space = spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.goal = np.zeros(2, np.float32), self.np_random.uniform(-3, 3, 2).astype(np.float32)
        return self._see(), {}

    def step(self, action):
        self.place = self.place + action
        return self._see(), float(self.compute_reward(self.place, self.goal, {})), False, False, {}

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > 0.5).astype(np.float32)

    def _see(self):
        return {"observation": self.place, "achieved_goal": self.place, "desired_goal": self.goal}


class OneByOne(Reach):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return -float(np.linalg.norm(achieved_goal - desired_goal) > 0.5)


class Ending(Reach):
    def compute_terminated(self, achieved_goal, desired_goal, info):
        return bool(np.linalg.norm(achieved_goal - desired_goal, axis=-1) <= 0.3)  # an error for several goals


class Failing(Reach):
    def compute_reward(self, achieved_goal, desired_goal, info):
        return -info["distance"]


OF_A_FILE = """
import numpy as np
from envs.test_goals import Reach

class Tight(Reach):
    def __init__(self, width=0.5):
        self.width = width

    def compute_reward(self, achieved_goal, desired_goal, info):
        return -(np.linalg.norm(achieved_goal - desired_goal, axis=-1) > self.width).astype(np.float32)

    def compute_terminated(self, achieved_goal, desired_goal, info):
        return bool(np.linalg.norm(achieved_goal - desired_goal) <= self.width)
"""
KINDS = (Reach, OneByOne, Ending, Failing)


@pytest.fixture
def registered():
    for kind in KINDS:
        gymnasium.register(f"{kind.__name__}-v0", kind, max_episode_steps=5)
    yield
    for kind in KINDS:
        del gymnasium.registry[f"{kind.__name__}-v0"]


GOALS = torch.tensor([[1.0, 1.0], [0.0, 0.0], [0.0, 0.4]])


def test_rewards_are_those_of_the_environment(registered):
    env = Wrapper(make("Reach-v0", 2, (3, 5)))
    reward = goal_reward(env)
    assert reward(torch.zeros(3, 2), GOALS).tolist() == [-1, 0, 0]
    env.reset()
    step = env.step(torch.ones(4, 2))
    assert torch.equal(reward(step.final_obs["achieved_goal"], step.final_obs["desired_goal"]), step.reward)
    env.close()


def test_terminations_for_single_goals_are_computed_one_by_one(registered):
    assert goal_end(make("Ending-v0", 2, (3, 5)))(torch.zeros(3, 2), GOALS).tolist() == [False, True, False]


def test_tensor_environments_compute_their_own():
    class Tensors(Wrapper):
        def compute_reward(self, achieved_goal, desired_goal):
            return -(achieved_goal - desired_goal).norm(dim=-1)

    env = Wrapper(Tensors(make("CartPole-v1", 2, (3, 5))))
    assert goal_reward(env)(torch.zeros(3, 2), GOALS).tolist() == pytest.approx([-(2**0.5), 0, -0.4])


def test_environments_without_goals_are_rejected(registered):
    with pytest.raises(ValueError, match="CartPole-v1 has no method compute_reward"):
        goal_reward(make("CartPole-v1", 2, (3, 5)))
    with pytest.raises(ValueError, match=r"returned shape \[\] for 3 goals, \[3\] is needed"):
        goal_reward(make("OneByOne-v0", 2, (3, 5)))(torch.zeros(3, 2), GOALS)
    with pytest.raises(
        EnvError, match=r"Failing-v0: compute_reward\(\) of the environment raised KeyError: 'distance'"
    ):
        goal_reward(make("Failing-v0", 2, (3, 5)))(torch.zeros(3, 2), GOALS)


def test_custom_parameters_apply_also_to_an_environment_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(OF_A_FILE)
    env = make(f"{tmp_path / 'mine.py'}:Tight", 2, (3, 5), env_kwargs={"width": 0.3})
    assert goal_reward(env)(torch.zeros(3, 2), GOALS).tolist() == [-1, 0, -1]
    assert goal_end(env)(torch.zeros(3, 2), GOALS).tolist() == [False, True, False]


class Doubled(gymnasium.Wrapper):
    """Wrapper with rewards of its own."""

    closed = 0

    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, 2 * reward, *rest

    def compute_reward(self, achieved_goal, desired_goal, info):
        return 2 * self.env.unwrapped.compute_reward(achieved_goal, desired_goal, info)

    def close(self):
        Doubled.closed += 1
        super().close()


@pytest.fixture
def factory(monkeypatch):
    def register(create):
        spec = gymnasium.envs.registration.EnvSpec("OperantTestGoals-v0", create, max_episode_steps=5)
        monkeypatch.setitem(gymnasium.registry, spec.id, spec)
        return make(spec.id, 2, (3,))

    return register


def test_the_outermost_wrapper_computes_the_rewards(factory):
    env = factory(lambda: gymnasium.wrappers.TimeLimit(Doubled(Reach()), 3))
    closed, reward = Doubled.closed, goal_reward(env)
    assert reward(torch.zeros(3, 2), GOALS).tolist() == [-2, 0, 0]
    assert Doubled.closed == closed
    del reward
    gc.collect()
    assert Doubled.closed == closed + 1
    env.close()


def test_a_wrapper_that_changes_the_computed_rewards_is_rejected(factory):
    env = factory(lambda: gymnasium.wrappers.TransformReward(Doubled(Reach()), lambda reward: reward + 1))
    with pytest.raises(ValueError, match="are changed by TransformReward, which has no compute_reward"):
        goal_reward(env)
    env.close()


@pytest.mark.parametrize(
    ("space", "members"),
    [
        (spaces.Discrete(4, start=3), [3, 5, 6]),
        (spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[0, 1], [0, 0]]), [[[0, 1], [3, 1]], [[1, 3], [0, 0]]]),
        (spaces.MultiBinary((2, 2)), [[[0, 1], [1, 1]], [[0, 0], [1, 0]]]),
        (spaces.Box(-1.0, 1.0, (2, 2)), [[[0.5, 1], [-1, 1]], [[0, 0], [1, 0]]]),
    ],
)
def test_goals_are_members_of_their_space(factory, space, members):
    seen = []

    class Kind(Reach):
        observation_space = spaces.Dict(observation=BOX, achieved_goal=space, desired_goal=space)

        def compute_reward(self, achieved_goal, desired_goal, info):
            seen.append((achieved_goal, desired_goal))
            return np.zeros(len(achieved_goal))

    env = factory(Kind)
    encoded = Features.of(space, env.action_space).encode(torch.tensor(members))
    goal_reward(env)(encoded, encoded.flip(0))
    expected = np.asarray(members, space.dtype if isinstance(space, spaces.Discrete) else None)
    assert np.array_equal(seen[0][0], expected)
    assert np.array_equal(seen[0][1], expected[::-1])
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        assert seen[0][0].dtype == space.dtype
    env.close()


def test_goals_without_an_array_are_rejected(factory):
    parts = spaces.Dict(x=BOX)

    class Nested(Reach):
        observation_space = spaces.Dict(observation=BOX, achieved_goal=parts, desired_goal=parts)

    env = factory(Nested)
    with pytest.raises(ValueError, match=r"goals of .* are Dict.*a Box, MultiBinary, Discrete or MultiDiscrete"):
        goal_reward(env)
    env.close()
