"""Tasks of the DeepMind Control Suite (Tassa et al. 2018, arXiv:1801.00690) as published scores measure them.

Each action is repeated twice, so an episode is 500 steps of a reward in [0, 2], and 25 000 steps are 50 000 frames.

    operant train sac experiments/suite_tasks.py:CartpoleSwingup --budget 25000    # pip install "operant[dm-control]"
"""

from typing import Any

import gymnasium as gym
import numpy as np


class RepeatedTask(gym.Wrapper[np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray]):
    """A task whose observations are vectors and whose actions are repeated; subclasses name it."""

    task = ""

    def __init__(self) -> None:
        super().__init__(gym.wrappers.FlattenObservation(gym.make(f"shimmy:dm_control/{self.task}-v0")))

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Take the action twice, unless the episode ends between; add the rewards."""
        observation, reward, terminated, truncated, facts = self.env.step(action)
        if not (terminated or truncated):
            observation, more, terminated, truncated, facts = self.env.step(action)
            reward = float(reward) + float(more)
        return observation, float(reward), terminated, truncated, facts


class CartpoleSwingup(RepeatedTask):
    """Swing a pole up and keep it there."""

    task = "cartpole-swingup"


class ReacherEasy(RepeatedTask):
    """Bring the tip of an arm with two joints into a circle at a random place."""

    task = "reacher-easy"


class BallInCupCatch(RepeatedTask):
    """Catch a ball that hangs on a string with the cup that it is tied to."""

    task = "ball_in_cup-catch"
