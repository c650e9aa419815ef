"""Goal-conditioned tasks in Gymnasium's form: bits to flip, and a point to reach."""

from abc import ABC, abstractmethod
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

Array = NDArray[np.float32]

SPEED = 0.1
"""Distance of a full push along an axis in `Reach`, in half sides of the square."""


class _GoalWorld(gymnasium.Env[Any, Any], ABC):
    """A state, the achieved goal, and a desired goal; reward -1 per step, 0 where they are equal.

    Attributes:
        max_steps: of an episode, or None; `max_episode_steps` of `operant.envs.make` replaces it.
    """

    def __init__(self, low: float, size: int, max_steps: int | None) -> None:
        box = spaces.Box(low, 1.0, (size,), np.float32)
        self.observation_space = spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), box))
        self.size, self.max_steps = size, max_steps

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Draw a state and a goal."""
        super().reset(seed=seed)
        self.state, self.goal, self.elapsed = self._draw(), self._draw(), 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Change the state; `info["is_success"]` is whether it is the goal."""
        self.state = self._moved(action)
        self.elapsed += 1
        reward = float(self.compute_reward(self.state, self.goal, {}))
        terminated = bool(self.compute_terminated(self.state, self.goal, {}))
        return self._seen(), reward, terminated, self.elapsed == self.max_steps, {"is_success": reward == 0.0}

    def _seen(self) -> dict[str, Array]:
        parts = {"observation": self.state, "achieved_goal": self.state, "desired_goal": self.goal}
        return {name: part.copy() for name, part in parts.items()}

    def compute_reward(self, achieved_goal: Array, desired_goal: Array, info: Any) -> Array:
        """Return 0 where the goal is reached, else -1, for goals `[..., G]`."""
        return self._reached(achieved_goal, desired_goal).astype(np.float32) - np.float32(1)

    @abstractmethod
    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> NDArray[np.bool_]:
        """Return whether the episode ends, for goals `[..., G]`."""

    @abstractmethod
    def _reached(self, achieved: Array, desired: Array) -> NDArray[np.bool_]: ...

    @abstractmethod
    def _moved(self, action: Any) -> Array: ...

    @abstractmethod
    def _draw(self) -> Array: ...


class BitFlip(_GoalWorld):
    """Bits, each action flips one, until they are those of the goal (Andrychowicz et al. 2017, section 3.1).

    State and goal are drawn uniformly. An episode ends at the goal, or after as many steps as bits, which suffice. One
    of `2^bits` states pays, so random exploration practically never finds it.
    """

    def __init__(self, bits: int = 15) -> None:
        """Create the task.

        Args:
            bits: number of bits, at least 1.

        Raises:
            ValueError: if there is no bit.
        """
        if not isinstance(bits, int) or bits < 1:  # pyright: ignore[reportUnnecessaryIsInstance] - from anywhere
            raise ValueError(f"bits must be a whole number, at least 1, got {bits}")
        super().__init__(0.0, bits, bits)
        self.action_space = spaces.Discrete(bits)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> NDArray[np.bool_]:
        """Return whether the goal is reached, for goals `[..., G]`."""
        return self._reached(achieved_goal, desired_goal)

    def _reached(self, achieved: Array, desired: Array) -> NDArray[np.bool_]:
        return np.asarray((achieved == desired).all(-1))

    def _moved(self, action: Any) -> Array:
        state = self.state.copy()
        state[int(action)] = 1 - state[int(action)]
        return state

    def _draw(self) -> Array:
        return self.np_random.integers(0, 2, self.size).astype(np.float32)


class Reach(_GoalWorld):
    """A point in a square or cube is pushed to a goal, and has to stay there; reward 0 within reach, else -1.

    Each coordinate of point and goal is drawn uniformly from [-1, 1]; a step moves by a tenth of the action. As in the
    Fetch tasks of Gymnasium-Robotics, episodes continue at the goal, and success is to be there at the end.
    """

    def __init__(self, dimensions: int = 2, tolerance: float = 0.1) -> None:
        """Create the task.

        Args:
            dimensions: number of coordinates, at least 1.
            tolerance: maximum distance at which the goal is reached, positive.

        Raises:
            ValueError: if a parameter is out of range.
        """
        if not isinstance(dimensions, int) or dimensions < 1:  # pyright: ignore[reportUnnecessaryIsInstance] - from anywhere
            raise ValueError(f"dimensions must be a whole number, at least 1, got {dimensions}")
        if not tolerance > 0:
            raise ValueError(f"tolerance must be positive, got {tolerance}")
        super().__init__(-1.0, dimensions, None)
        self.tolerance = tolerance
        self.action_space = spaces.Box(-1.0, 1.0, (dimensions,), np.float32)

    def compute_terminated(self, achieved_goal: Array, desired_goal: Array, info: Any) -> NDArray[np.bool_]:
        """Return false: episodes continue, for goals `[..., G]`."""
        return np.zeros(achieved_goal.shape[:-1], np.bool_)

    def _reached(self, achieved: Array, desired: Array) -> NDArray[np.bool_]:
        return np.asarray(((achieved - desired) ** 2).sum(-1) <= self.tolerance**2)

    def _moved(self, action: Any) -> Array:
        return np.clip(self.state + SPEED * np.clip(action, -1, 1), -1, 1).astype(np.float32)

    def _draw(self) -> Array:
        return self.np_random.uniform(-1, 1, self.size).astype(np.float32)
