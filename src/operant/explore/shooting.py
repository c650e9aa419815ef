"""Recorded episodes, their windows, and the least-squares problem of parameters and start states.

The state at the start of each window is unknown (multiple shooting; Bock 1983). The many start states, each local to
its window, are eliminated from the equations (variable projection; Golub and Pereyra 1973).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import Tensor

from operant import streams
from operant.tensors import integers, linalg

BLIND = 1e-9
"""Relative information, to the best known direction of parameters, below which a direction is unknown."""


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
        """Return episodes of any lengths, each with observations `[l+1, O]` and actions `[l]` or `[l, A]`.

        Raises:
            ValueError: if there is no episode.
        """
        if not episodes:
            raise ValueError(
                "episodes must be a list of pairs, observations and actions, of at least one episode, got []"
            )
        pairs = [(torch.as_tensor(np.asarray(obs)).double(), torch.as_tensor(np.asarray(a))) for obs, a in episodes]
        rows = [torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True) for part in zip(*pairs, strict=True)]
        return cls(rows[0], rows[1], torch.tensor([len(actions) for _, actions in pairs]))

    @classmethod
    def record(
        cls,
        env: gymnasium.Env[Any, Any],
        *,
        episodes: int,
        steps: int,
        policy: Callable[[Any], Any] | None = None,
        noise: float = 0.0,
        seed: int = 0,
    ) -> "Trajectories":
        """Play episodes, and return the observations and actions.

        Args:
            env: environment of Gymnasium with vectors as observations.
            episodes: number of episodes.
            steps: maximum number of actions per episode.
            policy: function from an observation to an action. None: random actions of the action space.
            noise: standard deviation of Gaussian noise on the recorded observations, as of sensors.
            seed: non-negative seed of the independent random streams of start states, actions and noise.

        Raises:
            ValueError: if observations are no vectors, or a number is out of its range.
        """
        space = env.observation_space
        if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
            raise ValueError(
                f"observations must be vectors, got {space}: wrap env in gymnasium.wrappers.FlattenObservation"
            )
        for name, value, least in (
            ("episodes", episodes, 1),
            ("steps", steps, 1),
            ("noise", noise, 0),
            ("seed", seed, 0),
        ):
            if not least <= value < np.inf:
                raise ValueError(f"{name} must be in [{least}, inf), got {value}")
        env.action_space.seed(streams.integer(seed, "actions"))
        sensors, recorded = np.random.default_rng(streams.seed_sequence(seed, "sensors")), list[tuple[Any, Any]]()
        for episode in range(episodes):
            observations, actions = [env.reset(seed=streams.integer(seed, "episodes", episode))[0]], list[Any]()
            over = False
            while not over and len(actions) < steps:
                actions.append(policy(observations[-1]) if policy else env.action_space.sample())
                obs, _, terminated, truncated, _ = env.step(actions[-1])
                observations.append(obs)
                over = terminated or truncated
            exact = np.array(observations)
            recorded.append((exact + noise * sensors.standard_normal(exact.shape), np.array(actions)))
        return cls.of(recorded)

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
class Fit:
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

    def projected(self) -> tuple[Tensor, Tensor]:
        """Return residuals and their derivatives with respect to the parameters, with the start states eliminated."""
        basis, _ = linalg.qr(self.by_starts)
        both = torch.cat([self.residual.unsqueeze(2), self.by_logs], 2)
        both = both - basis @ (basis.mT @ both)
        return both[..., 0], both[..., 1:]

    def step(self, damping: float) -> tuple[Tensor, Tensor]:
        """Return the Levenberg-Marquardt steps for the parameters `[P]` and the start states `[W, D]`."""
        residual, jacobian = self.projected()
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

    def reweighted(self, least: Tensor) -> "Fit":
        """Return the fit with residuals divided by their own standard deviation, or by `least [O]` if that is more."""
        scale = self.rest_deviation().maximum(least)
        ratio = (self.scale / scale).repeat(self.residual.shape[1] // len(scale))
        by_logs, by_starts = self.by_logs * ratio.unsqueeze(1), self.by_starts * ratio.unsqueeze(1)
        return Fit(self.residual * ratio, by_logs, by_starts, scale, self.seen)

    def covariance(self, names: Sequence[str]) -> Tensor:
        """Return the inverse `[P, P]` of the Gauss-Newton matrix.

        Raises:
            ValueError: if a direction of the parameters is unknown.
        """
        _, jacobian = self.projected()
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


def windows(trajectories: Trajectories, window: int) -> tuple[Tensor, Tensor, Tensor]:
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
