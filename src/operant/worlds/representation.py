"""The representation of MR.Q: encoders of states and actions, trained with a linear model of the task.

Fujimoto et al. 2025, arXiv:2501.16142, section 4.1. A state is encoded as `z_s = f(s)`, a state-action pair as
`z_sa = g(z_s, a)`. A linear map of `z_sa` predicts the next `z_s`, the reward and the termination, unrolled over a few
steps. If these are linear in the representation, the value is approximately linear, too.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import elu, mse_loss, pad

from operant import ops
from operant.nets import Slots, StackedImageEncoder, StackedNormedMLP, shares
from operant.runtime.transitions import Sequences

REWARD_BOUND = 10.0
"""Bound b of the atoms of rewards, which are symexp of numbers from -b to b."""


@dataclass(frozen=True)
class RepresentationShape:
    """Shape of a representation.

    Attributes:
        observation: `(D,)` for vectors, or `(C, H, W)` for images of bytes.
        actions: A, size of an action.
        hidden: sizes of the hidden layers of both encoders.
        latent: size of `z_s`.
        embedding: size of an encoded action.
        joint: size of `z_sa`.
        depth: half the number of channels after the first stage of the image encoder.
        bins: number of atoms of rewards.
    """

    observation: tuple[int, ...]
    actions: int
    hidden: tuple[int, ...]
    latent: int
    embedding: int
    joint: int
    depth: int
    bins: int


class Representation(Slots):
    """Encoders and linear models of `S` seeds.

    Args:
        shape: shape of the networks.

    Attributes:
        shape: shape of the networks.
        images: image encoder before the state encoder; None for vectors.
    """

    def __init__(self, shape: RepresentationShape) -> None:
        self.shape = shape
        self.images: StackedImageEncoder | None = None
        width = shape.observation[0] + 1
        if len(shape.observation) == len("CHW"):
            self.images = StackedImageEncoder(shape.observation, shape.depth)
            width = self.images.outputs
        self.states = StackedNormedMLP(width, (*shape.hidden, shape.latent), activation=elu)
        self.actions = StackedNormedMLP(shape.actions, (), shape.embedding)
        self.pairs = StackedNormedMLP(shape.latent + shape.embedding, shape.hidden, shape.joint, activation=elu)
        self.model = StackedNormedMLP(shape.joint, (), shape.latent + shape.bins + 1)
        self.parts = (self.images or Slots(()), self.states, self.actions, self.pairs, self.model)
        super().__init__([slot for part in self.parts for slot in part.slots])

    def bind(self, parameters: Tensor) -> "BoundRepresentation":
        """Return the networks that compute with `parameters [S, P]`."""
        return BoundRepresentation(self, *shares(self.parts, self.views(parameters)))


class Prediction(NamedTuple):
    """Predictions of the linear model for transitions.

    Attributes:
        latent: `[S, M, Z]` next latent states.
        reward: `[S, M, K]` logits of the rewards.
        terminal: `[S, M]`, near 1 if the next state is terminal, else near 0.
    """

    latent: Tensor
    reward: Tensor
    terminal: Tensor


@dataclass(frozen=True)
class BoundRepresentation:
    """The networks with one set of parameters."""

    shape: Representation
    images: Sequence[Tensor]
    state: Sequence[Tensor]
    action: Sequence[Tensor]
    pair: Sequence[Tensor]
    model: Sequence[Tensor]

    def encode(self, obs: Tensor) -> Tensor:
        """Return `z_s [S, M, Z]` of observations `[S, M, ...]`."""
        if self.shape.images is not None:
            return self.shape.states(self.state, self.shape.images(self.images, obs))
        # With a constant input, because without a bias, layer normalization would remove the scale of an observation.
        return self.shape.states(self.state, pad(obs, (0, 1), value=1.0))

    def join(self, latent: Tensor, actions: Tensor) -> Tensor:
        """Return `z_sa [S, M, J]` of states `z_s [S, M, Z]` and actions `[S, M, A]`."""
        embedded = elu(self.shape.actions(self.action, actions))
        return self.shape.pairs(self.pair, torch.cat((latent, embedded), -1))

    def predict(self, joint: Tensor) -> Prediction:
        """Return the predictions of the linear model for `z_sa [S, M, J]`."""
        sizes = [self.shape.shape.latent, self.shape.shape.bins, 1]
        latent, reward, terminal = self.shape.model(self.model, joint).split_with_sizes(sizes, -1)
        return Prediction(latent, reward, terminal.squeeze(-1))


@dataclass(frozen=True)
class Windows:
    """`M` windows of `K` consecutive steps for each of `S` seeds.

    Attributes:
        obs: `[S, M, ...]` observations of the first steps.
        actions: `[K, S, M, A]`.
        rewards: `[K, S, M]`.
        next_obs: `[K, S, M, ...]`, the true successors.
        terminal: `[K, S, M]`, 1 if these are terminal, else 0.
        live: `[K, S, M]`, 1 up to the first end of an episode in a window, else 0.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    next_obs: Tensor
    terminal: Tensor
    live: Tensor

    @classmethod
    def of(cls, steps: Sequences) -> "Windows":
        """Return windows from sequences of a replay buffer."""
        valid = None if steps.weights is None else steps.weights > 0
        live = ops.first_episode_mask(steps.terminated, steps.truncated, valid=valid)
        return cls(
            obs=steps.obs[0],
            actions=steps.actions,
            rewards=steps.rewards,
            next_obs=steps.next_obs,
            terminal=steps.terminated.to(steps.rewards.dtype),
            live=live.to(steps.rewards.dtype),
        )


class RepresentationLosses(NamedTuple):
    """Losses `[S]`, summed over the steps of a window and averaged over windows."""

    dynamics: Tensor
    reward: Tensor
    terminal: Tensor


def representation_losses(
    online: BoundRepresentation, target: BoundRepresentation, windows: Windows, support: Tensor
) -> RepresentationLosses:
    """Return the losses of the model, unrolled from the first observation along the actions.

    Args:
        online: trained networks.
        target: target networks, which encode the successors.
        windows: windows of real steps.
        support: `[K]` atoms of rewards.
    """
    with torch.no_grad():
        successors = torch.stack([target.encode(obs) for obs in windows.next_obs])
    latent = online.encode(windows.obs)
    sums = [torch.zeros_like(windows.rewards[0])] * 3
    for t, actions in enumerate(windows.actions):
        latent, reward, terminal = online.predict(online.join(latent, actions))
        losses = (
            ops.latent_prediction_loss(latent, successors[t]),
            ops.two_hot_loss(reward, windows.rewards[t], support),
            mse_loss(terminal, windows.terminal[t], reduction="none"),
        )
        sums = [total + windows.live[t] * loss for total, loss in zip(sums, losses, strict=True)]
    return RepresentationLosses(*(total.mean(-1) for total in sums))
