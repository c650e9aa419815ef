"""Perceptrons whose inputs are one-hot vectors, given as the number of the entry that is 1."""

from collections.abc import Sequence
from typing import Any

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
        if gradient.device.type != "cpu":  # the order of sums by index differs from call to call there
            return torch.bmm(one_hot(inputs.squeeze(-1), entries).to(gradient.dtype).mT, gradient)
        return _ops.summed_rows(gradient, inputs, entries) if tracing() else _summed_rows(gradient, inputs, entries)


def _rows(weight: Tensor, inputs: Tensor) -> Tensor:
    """Return the rows `[S, M, out]` of `weight [S, in, out]` at `inputs [S, M, 1]`."""
    if weight.device.type != "cpu":
        return weight[torch.arange(len(weight), device=weight.device).unsqueeze(1), inputs.squeeze(-1)]
    return _ops.rows(weight, inputs) if tracing() else _read_rows(weight, inputs)


def _read_rows(weight: Tensor, inputs: Tensor) -> Tensor:
    # Weights lie between other parameters. A view of all stretches of memory as long as a row, which overlap, contains
    # the rows; to read it takes a tenth of the time of indexing by two tensors.
    width, (by_seed, by_entry, step) = weight.shape[2], weight.stride()
    if step != 1:
        return _read_rows(weight.contiguous(), inputs)
    last = (len(weight) - 1) * by_seed + (weight.shape[1] - 1) * by_entry
    stretches = weight.as_strided((last + 1, width), (1, 1))
    first = torch.arange(len(weight)).view(-1, 1, 1) * by_seed
    return stretches.index_select(0, (first + inputs * by_entry).flatten()).view(*inputs.shape[:2], width)


def _summed_rows(gradient: Tensor, inputs: Tensor, entries: int) -> Tensor:
    """Return the sums `[S, entries, out]` of `gradient [S, M, out]` by entry."""
    places = (torch.arange(len(inputs)).view(-1, 1, 1) * entries + inputs).flatten()
    summed = gradient.new_zeros(len(inputs) * entries, gradient.shape[-1])
    return summed.index_add_(0, places, gradient.flatten(0, 1)).view(len(inputs), entries, -1)


def _empty_rows(weight: Tensor, inputs: Tensor) -> Tensor:
    return weight.new_empty(*inputs.shape[:2], weight.shape[2])


def _empty_sums(gradient: Tensor, inputs: Tensor, entries: int) -> Tensor:
    return gradient.new_empty(len(inputs), entries, gradient.shape[2])


# Compiled programs call these as they are: loops that a compiler makes of indexing take longer.
_ops: Any = torch.ops.operant
_library: Any = torch.library.Library("operant", "FRAGMENT")
_library.define("rows(Tensor weight, Tensor inputs) -> Tensor")
_library.impl("rows", _read_rows, "CPU")
_library.impl("rows", _empty_rows, "Meta")
_library.define("summed_rows(Tensor gradient, Tensor inputs, int entries) -> Tensor")
_library.impl("summed_rows", _summed_rows, "CPU")
_library.impl("summed_rows", _empty_sums, "Meta")
