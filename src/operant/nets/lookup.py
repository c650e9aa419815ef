"""Perceptrons whose inputs are one-hot vectors, given as the number of the entry that is 1."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from operant.nets.mlp import Layers, StackedMLP
from operant.nets.tracing import tracing


class StackedLookup(StackedMLP):
    """`S` perceptrons that look up the row of their first weights in place of a product with a one-hot vector.

    Parameters, and what becomes of them, are those of a `StackedMLP` for the vectors. What differs is the time: a row
    is read where a product reads all of the weights. The first layer is followed by hidden ones.
    """

    def trace(self, layers: Layers, inputs: Tensor, buffers: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the numbers `inputs [S, M, 1]` and what every layer makes of them, as `pullback` needs it."""
        (weight, bias), *rest = layers
        hidden = _rows(weight, inputs) + bias
        hidden = hidden.relu_() if self.activation == "relu" else hidden.tanh_()
        return [inputs, *super().trace(rest, hidden, buffers[1:])]

    def _weight_gradient(self, layers: Layers, trace: list[Tensor], gradient: Tensor, index: int) -> Tensor:
        if index:
            return super()._weight_gradient(layers, trace, gradient, index)
        inputs, entries = trace[0], layers[0][0].shape[1]
        if gradient.device.type != "cpu":  # sums there come in an order of their own each time; products do not
            return torch.bmm(one_hot(inputs.squeeze(-1), entries).to(gradient.dtype).mT, gradient)
        places = (torch.arange(len(inputs)).view(-1, 1, 1) * entries + inputs).flatten()
        summed = gradient.new_zeros(len(inputs) * entries, gradient.shape[-1])
        return summed.index_add_(0, places, gradient.flatten(0, 1)).view(len(inputs), entries, -1)


def _rows(weight: Tensor, inputs: Tensor) -> Tensor:
    """Return the rows `[S, M, out]` of `weight [S, in, out]` at `inputs [S, M, 1]`."""
    seeds = torch.arange(len(weight), device=weight.device).view(-1, 1, 1)
    if tracing() or weight.stride(2) != 1:
        return weight[seeds.squeeze(-1), inputs.squeeze(-1)]
    # Weights lie between other parameters. A view of all stretches of memory as long as a row, which overlap, has the
    # wanted ones among its rows: to read these takes a tenth of the time of indexing by two tensors.
    width, (by_seed, by_entry, _) = weight.shape[2], weight.stride()
    last = (len(weight) - 1) * by_seed + (weight.shape[1] - 1) * by_entry
    stretches = weight.as_strided((last + 1, width), (1, 1))
    return stretches.index_select(0, (seeds * by_seed + inputs * by_entry).flatten()).view(*inputs.shape[:2], width)
