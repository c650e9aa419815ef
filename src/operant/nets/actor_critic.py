"""An actor and a critic for `S` seeds, with one vector of parameters a seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.nets.heads import Head
from operant.nets.mlp import Activation, Layers, StackedMLP

ACTOR_GAIN = 0.01
"""Gain of the policy's last layer, which makes it begin close to uniform."""


@dataclass(frozen=True)
class Spec:
    """Shape of the networks.

    Attributes:
        hidden: widths of the hidden layers.
        activation: nonlinearity of the hidden layers.
        shared: whether actor and critic share the hidden layers.
    """

    hidden: Sequence[int]
    activation: Activation
    shared: bool


class ActorCritic:
    """Perceptrons for policy and value: parameters `[S, P]`, observations `[S, M, D]`.

    A seed has `R` networks: one with an output for the value beside those of the policy if the hidden layers are
    shared, otherwise two of the same shape. Either way all of them are rows of one stacked perceptron, so that policy
    and value together take as many operations as one of them alone; a separate critic ignores its outputs but one.

    Args:
        inputs: D, the width of an observation.
        head: what the policy's outputs mean.
        spec: the shape of the networks.
    """

    def __init__(self, inputs: int, head: Head, spec: Spec) -> None:
        self.head = head
        self.networks = 1 if spec.shared else 2
        outputs = head.outputs + 1 if spec.shared else head.outputs
        self.mlp = StackedMLP([inputs, *spec.hidden, outputs], activation=spec.activation)

    def initial(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the initial parameters `[S, P]`, one row for each seed's generator."""
        outputs = self.head.outputs
        actor, critic = (outputs, ACTOR_GAIN), (1, 1.0)
        blocks = [[actor, critic]] if self.networks == 1 else [[actor], [critic]]
        free = self.head.initial()
        rows = [[self.mlp.initial(generator, block), free] for generator in generators for block in blocks]
        return torch.stack([torch.cat(row) for row in rows]).view(len(generators), -1)

    def bind(self, parameters: Tensor) -> "BoundActorCritic":
        """Return the networks that compute with `parameters [S, P]`, sharing their memory."""
        stacked = parameters.view(len(parameters) * self.networks, -1)
        weights, free = stacked.split([self.mlp.size, self.head.free], dim=1)
        layers = self.mlp.layers(weights)
        return BoundActorCritic(
            self,
            layers=layers,
            actor=[(weight[:: self.networks], bias[:: self.networks]) for weight, bias in layers],
            critic=[
                (weight[self.networks - 1 :: self.networks], bias[self.networks - 1 :: self.networks])
                for weight, bias in layers
            ],
            free=free[:: self.networks],
        )


@dataclass(frozen=True)
class BoundActorCritic:
    """Networks with one set of parameters, sliced once for many calls.

    Attributes:
        free: the head's parameters that do not depend on the state, `[S, free]`.
    """

    shape: ActorCritic
    layers: Layers
    actor: Layers
    critic: Layers
    free: Tensor

    def policy(self, obs: Tensor) -> Tensor:
        """Return the head's outputs `[S, M, outputs]`."""
        return self.shape.mlp(self.actor, obs)[..., : self.shape.head.outputs]

    def value(self, obs: Tensor) -> Tensor:
        """Return the values `[S, M]`."""
        return self.shape.mlp(self.critic, obs)[..., self.value_column]

    @property
    def value_column(self) -> int:
        """Which output of the critic's network is the value."""
        return self.shape.head.outputs if self.shape.networks == 1 else 0


class Pass:
    """One forward pass of policy and value, and the way back.

    A loss is made from `outputs`, `free` and `values`, and differentiated by autograd down to them;
    from there the gradient goes through the networks by hand, which costs a fraction of autograd's bookkeeping.

    Args:
        bound: networks and parameters.
        obs: `[S, M, D]`.

    Attributes:
        outputs: the head's outputs `[S, M, outputs]`.
        free: the head's free parameters `[S, free]`.
        values: `[S, M]`.
    """

    @torch.no_grad()
    def __init__(self, bound: BoundActorCritic, obs: Tensor) -> None:
        self.bound, shape = bound, bound.shape
        self.seeds, samples, width = obs.shape
        stacked = obs.unsqueeze(1).expand(-1, shape.networks, -1, -1).reshape(-1, samples, width)
        self.trace = shape.mlp.trace(bound.layers, stacked)
        out = self._by_network(self.trace[-1])
        self.outputs = out[:, 0, :, : shape.head.outputs].requires_grad_()
        self.values = out[:, -1, :, bound.value_column].requires_grad_()
        self.free = bound.free.detach().requires_grad_()

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient `[S, P]` of a scalar made from `outputs`, `values` and `free`."""
        leaves = (self.outputs, self.values, self.free)
        outputs, values, free = torch.autograd.grad(loss, leaves, materialize_grads=True)
        with torch.no_grad():
            shape = self.bound.shape
            gradient = torch.zeros_like(self.trace[-1])
            out = self._by_network(gradient)
            out[:, 0, :, : shape.head.outputs] = outputs
            out[:, -1, :, self.bound.value_column] = values
            pieces = shape.mlp.pullback(self.bound.layers, self.trace, gradient)
            if shape.head.free:
                rows = free.new_zeros(self.seeds, shape.networks, shape.head.free)
                rows[:, 0] = free
                pieces.append(rows.flatten(0, 1))
            return torch.cat(pieces, dim=1).view(self.seeds, -1)

    def _by_network(self, stacked: Tensor) -> Tensor:
        return stacked.view(self.seeds, self.bound.shape.networks, *stacked.shape[1:])
