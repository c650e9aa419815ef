"""A learned latent model for planning: MuZero's three networks.

The representation maps an observation to a latent state; the dynamics map a latent state and an action to the next one
and the reward; the prediction maps a latent state to policy and value. Observations are not reconstructed.
(Schrittwieser et al. 2020, arXiv:1911.08265.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from operant import ops
from operant.nets import Activation, StackedMLP
from operant.nets.mlp import Layers


@dataclass(frozen=True)
class LatentShape:
    """Shape of the networks.

    Attributes:
        inputs: D, size of an observation.
        actions: A.
        latent: H, size of a latent state.
        hidden: sizes of the hidden layers of each network.
        activation: activation function of the hidden layers.
        support_size: atoms of rewards and values on each side of 0, K = 2 support_size + 1.
        squashed: whether the atoms are squashed numbers. Without, a number that equals an atom is learned as a class,
            whose logits saturate.
    """

    inputs: int
    actions: int
    latent: int
    hidden: tuple[int, ...]
    activation: Activation
    support_size: int
    squashed: bool = True

    @property
    def atoms(self) -> int:
        """K."""
        return 2 * self.support_size + 1

    @property
    def bound(self) -> float:
        """Largest reward or value that the networks can represent."""
        largest = torch.tensor(float(self.support_size), dtype=torch.float64)
        return float(ops.signed_parabolic(largest) if self.squashed else largest)

    @property
    def networks(self) -> tuple[StackedMLP, StackedMLP, StackedMLP]:
        """Representation, dynamics and prediction."""
        sizes = (
            (self.inputs, self.latent),
            (self.latent + self.actions, self.latent + self.atoms),
            (self.latent, self.actions + self.atoms),
        )
        first, second, third = (
            StackedMLP([start, *self.hidden, end], activation=self.activation) for start, end in sizes
        )
        return first, second, third

    def initial(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the initial parameters `[S, P]`, one row per generator; initial outputs are 0."""
        outputs: Sequence[Sequence[tuple[int, float]]] = ([(self.latent, 1.0)], [(self.latent, 1.0)], [])
        rows = [
            torch.cat([network.initial(generator, out) for network, out in zip(self.networks, outputs, strict=True)])
            for generator in generators
        ]
        return torch.stack(rows)

    def bind(self, parameters: Tensor) -> "LatentModel":
        """Return the networks that compute with `parameters [S, P]`, sharing their memory."""
        networks = self.networks
        parts = parameters.split_with_sizes([network.size for network in networks], dim=1)
        layers = tuple(network.layers(part) for network, part in zip(networks, parts, strict=True))
        bound = float(self.support_size)
        support = torch.linspace(-bound, bound, self.atoms, device=parameters.device)
        return LatentModel(self, networks, layers, support)


@dataclass(frozen=True)
class LatentModel:
    """The networks with one set of parameters.

    Attributes:
        shape: shape of the networks.
        networks: representation, dynamics and prediction.
        layers: layers of each network.
        support: `[K]` atoms of rewards and values (see `operant.ops.two_hot`).
    """

    shape: LatentShape
    networks: tuple[StackedMLP, StackedMLP, StackedMLP]
    layers: tuple[Layers, ...]
    support: Tensor

    def represent(self, obs: Tensor) -> Tensor:
        """Return the latent states `[S, M, H]` of observations `[S, M, D]`."""
        return _scaled(self.networks[0](self.layers[0], obs))

    def follow(self, latent: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the latent states `[S, M, H]` after actions `[S, M]`, and logits `[S, M, K]` of the rewards."""
        encoded = ops.one_hot(actions, self.shape.actions, dtype=latent.dtype)
        outputs = self.networks[1](self.layers[1], torch.cat((latent, encoded), -1))
        change, reward = outputs.split_with_sizes([self.shape.latent, self.shape.atoms], dim=-1)
        return _scaled(latent + change), reward

    def predict(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the policy `[S, M, A]` and of the value `[S, M, K]` of latent states."""
        outputs = self.networks[2](self.layers[2], latent)
        policy, value = outputs.split_with_sizes([self.shape.actions, self.shape.atoms], dim=-1)
        return policy, value

    def number(self, logits: Tensor) -> Tensor:
        """Return the rewards or values `[...]` encoded by logits `[..., K]`."""
        mean = ops.two_hot_mean(logits, self.support)
        return ops.signed_parabolic(mean) if self.shape.squashed else mean

    def loss(self, logits: Tensor, numbers: Tensor) -> Tensor:
        """Return the cross-entropy `[...]` of logits `[..., K]` and rewards or values `[...]`."""
        return ops.two_hot_loss(
            logits, ops.signed_hyperbolic(numbers) if self.shape.squashed else numbers, self.support
        )


def _scaled(latent: Tensor) -> Tensor:
    """Return latent states scaled to minimum 0 and maximum 1, the range of actions (appendix G)."""
    low, high = latent.amin(-1, keepdim=True), latent.amax(-1, keepdim=True)
    return (latent - low) / (high - low).clamp(min=1e-5)
