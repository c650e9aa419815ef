"""Linear controllers, and their returns in imagined episodes and in rollouts."""

import torch
from torch import Tensor

from operant.runtime.rollouts import Rollout
from operant.worlds.action_vectors import ActionVectors
from operant.worlds.mixture_rnn import MixtureRNN, Noise


def act(actions: ActionVectors, latent: Tensor, hidden: Tensor, weights: Tensor) -> Tensor:
    """Return the action vectors `[S, M, A]` of linear controllers, each for M / K rows.

    Their features are latent vector, hidden state, and 1.

    Args:
        actions: actions as vectors.
        latent: `[S, M, Z]`.
        hidden: `[S, M, H]`.
        weights: `[S, K, F, A]` of K controllers.
    """
    features = torch.cat((latent, hidden, torch.ones_like(latent[..., :1])), -1)
    outputs = torch.unflatten(features, 1, (weights.shape[1], -1)) @ weights
    return actions.greedy(outputs.flatten(1, 2))


@torch.no_grad()
def dream(
    model: MixtureRNN, actions: ActionVectors, weights: Tensor, latent: Tensor, *, noise: Noise, temperature: float
) -> tuple[Tensor, Tensor]:
    """Return the mean returns `[S, K]` of controllers in imagined episodes, and the mean length `[S]` of the episodes.

    All controllers use the same noise, so their episodes differ only by the actions.

    Args:
        model: model of the environment.
        actions: actions as vectors, the inputs of the model.
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
        code = act(actions, latent, hidden, weights)
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
