"""Gymnasium's classic control tasks on arrays: the same dynamics, rewards, ends and time limits.

Products of parameters are precomputed, and sines and cosines are minimized, since the cost of small batches is the
number of operations. Agreement with Gymnasium is therefore up to rounding.
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import gymnasium
import torch
from gymnasium import spaces
from torch import Tensor

from operant.envs.tensor.core import Array, TensorEnv

Spaces = tuple[spaces.Box, gymnasium.Space[Any]]


def _wrap(angle: Array) -> Array:
    """Return the equal angle in [-π, π)."""
    return (angle + math.pi) % (2 * math.pi) - math.pi


class CartPole(TensorEnv):
    """Keep a pole upright on a cart that is pushed left (0) or right (1); reward 1 per step.

    Barto, Sutton and Anderson 1983, "Neuronlike adaptive elements that can solve difficult learning control problems";
    the equations without friction are those of Florian 2005, "Correct equations for the dynamics of the cart-pole
    system". State and observation: position (m), velocity, angle (rad), angular velocity.
    """

    task = "CartPole-v1"
    DEFAULTS: ClassVar = {
        "gravity": 9.8,
        "masscart": 1.0,
        "masspole": 0.1,
        "length": 0.5,
        "force_mag": 10.0,
        "tau": 0.02,
        "theta_threshold_radians": 12 * 2 * math.pi / 360,
        "x_threshold": 2.4,
    }
    SIGNED = frozenset({"gravity"})
    STARTS = ((-0.05, 0.05),) * 4

    def _derive(self, p: Mapping[str, Array]) -> None:
        self._derive_mechanics(p)
        self._theta_limit = p["theta_threshold_radians"]
        self._reward = self._constant(1.0)

    def _derive_mechanics(self, p: Mapping[str, Array]) -> None:
        mass = p["masscart"] + p["masspole"]
        self._left, self._swing = p["force_mag"] / mass, 2 * p["force_mag"] / mass
        self._pole = p["masspole"] * p["length"] / mass
        self._inertia = 4 / 3 * p["length"]
        self._gravity, self._tau, self._x_limit = p["gravity"], p["tau"], p["x_threshold"]

    def _spaces(self) -> Spaces:
        high = 2 * self.parameters["x_threshold"], math.inf, 2 * self.parameters["theta_threshold_radians"], math.inf
        return self._box(high), self._actions()

    def _actions(self) -> gymnasium.Space[Any]:
        return spaces.Discrete(2)

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        return self._reward, self._balance(actions * self._swing - self._left)

    def _balance(self, push: Array) -> Array:
        """Move by a step of Euler's method with the force `push [B]` per total mass; return where the pole is lost."""
        xp = self._xp
        x, x_dot, theta, theta_dot = self._columns
        x_acc, theta_acc = self._accelerations(push)
        x += self._tau * x_dot
        theta += self._tau * theta_dot
        x_dot += self._tau * x_acc
        theta_dot += self._tau * theta_acc
        return (xp.abs(x) > self._x_limit) | (xp.abs(theta) > self._theta_limit)

    def _accelerations(self, push: Array) -> tuple[Array, Array]:
        """Return the accelerations of cart and pole, `[B]` each."""
        _, _, theta, theta_dot = self._columns
        sin, cos = self._xp.sin(theta), self._xp.cos(theta)
        pole_cos = self._pole * cos
        pull = push + self._pole * theta_dot * theta_dot * sin
        theta_acc = (self._gravity * sin - cos * pull) / (self._inertia - pole_cos * cos)
        return pull - pole_cos * theta_acc, theta_acc

    def states(self, obs: Tensor) -> Tensor:
        """Return the states `[D, n]`, which are the observations `[n, D]`."""
        return obs.T.contiguous()

    def _observe(self, state: Array, obs: Array) -> None:
        obs[:] = state.T


