"""Linear controllers, and their returns in imagined episodes and in rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from operant.envs.spaces import discrete
from operant.nets import Bounded, is_continuous
from operant.runtime.rollouts import Rollout
from operant.worlds.mixture_rnn import MixtureRNN, Noise


@dataclass(frozen=True)
class Controllers:
    """Controllers with weights `[S, K, F, A]` for the features latent vector, recurrent state, and 1.

    Their actions are encoded as `[..., A]` for the model: one-hot vectors, or numbers in [-1, 1].

    Attributes:
        actions: A.
        first: index of the first discrete action.
        bounds: bounds of continuous actions; None: they are discrete.
    """

    actions: int
    first: int = 0
    bounds: Bounded | None = None

    @classmethod
    def of(cls, space: gymnasium.Space[Any], device: torch.device) -> Self:
        """Return the controllers for an action space."""
        if is_continuous(space):
            bounds = Bounded(space, device=device)
            return cls(bounds.dimensions, bounds=bounds)
        choices = discrete(space)
        return cls(int(choices.n), int(choices.start))

    def act(self, latent: Tensor, hidden: Tensor, weights: Tensor) -> Tensor:
        """Return the encoded actions `[S, M, A]` of the controllers, each for M / K rows.

        Args:
            latent: `[S, M, Z]`.
            hidden: `[S, M, H]`.
            weights: `[S, K, F, A]`.
        """
        features = torch.cat((latent, hidden, torch.ones_like(latent[..., :1])), -1)
        scores = (torch.unflatten(features, 1, (weights.shape[1], -1)) @ weights).flatten(1, 2)
        return scores.tanh() if self.bounds is not None else one_hot(scores.argmax(-1), self.actions).float()

    def random(self, rows: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Sample encoded random actions `[S, rows, A]`, with one generator per seed."""
        if self.bounds is not None:
            return torch.stack([self.bounds.uniform((rows,), generator) for generator in generators])
        drawn = [torch.randint(self.actions, (rows,), generator=g, device=g.device) for g in generators]
        return one_hot(torch.stack(drawn), self.actions).float()

    def to_env(self, code: Tensor) -> Tensor:
        """Convert encoded actions to members of the action space."""
        return code.argmax(-1) + self.first if self.bounds is None else self.bounds.to_env(code)


@torch.no_grad()
def dream(
    model: MixtureRNN, controllers: Controllers, weights: Tensor, latent: Tensor, *, noise: Noise, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the mean returns `[S, K]` of controllers in imagined episodes, and the mean length `[S]` of the episodes.

    All controllers use the same noise, so their episodes differ only by the actions.

    Args:
        model: model of the environment.
        controllers: policies that act in it.
        weights: `[S, K, F, A]` weights of the controllers.
        latent: `[S, R, Z]`, initial latent vectors of the R episodes per controller.
        noise: `[T, S, R, ...]`, noise of T steps, the maximum length of an episode.
        temperature: τ.
    """
    (seeds, population), rows = weights.shape[:2], latent.shape[1]
    latent = latent.repeat(1, population, 1)
    hidden = latent.new_zeros(*latent.shape[:2], model.shape.units)
    alive = torch.ones(latent.shape[:2], dtype=torch.bool, device=latent.device)
    total, length = latent.new_zeros(latent.shape[:2]), latent.new_zeros(latent.shape[:2])
    for t in range(len(noise.end)):
        code = controllers.act(latent, hidden, weights)
        outputs, hidden = model.follow(latent, code, hidden)
        now = Noise(*(part[t].repeat(1, population, *[1] * (part.dim() - 3)) for part in noise))
        latent, rewards, ends = model.imagine(outputs, now, temperature)
        total, length = total + rewards * alive, length + alive
        alive = alive & ~ends
        if not alive.any():
            break
    return total.view(seeds, population, rows).mean(2), length.mean(1)


class EpisodeReturns:
    """Mean return and number of the complete episodes in consecutive rollouts.

    Args:
        fresh: `[S, N]` bool, whether an episode starts with the first step.
    """

    def __init__(self, fresh: Tensor) -> None:
        self._begun = fresh
        self._total = self._earned = self._count = torch.zeros(fresh.shape, device=fresh.device)

    def add(self, rollout: Rollout) -> None:
        """Add the steps of a rollout, without dummy steps."""
        ended = rollout.terminated | rollout.truncated
        valid = torch.ones_like(ended) if rollout.valid is None else rollout.valid
        for rewards, ends, real in zip(rollout.rewards, ended & valid, valid, strict=True):
            self._total = self._total + rewards.where(real, 0.0)
            complete = ends & self._begun
            self._earned, self._count = self._earned + self._total.where(complete, 0.0), self._count + complete
            self._total, self._begun = self._total.masked_fill(ends, 0.0), self._begun | ends

    def means(self) -> tuple[Tensor, Tensor]:
        """Return mean return and number `[S, N]` of the complete episodes.

        If there is none, the rewards since the last start, or of all steps, count as one episode.
        """
        count = self._count.clamp(min=1)
        return torch.where(self._count == 0, self._total, self._earned / count), count
