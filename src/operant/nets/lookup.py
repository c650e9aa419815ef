"""Perceptrons whose inputs are one-hot vectors, given as the number of the entry that is 1."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from operant.nets.mlp import Activation, Layers, StackedMLP
from operant.nets.tracing import tracing


class RowGradient(NamedTuple):
    """A gradient of networks that look up rows, in which rows that were not looked up are absent.

    Attributes:
        numbers: `[S, M]`, of the rows that were looked up.
        rows: `[S, M, W]`, gradients by lookup; those of the same row add up.
        rest: `[S, R]`, gradient of all other parameters.
    """

    numbers: Tensor
    rows: Tensor
    rest: Tensor


class StackedLookup(StackedMLP):
    """`S` perceptrons that look up the row of their first weights in place of a product with a one-hot vector.

    The outputs are those of a `StackedMLP` for the vectors. What differs is the time: a row is read where a product
    reads all of the weights, and gradients are of the rows that were read. The first layer is followed by hidden ones.

    The parameters of a network are padded to a multiple of the width W of the first layer, so that the parameters of
    all networks are one matrix of rows of that width.

    Args:
        sizes: see `StackedMLP`.
        activation: see `StackedMLP`.

    Attributes:
        entries: size of a one-hot vector, the number of rows.
        width: W.
    """

    def __init__(self, sizes: Sequence[int], *, activation: Activation) -> None:
        super().__init__(sizes, activation=activation)
        self.entries, self.width = self.shapes[0]
        own: int = self.size
        self._own, self.size = own, own + -own % self.width

    def layers(self, parameters: Tensor) -> Layers:
        """Return `parameters [S, P]` as views, without those that only fill up the last row."""
        return super().layers(parameters[:, : self._own])

    @property
    def rest(self) -> slice:
        """Places of the parameters behind the rows."""
        return slice(self.entries * self.width, self._own)

    def trace(self, layers: Layers, inputs: Tensor, buffers: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the numbers `inputs [S, M, 1]` and the outputs of every layer, for `pullback`."""
        (weight, bias), *rest = layers
        hidden = rows_of(weight, inputs).add_(bias)
        hidden = hidden.relu_() if self.activation == "relu" else hidden.tanh_()
        return [inputs, *super().trace(rest, hidden, buffers[1:])]

    def _weight_gradient(self, layers: Layers, trace: list[Tensor], gradient: Tensor, index: int) -> Tensor:
        """Return the gradient of the weights of a layer; that of the first layer `[S, M, W]` by lookup."""
        return super()._weight_gradient(layers, trace, gradient, index) if index else gradient

    def row_gradient(self, layers: Layers, trace: list[Tensor], gradient: Tensor) -> RowGradient:
        """Backpropagate by hand from the gradient of the outputs `[S, M, out]`."""
        rows, *rest = self.pullback(layers, trace, gradient)
        return RowGradient(trace[0].squeeze(-1), rows.view(*gradient.shape[:2], self.width), torch.cat(rest, 1))


def rows_of(weight: Tensor, inputs: Tensor) -> Tensor:
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


def _empty_rows(weight: Tensor, inputs: Tensor) -> Tensor:
    return weight.new_empty(*inputs.shape[:2], weight.shape[2])


# Compiled programs call these as they are: loops that a compiler makes of indexing take longer.
_ops: Any = torch.ops.operant
_library: Any = torch.library.Library("operant", "FRAGMENT")
_library.define("rows(Tensor weight, Tensor inputs) -> Tensor")
_library.impl("rows", _read_rows, "CPU")
_library.impl("rows", _empty_rows, "Meta")
