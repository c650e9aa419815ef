"""Cart and pole with a continuous force as single environments: the physics of `operant.envs.tensor`, and an image."""

from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium.envs.classic_control import CartPoleEnv

from operant.envs.tensor import cart_pole
from operant.envs.tensor.core import TensorEnv

UNLIMITED = 2**62
"""Steps of an episode: the time limit is that of the registration."""


class SingleCartPole(gymnasium.Env[Any, Any]):
    """One row of a tensor environment, drawn as Gymnasium draws its `CartPole-v1`.

    Args:
        render_mode: "rgb_array", "human" or None.
        **parameters: physical quantities that differ from the task's own.
    """

    metadata: dict[str, Any] = CartPoleEnv.metadata
    KIND: ClassVar[type[TensorEnv]]

    def __init__(self, *, render_mode: str | None = None, **parameters: float) -> None:
        options: dict[str, Any] = parameters
        self._env = self.KIND([0], max_episode_steps=UNLIMITED, **options)
        self.observation_space, self.action_space = self._env.observation_space, self._env.action_space
        self.render_mode, self._drawing = render_mode, CartPoleEnv(render_mode=render_mode)
        self._drawing.length = float(self._env.parameters["length"])
        self._drawing.x_threshold = float(self._env.parameters["x_threshold"])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Draw the first state."""
        super().reset(seed=seed)
        obs = self._env.reset([int(self.np_random.integers(2**63 - 1))])
        return self._show(obs), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Push the cart."""
        step = self._env.step(torch.as_tensor(np.asarray(action, np.float32)).view(1, 1))
        return self._show(step.final_obs), float(step.reward), bool(step.terminated), False, {}

    def _show(self, obs: Any) -> Any:
        self._drawing.state = self._env.states(obs)[:, 0].double().numpy()
        if self.render_mode == "human":
            self._drawing.render()
        return obs[0].numpy().copy()

    def render(self) -> Any:
        """Return the image `[height, width, 3]`."""
        return self._drawing.render()

    def close(self) -> None:
        """Close the window."""
        self._drawing.close()


class ContinuousCartPole(SingleCartPole):
    """`operant.envs.tensor.ContinuousCartPole` as one environment."""

    KIND = cart_pole.ContinuousCartPole


class CartPoleSwingUp(SingleCartPole):
    """`operant.envs.tensor.CartPoleSwingUp` as one environment."""

    KIND = cart_pole.CartPoleSwingUp
