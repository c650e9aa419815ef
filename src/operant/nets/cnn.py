"""Convolutional networks stacked along the seed axis, with the interface of `operant.nets.StackedMLP`.

An encoder of convolutions is followed by dense layers. The seeds run one after another, because convolutions are
limited by arithmetic, so stacking does not help, and grouped convolutions are slower on a CPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from operant.nets.mlp import Activation, Layers, StackedMLP

_aten: Any = torch.ops.aten  # PyTorch has no types for these

EncoderName = Literal["auto", "nature", "impala", "small"]
"""`nature`: Mnih et al. 2015, three convolutions. `impala`: Espeholt et al. 2018, figure 3 right, fifteen with residual
connections. `small`: Young and Tian 2019 (MinAtar), one convolution. `auto`: `nature` from 36 x 36 pixels on, else
`small`."""

CHUNK = 256
"""Images per forward pass when no backward pass follows."""


@dataclass(frozen=True)
class Convolution:
    """A layer of square filters.

    Attributes:
        filters: number of filters.
        kernel: side length, in pixels.
        stride: stride in pixels.
        padding: rows and columns of zeros around the image.
    """

    filters: int
    kernel: int
    stride: int = 1
    padding: int = 0

    def side(self, pixels: int) -> int:
        """Return the output size along a side of `pixels`."""
        return (pixels + 2 * self.padding - self.kernel) // self.stride + 1


Piece = Convolution | Literal["relu", "pool", "fork", "join"]
"""Layers of an encoder. `pool` is 3 x 3 max pooling, stride 2; the input of a `fork` is added at the next `join`."""

_RESIDUAL: tuple[Piece, ...] = ("fork", "relu", Convolution(0, 3, 1, 1), "relu", Convolution(0, 3, 1, 1), "join")
"""A residual block; 0 filters means as many as channels."""

ENCODERS: dict[str, tuple[Piece, ...]] = {
    "nature": (Convolution(32, 8, 4), "relu", Convolution(64, 4, 2), "relu", Convolution(64, 3), "relu"),
    "impala": (
        *(piece for n in (16, 32, 32) for piece in (Convolution(n, 3, 1, 1), "pool", *_RESIDUAL, *_RESIDUAL)),
        "relu",
    ),
    "small": (Convolution(16, 3), "relu"),
}


class StackedCNN:
    """`S` convolutional networks of one shape, for images of bytes.

    Hidden layers of the encoder use ReLU. Images are scaled from [0, 255] to [0, 1].

    Args:
        shape: `(C, H, W)` of an image.
        sizes: sizes of the dense hidden layers and the output.
        activation: activation function of the dense hidden layers.
        encoder: the convolutions.
        beside: number of inputs that bypass the encoder and enter the first dense layer; an observation is then one
            vector `[C * H * W + beside]` that starts with the image. None: only images, `[C, H, W]`.

    Attributes:
        size: P, number of parameters of one network.

    Raises:
        ValueError: if the encoder is unknown, or the image is too small for it.
    """

    def __init__(
        self,
        shape: Sequence[int],
        sizes: Sequence[int],
        *,
        activation: Activation,
        encoder: EncoderName = "auto",
        beside: int | None = None,
    ) -> None:
        if encoder != "auto" and encoder not in ENCODERS:
            raise ValueError(f"encoder must be one of auto, {', '.join(ENCODERS)}, got {encoder!r}")
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError(f"images need a shape (channels, height, width), got {tuple(shape)}")
        name = encoder if encoder != "auto" else "nature" if min(shape[1:]) >= 36 else "small"
        channels, height, width = shape
        self.pieces: list[Piece] = []
        self.filters: list[tuple[int, int, int, int]] = []
        for piece in ENCODERS[name]:
            if isinstance(piece, Convolution):
                layer = Convolution(piece.filters or channels, piece.kernel, piece.stride, piece.padding)
                self.filters.append((layer.filters, channels, layer.kernel, layer.kernel))
                height, width, channels = layer.side(height), layer.side(width), layer.filters
            elif piece == "pool":
                layer, height, width = piece, (height + 1) // 2, (width + 1) // 2
            else:
                layer = piece
            if min(height, width) < 1:
                raise ValueError(f"images of {shape[1]} x {shape[2]} pixels are too small for the encoder {name!r}")
            self.pieces.append(layer)
        self.image, self.beside = tuple(shape), beside
        self.maps = (channels, height, width)
        self.dense = StackedMLP([prod(self.maps) + (beside or 0), *sizes], activation=activation)
        self.size = sum(prod(filters) + filters[0] for filters in self.filters) + self.dense.size

    def initial(self, generator: torch.Generator, outputs: Sequence[tuple[int, float]]) -> Tensor:
        """Return the initial parameters `[P]` of one network: orthogonal weights, zero biases (see `StackedMLP`)."""
        flat = torch.zeros(1, self.size - self.dense.size)
        for weight, _ in self._convolutions(flat):
            torch.nn.init.orthogonal_(weight[0], gain=sqrt(2), generator=generator)
        return torch.cat((flat[0], self.dense.initial(generator, outputs)))

    def layers(self, parameters: Tensor) -> Layers:
        """Return `parameters [S, P]` as views: weights `[S, out, in, k, k]` and biases `[S, out]`, then the dense."""
        filters, dense = parameters.split_with_sizes([self.size - self.dense.size, self.dense.size], dim=1)
        return [*self._convolutions(filters), *self.dense.layers(dense)]

    def _convolutions(self, parameters: Tensor) -> Layers:
        sizes = [n for shape in self.filters for n in (prod(shape), shape[0])]
        parts = iter(parameters.split_with_sizes(sizes, dim=1))
        return [(next(parts).view(-1, *shape), next(parts)) for shape in self.filters]

    def __call__(self, layers: Layers, inputs: Tensor) -> Tensor:
        """Return the outputs `[S, M, out]` for observations `[S, M, ...]`."""
        seen, beside = self._taken_apart(inputs)
        rows = [
            torch.cat([self._forward(layers, row, part)[-1].flatten(1) for part in torch.split(images, CHUNK)])
            for row, images in enumerate(seen)
        ]
        return self.dense(layers[len(self.filters) :], _joined(rows, beside))

    def _taken_apart(self, inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the images `[S, M, C, H, W]` of observations, and the other inputs, if any."""
        if self.beside is None:
            return inputs, None
        images, beside = inputs.split_with_sizes([prod(self.image), self.beside], dim=-1)
        return torch.unflatten(images, -1, self.image), beside

    def trace(self, layers: Layers, inputs: Tensor) -> list[Tensor]:
        """Return the trace for `pullback`; its last entry is the outputs."""
        tape: list[Tensor] = []
        rows: list[Tensor] = []
        seen, beside = self._taken_apart(inputs)
        for row, images in enumerate(seen):
            *kept, maps = self._forward(layers, row, images)
            tape += kept
            rows.append(maps.flatten(1))
        return tape + self.dense.trace(layers[len(self.filters) :], _joined(rows, beside))

    def _forward(self, layers: Layers, row: int, images: Tensor) -> list[Tensor]:
        """Return the inputs of convolutions and pools and the outputs of rectifiers of one network, and its maps."""
        x = images.to(layers[0][0].dtype, memory_format=torch.channels_last) * (1 / 255)
        tape: list[Tensor] = []
        skips: list[Tensor] = []
        index = 0
        for piece in self.pieces:
            if isinstance(piece, Convolution):
                tape.append(x)
                weight, bias = layers[index]
                x = conv2d(x, weight[row], bias[row], piece.stride, piece.padding)
                index += 1
            elif piece == "relu":
                x = x.relu() if skips and skips[-1] is x else x.relu_()
                tape.append(x)
            elif piece == "pool":
                tape.append(x)
                x, places = _aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
                tape.append(places)
            elif piece == "fork":
                skips.append(x)
            else:
                x = x + skips.pop()
        return [*tape, x]

    def pullback(self, layers: Layers, trace: list[Tensor], gradient: Tensor) -> list[Tensor]:
        """Backpropagate by hand.

        Args:
            layers: layers of the forward pass.
            trace: trace of the forward pass.
            gradient: gradient of the loss with respect to the outputs, `[S, M, out]`.

        Returns:
            The gradient of the parameters, in pieces `[S, n]` in their order.
        """
        filters, dense = layers[: len(self.filters)], layers[len(self.filters) :]
        tape, end = list(trace), len(trace) - len(dense) - 1
        pieces = self.dense.pullback(dense, tape[end:], gradient)
        gradient = self.dense.input_gradient(dense, tape[end:], gradient)[..., : prod(self.maps)]
        del tape[end:]
        rows = [self._backward(filters, row, tape, gradient[row]) for row in reversed(range(len(gradient)))]
        return [torch.stack(column) for column in zip(*reversed(rows), strict=True)] + pieces

    def _backward(self, filters: Layers, row: int, tape: list[Tensor], gradient: Tensor) -> list[Tensor]:
        """Return the gradients of one network's filters, and release its activations."""
        gradient = torch.unflatten(gradient, 1, self.maps)
        pieces: list[Tensor] = []
        skips: list[Tensor] = []
        index = len(filters)
        for piece in reversed(self.pieces):
            if isinstance(piece, Convolution):
                index -= 1
                weight = filters[index][0][row]
                stride, padding = [piece.stride] * 2, [piece.padding] * 2
                gradient, weights, biases = _aten.convolution_backward(
                    gradient.contiguous(memory_format=torch.channels_last),
                    tape.pop(),
                    weight,
                    [piece.filters],
                    stride,
                    padding,
                    [1, 1],
                    False,
                    [0, 0],
                    1,
                    [index > 0, True, True],
                )
                pieces += [biases, weights.flatten()]
            elif piece == "relu":
                gradient = _aten.threshold_backward(gradient, tape.pop(), 0)
            elif piece == "pool":
                places, x = tape.pop(), tape.pop()
                gradient = _aten.max_pool2d_with_indices_backward(
                    gradient, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places
                )
            elif piece == "join":
                skips.append(gradient)
            else:
                gradient = gradient + skips.pop()
        return pieces[::-1]


def _joined(rows: Sequence[Tensor], beside: Tensor | None) -> Tensor:
    """Return the inputs of the dense layers: the flat maps `[M, n]` of each network, and the inputs next to images."""
    maps = torch.stack(list(rows))
    return maps if beside is None else torch.cat((maps, beside), dim=-1)
