"""Domain randomization of physics, action delays and sensors per episode: `Randomize`.

A policy trained on many variations of a task is robust to errors of the simulator (Peng et al. 2018, arXiv:1710.06537).
In automatic domain randomization, ranges start narrow and widen while the policy succeeds (OpenAI 2019,
arXiv:1910.07113), here with a common width for all ranges.
"""

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import torch
from gymnasium import spaces
from torch import Tensor

from operant import streams
from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import BatchEnv, Step, Tree
from operant.envs.spaces import is_box
from operant.envs.tensor import TensorEnv
from operant.envs.tensor.starts import BITS, random_bits, stream_keys
from operant.envs.wrapper import Wrapper, unwrapped, wrappers
from operant.state import DeclaredState, State
from operant.tensors import floats, linalg, ndtri
from operant.texts import read_toml

Given = float | Mapping[str, Sequence[float]]
"""A number, or a distribution with two parameters, such as `{"uniform": [0.5, 2.0]}`."""

FAR = 3.0
"""Number of standard deviations at which normal distributions are truncated."""

Quantile = Callable[[Tensor, float, float], Tensor]

_QUANTILES: dict[str, Quantile] = {
    "uniform": lambda unit, low, high: low + (high - low) * unit,
    "normal": lambda unit, mean, deviation: mean + deviation * ndtri(unit).clamp(-FAR, FAR),
    "log-uniform": lambda unit, low, high: low * (high / low) ** unit,
}

MUJOCO: Mapping[str, tuple[str, ...]] = {
    "masses": ("body_mass", "body_inertia"),
    "damping": ("dof_damping",),
    "friction": ("geom_friction",),
    "gear": ("actuator_gear",),
}
"""Quantities of MuJoCo models that can be randomized, each a factor of all numbers of some fields."""


@dataclass(frozen=True)
class Distribution:
    """Distribution of a quantity.

    Attributes:
        kind: "uniform", "normal" or "log-uniform".
        first: minimum, or mean.
        second: maximum, or standard deviation.
    """

    kind: str
    first: float
    second: float

    @classmethod
    def of(cls, name: str, given: Given) -> "Distribution":
        """Parse a number or a distribution.

        Raises:
            ValueError: the value is neither.
        """
        if isinstance(given, int | float) and not isinstance(given, bool):
            return cls("uniform", float(given), float(given))
        try:
            ((kind, (first, second)),) = cast(Mapping[str, Sequence[float]], given).items()
            found = cls(kind, float(first), float(second))
        except (AttributeError, TypeError, ValueError):
            found = cls("", math.nan, math.nan)
        if found.kind not in _QUANTILES or not math.isfinite(found.first + found.second):
            raise ValueError(
                f"{name} must be a number or one of {', '.join(_QUANTILES)} with two numbers, such as "
                f"{{ uniform = [0.5, 2.0] }}, got {given!r}"
            )
        is_normal, is_log = found.kind == "normal", found.kind == "log-uniform"
        in_order = found.second >= 0 if is_normal else found.first <= found.second
        if not in_order or (is_log and found.first <= 0):
            raise ValueError(
                f"{name}: the first number of a range must be the lower one, numbers of log-uniform must be positive, "
                f"and a standard deviation must not be negative, got {given!r}"
            )
        return found

    @property
    def lowest(self) -> float:
        """Minimum of the distribution."""
        return self.first - FAR * self.second if self.kind == "normal" else self.first

    def quantile(self, unit: Tensor) -> Tensor:
        """Return the quantiles at `unit [...]` in (0, 1); normal distributions are truncated."""
        return _QUANTILES[self.kind](unit, self.first, self.second)


