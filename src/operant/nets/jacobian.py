"""Jacobians of perceptrons with respect to their parameters, as products."""

import torch
from torch import Tensor

from operant.nets.matmul import affine
from operant.nets.mlp import Layers, StackedMLP


class Jacobian:
    """`J = ∂ outputs / ∂ parameters` of stacked perceptrons at some inputs, as two products without the matrix.

    `push` is forward-mode differentiation, `pull` reverse mode, both by hand from one forward pass. A Gauss-Newton
    product `Jᵀ M J v` costs two passes forward and two back, and no graph.

    Args:
        mlp: the shape of the perceptrons.
        layers: their parameters.
        inputs: `[S, M, in]`.

    Attributes:
        outputs: `[S, M, out]`, without a graph.
    """

    @torch.no_grad()
    def __init__(self, mlp: StackedMLP, layers: Layers, inputs: Tensor) -> None:
        self._mlp, self._layers = mlp, layers
        self._trace = mlp.trace(layers, inputs)
        self.outputs = self._trace[-1]

    @torch.no_grad()
    def push(self, vector: Tensor) -> Tensor:
        """Return `J v` `[S, M, out]`, the change of the outputs, for a change `vector` `[S, P]` of the parameters."""
        changes = self._mlp.layers(vector)
        weight_change, bias_change = changes[0]
        tangent = affine(bias_change, self._trace[0], weight_change)
        for index in range(1, len(changes)):
            weight_change, bias_change = changes[index]
            tangent = self._mlp.through_activation(tangent, self._trace[index])
            direct = affine(bias_change, self._trace[index], weight_change)
            tangent = affine(direct, tangent, self._layers[index][0])
        return tangent

    @torch.no_grad()
    def pull(self, gradient: Tensor) -> Tensor:
        """Return `Jᵀ u` `[S, P]`, the gradient of the parameters, for a gradient `[S, M, out]` of the outputs."""
        return torch.cat(self._mlp.pullback(self._layers, self._trace, gradient), dim=1)
