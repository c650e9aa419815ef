"""Encoders of images into vectors, and decoders back, stacked along the seed axis.

Every stage halves the sides of an image, or doubles them on the way back, down to fewer than 8 pixels. Stages are a
convolution, normalization over a whole image (Wu and He 2018, arXiv:1803.08494, one group), and SiLU. The networks of
different seeds run one after another, as in `operant.nets.StackedCNN`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import Tensor
from torch.nn.functional import conv2d, conv_transpose2d, group_norm, silu

from operant.nets.normed_mlp import EPSILON, Slot, Slots

KERNEL, SMALL = 4, 8
"""Side of the filters; an image with a shorter side is not halved again."""

WIDENING = (2, 3, 4)
"""How many times `depth` the channels of the stages are; further ones are like the last."""


@dataclass(frozen=True)
class Stages:
    """The sizes of an image on its way through a coder.

    Attributes:
        shapes: `(C, H, W)` of the image, and after every stage.
    """

    shapes: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, image: Sequence[int], depth: int) -> "Stages":
        """Return the stages of an image `(C, H, W)`.

        Raises:
            ValueError: if the image is too small for one stage.
        """
        channels, height, width = image
        if min(height, width) < SMALL:
            raise ValueError(f"images need sides of at least {SMALL} pixels, got {height} x {width}")
        shapes = [(channels, height, width)]
        while min(height, width) >= SMALL:
            height, width = height // 2, width // 2
            channels = depth * WIDENING[min(len(shapes), len(WIDENING)) - 1]
            shapes.append((channels, height, width))
        return cls(tuple(shapes))

    @property
    def numbers(self) -> int:
        """How many numbers the last stage gives."""
        return prod(self.shapes[-1])


def _normed(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return silu(group_norm(images, 1, scale, shift, eps=EPSILON))


class StackedImageEncoder(Slots):
    """`S` encoders of one shape.

    Args:
        image: `(C, H, W)`, of bytes.
        depth: half of the channels after the first stage.

    Attributes:
        outputs: E, numbers that represent an image.
    """

    def __init__(self, image: Sequence[int], depth: int) -> None:
        self.stages = Stages.of(image, depth)
        self.outputs = self.stages.numbers
        slots: list[Slot] = []
        for (before, *_), (after, *_) in pairwise(self.stages.shapes):
            slots += [
                Slot((after, before, KERNEL, KERNEL), before * KERNEL**2, 1.0),
                Slot((after,), gain=1.0),
                Slot((after,)),
            ]
        super().__init__(slots)

    def __call__(self, views: Sequence[Tensor], images: Tensor) -> Tensor:
        """Return `[S, M, E]` for images of bytes `[S, M, C, H, W]`."""
        return torch.stack([self._one([view[s] for view in views], row) for s, row in enumerate(images)])

    def _one(self, views: Sequence[Tensor], images: Tensor) -> Tensor:
        x = images.float() / 255 - 0.5
        for weight, scale, shift in zip(views[::3], views[1::3], views[2::3], strict=True):
            x = _normed(conv2d(x, weight, stride=2, padding=1), scale, shift)
        return x.flatten(1)


class StackedImageDecoder(Slots):
    """`S` decoders of one shape.

    Args:
        inputs: numbers that an image is made from.
        image: `(C, H, W)`.
        depth: as of the encoder.
    """

    def __init__(self, inputs: int, image: Sequence[int], depth: int) -> None:
        self.stages = Stages.of(image, depth)
        smallest = self.stages.shapes[-1]
        slots = [
            Slot((inputs, self.stages.numbers), inputs, 1.0),
            Slot((smallest[0],), gain=1.0),
            Slot((smallest[0],)),
        ]
        backwards = self.stages.shapes[::-1]
        for number, ((before, *_), (after, *_)) in enumerate(pairwise(backwards)):
            slots.append(Slot((before, after, KERNEL, KERNEL), before * KERNEL**2 // 4, 1.0))
            final = number == len(backwards) - 2
            slots += [Slot((after,))] if final else [Slot((after,), gain=1.0), Slot((after,))]
        super().__init__(slots)

    def __call__(self, views: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return images `[S, M, C, H, W]` from 0 to 1 for `inputs [S, M, in]`."""
        small = torch.bmm(inputs, views[0])
        return torch.stack([self._one([view[s] for view in views[1:]], row) for s, row in enumerate(small)])

    def _one(self, views: Sequence[Tensor], small: Tensor) -> Tensor:
        backwards = self.stages.shapes[::-1]
        x = _normed(small.view(-1, *backwards[0]), views[0], views[1])
        rest = list(views[2:])
        for (_, height, width), (_, taller, wider) in pairwise(backwards):
            odd = (taller - 2 * height, wider - 2 * width)
            x = conv_transpose2d(x, rest.pop(0), stride=2, padding=1, output_padding=odd)
            x = _normed(x, rest.pop(0), rest.pop(0)) if len(rest) > 1 else x + rest.pop(0).view(1, -1, 1, 1)
        return x.sigmoid()
