"""A variational autoencoder of images (Kingma & Welling 2014, arXiv:1312.6114), stacked along the seed axis.

The encoder is a `StackedCNN`; the decoder mirrors it: dense layers in reverse order, then the same convolutions
transposed, from the last to the first. Pixels are Bernoulli variables, or gray values in [0, 1], given by their
log-odds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt

import torch
from torch import Tensor
from torch.nn.functional import conv_transpose2d

from operant import ops
from operant.nets import EncoderName, StackedCNN, StackedMLP
from operant.nets.cnn import Convolution
from operant.nets.mlp import Layers

LOG_STD = (-6.0, 2.0)
"""Bounds of the log standard deviations of a latent vector."""


class StackedVAE:
    """`S` variational autoencoders of one shape.

    Args:
        image: `(C, H, W)`.
        latent: Z, size of a latent vector.
        hidden: sizes of the dense layers between convolutions and latent vector.
        encoder: the convolutions.

    Attributes:
        size: P, number of parameters of one autoencoder.

    Raises:
        ValueError: if the encoder has other layers than convolutions, or the images are too small for it.
    """

    def __init__(self, image: Sequence[int], latent: int, hidden: Sequence[int], encoder: EncoderName) -> None:
        self.latent = latent
        self.encoder = StackedCNN(image, [*hidden, 2 * latent], activation="relu", encoder=encoder)
        self.convolutions = [piece for piece in self.encoder.pieces if isinstance(piece, Convolution)]
        if {piece for piece in self.encoder.pieces if isinstance(piece, str)} != {"relu"}:
            raise ValueError(f"encoder must be 'nature' or 'small': a decoder cannot mirror the pools of {encoder!r}")
        self.decoder = StackedMLP([latent, *reversed(hidden), prod(self.encoder.maps)], activation="relu")
        self.filters = self.encoder.filters[::-1]
        self.parts = [self.encoder.size, self.decoder.size, sum(prod(shape) + shape[1] for shape in self.filters)]
        self.size = sum(self.parts)
        self.sides = self._sides(image)

    def _sides(self, image: Sequence[int]) -> list[tuple[int, int]]:
        """Return height and width of the output of each transposed convolution, in the order of the decoder."""
        sides = [(image[1], image[2])]
        for convolution in self.convolutions[:-1]:
            height, width = sides[-1]
            sides.append((convolution.side(height), convolution.side(width)))
        return sides[::-1]

    def initial(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the initial parameters `[S, P]`: orthogonal weights and zero biases, one row per generator."""
        rows: list[Tensor] = []
        for generator in generators:
            flat = torch.zeros(1, self.parts[2])
            for weight, _ in self._transposed(flat):
                torch.nn.init.orthogonal_(weight[0], gain=sqrt(2), generator=generator)
            encoder = self.encoder.initial(generator, [(self.latent, 1.0)])
            decoder = self.decoder.initial(generator, [(prod(self.encoder.maps), sqrt(2))])
            rows.append(torch.cat((encoder, decoder, flat[0])))
        return torch.stack(rows)

    def _transposed(self, parameters: Tensor) -> Layers:
        sizes = [n for shape in self.filters for n in (prod(shape), shape[1])]
        parts = iter(parameters.split_with_sizes(sizes, dim=1))
        return [(next(parts).view(-1, *shape), next(parts)) for shape in self.filters]

    def bind(self, parameters: Tensor) -> "BoundVAE":
        """Return the networks that compute with `parameters [S, P]`, sharing their memory."""
        encoder, decoder, filters = parameters.split_with_sizes(self.parts, dim=1)
        return BoundVAE(self, self.encoder.layers(encoder), self.decoder.layers(decoder), self._transposed(filters))


@dataclass(frozen=True)
class BoundVAE:
    """Autoencoders with one set of parameters.

    Attributes:
        shape: shape of the networks.
        encoder: layers of the encoder.
        decoder: dense layers of the decoder.
        filters: transposed convolutions of the decoder.
    """

    shape: StackedVAE
    encoder: Layers
    decoder: Layers
    filters: Layers

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation `[S, M, Z]` for images of bytes `[S, M, C, H, W]`."""
        mean, log_std = self.shape.encoder(self.encoder, images).chunk(2, -1)
        return mean, ops.soft_clamp(log_std, *LOG_STD)

    def decode(self, latent: Tensor) -> Tensor:
        """Return the log-odds of the pixels `[S, M, C, H, W]` of latent vectors `[S, M, Z]`."""
        maps = torch.unflatten(self.shape.decoder(self.decoder, latent).relu(), -1, self.shape.encoder.maps)
        return torch.stack([self._mirrored(row, image) for row, image in enumerate(maps)])

    def _mirrored(self, row: int, x: Tensor) -> Tensor:
        """Pass the maps `[M, C, H, W]` of one network through its transposed convolutions."""
        for layer, (weight, bias) in enumerate(self.filters):
            convolution, sides = self.shape.convolutions[-1 - layer], self.shape.sides[layer]
            minimum = [
                (side - 1) * convolution.stride + convolution.kernel - 2 * convolution.padding for side in x.shape[2:]
            ]
            missing = [side - side_out for side, side_out in zip(sides, minimum, strict=True)]
            x = x.relu() if layer else x
            x = conv_transpose2d(x, weight[row], bias[row], convolution.stride, convolution.padding, missing)
        return x

    def loss(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two terms of the negative evidence lower bound `[S, M]`: reconstruction loss and KL divergence.

        Args:
            images: images as bytes, `[S, M, C, H, W]`.
            noise: standard normal noise, `[S, M, Z]`.
        """
        mean, log_std = self.encode(images)
        logits = self.decode(ops.gaussian_sample(mean, log_std, noise))
        pixels = ops.bernoulli_log_prob(logits.flatten(2), images.flatten(2) / 255)
        nothing = torch.zeros_like(mean)
        return -pixels, ops.gaussian_kl(mean, log_std, nothing, nothing)
