"""Environments compute the rewards of other goals, for a batch of goals."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from operant.envs import EnvError, Wrapper, goal_end, goal_reward, make

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
KINDS = (Reach, OneByOne, Failing)


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
