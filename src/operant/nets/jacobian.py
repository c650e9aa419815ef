"""Jacobians of networks with respect to their parameters, as products."""

import torch
from torch import Tensor

from operant.nets.matmul import product
from operant.nets.mlp import Layers, StackedMLP
from operant.nets.network import StackedNetwork


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
        tangent = product(self._trace[0], weight_change, bias=bias_change)
        for index in range(1, len(changes)):
            weight_change, bias_change = changes[index]
            tangent = self._mlp.through_activation(tangent, self._trace[index])
            direct = product(self._trace[index], weight_change, bias=bias_change)
            tangent = product(tangent, self._layers[index][0], bias=direct)
        return tangent

    @torch.no_grad()
    def pull(self, gradient: Tensor) -> Tensor:
        """Return `Jᵀ u` `[S, P]`, the gradient of the parameters, for a gradient `[S, M, out]` of the outputs."""
        return torch.cat(self._mlp.pullback(self._layers, self._trace, gradient), dim=1)


class NetworkJacobian:
    """The same of stacked networks from outside, by automatic differentiation.

    `J v` is the derivative of `Jᵀ u` by u, in which it is linear: two passes back.

    Args:
        network: the shape of the networks.
        layers: their parameters.
        inputs: `[S, M, ...]`.
        columns: the outputs that count.

    Attributes:
        outputs: `[S, M, columns]`, without a graph.
    """

    def __init__(self, network: StackedNetwork, layers: Layers, inputs: Tensor, columns: slice) -> None:
        with torch.enable_grad():
            self._parameters = layers[0][0].detach().requires_grad_()
            self._outputs = network([(self._parameters, layers[0][1])], inputs)[..., columns]
            self._along = torch.zeros_like(self._outputs).requires_grad_()
            (self._pulled,) = torch.autograd.grad(self._outputs, self._parameters, self._along, create_graph=True)
        self.outputs = self._outputs.detach()

    def push(self, vector: Tensor) -> Tensor:
        """Return `J v` `[S, M, columns]`, the change of the outputs, for a change `vector` `[S, P]`."""
        return torch.autograd.grad(self._pulled, self._along, vector, retain_graph=True)[0]

    def pull(self, gradient: Tensor) -> Tensor:
        """Return `Jᵀ u` `[S, P]`, the gradient of the parameters, for a gradient `[S, M, columns]` of the outputs."""
        return torch.autograd.grad(self._outputs, self._parameters, gradient, retain_graph=True)[0]


def jacobian(
    network: StackedMLP | StackedNetwork, layers: Layers, inputs: Tensor, columns: slice
) -> Jacobian | NetworkJacobian:
    """Return the Jacobian of stacked networks: of perceptrons of all outputs, of others of those in `columns`."""
    if isinstance(network, StackedNetwork):
        return NetworkJacobian(network, layers, inputs, columns)
    return Jacobian(network, layers, inputs)
