"""Linear controllers, and their returns in episodes dreamed by a model and in those of a rollout."""

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
    """Controllers with weights `[S, K, F, A]` of the features latent vector, recurrent state, and 1.

    Their actions are codes `[..., A]`, which a model sees: one-hot vectors, or numbers in [-1, 1].

    Attributes:
        actions: A.
        first: number of the first discrete action.
        bounds: bounds of continuous actions; None: they are discrete.
    """

    actions: int
    first: int = 0
    bounds: Bounded | None = None

    @classmethod
    def of(cls, space: gymnasium.Space[Any], device: torch.device) -> Self:
        """Return the controllers whose actions are in a space."""
        if is_continuous(space):
            bounds = Bounded(space, device=device)
            return cls(bounds.dimensions, bounds=bounds)
        return cls(int(getattr(space, "n", 0)), int(getattr(space, "start", 0)))

    def act(self, latent: Tensor, hidden: Tensor, weights: Tensor) -> Tensor:
        """Return the codes `[S, M, A]` of what controllers do, each for its M / K rows.

        Args:
            latent: `[S, M, Z]`.
            hidden: `[S, M, H]`.
            weights: `[S, K, F, A]`.
        """
        seen = torch.cat((latent, hidden, torch.ones_like(latent[..., :1])), -1)
        scores = (torch.unflatten(seen, 1, (weights.shape[1], -1)) @ weights).flatten(1, 2)
        return scores.tanh() if self.bounds is not None else one_hot(scores.argmax(-1), self.actions).float()

    def random(self, rows: int, generators: Sequence[torch.Generator]) -> Tensor:
        """Return codes `[S, rows, A]` of random actions, those of each seed from its generator."""
        if self.bounds is not None:
            return torch.stack([self.bounds.uniform((rows,), generator) for generator in generators])
        drawn = [torch.randint(self.actions, (rows,), generator=g, device=g.device) for g in generators]
        return one_hot(torch.stack(drawn), self.actions).float()

    def to_env(self, code: Tensor) -> Tensor:
        """Return actions as the environment wants them."""
        return code.argmax(-1) + self.first if self.bounds is None else self.bounds.to_env(code)


@torch.no_grad()
def dream(
    model: MixtureRNN, controllers: Controllers, weights: Tensor, latent: Tensor, *, noise: Noise, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the mean returns `[S, K]` of controllers in dreams, and the mean length `[S]` of these.

    The dreams of different controllers use the same noise, so they differ only by the actions.

    Args:
        model: model of the environment.
        controllers: policies that act in it.
        weights: `[S, K, F, A]` of the controllers.
        latent: `[S, R, Z]`, where the R dreams of each controller begin.
        noise: `[T, S, R, ...]`, of as many steps as a dream has at most.
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
    """Return mean return and number `[S, N]` of the episodes that begin and end in a rollout.

    If there is none, the rewards since the last beginning, or of the whole rollout, count as those of one.

    Args:
        rollout: some steps.
        fresh: `[S, N]` bool, whether an episode begins with the first of them.
    """
    ended = rollout.terminated | rollout.truncated
    total = torch.zeros_like(rollout.rewards[0])
    earned, count, begun = torch.zeros_like(total), torch.zeros_like(total), fresh
    for rewards, ends in zip(rollout.rewards, ended, strict=True):
        total = total + rewards
        whole = ends & begun
        earned, count = earned + total.where(whole, 0.0), count + whole
        total, begun = total.masked_fill(ends, 0.0), begun | ends
    return torch.where(count == 0, total, earned / count.clamp(min=1)), count.clamp(min=1)
