"""Normalized perceptrons stacked along the seed axis: `StackedNormedMLP`, and the parameters that they are made of.

A hidden layer is a product without a bias, layer normalization (Ba et al. 2016, arXiv:1607.06450), and SiLU or another
nonlinearity. Gradients are those of autograd.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod, sqrt

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, silu

EPSILON = 1e-3
"""Added to the variances of a layer."""

TRUNCATED = 0.87962566103423978
"""Standard deviation of the standard normal distribution between -2 and 2."""


@dataclass(frozen=True)
class Slot:
    """A tensor of parameters of one seed, and its initial value.

    Attributes:
        shape: shape of the tensor.
        inputs: numbers that each of its outputs sums over; 0 for a constant.
        gain: standard deviation of an output for inputs of variance 1; of a constant its value.
    """

    shape: tuple[int, ...]
    inputs: int = 0
    gain: float = 0.0

    def fill(self, tensor: Tensor, generator: torch.Generator) -> None:
        """Set a tensor of this shape: a truncated normal distribution, or a constant."""
        if not self.inputs or not self.gain:
            tensor.fill_(self.gain)
            return
        std = self.gain / sqrt(self.inputs) / TRUNCATED
        torch.nn.init.trunc_normal_(tensor, std=std, a=-2 * std, b=2 * std, generator=generator)


class Slots:
    """Tensors of parameters in one row of each seed.

    Args:
        slots: their shapes and beginnings.

    Attributes:
        sizes: number of elements of each tensor.
        size: P, the total number of parameters.
    """

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = tuple(slots)
        self.sizes = [prod(slot.shape) for slot in self.slots]
        self.size = sum(self.sizes)

    def initial(self, generator: torch.Generator) -> Tensor:
        """Return the initial parameters `[P]` of one seed."""
        row = torch.zeros(self.size)
        for slot, part in zip(self.slots, row.split_with_sizes(self.sizes), strict=True):
            slot.fill(part.view(slot.shape), generator)
        return row

    def views(self, parameters: Tensor) -> list[Tensor]:
        """Return `parameters [S, P]` as tensors `[S, *shape]` that share their memory."""
        parts = parameters.split_with_sizes(self.sizes, dim=1)
        return [part.view(-1, *slot.shape) for slot, part in zip(self.slots, parts, strict=True)]


def shares(parts: Sequence[Slots], views: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """Return the views of each of several parts, from those of all of them in a row."""
    ends = list(accumulate(len(part.slots) for part in parts))
    return [views[end - len(part.slots) : end] for part, end in zip(parts, ends, strict=True)]


def normed(x: Tensor, scale: Tensor, shift: Tensor, activation: Callable[[Tensor], Tensor] = silu) -> Tensor:
    """Return `activation(LayerNorm(x))` for `x [S, M, n]`, with scale and shift `[S, 1, n]` of each seed."""
    return activation(torch.addcmul(shift, layer_norm(x, x.shape[-1:], eps=EPSILON), scale))


class StackedNormedMLP(Slots):
    """`S` perceptrons of one shape with normalized hidden layers.

    Args:
        inputs: numbers of an input.
        hidden: sizes of the hidden layers.
        outputs: numbers of an output; None: the last hidden layer is the output.
        gain: gain of the outputs; 0 initializes them at 0.
        activation: activation function of the hidden layers.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        outputs: int | None = None,
        *,
        gain: float = 1.0,
        activation: Callable[[Tensor], Tensor] = silu,
    ) -> None:
        self.activation = activation
        slots: list[Slot] = []
        for before, after in pairwise([inputs, *hidden]):
            slots += [Slot((before, after), before, 1.0), Slot((1, after), gain=1.0), Slot((1, after))]
        self.depth = len(hidden)
        if outputs is not None:
            width = hidden[-1] if hidden else inputs
            slots += [Slot((width, outputs), width, gain), Slot((1, outputs))]
        super().__init__(slots)

    def __call__(self, views: Sequence[Tensor], inputs: Tensor) -> Tensor:
        """Return the outputs `[S, M, out]` for `inputs [S, M, in]`, by `views` of the parameters."""
        x = inputs
        for layer in range(self.depth):
            weight, scale, shift = views[3 * layer : 3 * layer + 3]
            x = normed(torch.bmm(x, weight), scale, shift, self.activation)
        if len(views) == 3 * self.depth:
            return x
        weight, bias = views[3 * self.depth :]
        return torch.baddbmm(bias, x, weight)
