"""A classic task of which not everything is seen."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from operant.envs.spaces import is_box

SEEN = (0, 2)
"""Which entries of CartPole's state are seen: the position of the cart and the angle of the pole."""


class HiddenCartPole(gymnasium.ObservationWrapper[Any, Any, Any]):
    """`CartPole-v1` without its velocities, so that what is seen now does not tell what to do next.

    Position (m) and angle (rad) alone are seen. Two of them in a row tell the velocities, so that a memory of one step
    is enough in principle (Wierstra et al. 2007, "Solving deep memory POMDPs with recurrent policy gradients").
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
        """Return what is seen of the state."""
        return observation[self._seen]
