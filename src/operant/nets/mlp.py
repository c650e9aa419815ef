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

from operant.nets.matmul import product, rounds

Activation = Literal["tanh", "relu"]
"""The nonlinearities of hidden layers."""

NARROW, MANY = 16, 64
"""Layers of fewer outputs are computed transposed, for at least as many samples: a product with a narrow right side is
several times slower than its transpose."""

Layers = list[tuple[Tensor, Tensor]]
"""Weights `[S, in, out]` and biases `[S, 1, out]`, layer after layer."""

_MINUS_ONE = torch.tensor(-1.0)


class StackedMLP:
    """`S` multilayer perceptrons of one shape.

    Args:
        sizes: width of the input, of every hidden layer, and of the output.
        activation: applied after every layer but the last.

    Attributes:
        size: P, number of parameters of one network.
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
        sizes = [n for rows, columns in self.shapes for n in (rows * columns, columns)]
        parts = iter(parameters.split_with_sizes(sizes, dim=1))
        return [
            (next(parts).view(seeds, rows, columns), next(parts).view(seeds, 1, columns))
            for rows, columns in self.shapes
        ]

    def __call__(self, layers: Layers, inputs: Tensor) -> Tensor:
        """Return the outputs `[S, M, out]` for `inputs [S, M, in]`."""
        return self.trace(layers, inputs)[-1]

    def trace(self, layers: Layers, inputs: Tensor, buffers: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the inputs and the outputs of every layer, for `pullback`.

        Args:
            layers: weights and biases.
            inputs: `[S, M, in]`.
            buffers: for the hidden layers, if autograd is not needed (see `buffers`).
        """
        trace = [inputs]
        for index, (weight, bias) in enumerate(layers[:-1]):
            hidden = self._hidden(bias, trace[-1], weight, buffers[index] if buffers else None)
            # Activations used only in products and for the sign of a ReLU are rounded once for all of them.
            once = self.activation == "relu" and index + 2 < len(layers) and self._rounds(hidden, layers[index + 1][0])
            trace.append(hidden.bfloat16() if once else hidden)
        weight, bias = layers[-1]
        trace.append(self._outputs(bias, trace[-1], weight))
        return trace

    def _hidden(self, bias: Tensor, inputs: Tensor, weight: Tensor, out: Tensor | None) -> Tensor:
        if self.activation == "relu":
            return self._affine(bias, inputs, weight, out=out).relu_()
        if inputs.device.type != "cpu":
            return self._affine(bias, inputs, weight, out=out).tanh_()
        # tanh(x) = 2 sigmoid(2x) - 1, to 2e-7: on a CPU, torch's sigmoid takes a fifth of the time of its tanh.
        sigmoid = self._affine(bias, inputs, weight, scale=2, out=out).sigmoid_()
        return torch.add(_MINUS_ONE, sigmoid, alpha=2, out=None if sigmoid.requires_grad else sigmoid)

    def buffers(self, inputs: Tensor) -> list[Tensor]:
        """Return buffers for the hidden layers of a pass of `inputs [S, M, in]`.

        The operating system clears memory of this size at every allocation.
        """
        return [inputs.new_empty(*inputs.shape[:2], width) for _, width in self.shapes[:-1]]

    def pullback(
        self, layers: Layers, trace: list[Tensor], gradient: Tensor, buffers: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Backpropagate by hand.

        Args:
            layers: layers of the forward pass.
            trace: trace of the forward pass.
            gradient: gradient of the loss with respect to the outputs, `[S, M, out]`.
            buffers: for the gradients of the hidden layers (see `buffers`), separate from the trace's.

        Returns:
            The gradient of the parameters, in pieces `[S, n]` in their order.
        """
        pieces: list[Tensor] = []
        for index in reversed(range(len(layers))):
            pieces += [self._sum(gradient), self._weight_gradient(layers, trace, gradient, index).flatten(1)]
            if index:
                gradient = self._hidden_gradient(layers, trace, gradient, buffers, index)
        return pieces[::-1]

    def _weight_gradient(self, layers: Layers, trace: list[Tensor], gradient: Tensor, index: int) -> Tensor:
        """Return the gradient `[S, in, out]` of the weights of layer `index`."""
        return self._outer(trace[index], gradient)

    def input_gradient(
        self, layers: Layers, trace: list[Tensor], gradient: Tensor, buffers: Sequence[Tensor] = ()
    ) -> Tensor:
        """Backpropagate by hand to the inputs only, at half the cost of `pullback`.

        Args:
            layers: layers of the forward pass.
            trace: trace of the forward pass.
            gradient: gradient of the loss with respect to the outputs, `[S, M, out]`.
            buffers: for the gradients of the hidden layers (see `buffers`), separate from the trace's.

        Returns:
            The gradient of the inputs, `[S, M, in]`.
        """
        for index in reversed(range(1, len(layers))):
            gradient = self._hidden_gradient(layers, trace, gradient, buffers, index)
        return self._first_back(gradient, layers[0][0])

    def _hidden_gradient(
        self, layers: Layers, trace: list[Tensor], gradient: Tensor, buffers: Sequence[Tensor], index: int
    ) -> Tensor:
        """Return the gradient before the activation of the hidden layer that feeds layer `index`."""
        out = buffers[index - 1] if buffers else None
        return self.through_activation(self._back(gradient, layers[index][0], out), trace[index])

    def through_activation(self, gradient: Tensor, output: Tensor) -> Tensor:
        """Multiply `gradient` in place by the activation's slope at `output`."""
        if self.activation == "tanh":
            return torch.ops.aten.tanh_backward.grad_input(gradient, output, grad_input=gradient)
        return torch.ops.aten.threshold_backward.grad_input(gradient, output.to(gradient.dtype), 0, grad_input=gradient)

    # What sums, by itself so that `PartedMLP` can compute it in another way.

    def _rounds(self, hidden: Tensor, weight: Tensor) -> bool:
        """Return whether the product of a hidden layer with the next weights multiplies numbers of 16 bits."""
        return rounds(hidden, weight)

    def _affine(
        self, bias: Tensor, inputs: Tensor, weight: Tensor, *, scale: float = 1, out: Tensor | None = None
    ) -> Tensor:
        """Return `scale * (bias + inputs @ weight)`."""
        return product(inputs, weight, bias=bias, scale=scale, out=out)

    def _outputs(self, bias: Tensor, inputs: Tensor, weight: Tensor) -> Tensor:
        """Return `bias + inputs @ weight` of the last layer."""
        if weight.shape[2] < NARROW and inputs.shape[1] >= MANY:
            return torch.baddbmm(bias.mT, weight.mT, inputs.mT).mT
        return product(inputs, weight, bias=bias)

    def _back(self, gradient: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """Return `gradient @ weight.mT`, the gradient of a layer's inputs."""
        if weight.shape[2] == 1:
            return torch.mul(gradient, weight.mT, out=out)
        return product(gradient, weight.mT, out=out)

    def _first_back(self, gradient: Tensor, weight: Tensor) -> Tensor:
        """Return the same of the first layer."""
        if weight.shape[1] < NARROW and gradient.shape[1] >= MANY:
            return torch.bmm(weight, gradient.mT).mT
        return self._back(gradient, weight)

    def _outer(self, inputs: Tensor, gradient: Tensor) -> Tensor:
        """Return `inputs.mT @ gradient`, the gradient of weights."""
        if gradient.shape[2] < NARROW and inputs.shape[1] >= MANY:
            return torch.bmm(gradient.mT, inputs).mT
        return product(inputs.mT, gradient)

    def _sum(self, gradient: Tensor) -> Tensor:
        """Return the sum over the samples, the gradient of biases."""
        return gradient.sum(1)
