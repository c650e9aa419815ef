"""The world model of DreamerV3: what encodes observations, follows them, and predicts them, rewards and ends.

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
        observation: `(D,)` of a vector, or `(C, H, W)` of an image of bytes.
        actions: A, numbers of an action.
        deter: numbers of the recurrent state.
        stoch: categorical variables.
        classes: classes of each.
        units: width of the hidden layers.
        layers: hidden layers of the encoder and decoder of vectors.
        prior_layers: hidden layers of the prior.
        blocks: blocks of the recurrent weights.
        depth: half of the channels after the first stage of the encoder of images.
        bins: atoms of rewards and values.
        unimix: share of the uniform distribution in categorical variables.
    """

    observation: tuple[int, ...]
    actions: int
    deter: int
    stoch: int
    classes: int
    units: int
    layers: int
    prior_layers: int
    blocks: int
    depth: int
    bins: int
    unimix: float

    @property
    def sees_images(self) -> bool:
        """Whether observations are images."""
        return len(self.observation) == len("CHW")

    @cached_property
    def encoder(self) -> StackedImageEncoder | StackedNormedMLP:
        """From observations to vectors."""
        if self.sees_images:
            return StackedImageEncoder(self.observation, self.depth)
        # One more input, of a constant: normalization removes the length of a product without a bias.
        return StackedNormedMLP(self.observation[0] + 1, (self.units,) * self.layers)

    @property
    def embedding(self) -> int:
        """Numbers of an encoded observation."""
        return self.encoder.outputs if isinstance(self.encoder, StackedImageEncoder) else self.units

    @property
    def rssm(self) -> RSSMShape:
        """Shape of the states."""
        return RSSMShape(
            embedding=self.embedding,
            actions=self.actions,
            deter=self.deter,
            stoch=self.stoch,
            classes=self.classes,
            units=self.units,
            blocks=self.blocks,
            prior_layers=self.prior_layers,
            unimix=self.unimix,
        )


class WorldModel(Slots):
    """`S` world models of one shape.

    Args:
        shape: shape of the models.

    Attributes:
        shape: as given.
    """

    def __init__(self, shape: WorldShape) -> None:
        self.shape = shape
        self.rssm = RSSM(shape.rssm)
        features, units = shape.rssm.features, shape.units
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
        model: their shape.
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

    def look(self, obs: Tensor) -> Tensor:
        """Return the posterior's input from observations `[S, M, ...]`, `[S, M, U]`."""
        seen = obs if self.model.shape.sees_images else pad(ops.symlog(obs), (0, 1), value=1.0)
        return self.rssm.look(self.model.shape.encoder(self.encoder, seen))

    def observe(self, frames: Frames, actions: Tensor, noise: Tensor) -> tuple[State, Tensor]:
        """Return states `[L, S, M, ...]` and the posterior's log-probabilities for frames.

        Args:
            frames: observed frames.
            actions: `[L, S, M, A]` before them, as the networks see actions; zero in first frames.
            noise: `[L, S, M, G, K]` standard Gumbel noise.
        """
        looked, driven = (
            by_row(function(merged(given)), given)
            for function, given in ((self.look, frames.obs), (self.rssm.drive, actions))
        )
        goes_on = (~frames.first).to(looked.dtype).unsqueeze(-1)
        return self.rssm.observe(looked, driven, goes_on, noise)

    def losses(self, frames: Frames, states: State, posterior: Tensor, *, free: float) -> WorldLosses:
        """Return the losses of frames at their states; first frames have no reward to predict."""
        features = merged(states.features)
        prior = by_row(self.rssm.expect(merged(states.deter)), frames.rewards)
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
        """Return the squared error `[L, S, M]` of images from 0 to 1, or of squashed vectors."""
        found = by_row(self.model.decoder(self.decoder, features), frames.rewards)
        target = frames.obs.float() / 255 if self.model.shape.sees_images else ops.symlog(frames.obs)
        return (found - target).square().flatten(3).sum(-1)

    def decode(self, features: Tensor) -> Tensor:
        """Return the observations that states `[S, M, F]` represent, images as numbers from 0 to 1."""
        found = self.model.decoder(self.decoder, features)
        return found if self.model.shape.sees_images else ops.symexp(found)

    def rewards(self, features: Tensor) -> Tensor:
        """Return the expected rewards `[S, M]` on the way to states `[S, M, F]`."""
        return ops.symmetric_mean(self.model.reward(self.reward, features), self.support)

    def continues(self, features: Tensor) -> Tensor:
        """Return the probabilities `[S, M]` that episodes continue at states `[S, M, F]`."""
        return self.model.proceed(self.proceed, features).squeeze(-1).sigmoid()


def merged(tensor: Tensor) -> Tensor:
    """Turn `[L, S, M, ...]` into `[S, L * M, ...]`, which networks compute together."""
    return tensor.transpose(0, 1).flatten(1, 2)


def by_row(tensor: Tensor, like: Tensor) -> Tensor:
    """Turn `[S, L * M, ...]` back into `[L, S, M, ...]`, with the L and M of `like [L, S, M, ...]`."""
    return torch.unflatten(tensor, 1, (like.shape[0], like.shape[2])).transpose(0, 1)
