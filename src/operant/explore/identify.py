"""System identification: the parameters of a simulator from recorded trajectories, with uncertainty.

The trajectories are cut into windows. The state at the start of each window is also unknown, so sensor noise enters
only the residuals and does not bias the parameters (multiple shooting; Bock 1983). Parameters and start states are
fitted by least squares (Levenberg-Marquardt); the many start states, each local to its window, are eliminated from the
equations (variable projection; Golub and Pereyra 1973). Around the solution the posterior is normal in the logarithms
of the parameters, with the inverse of the Gauss-Newton matrix as its covariance (Laplace approximation).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import special  # pyright: ignore[reportMissingTypeStubs] - SciPy has none
from torch import Tensor

from operant.envs import TENSOR_ENVS, TensorEnv
from operant.tensors import floats, integers, linalg, rows_of_floats

DIFFERENCE = 1e-5
"""Step of the central differences, in the logarithm of a parameter and in the scale of a component of the state."""

BLIND = 1e-9
"""Relative information, to the best known direction of parameters, below which a direction is unknown."""

MOST_ROUNDS = 100
"""Maximum number of Levenberg-Marquardt steps; about ten are typical."""


@dataclass(frozen=True)
class Trajectories:
    """Recorded episodes.

    Attributes:
        observations: `[n, T+1, O]`; entries after the end of an episode are ignored.
        actions: int64 `[n, T]` or floating `[n, T, A]`.
        lengths: int64 `[n]`, number of actions of each episode.

    Raises:
        ValueError: if shapes do not match, or there is NaN or Inf within an episode.
    """

    observations: Tensor
    actions: Tensor
    lengths: Tensor

    def __post_init__(self) -> None:
        """Validate."""
        n, steps = self.actions.shape[:2]
        if self.observations.shape[:2] != (n, steps + 1) or self.observations.ndim != 3 or self.lengths.shape != (n,):
            raise ValueError(
                "observations are [n, T+1, O], actions [n, T] or [n, T, A], lengths [n], got "
                f"{[*self.observations.shape]}, {[*self.actions.shape]} and {[*self.lengths.shape]}"
            )
        if not ((self.lengths >= 1) & (self.lengths <= steps)).all():
            raise ValueError(f"lengths are from 1 to {steps}, the number of actions, got {integers(self.lengths)}")
        for i, length in enumerate(integers(self.lengths)):
            if not self.observations[i, : length + 1].isfinite().all() or not self.actions[i, :length].isfinite().all():
                raise ValueError(f"episode {i} has NaN or Inf")

    @classmethod
    def of(cls, episodes: Sequence[tuple[Any, Any]]) -> "Trajectories":
        """Return episodes of any lengths, each with observations `[l+1, O]` and actions `[l]` or `[l, A]`."""
        pairs = [(torch.as_tensor(np.asarray(obs)).double(), torch.as_tensor(np.asarray(a))) for obs, a in episodes]
        rows = [torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True) for part in zip(*pairs, strict=True)]
        return cls(rows[0], rows[1], torch.tensor([len(actions) for _, actions in pairs]))

    @classmethod
    def load(cls, path: Path | str) -> "Trajectories":
        """Read a file of NumPy (.npz) with the arrays `observations`, `actions` and `lengths`.

        Raises:
            ValueError: if the file is missing, lacks an array, or holds something else.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                observations, actions, lengths = (file[name] for name in ("observations", "actions", "lengths"))
        except (OSError, KeyError, ValueError) as error:
            raise ValueError(
                f"{path} is not a file of trajectories, as numpy.savez writes it with observations [n, T+1, O], "
                f"actions [n, T] or [n, T, A] and lengths [n]: {error}"
            ) from error
        return cls(*map(torch.as_tensor, (observations.astype(np.float64), actions, lengths.astype(np.int64))))

    def save(self, path: Path | str) -> None:
        """Write a file for `load`."""
        arrays = {name: getattr(self, name).numpy() for name in ("observations", "actions", "lengths")}
        np.savez_compressed(path, **arrays)