class Pendulum(TensorEnv):
    """Swing a pendulum up and keep it there with a torque (N m); reward: minus a quadratic cost.

    State: angle (rad, 0 is upright), angular velocity. Observation: cosine and sine of the angle, angular velocity.
    """

    task = "Pendulum-v1"
    DEFAULTS: ClassVar = {"g": 10.0, "m": 1.0, "l": 1.0, "dt": 0.05, "max_speed": 8.0, "max_torque": 2.0}
    SIGNED = frozenset({"g"})
    STARTS = ((-math.pi, math.pi), (-1.0, 1.0))

    def _derive(self, p: Mapping[str, Array]) -> None:
        self._fall = 3 * p["g"] / (2 * p["l"]) * p["dt"]
        self._push = 3 / (p["m"] * p["l"] ** 2) * p["dt"]
        self._dt, self._speed, self._torque = p["dt"], p["max_speed"], p["max_torque"]
        self._never = self._constant(0.0) > 0

    def _spaces(self) -> Spaces:
        return self._box((1.0, 1.0, self.parameters["max_speed"])), self._box((self.parameters["max_torque"],))

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        xp = self._xp
        theta, speed = self._columns
        torque = xp.maximum(xp.minimum(actions, self._torque), -self._torque)
        angle = _wrap(theta)
        cost = angle * angle + 0.1 * speed * speed + 0.001 * torque * torque
        faster = speed + self._fall * xp.sin(theta) + self._push * torque
        speed[:] = xp.maximum(xp.minimum(faster, self._speed), -self._speed)
        theta += self._dt * speed
        return -cost, self._never

    def states(self, obs: Tensor) -> Tensor:
        """Return the states `[2, n]` of `obs [n, 3]`, with the angle in [-π, π]."""
        return torch.stack([torch.atan2(obs[:, 1], obs[:, 0]), obs[:, 2]])

    def _observe(self, state: Array, obs: Array) -> None:
        theta, speed = state
        obs[:, 0], obs[:, 1], obs[:, 2] = self._xp.cos(theta), self._xp.sin(theta), speed


class Acrobot(TensorEnv):
    """Swing the tip of a two-link arm above a line by a torque at the middle joint of -1, 0 or 1 N m; reward -1.

    Sutton and Barto 1998, "Reinforcement Learning: An Introduction", section 11.3; integrated by
    fourth-order Runge-Kutta. State: both angles (rad, 0 hangs down, the second is relative to the first), their
    velocities. Observation: cosine and sine of either angle, velocities.
    """

    task = "Acrobot-v1"
    DEFAULTS: ClassVar = {
        "gravity": 9.8,
        "dt": 0.2,
        "link_length_1": 1.0,
        "link_mass_1": 1.0,
        "link_mass_2": 1.0,
        "link_com_pos_1": 0.5,
        "link_com_pos_2": 0.5,
        "link_moi": 1.0,
        "max_vel_1": 4 * math.pi,
        "max_vel_2": 9 * math.pi,
    }
    SIGNED = frozenset({"gravity"})
    STARTS = ((-0.1, 0.1),) * 4

    def _derive(self, p: Mapping[str, Array]) -> None:
        m1, m2, l1 = p["link_mass_1"], p["link_mass_2"], p["link_length_1"]
        c1, c2, moi = p["link_com_pos_1"], p["link_com_pos_2"], p["link_moi"]
        self._coupling = m2 * l1 * c2
        self._lower = m2 * c2**2 + moi
        self._whole = m1 * c1**2 + m2 * (l1**2 + c2**2) + 2 * moi
        self._weight_1 = (m1 * c1 + m2 * l1) * p["gravity"]
        self._weight_2 = m2 * c2 * p["gravity"]
        self._dt, self._half, self._sixth = p["dt"], p["dt"] / 2, p["dt"] / 6
        self._speed_1, self._speed_2 = p["max_vel_1"], p["max_vel_2"]

    def _spaces(self) -> Spaces:
        p = self.parameters
        return self._box((1.0, 1.0, 1.0, 1.0, p["max_vel_1"], p["max_vel_2"])), spaces.Discrete(3)

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        xp, state, torque = self._xp, self._state, actions - 1
        k1 = self._velocity(state, torque)
        k2 = self._velocity(state + self._half * k1, torque)
        k3 = self._velocity(state + self._half * k2, torque)
        k4 = self._velocity(state + self._dt * k3, torque)
        state += self._sixth * (k1 + 2 * (k2 + k3) + k4)
        theta1, theta2, omega1, omega2 = self._columns
        state[:2] = _wrap(state[:2])
        omega1[:] = xp.maximum(xp.minimum(omega1, self._speed_1), -self._speed_1)
        omega2[:] = xp.maximum(xp.minimum(omega2, self._speed_2), -self._speed_2)
        terminated = xp.cos(theta1) + xp.cos(theta1 + theta2) < -1
        reward = self._empty((self.rows,))
        reward[:] = terminated
        reward -= 1
        return reward, terminated

    def _velocity(self, state: Array, torque: Array) -> Array:
        """Return the time derivative of `state [4, B]`; the mass matrix is [[d1, d2], [d2, lower]]."""
        xp = self._xp
        theta1, theta2, omega1, omega2 = state
        coupled_cos, coupled_sin = self._coupling * xp.cos(theta2), self._coupling * xp.sin(theta2)
        d1 = self._whole + coupled_cos + coupled_cos
        d2 = self._lower + coupled_cos
        phi2 = self._weight_2 * xp.sin(theta1 + theta2)
        phi1 = phi2 + self._weight_1 * xp.sin(theta1) - coupled_sin * omega2 * (omega2 + omega1 + omega1)
        ratio = d2 / d1
        force = torque - phi2 + ratio * phi1 - coupled_sin * omega1 * omega1
        velocity = self._empty(state.shape)
        velocity[:2] = state[2:]
        velocity[3] = acc2 = force / (self._lower - ratio * d2)
        velocity[2] = -(phi1 + d2 * acc2) / d1
        return velocity

    def states(self, obs: Tensor) -> Tensor:
        """Return the states `[4, n]` of `obs [n, 6]`, with the angles in [-π, π]."""
        angles = [torch.atan2(obs[:, 1], obs[:, 0]), torch.atan2(obs[:, 3], obs[:, 2])]
        return torch.stack([*angles, obs[:, 4], obs[:, 5]])

    def _observe(self, state: Array, obs: Array) -> None:
        xp = self._xp
        theta1, theta2, omega1, omega2 = state
        obs[:, 0], obs[:, 1], obs[:, 4] = xp.cos(theta1), xp.sin(theta1), omega1
        obs[:, 2], obs[:, 3], obs[:, 5] = xp.cos(theta2), xp.sin(theta2), omega2


