"""Actors and critics of `S` seeds, with one vector of parameters per seed."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant.nets.factory import Encoder, network_for, whole_network
from operant.nets.gru import Recurrence
from operant.nets.heads import Head
from operant.nets.mlp import Activation, Layers
from operant.nets.network import MakeNetwork

ACTOR_GAIN = 0.01
"""Gain of the policy's last layer, so that the initial policy is nearly uniform."""


@dataclass(frozen=True)
class Spec:
    """Shape of the networks.

    Attributes:
        hidden: sizes of the hidden layers.
        activation: activation function of the hidden layers.
        shared: whether actor and critic share the hidden layers.
        critics: number of critics, whose mean is the value; several share no layers.
        encoder: the convolutions for images, or a custom module (see `StackedModule`).
        recurrence: shape of the recurrent unit (see `StackedGRU`), which needs `shared`; None: not recurrent.
        value_heads: K, values that the critic predicts per state; K > 1 needs a single critic.
        network: a custom network that replaces all layers and returns policy and value (see `StackedNetwork`). With
            `shared`, one network computes both; otherwise there are two copies.

    Raises:
        ValueError: if there is no critic, several critics share layers with the actor or predict several values, or a
            custom network is given with an encoder, a GRU or several critics.
    """

    hidden: Sequence[int]
    activation: Activation
    shared: bool
    critics: int = 1
    encoder: Encoder = "auto"
    recurrence: Recurrence | None = None
    value_heads: int = 1
    network: str | MakeNetwork | None = None

    def __post_init__(self) -> None:
        layers = {
            f"encoder={self.encoder!r}": self.encoder != "auto",
            "the GRU of recurrent policies": self.recurrence is not None,
            f"{self.critics} critics": self.critics > 1,
        }
        if self.network is not None and any(layers.values()):
            given = " and ".join(name for name, is_given in layers.items() if is_given)
            raise ValueError(f"network {self.network!r} replaces all layers: leave out {given}")
        if self.critics < 1 or (self.critics > 1 and self.shared):
            raise ValueError(
                f"critics must be 1, or more if they share no layers with the actor, got {self.critics} critics "
                f"and shared={self.shared}"
            )
        if self.value_heads < 1 or (self.value_heads > 1 and self.critics > 1):
            raise ValueError(
                f"value_heads must be 1, or more with one critic, got {self.value_heads} with {self.critics} critics"
            )


