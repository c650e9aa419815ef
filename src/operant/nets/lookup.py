"""Perceptrons whose inputs are one-hot vectors, given as the number of the entry that is 1."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from operant.nets.mlp import Layers, StackedMLP


class StackedLookup(StackedMLP):
    """`S` perceptrons that look up the row of their first weights in place of a product with a one-hot vector.

    Parameters, and what becomes of them, are those of a `StackedMLP` for the vectors. What differs is the time: a row
    is read where a product reads all of the weights. The first layer is followed by hidden ones.
    """

    def trace(self, layers: Layers, inputs: Tensor, buffers: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the numbers `inputs [S, M, 1]` and what every layer makes of them, as `pullback` needs it."""
        (weight, bias), *rest = layers
        rows = weight.flatten(0, 1).index_select(0, self._places(weight, inputs)).view(*inputs.shape[:2], -1)
        hidden = (rows + bias).relu_() if self.activation == "relu" else (rows + bias).tanh_()
        return [inputs, *super().trace(rest, hidden, buffers[1:])]

    def _weight_gradient(self, layers: Layers, trace: list[Tensor], gradient: Tensor, index: int) -> Tensor:
        if index:
            return super()._weight_gradient(layers, trace, gradient, index)
        weight = layers[0][0]
        if gradient.device.type != "cpu":  # sums there come in an order of their own each time; products do not
            vectors = one_hot(trace[0].squeeze(-1), weight.shape[1]).to(gradient.dtype)
            return torch.bmm(vectors.mT, gradient)
        summed = torch.zeros_like(weight, memory_format=torch.contiguous_format)
        return summed.flatten(0, 1).index_add(0, self._places(weight, trace[0]), gradient.flatten(0, 1)).view_as(weight)

    @staticmethod
    def _places(weight: Tensor, inputs: Tensor) -> Tensor:
        """Return where the rows of `inputs [S, M, 1]` are among those of all seeds, `[S * M]`."""
        first = torch.arange(len(weight), device=weight.device).view(-1, 1, 1) * weight.shape[1]
        return (first + inputs).flatten()
