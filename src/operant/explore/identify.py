"""System identification: the parameters of a simulator from recorded trajectories, with uncertainty.

The trajectories are cut into windows. The state at the start of each window is also unknown, so sensor noise enters
only the residuals and does not bias the parameters (multiple shooting; Bock 1983). Parameters and start states are
fitted by least squares (Levenberg-Marquardt); the many start states, each local to its window, are eliminated from the
equations (variable projection; Golub and Pereyra 1973). Around the solution the posterior is normal in the logarithms
of the parameters, with the inverse of the Gauss-Newton matrix as its covariance (Laplace approximation). This is for
tensor environments; `identify_mujoco` has another optimizer and a sampler for MuJoCo.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import NamedTuple

import torch
from gymnasium import spaces
from scipy import special  # pyright: ignore[reportMissingTypeStubs] - SciPy has none
from torch import Tensor

from operant.envs import TENSOR_ENVS, TensorEnv, make
from operant.explore.identify_mujoco import WINDOW_WITH_CONTACTS, identify_mujoco, mujoco_task
from operant.explore.shooting import Fit, Trajectories, windows
from operant.tensors import floats, linalg, rows_of_floats

logger = logging.getLogger(__name__)

DIFFERENCE = 1e-5
"""Step of the central differences, in the logarithm of a parameter and in the scale of a component of the state."""

WINDOW = 10
"""Default number of actions per window in a tensor environment."""

SUSPICIOUS = 2.0
"""Ratio of the residuals of long and short windows from which on there is a warning."""

ROUNDING = 1e-6
"""Residuals below this part of the standard deviation of an observation count as rounding errors."""

MOST_ROUNDS = 100
"""Maximum number of Levenberg-Marquardt steps; about ten are typical."""


@dataclass(frozen=True)
class Posterior:
    """Posterior of parameters from trajectories: a normal distribution of their logarithms.

    Attributes:
        task: the Gymnasium id.
        names: names of the P parameters.
        mean: `[P]` logarithms of the most likely values; for MuJoCo their mean, and values are factors.
        covariance: `[P, P]` of the logarithms.
        noise: `[O]` standard deviation of the residuals, by component of the observations.
        freedom: degrees of freedom: observations minus fitted values.
        nominal: the values of the simulator.
    """

    task: str
    names: tuple[str, ...]
    mean: Tensor
    covariance: Tensor
    noise: Tensor
    freedom: int
    nominal: Mapping[str, float]

    @property
    def estimate(self) -> dict[str, float]:
        """The most likely values."""
        return dict(zip(self.names, floats(self.mean.exp()), strict=True))

    def interval(self, level: float = 0.95) -> dict[str, tuple[float, float]]:
        """Return a credible interval for each parameter, with probability `level`.

        Raises:
            ValueError: if the level is not between 0 and 1.
        """
        _check_level(level)
        reach = float(special.stdtrit(self.freedom, 0.5 + level / 2)) * self.covariance.diagonal().sqrt()
        low, high = floats((self.mean - reach).exp()), floats((self.mean + reach).exp())
        return dict(zip(self.names, zip(low, high, strict=True), strict=True))

    def contains(self, values: Mapping[str, float], level: float = 0.95) -> bool:
        """Return whether values of all parameters lie in the credible region with probability `level`.

        Raises:
            ValueError: if the level is not between 0 and 1.
        """
        _check_level(level)
        apart = torch.tensor([values[name] for name in self.names], dtype=torch.float64).log() - self.mean
        squared = float(apart @ linalg.solve(self.covariance, apart))
        return squared <= len(self.names) * float(special.fdtri(len(self.names), self.freedom, level))

    def toml(self) -> str:
        """Return a TOML file for `operant train --randomize`, which samples from this distribution."""
        names = ", ".join(f'"{name}"' for name in self.names)
        rows = ", ".join(str(row) for row in rows_of_floats(self.covariance))
        return f"[posterior]\nnames = [{names}]\nmean = {floats(self.mean)}\ncovariance = [{rows}]\n"


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be between 0 and 1, such as 0.95, got {level}")


def identify(task: str, trajectories: Trajectories, names: Sequence[str], *, window: int | None = None) -> Posterior:
    """Identify parameters of a task from trajectories.

    Args:
        task: a task with a tensor environment, or one of MuJoCo with `observation_structure`, such as Gymnasium's
            Hopper-v5, whose state is determined by one observation.
        trajectories: recordings of the real system, by a policy with large movements.
        names: names of the parameters to identify, which are positive; the others keep their nominal values. Those of
            MuJoCo are factors, by the names of `operant.envs.randomize.MUJOCO`.
        window: actions per window; choose few if the real system has process noise or many contacts, many if it has
            only sensor noise. Default: 10, or 5 for tasks of MuJoCo. It is at most the length of the longest episode.

    Raises:
        ValueError: if the task is of neither kind, a name is unknown, observations or actions have another size, or
            the trajectories do not distinguish some parameters.
        ModuleNotFoundError: if the task is of MuJoCo, and the package `mujoco` or `cma` is not installed.
    """
    tensors = task in TENSOR_ENVS
    window = (WINDOW if tensors else WINDOW_WITH_CONTACTS) if window is None else window
    if window < 1 or not names or len(set(names)) < len(names):
        raise ValueError(f"window must be at least 1, and names different, got window={window} and names={list(names)}")
    window = min(window, int(trajectories.lengths.max()))
    if not tensors:
        single = mujoco_task(make(task, 1, [0], backend="gymnasium"))
        mean, covariance, fit = identify_mujoco(task, single, trajectories, names, window)
        return Posterior(task, tuple(names), mean, covariance, fit.scale, fit.freedom, dict.fromkeys(names, 1.0))
    problem = _Problem(task, trajectories, tuple(names), window)
    found = _solution(problem, trajectories, window)
    nominal = dict(zip(names, floats(problem.nominal.exp()), strict=True))
    covariance = found.fit.covariance(problem.names)
    return Posterior(task, problem.names, found.logs, covariance, found.scale, found.fit.freedom, nominal)


class _Solution(NamedTuple):
    """Logarithms of the parameters, start states, standard deviation of the residuals, and the fit at them."""

    logs: Tensor
    starts: Tensor
    scale: Tensor
    fit: Fit


def _solution(problem: "_Problem", trajectories: Trajectories, window: int) -> _Solution:
    """Return the solution of a problem; long windows begin from that of short ones.

    The residuals of long windows have many local minima. So the parameters are first those of windows of `WINDOW`
    actions, and then the windows grow by half until they have their full length. It warns if the residuals grow, too.
    """
    if window <= WINDOW:
        return _minimized(problem, problem.nominal, problem.starts, problem.spread)
    short = _Problem(problem.env.task, trajectories, problem.names, WINDOW)
    found = first = _minimized(short, short.nominal, short.starts, short.spread)
    starts, size = problem.starts, WINDOW
    while size < window:
        found = _minimized(problem.cropped(size), found.logs, starts, found.scale)
        starts, size = found.starts, size + (size + 1) // 2
    found = _minimized(problem, found.logs, starts, found.scale)
    growth = found.scale / first.scale.maximum(ROUNDING * problem.spread)
    if growth.max() > SUSPICIOUS:
        logger.warning(
            "the residuals of windows of %d actions are up to %.3g times those of windows of %d: the fit has stopped "
            "in a local minimum, or the simulator does not follow the real system for that long, so estimates are "
            "biased and intervals too narrow; choose a smaller window (--window %d)",
            *(window, growth.max().item(), WINDOW, WINDOW),
        )
    return found


def _minimized(problem: "_Problem", logs: Tensor, starts: Tensor, scale: Tensor) -> _Solution:
    """Minimize the squared residuals by Levenberg-Marquardt steps, from parameters `logs [P]` and `starts [W, D]`."""
    damping = 1e-3
    fit = problem.linearized(logs, starts, scale)
    for _ in range(MOST_ROUNDS):
        by_logs, by_starts = fit.step(damping)
        trial = problem.linearized(logs + by_logs, starts + by_starts, scale)
        gained = 0.0
        if trial.cost <= fit.cost:
            logs, starts, damping = logs + by_logs, starts + by_starts, damping / 10
            gained, fit = 1 - trial.cost / max(fit.cost, 1e-300), trial
        elif damping <= 1e12:
            damping *= 10
            continue
        if gained < 1e-4:  # near the solution at this scale: weight the components by their residuals
            before, scale, damping = scale, fit.rest_deviation(), min(damping, 1e-3)
            fit = problem.linearized(logs, starts, scale)
            if (scale / before - 1).abs().max() < 1e-3 and gained < 1e-9:
                break
    else:
        size = problem.actions.shape[1]
        logger.warning(
            "the fit of windows of %d actions has not converged after %d rounds, so estimates and intervals are not "
            "reliable: choose %sfewer parameters, or more trajectories",
            *(size, MOST_ROUNDS, "a smaller window (--window), " if size > 1 else ""),
        )
    return _Solution(logs, starts, scale, fit)


def _check_actions(probe: TensorEnv, trajectories: Trajectories) -> None:
    """Check that actions have the shape of the task's, and are among its choices if these are discrete."""
    space, actions = probe.action_space, trajectories.actions
    if actions[0, 0].numel() != math.prod(space.shape or ()):
        raise ValueError(f"actions of {probe.task} have the shape {[*(space.shape or ())]}, got {[*actions.shape[2:]]}")
    if not isinstance(space, spaces.Discrete):
        return
    taken = actions.flatten(1)[torch.arange(actions.shape[1]) < trajectories.lengths.unsqueeze(1)]
    wrong = (taken != taken.round()) | (taken < 0) | (taken >= int(space.n))
    if wrong.any():
        raise ValueError(
            f"actions of {probe.task} are whole numbers from 0 to {int(space.n) - 1}, got {taken[wrong][0].item():g}"
        )


