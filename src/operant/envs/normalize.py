"""Normalization of observations and rewards, with statistics per seed."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from operant.envs.adapter import GymnasiumEnv
from operant.envs.base import BatchEnv, Step, Tree
from operant.envs.spaces import SpaceError, is_box
from operant.envs.wrapper import Wrapper, unwrapped
from operant.state import Resumable


class Moments(Resumable):
    """Running count, mean and variance for each of S seeds.

    Batches are merged in float64 by Chan, Golub and LeVeque 1979, "Updating formulae and a pairwise algorithm for
    computing sample variances", equation 2.1.

    Attributes:
        count: number of samples, `[S, 1, ...]`, broadcastable to `mean`.
        mean: `[S, 1, *shape]`.
        squares: sum of squared deviations from the mean, `[S, 1, *shape]`.
    """

    NAMES = ("count", "mean", "squares")
    STATE = NAMES

    def __init__(self, seeds: int, shape: Sequence[int], device: torch.device) -> None:
        self.count = torch.zeros(seeds, 1, *[1] * len(shape), dtype=torch.float64, device=device)
        self.mean = torch.zeros(seeds, 1, *shape, dtype=torch.float64, device=device)
        self.squares = torch.zeros_like(self.mean)

    def update(self, x: Tensor, valid: Tensor | None) -> None:
        """Add samples `x [S, N, *shape]`, except where `valid [S, N]` is false."""
        x = x.to(torch.float64)
        if valid is None:
            count: Tensor | float = float(x.shape[1])
            mean = x.mean(1, keepdim=True)
            squares = (x - mean).square_().sum(1, keepdim=True)
        else:
            counts = valid.reshape(*valid.shape, *[1] * (x.dim() - 2))
            count = counts.sum(1, keepdim=True).to(torch.float64)
            mean = torch.where(counts, x, 0.0).sum(1, keepdim=True) / count.clamp(min=1)
            squares = torch.where(counts, x - mean, 0.0).square_().sum(1, keepdim=True)
        share = count / (self.count + count).clamp_(min=1)
        delta = mean - self.mean
        self.squares += squares + delta.square() * (self.count * share)
        self.mean += delta * share
        self.count += count

    def variance(self) -> Tensor:
        """Return the population variance `[S, 1, *shape]`; 1 before the first sample."""
        return torch.where(self.count > 0, self.squares / self.count.clamp(min=1), 1.0)

    def standardize(self, x: Tensor, *, clip: float, epsilon: float) -> Tensor:
        """Return `clip((x - mean) / sqrt(variance + epsilon))` in float64 for `x [S, M, *shape]`; Inf becomes NaN."""
        scale = (self.variance() + epsilon).rsqrt_()
        return clipped((x - self.mean).mul_(scale), clip)

    def scaling(self, index: int, *, epsilon: float) -> dict[str, Tensor]:
        """Return the offset and the factor of `standardize` for observations of the seed at an index, by name."""
        scale = (self.variance() + epsilon).rsqrt()
        return {"observations.mean": self.mean[index, 0], "observations.scale": scale[index, 0]}


def clipped(x: Tensor, clip: float) -> Tensor:
    """Clip finite numbers in place to [-clip, clip]; Inf becomes NaN, so that learners drop it."""
    gone = ~x.isfinite()
    return x.clamp_(-clip, clip).masked_fill_(gone, torch.nan)


class Normalize(Wrapper):
    """Normalizes observations and rewards by running statistics, per seed over its N environments.

    Observations become `clip((obs - mean) / sqrt(variance + epsilon))`. Rewards are divided by the standard deviation
    of the running discounted return `R <- gamma R + r`, which starts at 0 in each episode, without centering
    (Engstrom et al. 2020, "Implementation matters in deep policy gradients", arXiv 2005.12729, algorithm 1). A new
    observation or return is added to the statistics before it is scaled. Final observations are only scaled, in every
    autoreset mode; lost steps, NaN and Inf are not added. `Step.score` is unchanged. In evaluations the
    statistics are fixed.

    Attributes:
        observation_space: box of [-clip, clip] if observations are scaled.
    """

    STATE = (("observations", "_obs_moments"), ("rewards", "_return_moments"), ("returns", "_returns"))

    def __init__(
        self,
        env: BatchEnv,
        *,
        seeds: int,
        gamma: float,
        observations: bool = True,
        rewards: bool = True,
        clip: float = 10.0,
        epsilon: float = 1e-8,
    ) -> None:
        """Wrap `env`.

        Args:
            env: environments `[S, N]`, flattened.
            seeds: number of seeds, S.
            gamma: discount factor of the return for reward scaling, in [0, 1].
            observations: whether to scale observations.
            rewards: whether to scale rewards.
            clip: maximum absolute value of scaled observations and rewards.
            epsilon: constant added to variances.

        Raises:
            ValueError: a number is out of range, or the number of environments is not a multiple of `seeds`.
            SpaceError: observations to be scaled are not a Box.
        """
        if seeds < 1 or env.rows % seeds:
            raise ValueError(f"seeds must divide the {env.rows} rows of the environment, got {seeds}")
        if not 0 <= gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {gamma}")
        if not clip > 0 or not epsilon > 0:
            raise ValueError(f"clip and epsilon must be positive, got {clip} and {epsilon}")
        if observations and not is_box(env.observation_space):
            raise SpaceError(
                f"only observations of a Box can be normalized, but {env.task} has {env.observation_space}: "
                "disable it, or add a wrapper whose observation space is a Box"
            )
        super().__init__(env)
        inner = unwrapped(env)
        self._resets_late = isinstance(inner, GymnasiumEnv) and inner.resets_late
        self._seeds, self._gamma = seeds, gamma
        self._observations, self._rewards = observations, rewards
        self._clip, self._epsilon = clip, epsilon
        self._shape = env.observation_space.shape or ()
        dtype = np.float64 if env.observation_space.dtype == np.float64 else np.float32
        if observations:
            self.observation_space = cast(spaces.Space[Any], spaces.Box(-clip, clip, self._shape, dtype))
        self._obs_moments = Moments(seeds, self._shape, env.device)
        self._return_moments = Moments(seeds, (), env.device)
        self.start(range(seeds))

    def start(self, seeds: Sequence[int]) -> None:
        """Reset all returns to 0."""
        shape = len(seeds), self.rows // len(seeds)
        self._returns = torch.zeros(shape, dtype=torch.float64, device=self.device)

    @property
    def learned(self) -> dict[str, Tensor]:
        """The normalization statistics `[S, ...]` of observations and rewards, by name."""
        kinds = {
            "observations": (self._observations, self._obs_moments),
            "rewards": (self._rewards, self._return_moments),
        }
        return {
            f"{kind}.{name}": getattr(moments, name)
            for kind, (used, moments) in kinds.items()
            if used
            for name in Moments.NAMES
        }

    @property
    def clip(self) -> float:
        """Maximum absolute value of scaled observations and rewards."""
        return self._clip

    def scaling(self, index: int) -> dict[str, Tensor]:
        """Return offset and factor of the observations of the seed at an index; empty if they are not scaled."""
        if not self._observations:
            return {}
        return self._obs_moments.scaling(index, epsilon=self._epsilon)

    def reset(self, seeds: Sequence[int] | None = None) -> Tree:
        """Start episode 0 of every environment, and add the first observations to the statistics.

        Args:
            seeds: one non-negative integer per environment; default: the environment's seeds.
        """
        obs = self.env.reset(seeds)
        self.forget()
        return self._new_obs(obs, None)

    def step(self, actions: Tensor) -> Step:
        """Apply one action per environment, and update the statistics."""
        step = self.env.step(actions)
        valid = None if self.always_valid else step.valid.view_as(self._returns)
        reward = self._new_reward(step, valid) if self._rewards else step.reward
        begun = ~(step.terminated | step.truncated).view_as(self._returns) if self._resets_late else valid
        obs = self._new_obs(step.obs, begun)
        final_obs = obs if step.final_obs is step.obs else self.normalize(step.final_obs)
        return step._replace(obs=obs, reward=reward, final_obs=final_obs)

    def _new_obs(self, obs: Tree, counted: Tensor | None) -> Tree:
        if self._observations and self.training:
            rows = self._by_seed(cast(Tensor, obs))
            finite = rows.isfinite().reshape(*rows.shape[:2], -1).all(2)
            self._obs_moments.update(rows, finite if counted is None else finite & counted)
        return self.normalize(obs)

    def _new_reward(self, step: Step, valid: Tensor | None) -> Tensor:
        reward = step.reward.view_as(self._returns)
        counted = reward.isfinite() if valid is None else reward.isfinite() & valid
        self._returns.mul_(self._gamma).add_(reward.masked_fill(~counted, 0.0))
        if self.training:
            self._return_moments.update(self._returns, counted)
        self._returns.masked_fill_((step.terminated | step.truncated).view_as(self._returns), 0.0)
        scaled = reward / (self._return_moments.variance() + self._epsilon).sqrt_()
        return clipped(scaled, self._clip).to(step.reward.dtype).view(-1)

    def forget(self) -> None:
        """Clear the returns of unfinished episodes."""
        self._returns.zero_()

    def observation(self, obs: Tree) -> Tree:
        """Scale observations by the current statistics (see `normalize`)."""
        return self.normalize(obs)

    def normalize(self, obs: Tree) -> Tree:
        """Scale observations by the current statistics without updating them.

        Args:
            obs: observations of the wrapped environment or another one of the same task, with M per seed,
                `[S*M, *shape]` or `[S, M, *shape]`.

        Returns:
            The scaled observations, with the shape of `obs`; `obs` itself if observations are not scaled.

        Raises:
            ValueError: `obs` has another shape.
        """
        if not self._observations:
            return obs
        obs = cast(Tensor, obs)
        scaled = self._obs_moments.standardize(self._by_seed(obs), clip=self._clip, epsilon=self._epsilon)
        dtype = obs.dtype if obs.is_floating_point() else torch.float32
        return scaled.to(dtype).view(obs.shape)

    def _by_seed(self, obs: Tensor) -> Tensor:
        """Return `obs` as `[S, M, *shape]`."""
        leading = obs.shape[: obs.dim() - len(self._shape)]
        flat, by_seed = len(leading) == 1 and leading[0] % self._seeds == 0, len(leading) == 2
        if obs.shape[len(leading) :] != self._shape or not (flat or (by_seed and leading[0] == self._seeds)):
            raise ValueError(
                f"observations have shape {[*obs.shape]}, but [S*M, ...] or [S, M, ...] with S = {self._seeds} and "
                f"{[*self._shape]} for the dots is needed"
            )
        return obs.reshape(self._seeds, -1, *self._shape)
