"""Cart and pole with a continuous force: balancing, and swinging the pole up.

`operant.envs.worlds.cart_poles` has the same tasks as single environments of Gymnasium.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch
from torch import Tensor

from operant.envs.tensor.classic import CartPole, Spaces
from operant.envs.tensor.core import Array, TensorEnv


class ContinuousCartPole(CartPole):
    """Keep a pole upright on a cart that is pushed with any share in [-1, 1] of the maximum force; reward 1 per step.

    Physics, starts and ends are those of `CartPole-v1`, and so is the limit of 500 steps.
    """

    task = "operant/ContinuousCartPole-v0"

    def _derive(self, p: Mapping[str, Array]) -> None:
        super()._derive(p)
        self._full = self._constant(1.0)

    def _actions(self) -> gymnasium.Space[Any]:
        return self._box((1.0,))

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        share = self._xp.maximum(self._xp.minimum(actions, self._full), -self._full)
        return self._reward, self._balance(share * self._left)


class CartPoleSwingUp(CartPole):
    """Swing a hanging pole up by pushing its cart, and keep it upright in the middle of the rail.

    The task is that of DeepMind Control's cartpole swingup (Tassa et al. 2018, arXiv:1801.00690) with an action repeat
    of 2: the same masses, lengths and forces, 500 steps of 0.02 s, and the same reward, the product of four terms in
    [0, 1] that prefer an upright pole, a centered cart, small forces and slow rotation. Its reward is that of one
    step, so a return is at most 500, and twice a return compares with what is reported for DeepMind Control.

    A step is two steps of the semi-implicit Euler method. The cart stops at the ends of the rail; the collision is
    perfectly inelastic and conserves the angular momentum of the pole about its joint. Episodes end by truncation
    alone.

    State: position (m), velocity, angle (rad, 0 is upright), angular velocity. Observation: position, velocity, cosine
    and sine of the angle, angular velocity. Action: share in [-1, 1] of the maximum force.
    """

    task = "operant/CartPoleSwingUp-v0"
    DEFAULTS: ClassVar = {
        "gravity": 9.81,
        "masscart": 1.0,
        "masspole": 0.1,
        "length": 0.5,
        "force_mag": 10.0,
        "tau": 0.02,
        "x_threshold": 1.8,
    }
    STARTS = ((-0.1, 0.1), (-0.02, 0.02), (math.pi - 0.02, math.pi + 0.02), (-0.02, 0.02))
    SUBSTEPS = 2

    def _derive(self, p: Mapping[str, Array]) -> None:
        self._derive_mechanics(p)
        self._full = self._constant(1.0)
        self._never = self._constant(0.0) > 0
        self._half = p["tau"] / self.SUBSTEPS

    def _spaces(self) -> Spaces:
        high = self.parameters["x_threshold"], math.inf, 1.0, 1.0, math.inf
        return self._box(high), self._box((1.0,))

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        share = self._xp.maximum(self._xp.minimum(actions, self._full), -self._full)
        for _ in range(self.SUBSTEPS):
            self._move(share * self._left)
        return self._reward_of(share), self._never

    def _move(self, push: Array) -> None:
        xp = self._xp
        x, x_dot, theta, theta_dot = self._columns
        x_acc, theta_acc = self._accelerations(push)
        x_dot += self._half * x_acc
        theta_dot += self._half * theta_acc
        x += self._half * x_dot
        theta += self._half * theta_dot
        lost = x_dot * (xp.abs(x) > self._x_limit)  # the speed that a collision takes from the cart
        x_dot -= lost
        theta_dot += lost * xp.cos(theta) / self._inertia
        x[:] = xp.maximum(xp.minimum(x, self._x_limit), -self._x_limit)

    def _reward_of(self, share: Array) -> Array:
        x, _, theta, theta_dot = self._columns
        upright = (1 + self._xp.cos(theta)) / 2
        centered = (1 + 0.1 ** ((x / 2) ** 2)) / 2
        gentle = (5 - share * share) / 5
        slow = (1 + 0.1 ** ((theta_dot / 5) ** 2)) / 2
        return upright * centered * gentle * slow

    def states(self, obs: Tensor) -> Tensor:
        """Return the states `[4, n]` of `obs [n, 5]`, with the angle in [-π, π]."""
        return torch.stack([obs[:, 0], obs[:, 1], torch.atan2(obs[:, 3], obs[:, 2]), obs[:, 4]])

    def _observe(self, state: Array, obs: Array) -> None:
        x, x_dot, theta, theta_dot = state
        obs[:, 0], obs[:, 1], obs[:, 4] = x, x_dot, theta_dot
        obs[:, 2], obs[:, 3] = self._xp.cos(theta), self._xp.sin(theta)


CART_POLES: Mapping[str, type[TensorEnv]] = {env.task: env for env in (ContinuousCartPole, CartPoleSwingUp)}
"""The tasks of this file."""
