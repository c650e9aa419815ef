"""A partially observed classic task."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from operant.envs.spaces import is_box

SEEN = (0, 2)
"""Observed entries of CartPole's state: position of the cart and angle of the pole."""


class HiddenCartPole(gymnasium.ObservationWrapper[Any, Any, Any]):
    """`CartPole-v1` without velocities: one observation does not determine the best action.

    Only position (m) and angle (rad) are observed. Two consecutive observations determine the velocities, so
    remembering one step is enough in principle (Wierstra et al. 2007, "Solving deep memory POMDPs with recurrent policy
    gradients").
    """

    def __init__(self, *, render_mode: str | None = None) -> None:
        """Make the task; the time limit is that of its registration."""
        super().__init__(gymnasium.make("CartPole-v1", render_mode=render_mode, max_episode_steps=-1).unwrapped)
        box = self.env.observation_space
        if not is_box(box):
            raise TypeError(f"CartPole-v1 has observations of {box}, but a Box is needed")
        self._seen = np.array(SEEN)
        self.observation_space = spaces.Box(box.low[self._seen], box.high[self._seen], dtype=np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """Return the observed part of the state."""
        return observation[self._seen]