class MountainCar(TensorEnv):
    """Drive an underpowered car out of a valley by pushing left (0), not (1) or right (2); reward -1 per step.

    Moore 1990, "Efficient memory-based learning for robot control". State and observation: position (m), velocity.
    """

    task = "MountainCar-v0"
    DEFAULTS: ClassVar = {
        "force": 0.001,
        "gravity": 0.0025,
        "min_position": -1.2,
        "max_position": 0.6,
        "max_speed": 0.07,
        "goal_position": 0.5,
        "goal_velocity": 0.0,
    }
    SIGNED = frozenset({"gravity", "min_position", "max_position", "goal_position", "goal_velocity"})
    STARTS = ((-0.6, -0.4), (0.0, 0.0))

    def _derive(self, p: Mapping[str, Array]) -> None:
        self._force, self._gravity, self._speed = p["force"], p["gravity"], p["max_speed"]
        self._wall, self._end = p["min_position"], p["max_position"]
        self._goal, self._goal_speed = p["goal_position"], p["goal_velocity"]
        self._reward = self._constant(-1.0)

    def _spaces(self) -> Spaces:
        p = self.parameters
        return self._box((p["max_position"], p["max_speed"]), (p["min_position"], -p["max_speed"])), self._actions()

    def _actions(self) -> gymnasium.Space[Any]:
        return spaces.Discrete(3)

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        return self._reward, self._drive(actions - 1)

    def _drive(self, throttle: Array) -> Array:
        """Move with the engine at `throttle [B]` of its force and return whether the goal is reached."""
        xp = self._xp
        position, velocity = self._columns
        faster = velocity + throttle * self._force - xp.cos(3 * position) * self._gravity
        velocity[:] = xp.maximum(xp.minimum(faster, self._speed), -self._speed)
        position[:] = xp.maximum(xp.minimum(position + velocity, self._end), self._wall)
        velocity *= (position > self._wall) | (velocity > 0)
        return (position >= self._goal) & (velocity >= self._goal_speed)

    def states(self, obs: Tensor) -> Tensor:
        """Return the states `[D, n]`, which are the observations `[n, D]`."""
        return obs.T.contiguous()

    def _observe(self, state: Array, obs: Array) -> None:
        obs[:] = state.T


class MountainCarContinuous(MountainCar):
    """The same with a push in [-1, 1]; reward 100 at the goal, minus a tenth of the action's square per step."""

    task = "MountainCarContinuous-v0"
    DEFAULTS: ClassVar = {**MountainCar.DEFAULTS, "force": 0.0015, "goal_position": 0.45}

    def _derive(self, p: Mapping[str, Array]) -> None:
        super()._derive(p)
        self._full = self._constant(1.0)

    def _actions(self) -> gymnasium.Space[Any]:
        return self._box((1.0,))

    def _advance(self, actions: Array) -> tuple[Array, Array]:
        xp = self._xp
        terminated = self._drive(xp.maximum(xp.minimum(actions, self._full), -self._full))
        cost = 0.1 * actions * actions
        return xp.where(terminated, 100 - cost, -cost), terminated


CLASSIC_CONTROL: Mapping[str, type[TensorEnv]] = {
    env.task: env for env in (Acrobot, CartPole, MountainCar, MountainCarContinuous, Pendulum)
}
"""The tasks of this file."""
