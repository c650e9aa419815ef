"""Training samples of MuZero from windows of the replay buffer, and the loss of the unrolled model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from operant import ops
from operant.envs.tensor.board_games import Symmetries
from operant.runtime.transitions import Sequences
from operant.worlds.latent_model import LatentModel


@dataclass(frozen=True)
class Unroll:
    """`M` samples of each of `S` seeds: a step and the K following steps.

    Attributes:
        obs: `[S, M, D]` observations at the first step.
        actions: `[K, S, M]`, arbitrary after the end of the episode.
        policies: `[K + 1, S, M, A]` search policies.
        returns: `[K + 1, S, M]`; 0 after a terminal state.
        rewards: `[K, S, M]` rewards of the actions; 0 after a terminal state.
        acting: `[K + 1, S, M]`, 1 before the end of the episode, else 0.
        known: `[K + 1, S, M]`, 0 after a truncation and from an invalid step on, because the continuation is unknown,
            else 1.
        weights: `[S, M]` importance weights of the samples.
    """

    obs: Tensor
    actions: Tensor
    policies: Tensor
    returns: Tensor
    rewards: Tensor
    acting: Tensor
    known: Tensor
    weights: Tensor


def returns_of(steps: Sequences, values: Tensor, *, off_policy: bool, turn: float, gamma: float, lam: float) -> Tensor:
    """Return the λ-returns `[L - 1, S, M]` of windows of L steps; in games, for the player to move.

    If players alternate, so does the sign of the values. The successor of a truncated step is not evaluated: returns
    bootstrap from the step itself, and so do those of a step before an invalid one.

    Args:
        steps: steps with the extra tensors `policy`, from the last search of each step, and `behavior`, the behavior
            probability of its action.
        values: `[L, S, M]` values of the observations.
        off_policy: whether returns are corrected for the last policies (V-trace).
        turn: sign of the next step's value, 1 or -1.
        gamma: discount factor.
        lam: λ.
    """
    cut = steps.truncated[:-1]
    if steps.weights is not None:
        cut = cut | ((steps.weights[1:] == 0) & ~steps.terminated[:-1])
    behavior = drawn = torch.zeros_like(steps.rewards[:-1])
    if off_policy:
        behavior = steps.extras["policy"][:-1].gather(-1, steps.actions[:-1].unsqueeze(-1)).squeeze(-1).log()
        drawn = steps.extras["behavior"][:-1].clamp(min=torch.finfo(drawn.dtype).tiny).log()
    turns = turn ** torch.arange(len(values), device=cut.device).view(-1, 1, 1)
    signed = turns * values
    estimates = ops.vtrace(
        turns[:-1] * steps.rewards[:-1],
        signed[:-1],
        signed[1:],
        behavior.masked_fill(cut, -torch.inf),
        drawn,
        terminated=steps.terminated[:-1],
        truncated=cut,
        gamma=gamma,
        lam=lam,
    )
    return turns[:-1] * estimates.targets


def unrolled(
    steps: Sequences, returns: Tensor, weights: Tensor, *, k: int, actions: int, generators: Sequence[torch.Generator]
) -> Unroll:
    """Return windows `[L, S, M]` as samples of K steps; actions after the end of an episode are random.

    Args:
        steps: the windows.
        returns: `[L - 1, S, M]` (see `returns_of`).
        weights: `[S, M]` importance weights of the samples.
        k: K.
        actions: A.
        generators: one per seed.
    """
    ended = steps.terminated[:k] | steps.truncated[:k]
    terminated, truncated = (_before(flag[:k], ended) for flag in (steps.terminated, steps.truncated))
    acting = ~(terminated | truncated)
    known = ~truncated
    if steps.weights is not None:  # nothing is known from the first invalid step of the episode on
        known = known & ~((steps.weights[: k + 1] == 0) & acting).cummax(0).values
        acting = acting & known
    shape, device = acting[:k, 0].shape, weights.device
    random_actions = torch.stack([torch.randint(actions, shape, generator=g, device=device) for g in generators], 1)
    return Unroll(
        obs=steps.obs[0],
        actions=torch.where(acting[:k], steps.actions[:k], random_actions),
        policies=steps.extras["policy"][: k + 1],
        returns=returns[: k + 1].masked_fill(~acting, 0.0),
        rewards=steps.rewards[:k].masked_fill(~acting[:k], 0.0),
        acting=acting.float(),
        known=known.float(),
        weights=weights if steps.weights is None else weights * steps.weights[0],
    )


def turned(batch: Unroll, symmetries: Symmetries, turn: Tensor) -> Unroll:
    """Return samples of a board game, reflected or rotated.

    Args:
        batch: the samples.
        symmetries: of the board.
        turn: int64 `[S, M]` index of the symmetry of each sample.
    """
    moved = symmetries.actions.argsort(1)[turn]  # where each action goes
    return replace(
        batch,
        obs=batch.obs.gather(-1, symmetries.inputs[turn]),
        actions=moved.expand(len(batch.actions), *moved.shape).gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1),
        policies=batch.policies.gather(-1, symmetries.actions[turn].expand_as(batch.policies)),
    )


def _before(flags: Tensor, ended: Tensor) -> Tensor:
    """Return `[K + 1, ...]`, whether the first end `ended [K, ...]` of an episode before a step has one of `flags`."""
    first = ended & (ended.cumsum(0) == 1)
    marked = (flags & first).cumsum(0) > 0
    return torch.cat((torch.zeros_like(marked[:1]), marked))


def unrolled_losses(model: LatentModel, batch: Unroll, masked: int) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Return the losses `[S]` of policy, value and reward, and the values `[S, M]` at the first step.

    The first step has the same weight as all following steps together; the gradient is halved at every step of the
    dynamics (MuZero, appendix G), so that later states do not dominate.

    Args:
        model: the model.
        batch: the samples.
        masked: length of the action mask at the end of an observation.
    """
    k, latent = len(batch.actions), model.represent(batch.obs)
    policy = value = reward = first = torch.zeros_like(batch.weights)
    for t in range(k + 1):
        share = 1.0 if t == 0 else 1.0 / k
        if t:
            latent, rewards = model.follow(latent, batch.actions[t - 1])
            latent = (latent + latent.detach()) / 2
            reward = reward + share * batch.known[t - 1] * model.loss(rewards, batch.rewards[t - 1])
        logits, rewards = model.predict(latent)
        if t == 0:
            first = model.number(rewards)
            if masked:  # as in the root of a search
                logits = logits.masked_fill(batch.obs[..., -masked:] == 0, -1e9)
        policy = policy - share * batch.acting[t] * (batch.policies[t] * logits.log_softmax(-1)).sum(-1)
        value = value + share * batch.known[t] * model.loss(rewards, batch.returns[t])
    policy, value, reward = (ops.weighted_mean(part, batch.weights) for part in (policy, value, reward))
    return (policy, value, reward), first
