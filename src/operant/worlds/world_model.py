"""The world model of DreamerV3: encoder, recurrent state-space model, and predictions.

Hafner et al. 2023, arXiv:2301.04104, equations 1 to 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, pad

from operant import ops
from operant.nets import Slots, StackedImageDecoder, StackedImageEncoder, StackedNormedMLP, shares
from operant.worlds.frames import Frames
from operant.worlds.rssm import RSSM, BoundRSSM, RSSMShape, State


@dataclass(frozen=True)
class WorldShape:
    """Shape of a world model.

    Attributes:
        observation: `(D,)` for vectors, or `(C, H, W)` for images of bytes.
        rssm: shape of the recurrent state-space model; all networks have hidden layers of its size.
        layers: number of hidden layers of the encoder and decoder of vectors.
        depth: half the number of channels after the first stage of the image encoder.
        bins: number of atoms of rewards and values.
    """

    observation: tuple[int, ...]
    rssm: RSSMShape
    layers: int
    depth: int
    bins: int

    @property
    def sees_images(self) -> bool:
        """Whether observations are images."""
        return len(self.observation) == len("CHW")

    @cached_property
    def encoder(self) -> StackedImageEncoder | StackedNormedMLP:
        """Return the network that encodes observations as vectors."""
        if self.sees_images:
            return StackedImageEncoder(self.observation, self.depth)
        # With a constant input, because without a bias, layer normalization would remove the scale of an observation.
        return StackedNormedMLP(self.observation[0] + 1, (self.rssm.units,) * self.layers)

    @property
    def encoded(self) -> int:
        """Size of an encoded observation."""
        return self.encoder.outputs if isinstance(self.encoder, StackedImageEncoder) else self.rssm.units


class WorldModel(Slots):
    """`S` world models of one shape.

    Args:
        shape: shape of the models.

    Attributes:
        shape: shape of the networks.
    """

    def __init__(self, shape: WorldShape) -> None:
        self.shape = shape
        self.rssm = RSSM(shape.rssm, shape.encoded)
        features, units = shape.rssm.features, shape.rssm.units
        self.decoder: StackedImageDecoder | StackedNormedMLP
        if shape.sees_images:
            self.decoder = StackedImageDecoder(features, shape.observation, shape.depth)
        else:
            self.decoder = StackedNormedMLP(features, (units,) * shape.layers, shape.observation[0])
        self.reward = StackedNormedMLP(features, (units,), shape.bins, gain=0.0)
        self.proceed = StackedNormedMLP(features, (units,), 1)
        self.parts = (shape.encoder, self.rssm, self.decoder, self.reward, self.proceed)
        super().__init__([slot for part in self.parts for slot in part.slots])

    def bind(self, views: Sequence[Tensor], support: Tensor) -> "BoundWorld":
        """Return the models that compute with `views` of their parameters, and atoms `[K]` of rewards."""
        encoder, rssm, *heads = shares(self.parts, views)
        return BoundWorld(self, encoder, self.rssm.bind(rssm), *heads, support=support)


class WorldLosses(NamedTuple):
    """The losses of a world model, `[L, S, M]` each."""

    reconstruction: Tensor
    reward: Tensor
    proceed: Tensor
    dynamics: Tensor
    representation: Tensor


@dataclass(frozen=True)
class BoundWorld:
    """The models with one set of parameters.

    Attributes:
        model: shape of the models.
        rssm: recurrent state-space model of the encoded observations.
        support: `[K]` atoms of rewards.
    """

    model: WorldModel
    encoder: Sequence[Tensor]
    rssm: BoundRSSM
    decoder: Sequence[Tensor]
    reward: Sequence[Tensor]
    proceed: Sequence[Tensor]
    support: Tensor

    def embed_obs(self, obs: Tensor) -> Tensor:
        """Encode observations `[S, M, ...]` as inputs `[S, M, U]` of the posterior."""
        inputs = obs if self.model.shape.sees_images else pad(ops.symlog(obs), (0, 1), value=1.0)
        return self.rssm.embed_obs(self.model.shape.encoder(self.encoder, inputs))

    def observe(self, frames: Frames, actions: Tensor, noise: Tensor) -> tuple[State, Tensor]:
        """Return states `[L, S, M, ...]` and the posterior's log-probabilities for frames.

        Args:
            frames: observed frames.
            actions: `[L, S, M, A]` encoded previous actions; zero in first frames.
            noise: `[L, S, M, G, K]` standard Gumbel noise.
        """
        embedded_obs, embedded_actions = (
            by_row(embed(merged(inputs)), inputs)
            for embed, inputs in ((self.embed_obs, frames.obs), (self.rssm.embed_action, actions))
        )
        continues = (~frames.first).to(embedded_obs.dtype).unsqueeze(-1)
        return self.rssm.observe(embedded_obs, embedded_actions, continues, noise)

    def losses(self, frames: Frames, states: State, posterior: Tensor, *, free: float) -> WorldLosses:
        """Return the losses of frames given their states; first frames have no reward to predict."""
        features = merged(states.features)
        prior = by_row(self.rssm.prior_log_probs(merged(states.deter)), frames.rewards)
        dynamics, representation = ops.balanced_kl(posterior, prior, free=free)
        rewards = by_row(self.model.reward(self.reward, features), frames.rewards)
        proceed = by_row(self.model.proceed(self.proceed, features), frames.rewards).squeeze(-1)
        goes_on = (~frames.terminal).to(proceed.dtype)
        return WorldLosses(
            reconstruction=self._reconstruction(features, frames),
            reward=ops.two_hot_loss(rewards, frames.rewards, self.support) * ~frames.first,
            proceed=binary_cross_entropy_with_logits(proceed, goes_on, reduction="none"),
            dynamics=dynamics,
            representation=representation,
        )

    def _reconstruction(self, features: Tensor, frames: Frames) -> Tensor:
        """Return the squared error `[L, S, M]` of images in [0, 1], or of squashed vectors."""
        decoded = by_row(self.model.decoder(self.decoder, features), frames.rewards)
        target = frames.obs.float() / 255 if self.model.shape.sees_images else ops.symlog(frames.obs)
        return (decoded - target).square().flatten(3).sum(-1)

    def rewards(self, features: Tensor) -> Tensor:
        """Return the expected rewards `[S, M]` of transitions to states `[S, M, F]`."""
        return ops.symmetric_mean(self.model.reward(self.reward, features), self.support)

    def continues(self, features: Tensor) -> Tensor:
        """Return the probabilities `[S, M]` that episodes continue at states `[S, M, F]`."""
        return self.model.proceed(self.proceed, features).squeeze(-1).sigmoid()


def merged(tensor: Tensor) -> Tensor:
    """Reshape `[L, S, M, ...]` to `[S, L * M, ...]`, the batch layout of the networks."""
    return tensor.transpose(0, 1).flatten(1, 2)


def by_row(tensor: Tensor, like: Tensor) -> Tensor:
    """Reshape `[S, L * M, ...]` back to `[L, S, M, ...]`, the shape of `like`."""
    return torch.unflatten(tensor, 1, (like.shape[0], like.shape[2])).transpose(0, 1)
