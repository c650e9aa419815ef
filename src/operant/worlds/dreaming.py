"""Linear controllers, and their returns in imagined episodes and in rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import gymnasium
import torch
from torch import Tensor
from torch.nn.functional import one_hot

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
        return cls(int(getattr(space, "n", 0)), int(getattr(space, "start", 0)))

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


def episode_returns(rollout: Rollout, fresh: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean return and number `[S, N]` of the complete episodes in a rollout.

    If there is none, the rewards since the last start, or of the whole rollout, count as one episode.

    Args:
        rollout: the rollout.
        fresh: `[S, N]` bool, whether an episode starts with its first step.
    """
    ended = rollout.terminated | rollout.truncated
    total = torch.zeros_like(rollout.rewards[0])
    earned, count, begun = torch.zeros_like(total), torch.zeros_like(total), fresh
    for rewards, ends in zip(rollout.rewards, ended, strict=True):
        total = total + rewards
        complete = ends & begun
        earned, count = earned + total.where(complete, 0.0), count + complete
        total, begun = total.masked_fill(ends, 0.0), begun | ends
    return torch.where(count == 0, total, earned / count.clamp(min=1)), count.clamp(min=1)