class _Problem:
    """Windows of trajectories, and a batched simulator for them and their perturbations."""

    def __init__(self, task: str, trajectories: Trajectories, names: tuple[str, ...], window: int) -> None:
        self.names = names
        obs, actions, observed = windows(trajectories, window)
        probe = TENSOR_ENVS[task]([0], dtype=torch.float64)
        self._check(probe, trajectories)
        self.nominal = torch.stack([probe.parameters[name] for name in names]).log()
        first = probe.states(obs[:, 0])
        self.starts = first.T.contiguous()
        self.observed, self.actions = obs, actions
        self.seen = observed.unsqueeze(2).expand_as(obs)
        self.spread = obs[observed].std(0).clamp(min=1e-9)
        self.count, self.components = self.starts.shape
        self.copies = 1 + 2 * (len(names) + self.components)
        self.env: TensorEnv = TENSOR_ENVS[task]([0] * (self.count * self.copies), dtype=torch.float64)

    def _check(self, probe: TensorEnv, trajectories: Trajectories) -> None:
        if not probe.DEFAULTS:
            raise ValueError(f"{probe.task} has no parameters, so there is nothing to identify")
        size = probe.observations(probe.state_dict()["state"]).shape[1]
        if trajectories.observations.shape[2] != size:
            raise ValueError(
                f"observations of {probe.task} have {size} components, got {trajectories.observations.shape[2]}"
            )
        _check_actions(probe, trajectories)
        if unknown := [name for name in self.names if name not in probe.DEFAULTS]:
            raise ValueError(
                f"{probe.task} has no parameter {unknown[0]!r}; it has {', '.join(sorted(probe.DEFAULTS))}"
            )
        if bad := [name for name in self.names if not probe.parameters[name] > 0]:
            raise ValueError(f"{bad[0]} is not positive in {probe.task}, so its logarithm cannot be identified")

    def cropped(self, size: int) -> "_Problem":
        """Return the problem with the first `size` actions of every window."""
        short = copy(self)
        short.observed, short.seen = self.observed[:, : size + 1], self.seen[:, : size + 1]
        short.actions = self.actions[:, :size]
        return short

    def linearized(self, logs: Tensor, starts: Tensor, scale: Tensor) -> Fit:
        """Return the residuals at parameters `logs [P]` and `starts [W, D]`, and their central differences."""
        spread = starts.std(0, correction=min(1, len(starts) - 1)).clamp(min=1e-3)
        width = DIFFERENCE * torch.cat([torch.ones_like(logs), spread])
        changes = torch.cat([torch.zeros(1, len(width), dtype=torch.float64), width.diag(), -width.diag()])
        values = (logs + changes[:, : len(logs)]).exp().repeat_interleave(self.count, 0)
        self.env.set_parameters(**{name: values[:, i] for i, name in enumerate(self.names)})
        moved = (starts + changes[:, None, len(logs) :]).reshape(-1, self.components)
        simulated = self._simulate(moved.T.contiguous())
        there = simulated[0]
        up, down = simulated[1:].chunk(2)
        derivatives = ((up - down) / (2 * width.view(-1, 1, 1, 1))).permute(1, 2, 3, 0) / scale.unsqueeze(1)
        derivatives = (derivatives * self.seen.unsqueeze(3)).flatten(1, 2)
        residual = ((self.observed - there) / scale * self.seen).flatten(1)
        by_logs, by_starts = derivatives.split_with_sizes([len(logs), self.components], 2)
        return Fit(residual, by_logs, by_starts, scale, self.seen.flatten(1))

    def _simulate(self, states: Tensor) -> Tensor:
        """Return the observations `[copies, W, K+1, O]` from `states [D, copies * W]` on."""
        shown = [self.env.observations(states)]
        for action in self.actions.unbind(1):
            states = self.env.advance(states, action.repeat(self.copies, *[1] * (action.ndim - 1)))
            shown.append(self.env.observations(states))
        return torch.stack(shown, 1).view(self.copies, self.count, len(shown), -1)
