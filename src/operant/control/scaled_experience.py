"""Normalization of the inputs of off-policy methods: `ScaledExperience`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from operant.control.agent import require_apart
from operant.control.replay_collector import Act, Experience
from operant.envs import Tree
from operant.envs.normalize import Moments
from operant.runtime.learner import Metrics
from operant.runtime.transitions import Transitions
from operant.runtime.weights import Weights

CLIP, VARIANCE = 5.0, 1e-4
"""Maximum absolute value of a scaled number, and the variance added before the division, so that numbers which hardly
vary stay small. OpenAI Baselines has 5 and a least standard deviation of 0.01 (Andrychowicz et al. 2017)."""


class ScaledExperience(Experience):
    """Experience whose observations are scaled by running statistics whenever a network reads them.

    The replay buffer keeps the observations of the environment, so goals can be relabeled, and all transitions of a
    batch are scaled by the same, current statistics. These are updated after each rollout. For the arguments see
    `Experience`.

    Attributes:
        moments: count, mean and variance of the observations of each seed.

    Raises:
        ValueError: if observations are images, or environments are in several shards.
    """

    STATE = (*Experience.STATE, "moments")

    def __init__(self, env: Any, **options: Any) -> None:
        super().__init__(env, **options)
        features = self.collector.features
        if features.image is not None or len(features.shape) != 1:
            raise ValueError("normalize_obs is for vectors: leave it out for images")
        if len(self.envs) > 1 or self.rollouts is not self.collector:
            require_apart(self.envs[0], "normalize_obs")
        self.moments = Moments(self.collector.seeds, features.shape, self.envs[0].device)

    def scaled(self, obs: Tensor) -> Tensor:
        """Return observations `[S, M, D]` scaled by the current statistics."""
        return self.moments.standardize(obs, clip=CLIP, epsilon=VARIANCE).to(obs.dtype)

    def scaling(self, index: int) -> dict[str, Tensor]:
        """Return offset and factor of the observations of the seed at an index."""
        return self.moments.scaling(index, epsilon=VARIANCE)

    def collect(self, steps: int, act: Act, stacked: Callable[[], Act] | None = None) -> Metrics:
        """Take `steps` steps in every environment with a policy of scaled observations (see `Experience.collect`)."""
        metrics = super().collect(steps, lambda obs, t, envs: act(self.scaled(obs), t, envs))
        replay = self.replay
        kept = min(steps, replay.length)
        slots = torch.arange(replay.added - kept, replay.added, device=replay.fields["obs"].device) % replay.length
        obs, valid = (replay.fields[name][slots].transpose(0, 1).flatten(1, 2) for name in ("obs", "valid"))
        self.moments.update(obs, valid)
        return metrics

    def take(self, index: Tensor, *, gamma: float, n: int = 1) -> Transitions:
        """Return scaled transitions (see `Experience.take`)."""
        batch = super().take(index, gamma=gamma, n=n)
        return replace(batch, obs=self.scaled(batch.obs), next_obs=self.scaled(batch.next_obs))

    def read(self, obs: Tree) -> Tensor:
        """Convert raw observations `[S, N, ...]` to the inputs of the networks."""
        return self.scaled(super().read(obs))

    @property
    def learned(self) -> Weights:
        """The statistics `[S, ...]`, and the weights of wrappers of the environments."""
        return {**{f"observations.{name}": getattr(self.moments, name) for name in Moments.NAMES}, **super().learned}
