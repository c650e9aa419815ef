"""Multilayer perceptrons stacked along the seed axis.

The parameters of `S` independent networks are one matrix `[S, P]`: row `s` holds the weights and biases of seed
`s`, layer after layer. A layer of all seeds is one `baddbmm`, a gradient has the shape of the parameters, and
clipping, optimizer steps and trust regions that act on single seeds are operations on rows.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import sqrt
from typing import Literal

import torch
from torch import Tensor

Activation = Literal["tanh", "relu"]
"""The nonlinearities of hidden layers."""

Layers = list[tuple[Tensor, Tensor]]
"""Weights `[S, in, out]` and biases `[S, 1, out]`, layer after layer."""


class StackedMLP:
    """`S` multilayer perceptrons of one shape.

    Args:
        sizes: width of the input, of every hidden layer, and of the output.
        activation: applied after every layer but the last.

    Attributes:
        size: P, the number of parameters of one network.
    """

    def __init__(self, sizes: Sequence[int], *, activation: Activation) -> None:
        if len(sizes) < 2 or min(sizes) < 1:
            raise ValueError(f"sizes must name an input and an output width, all positive, got {tuple(sizes)}")
        if activation not in ("tanh", "relu"):
            raise ValueError(f"activation must be 'tanh' or 'relu', got {activation!r}")
        self.shapes = list(pairwise(sizes))
        self.activation: Activation = activation
        self.size = sum(rows * columns + columns for rows, columns in self.shapes)

    def initial(self, generator: torch.Generator, outputs: Sequence[tuple[int, float]]) -> Tensor:
        """Return the initial parameters `[P]` of one network: orthogonal weights, zero biases.

        Hidden layers have gain `sqrt(2)` (Huang et al. 2022, "The 37 implementation details of PPO", detail 2).

        Args:
            generator: draws the weights.
            outputs: consecutive blocks of outputs `(width, gain)`, each orthogonal by itself; the rest starts at 0.
        """
        flat = torch.zeros(1, self.size)
        *hidden, (last, _) = self.layers(flat)
        for weight, _ in hidden:
            torch.nn.init.orthogonal_(weight[0], gain=sqrt(2), generator=generator)
        column = 0
        for width, gain in outputs:
            torch.nn.init.orthogonal_(last[0, :, column : column + width], gain=gain, generator=generator)
            column += width
        return flat[0]

    def layers(self, parameters: Tensor) -> Layers:
        """Return `parameters [S, P]` as views: weights `[S, in, out]` and biases `[S, 1, out]` of every layer."""
        seeds = parameters.shape[0]
        parts = iter(parameters.split([n for rows, columns in self.shapes for n in (rows * columns, columns)], dim=1))
        return [
            (next(parts).view(seeds, rows, columns), next(parts).view(seeds, 1, columns))
            for rows, columns in self.shapes
        ]

    def __call__(self, layers: Layers, inputs: Tensor) -> Tensor:
        """Return the outputs `[S, M, out]` for `inputs [S, M, in]`."""
        return self.trace(layers, inputs)[-1]

    def trace(self, layers: Layers, inputs: Tensor) -> list[Tensor]:
        """Return the inputs and what every layer makes of them, as `pullback` needs it."""
        trace = [inputs]
        for index, (weight, bias) in enumerate(layers):
            output = torch.baddbmm(bias, trace[-1], weight)
            if index < len(layers) - 1:
                output = output.tanh_() if self.activation == "tanh" else output.relu_()
            trace.append(output)
        return trace

    def pullback(self, layers: Layers, trace: list[Tensor], gradient: Tensor) -> list[Tensor]:
        """Backpropagate by hand.

        Args:
            layers: of the forward pass.
            trace: of the forward pass.
            gradient: of the loss with respect to the outputs, `[S, M, out]`.

        Returns:
            The gradient of the parameters, in pieces `[S, n]` in their order.
        """
        pieces: list[Tensor] = []
        for index in reversed(range(len(layers))):
            pieces += [gradient.sum(1), torch.bmm(trace[index].mT, gradient).flatten(1)]
            if index:
                gradient = self._through_activation(torch.bmm(gradient, layers[index][0].mT), trace[index])
        return pieces[::-1]

    def _through_activation(self, gradient: Tensor, output: Tensor) -> Tensor:
        """Multiply `gradient` in place by the activation's slope where it gave `output`."""
        if self.activation == "tanh":
            return torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient)
        return torch.ops.aten.threshold_backward.grad_input(gradient, output, 0, grad_input=gradient)