class ActorCritic:
    """Networks for policy and value: parameters `[S, P]`, observations `[S, M, D]` or images `[S, M, C, H, W]`.

    A seed has `R` networks: with shared hidden layers, one with outputs for policy and value, otherwise an actor and K
    critics of the same shape. All of them form one stacked network, so policy and value together take the same
    number of operations as one of them; a separate critic uses only its value outputs. Both copies of a custom network
    that is not shared have outputs for policy and value.

    Args:
        inputs: shape of an observation, `(D,)` or `(C, H, W)`; D alone is allowed.
        head: the action distribution of the policy's outputs.
        spec: the shape of the networks.
        masked: length of the action mask at the end of an observation: the networks do not see it, and logits of masked
            actions become -inf. A choice with no allowed alternative is unmasked. 0: no mask.
        image: shape `(C, H, W)` of the image at the start of an observation `[D]`, if any.
    """

    def __init__(
        self,
        inputs: int | Sequence[int],
        head: Head,
        spec: Spec,
        *,
        masked: int = 0,
        image: Sequence[int] | None = None,
    ) -> None:
        self.head, self.masked = head, masked
        shape = (inputs,) if isinstance(inputs, int) else tuple(inputs)
        if masked:
            shape = (shape[0] - masked,)
        self.networks = 1 if spec.shared else 1 + spec.critics
        self.value_heads = spec.value_heads
        self.value_first = first = head.outputs if spec.shared or spec.network is not None else 0
        # Where the value outputs are: in which networks of a seed, and in which of their outputs.
        self.critics: int | slice = slice(1, None) if spec.critics > 1 else -1
        self.value_column: int | slice = first if spec.value_heads == 1 else slice(first, first + spec.value_heads)
        if spec.network is not None:
            self.mlp = whole_network(spec.network, shape, (head.outputs, self.value_heads))
            return
        outputs = head.outputs + self.value_heads if spec.shared else max(head.outputs, self.value_heads)
        self.mlp = network_for(
            shape,
            [*spec.hidden, outputs],
            activation=spec.activation,
            encoder=spec.encoder,
            recurrence=spec.recurrence,
            image=image,
        )

    def initial(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the initial parameters `[S, P]`, one row per generator."""
        outputs = self.head.outputs
        actor, critic = [(outputs, ACTOR_GAIN)], [(1, 1.0)] * self.value_heads
        blocks = [actor + critic] if self.networks == 1 else [actor, *[critic] * (self.networks - 1)]
        free = self.head.initial()
        rows = [[self.mlp.initial(generator, block), free] for generator in generators for block in blocks]
        return torch.stack([torch.cat(row) for row in rows]).view(len(generators), -1)

    def encode(self, obs: Tensor) -> Tensor:
        """Return the network inputs from observations."""
        return obs[..., : -self.masked] if self.masked else obs

    def allowed(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Return the head's outputs with -inf at masked actions."""
        if not self.masked:
            return outputs
        choices = (obs[..., -self.masked :] > 0).split_with_sizes(self.head.choices, dim=-1)
        forbidden = [~choice & choice.any(-1, keepdim=True) for choice in choices]
        return outputs.masked_fill(torch.cat(forbidden, dim=-1), -torch.inf)

    def bind(self, parameters: Tensor) -> "BoundActorCritic":
        """Return the networks that compute with `parameters [S, P]`, sharing their memory."""
        stacked = parameters.view(len(parameters) * self.networks, -1)
        weights, free = stacked.split_with_sizes([self.mlp.size, self.head.free], dim=1)
        layers = self.mlp.layers(weights)
        actor, *critics = [
            [(weight[first :: self.networks], bias[first :: self.networks]) for weight, bias in layers]
            for first in range(self.networks)
        ]
        return BoundActorCritic(self, layers, actor, critics or [actor], free[:: self.networks])


@dataclass(frozen=True)
class BoundActorCritic:
    """Networks with one set of parameters, sliced once for many calls.

    Attributes:
        layers: layers of all networks, `[S * R, ...]`.
        actor: layers of the policy, as views `[S, ...]`.
        critics: layers of each critic; with shared layers, those of the policy.
        free: the head's parameters that do not depend on the state, `[S, free]`.
    """

    shape: ActorCritic
    layers: Layers
    actor: Layers
    critics: list[Layers]
    free: Tensor

    @property
    def critic(self) -> Layers:
        """The layers of the critic, the last one if there are several."""
        return self.critics[-1]

    def policy(self, obs: Tensor) -> Tensor:
        """Return the head's outputs `[S, M, outputs]`."""
        outputs = self.shape.mlp(self.actor, self.shape.encode(obs))[..., : self.shape.head.outputs]
        return self.shape.allowed(outputs, obs)

    def hidden(self, obs: Tensor) -> Tensor:
        """Return the last hidden layer `[S, M, L]` of the policy's perceptron."""
        return self.shape.mlp.trace(self.actor, self.shape.encode(obs))[-2]

    def value(self, obs: Tensor) -> Tensor:
        """Return the values `[S, M]`, the mean over the critics; with several heads `[S, M, K]`."""
        seen = self.shape.encode(obs)
        values = [self.shape.mlp(critic, seen)[..., self.shape.value_column] for critic in self.critics]
        return values[0] if len(values) == 1 else torch.stack(values).mean(0)


class Pass:
    """One forward pass of policy and value, and its backward pass.

    A loss is computed from `outputs`, `free` and `values`, and differentiated by autograd with respect to them; from
    there the gradient is propagated through the networks by hand, which avoids most of autograd's overhead.

    Args:
        bound: networks and parameters.
        obs: `[S, M, D]` or `[S, M, C, H, W]`.

    Attributes:
        outputs: the head's outputs `[S, M, outputs]`.
        free: the head's free parameters `[S, free]`.
        values: `[S, M]`, of several critics `[S, critics, M]`, of several value heads `[S, M, K]`.
    """

    @torch.no_grad()
    def __init__(self, bound: BoundActorCritic, obs: Tensor) -> None:
        self.bound, shape = bound, bound.shape
        seen = shape.encode(obs)
        stacked = seen.unsqueeze(1).expand(-1, shape.networks, *seen.shape[1:]).flatten(0, 1)
        self.trace = shape.mlp.trace(bound.layers, stacked)
        self._out = self.trace[-1].view(len(obs), shape.networks, *self.trace[-1].shape[1:])
        self.outputs = shape.allowed(self._out[:, 0, :, : shape.head.outputs], obs).requires_grad_()
        self.values = self._out[:, shape.critics, :, shape.value_column].requires_grad_()
        self.free = bound.free.detach().requires_grad_()

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient `[S, P]` of a scalar function of `outputs`, `values` and `free`."""
        leaves = (self.outputs, self.values, self.free)
        outputs, values, free = torch.autograd.grad(loss, leaves, materialize_grads=True)
        with torch.no_grad():
            shape = self.bound.shape
            out = torch.zeros_like(self._out)
            out[:, 0, :, : shape.head.outputs] = outputs
            out[:, shape.critics, :, shape.value_column] = values
            pieces = shape.mlp.pullback(self.bound.layers, self.trace, out.flatten(0, 1))
            if shape.head.free:
                rows = free.new_zeros(len(free), shape.networks, shape.head.free)
                rows[:, 0] = free
                pieces.append(rows.flatten(0, 1))
            return torch.cat(pieces, dim=1).view(len(free), -1)