@dataclass(frozen=True)
class Posterior:
    """Posterior of parameters from trajectories: a normal distribution of their logarithms.

    Attributes:
        task: the Gymnasium id.
        names: names of the P parameters.
        mean: `[P]` logarithms of the most likely values.
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
        """Return a credible interval for each parameter, with probability `level`."""
        reach = float(special.stdtrit(self.freedom, 0.5 + level / 2)) * self.covariance.diagonal().sqrt()
        low, high = floats((self.mean - reach).exp()), floats((self.mean + reach).exp())
        return dict(zip(self.names, zip(low, high, strict=True), strict=True))

    def contains(self, values: Mapping[str, float], level: float = 0.95) -> bool:
        """Return whether values of all parameters lie in the credible region with probability `level`."""
        apart = torch.tensor([values[name] for name in self.names], dtype=torch.float64).log() - self.mean
        squared = float(apart @ linalg.solve(self.covariance, apart))
        return squared <= len(self.names) * float(special.fdtri(len(self.names), self.freedom, level))

    def toml(self) -> str:
        """Return a TOML file for `operant train --randomize`, which samples from this distribution."""
        names = ", ".join(f'"{name}"' for name in self.names)
        rows = ", ".join(str(row) for row in rows_of_floats(self.covariance))
        return f"[posterior]\nnames = [{names}]\nmean = {floats(self.mean)}\ncovariance = [{rows}]\n"


def identify(task: str, trajectories: Trajectories, names: Sequence[str], *, window: int = 10) -> Posterior:
    """Identify parameters of a task from trajectories.

    Args:
        task: a task with a tensor environment, whose state is determined by one observation.
        trajectories: recordings of the real system, by a policy with large movements.
        names: names of the parameters to identify, which are positive; the others keep their nominal values.
        window: actions per window; choose few if the real system has process noise, many if it has only sensor noise.

    Raises:
        ValueError: if the task is not computed on tensors, a name is unknown, observations have another size, or the
            trajectories do not distinguish some parameters.
    """
    if task not in TENSOR_ENVS:
        raise ValueError(f"{task!r} has no tensor environment; tasks with one: {', '.join(TENSOR_ENVS)}")
    if window < 1 or not names or len(set(names)) < len(names):
        raise ValueError(f"window must be at least 1, and names different, got window={window} and names={list(names)}")
    problem = _Problem(task, trajectories, tuple(names), window)
    logs, starts = problem.nominal, problem.starts
    scale, damping = problem.spread, 1e-3
    fit = problem.linearized(logs, starts, scale)
    for _ in range(MOST_ROUNDS):
        by_logs, by_starts = fit.step(damping)
        trial = problem.linearized(logs + by_logs, starts + by_starts, scale)
        if not trial.cost <= fit.cost:
            damping *= 10
            if damping > 1e12:
                break
            continue
        logs, starts, damping = logs + by_logs, starts + by_starts, damping / 10
        gained, fit = 1 - trial.cost / fit.cost, trial
        if gained < 1e-4:  # near the solution at this scale: weight the components by their residuals
            before, scale = scale, fit.rest_deviation()
            fit = problem.linearized(logs, starts, scale)
            if (scale / before - 1).abs().max() < 1e-3 and gained < 1e-9:
                break
    nominal = dict(zip(names, floats(problem.nominal.exp()), strict=True))
    return Posterior(task, problem.names, logs, fit.covariance(problem.names), scale, fit.freedom, nominal)


@dataclass(frozen=True)
class _Fit:
    """Residuals and their derivatives.

    Attributes:
        residual: `[W, m]`, divided by the noise; 0 if not observed.
        by_logs: `[W, m, P]` minus their derivatives with respect to the logarithms of the parameters.
        by_starts: `[W, m, D]` minus their derivatives with respect to the start states.
        scale: `[O]` noise, by which they are divided.
        seen: `[W, m]` mask of observed entries.
    """

    residual: Tensor
    by_logs: Tensor
    by_starts: Tensor
    scale: Tensor
    seen: Tensor

    @property
    def cost(self) -> float:
        """Half the sum of the squared residuals; inf if the simulation diverged."""
        cost = 0.5 * self.residual.square().sum().item()
        return cost if np.isfinite(cost) else float("inf")

    @property
    def freedom(self) -> int:
        """Number of observations minus fitted values."""
        return int(self.seen.sum()) - self.by_starts.shape[0] * self.by_starts.shape[2] - self.by_logs.shape[2]

    def _projected(self) -> tuple[Tensor, Tensor]:
        """Return residuals and their derivatives with respect to the parameters, with the start states eliminated."""
        basis, _ = linalg.qr(self.by_starts)
        both = torch.cat([self.residual.unsqueeze(2), self.by_logs], 2)
        both = both - basis @ (basis.mT @ both)
        return both[..., 0], both[..., 1:]

    def step(self, damping: float) -> tuple[Tensor, Tensor]:
        """Return the Levenberg-Marquardt steps for the parameters `[P]` and the start states `[W, D]`."""
        residual, jacobian = self._projected()
        matrix = torch.einsum("wmp,wmq->pq", jacobian, jacobian)
        right = torch.einsum("wmp,wm->p", jacobian, residual)
        # A parameter without information does not change: its row and the right side are 0.
        damped = matrix + torch.diag(damping * matrix.diagonal() + 1e-300)
        by_logs = linalg.lstsq(damped, right.unsqueeze(1)).solution.squeeze(1).clamp(-0.5, 0.5)
        left = self.residual - self.by_logs @ by_logs
        return by_logs, linalg.lstsq(self.by_starts, left.unsqueeze(2)).solution.squeeze(2)

    def rest_deviation(self) -> Tensor:
        """Return the standard deviation `[O]` of the residuals, in the units of the observations."""
        squares = (self.residual.square() * self.seen).view(len(self.seen), -1, len(self.scale)).sum((0, 1))
        counts = self.seen.view(len(self.seen), -1, len(self.scale)).sum((0, 1))
        share = max(self.freedom, 1) / int(self.seen.sum())
        return self.scale * (squares / (counts * share)).sqrt().clamp(min=1e-12)

    def covariance(self, names: Sequence[str]) -> Tensor:
        """Return the inverse `[P, P]` of the Gauss-Newton matrix.

        Raises:
            ValueError: if a direction of the parameters is unknown.
        """
        _, jacobian = self._projected()
        matrix = torch.einsum("wmp,wmq->pq", jacobian, jacobian)
        sizes = matrix.diagonal().sqrt().clamp(min=1e-150)
        values, directions = linalg.eigh(matrix / sizes / sizes.unsqueeze(1))
        if not values[0] > BLIND * values[-1]:
            blind = [name for name, part in zip(names, directions[:, 0].abs(), strict=True) if part > 0.1]
            raise ValueError(
                f"the trajectories do not distinguish {' and '.join(blind)}, or contain no information on them: keep "
                "the nominal value, or record more movement"
            )
        return linalg.inv(matrix)


class _Problem:
    """Windows of trajectories, and a batched simulator for them and their perturbations."""

    def __init__(self, task: str, trajectories: Trajectories, names: tuple[str, ...], window: int) -> None:
        self.names = names
        obs, actions, observed = _windows(trajectories, window)
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
        size = probe.observations(probe.state_dict()["state"]).shape[1]
        if trajectories.observations.shape[2] != size:
            raise ValueError(
                f"observations of {probe.task} have {size} components, got {trajectories.observations.shape[2]}"
            )
        if unknown := [name for name in self.names if name not in probe.DEFAULTS]:
            raise ValueError(
                f"{probe.task} has no parameter {unknown[0]!r}; it has {', '.join(sorted(probe.DEFAULTS))}"
            )
        if bad := [name for name in self.names if not probe.parameters[name] > 0]:
            raise ValueError(f"{bad[0]} is not positive in {probe.task}, so its logarithm cannot be identified")

    def linearized(self, logs: Tensor, starts: Tensor, scale: Tensor) -> _Fit:
        """Return the residuals at parameters `logs [P]` and `starts [W, D]`, and their central differences."""
        width = DIFFERENCE * torch.cat([torch.ones_like(logs), starts.std(0).clamp(min=1e-3)])
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
        return _Fit(residual, by_logs, by_starts, scale, self.seen.flatten(1))

    def _simulate(self, states: Tensor) -> Tensor:
        """Return the observations `[copies, W, K+1, O]` from `states [D, copies * W]` on."""
        shown = [self.env.observations(states)]
        for action in self.actions.unbind(1):
            states = self.env.advance(states, action.repeat(self.copies, *[1] * (action.ndim - 1)))
            shown.append(self.env.observations(states))
        return torch.stack(shown, 1).view(self.copies, self.count, len(shown), -1)


def _windows(trajectories: Trajectories, window: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return observations `[W, K+1, O]`, actions `[W, K, ...]` and the mask `[W, K+1]`.

    No observation is in two windows, so its noise is counted once; the action between two windows is omitted.
    """
    size = window + 1
    ranges = [
        (i, begin, min(begin + size, length + 1))
        for i, length in enumerate(integers(trajectories.lengths))
        for begin in range(0, length, size)
    ]
    ranges = [place for place in ranges if place[2] - place[1] > 1]
    obs = torch.stack([_padded(trajectories.observations[i, a:b], size) for i, a, b in ranges])
    actions = torch.stack([_padded(trajectories.actions[i, a : b - 1], window) for i, a, b in ranges])
    seen = torch.stack([torch.arange(size) < b - a for _, a, b in ranges])
    return obs.double(), actions, seen


def _padded(rows: Tensor, size: int) -> Tensor:
    """Return rows `[n, ...]` padded with the last one to `[size, ...]`."""
    return torch.cat([rows, rows[-1:].expand(size - len(rows), *rows.shape[1:])])