def randomizer(path: Path) -> str:
    """Return the wrapper described by a TOML file, in the form of `Settings.wrappers`.

    Raises:
        ValueError: the file is missing or invalid, or has a key that `Randomize` does not accept.
    """
    try:
        given = read_toml(path)
    except OSError as error:
        raise ValueError(f"--randomize {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ValueError(f"--randomize {error}") from error
    if unknown := sorted(given.keys() - Randomize.KEYS):
        raise ValueError(f"{path} has {unknown[0]!r}; allowed keys: {', '.join(Randomize.KEYS)}")
    return f"{__name__}:Randomize({', '.join(f'{name}={value!r}' for name, value in given.items())})"


class Randomize(Wrapper):
    """Draws physics parameters per episode and environment, delays actions, and adds noise to observations.

    The random numbers depend only on the seed of the environment and the number of the episode. Evaluations do not use
    the wrapper unless requested (`operant evaluate RUN --randomize FILE`).

    Args:
        env: tensor environment, or Gymnasium's MuJoCo environments with the vectorization "sync".
        parameters: distributions of the environment's parameters by name (`TensorEnv.DEFAULTS`), in their units; for
            MuJoCo distributions of factors, by the names of `MUJOCO`.
        posterior: joint distribution of several parameters, as from system identification: their `names`, and the
            `mean [P]` and `covariance [P, P]` of their logarithms.
        delay: distribution of the delay of actions in steps (not normal). Before, the first action of the episode is
            applied.
        noise: distribution of the standard deviation of normal observation noise, which is drawn at each step, in units
            of the observations.
        bias: distribution of the offset of each observation component, drawn per episode.
        success: minimum return of a successful episode, for ranges that start at the nominal values and widen during
            training; None: full ranges.
        episodes: number of episodes per seed after which its ranges widen if the mean return is at least `success`.
        step: fraction of the full width by which ranges widen.

    Attributes:
        width: fraction of the ranges in use, in [0, 1], `[S]`.

    Raises:
        ValueError: a quantity is unknown, or its distribution is out of range.
    """

    STATE = ("episode", "steps", "age", "past", "width", "row_width", "returns", "finished", "total")
    in_evaluation = False
    KEYS: ClassVar[tuple[str, ...]] = (
        "parameters",
        "posterior",
        "delay",
        "noise",
        "bias",
        "success",
        "episodes",
        "step",
    )

    def __init__(
        self,
        env: BatchEnv,
        *,
        parameters: Mapping[str, Given] | None = None,
        posterior: Mapping[str, Any] | None = None,
        delay: Given = 0,
        noise: Given = 0.0,
        bias: Given = 0.0,
        success: float | None = None,
        episodes: int = 100,
        step: float = 0.1,
    ) -> None:
        super().__init__(env)
        self.success, self.episodes, self.widening = success, episodes, step
        if episodes < 1 or not 0 < step <= 1:
            raise ValueError(f"episodes must be at least 1 and step in (0, 1], got {episodes} and {step}")
        self.parameters = {name: Distribution.of(name, given) for name, given in (parameters or {}).items()}
        self.delay = Distribution.of("delay", delay)
        self.sensors = Distribution.of("noise", noise), Distribution.of("bias", bias)
        if self.delay.kind == "normal" or self.delay.lowest < 0 or self.delay.first % 1 or self.delay.second % 1:
            raise ValueError(f"delay must be a number of steps, or a range of whole numbers from 0, got {delay!r}")
        if self.sensors[0].lowest < 0:
            raise ValueError(
                f"noise is a standard deviation, which must not be negative (normal: down to {FAR:g} standard "
                f"deviations below the mean), got {noise!r}"
            )
        self.joint = None if posterior is None else _joint(posterior)
        self.disturbs = any((one.first, one.second) != (0.0, 0.0) for one in self.sensors)
        if self.disturbs and not _is_vector(env.observation_space):
            raise ValueError(f"noise and bias need Box observations of floats, got {env.observation_space}")
        inner = unwrapped(env)
        self.physics = _physics(inner, [*self.parameters, *(self.joint[0] if self.joint else ())])
        signed = inner.SIGNED if isinstance(inner, TensorEnv) else frozenset[str]()
        for name, one in self.parameters.items():
            if one.lowest <= 0 and name not in signed:
                raise ValueError(
                    f"{name} of {env.task} must be positive, but {one.kind} goes down to {one.lowest:g}: use a "
                    "narrower range, or log-uniform"
                )

    def start(self, seeds: Sequence[int]) -> None:
        """Draw the parameters of episode 0."""
        self.each = self.rows // len(seeds)
        rows = torch.tensor(streams.row_seeds(seeds, self.each, "randomize"), device=self.device)
        space = self.env.observation_space
        self.components = spaces.flatdim(space) if self.disturbs else 0
        drawn = len(self.parameters) + (len(self.joint[0]) if self.joint else 0) + 2 + self.components
        numbers = torch.arange(1, drawn + self.components + 1, device=self.device).unsqueeze(1)
        self.keys, self.noise_keys = stream_keys(rows, numbers).split_with_sizes([drawn, self.components])
        zeros = torch.zeros(self.rows, dtype=torch.int64, device=self.device)
        self.episode, self.steps, self.age = zeros, zeros.clone(), zeros.clone()
        action = torch.as_tensor(self.env.action_space.sample())
        past = torch.zeros(int(self.delay.second) + 1, self.rows, *action.shape, dtype=action.dtype)
        self.past = past.to(self.device)
        self.width = torch.full((len(seeds),), float(self._threshold is None), device=self.device)
        self.row_width = self.width.repeat_interleave(self.each)
        self.returns = torch.zeros(self.rows, device=self.device)
        self.finished, self.total = torch.zeros_like(self.width), torch.zeros_like(self.width)
        self._draw()

    @property
    def _threshold(self) -> float | None:
        """Mean return at which the ranges widen; None: they have their full width, as in every evaluation."""
        return self.success if self.training else None

    def _draw(self) -> None:
        """Draw and set the parameters of each environment's episode."""
        unit = (random_bits(self.keys, self.episode).double() + 0.5) * 2.0**-BITS
        width, nominal = self.row_width.double(), self.physics.nominal
        values: dict[str, Tensor] = {}
        for name, share in zip(self.parameters, unit, strict=False):
            values[name] = _narrowed(self.parameters[name].quantile(share), nominal[name], width)
        unit = unit[len(self.parameters) :]
        if self.joint:
            names, mean, factor = self.joint
            logs = mean.unsqueeze(1) + factor @ ndtri(unit[: len(names)])
            drawn = {name: _narrowed(row.exp(), nominal[name], width) for name, row in zip(names, logs, strict=True)}
            values, unit = values | drawn, unit[len(names) :]
        longest = self.delay.second + 1 - self.delay.first
        self.late = ((self.delay.first + unit[0] * longest).floor() * width).round().long()
        noise, bias = self.sensors
        self.deviation = noise.quantile(unit[1]) * width
        self.offset = bias.quantile(unit[2:]) * width
        self.physics.apply(values)

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment."""
        self.episode, self.steps = torch.zeros_like(self.episode), torch.zeros_like(self.steps)
        self.row_width = self.width.repeat_interleave(self.each)
        self.forget()
        self._draw()
        return self._sensed(self.env.reset(seeds))

    def step(self, actions: Tensor) -> Step:
        """Apply the delayed action of each environment."""
        step = self.env.step(self._delayed(actions))
        self.steps += 1
        self.returns += step.score
        final_obs = self._sensed(step.final_obs)
        ended = step.terminated | step.truncated
        if not self.always_valid:
            self.age *= step.valid  # the ignored action of an environment that resets itself is not that of an episode
        if not ended.any():
            obs = final_obs if step.obs is step.final_obs else self._sensed(step.obs)
            return step._replace(obs=obs, final_obs=final_obs)
        self._widen(ended & step.valid)
        self.episode += ended
        self.age *= ~ended
        self.returns = self.returns.masked_fill(ended & ~self.returns.isfinite(), 0.0) * ~ended
        self.row_width = torch.where(ended, self.width.repeat_interleave(self.each), self.row_width)
        self._draw()
        return step._replace(obs=self._sensed(self._begun(step.obs, ended)), final_obs=final_obs)

    def _begun(self, obs: Tree, rows: Tensor) -> Tree:
        """Return the observations after MuJoCo's environments with new episodes were reset with their own physics."""
        inner = unwrapped(self.env)
        if not (isinstance(self.physics, MuJoCoPhysics) and self.physics.nominal and isinstance(inner, GymnasiumEnv)):
            return obs
        obs = inner.restart(rows)
        for wrapper in wrappers(self.env):
            obs = wrapper.observation(obs)
        return obs

    def _delayed(self, actions: Tensor) -> Tensor:
        if len(self.past) == 1:
            return actions
        self.past = torch.cat([actions.to(self.past.dtype).view_as(self.past[:1]), self.past[:-1]])
        chosen = self.past[torch.minimum(self.late, self.age), torch.arange(self.rows, device=self.device)]
        self.age += 1
        return chosen.view_as(actions)

    def _sensed(self, obs: Tree) -> Tree:
        """Add bias and noise to observations, equally in repeated calls within one step."""
        if not self.disturbs or not isinstance(obs, Tensor):
            return obs
        unit = (random_bits(self.noise_keys, self.steps).double() + 0.5) * 2.0**-BITS
        error = self.offset + self.deviation * ndtri(unit)
        return obs + error.T.reshape(obs.shape).to(obs.dtype)

    def _widen(self, ended: Tensor) -> None:
        """Count ended episodes, except those with NaN or Inf, and widen the ranges of successful seeds."""
        threshold = self._threshold
        if threshold is None:
            return
        known = self.returns.isfinite()
        by_seed = (ended & known).view(-1, self.each)
        self.finished = self.finished + by_seed.sum(1)
        self.total = self.total + (self.returns.masked_fill(~known, 0.0).view(by_seed.shape) * by_seed).sum(1)
        due = self.finished >= self.episodes
        wider = due & (self.total / self.finished.clamp(min=1) >= threshold)
        self.width = (self.width + self.widening * wider).clamp(max=1.0)
        self.finished, self.total = self.finished * ~due, self.total * ~due

    def forget(self) -> None:
        """Start new episodes."""
        self.age, self.returns = torch.zeros_like(self.age), torch.zeros_like(self.returns)

    def load_state_dict(self, state: State) -> Tree:
        """Restore a state, and return the next observations."""
        DeclaredState.load_state_dict(self, {name: part for name, part in state.items() if name != "env"})
        self._draw()  # before the environment, which may replay its episodes
        return self._sensed(super().load_state_dict(state))

    def metrics(self) -> Mapping[str, Tensor]:
        """Return the fraction of the ranges in use, if they widen."""
        return {} if self._threshold is None else {"randomize/width": self.width.clone()}


def _narrowed(drawn: Tensor, nominal: Tensor, width: Tensor) -> Tensor:
    """Interpolate between nominal values (width 0) and drawn values (width 1)."""
    return nominal + (drawn - nominal) * width


def _is_vector(space: spaces.Space[Any]) -> bool:
    return is_box(space) and space.dtype.kind == "f"


def _joint(given: Mapping[str, Any]) -> tuple[list[str], Tensor, Tensor]:
    """Return names, mean `[P]` and Cholesky factor `[P, P]`."""
    try:
        names = list(given["names"])
        mean = torch.tensor(given["mean"], dtype=torch.float64).view(len(names))
        covariance = torch.tensor(given["covariance"], dtype=torch.float64).view(len(names), len(names))
        return names, mean, linalg.cholesky(covariance)
    except (KeyError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            "posterior needs `names`, and the `mean` and the positive definite `covariance` of their logarithms, got "
            f"{dict(given)}: {error}"
        ) from error


class _TensorPhysics:
    """Parameters of a tensor environment."""

    def __init__(self, env: TensorEnv, names: Sequence[str]) -> None:
        if unknown := [name for name in names if name not in env.DEFAULTS]:
            raise ValueError(f"{env.task} has no parameter {unknown[0]!r}; it has {', '.join(sorted(env.DEFAULTS))}")
        self.env = env
        self.nominal = {name: env.parameters[name].double().clone() for name in names}

    def apply(self, values: Mapping[str, Tensor]) -> None:
        """Set the values `[B]` of parameters, by name."""
        if values:
            self.env.set_parameters(**values)


@runtime_checkable
class _Simulation(Protocol):
    """An environment with a simulator model, such as MuJoCo's."""

    @property
    def model(self) -> Any:
        """The simulator model."""
        ...


class MuJoCoPhysics:
    """MuJoCo models of the environments in a vector environment."""

    def __init__(self, models: Sequence[Any], names: Sequence[str], task: str) -> None:
        if unknown := [name for name in names if name not in MUJOCO]:
            raise ValueError(
                f"of {task}, which MuJoCo simulates, {', '.join(MUJOCO)} can be randomized, got {unknown[0]!r}"
            )
        self.models = models
        fields = [field for name in names for field in MUJOCO[name]]
        self.originals = [{field: getattr(model, field).copy() for field in fields} for model in models]
        self.nominal = {name: torch.ones((), dtype=torch.float64) for name in names}

    def apply(self, values: Mapping[str, Tensor]) -> None:
        """Multiply fields by factors `[B]`, by name, and update derived quantities."""
        mujoco: Any = importlib.import_module("mujoco")
        for name, factors in values.items():
            for model, original, factor in zip(self.models, self.originals, floats(factors), strict=True):
                for field in MUJOCO[name]:
                    getattr(model, field)[:] = original[field] * factor
        for model in self.models if values else ():
            mujoco.mj_setConst(model, mujoco.MjData(model))  # with separate data, which it modifies


class _NoPhysics:
    """Physics without known parameters."""

    nominal: ClassVar[dict[str, Tensor]] = {}

    def apply(self, values: Mapping[str, Tensor]) -> None:
        """Do nothing."""


def _physics(env: BatchEnv, names: Sequence[str]) -> _TensorPhysics | MuJoCoPhysics | _NoPhysics:
    """Return the interface to an environment's physics parameters.

    Raises:
        ValueError: the environment does not have these parameters, or no known ones.
    """
    if isinstance(env, TensorEnv):
        return _TensorPhysics(env, names)
    singles = env.singles if isinstance(env, GymnasiumEnv) else ()
    inner = [single.unwrapped for single in singles]
    models = [each.model if isinstance(each, _Simulation) else None for each in inner]
    if models and all(hasattr(model, "body_mass") for model in models):
        return MuJoCoPhysics(models, names, env.task)
    if names:
        raise ValueError(
            f"the parameters of {env.task} cannot be randomized: use --env-backend tensor if it has a tensor "
            "environment, or a task of MuJoCo with --vectorization sync; delay, noise and bias work with any"
        )
    return _NoPhysics()
