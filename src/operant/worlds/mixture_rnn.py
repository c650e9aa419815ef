"""A recurrent mixture density network (MDN-RNN), which predicts the next latent vector after an action.

From the hidden state of a gated recurrent unit it predicts a mixture of Gaussians over the next latent vector and the
reward together, and the probability of termination (Ha & Schmidhuber 2018,
arXiv:1803.10122, sections 2.2 and 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from operant import ops, streams
from operant.nets import Recurrence, StackedGRU
from operant.nets.mlp import Layers

LOG_STD = (-4.0, 2.0)
"""Bounds of the log standard deviations, which would diverge for constant rewards."""


class Noise(NamedTuple):
    """Noise of imagined steps, `[..., K]`, `[..., Z + 1]` and `[...]`.

    Attributes:
        choice: standard Gumbel noise, for the component of the mixture.
        point: standard normal noise, for the next latent vector and the reward.
        end: uniform noise in [0, 1), for the termination.
    """

    choice: Tensor
    point: Tensor
    end: Tensor

    @classmethod
    def draw(cls, shape: Sequence[int], components: int, latent: int, generator: torch.Generator) -> "Noise":
        """Sample the noise of imagined steps of the given shape."""
        device = generator.device
        choice = streams.gumbel((*shape, components), generator)
        point = torch.empty(*shape, latent + 1, device=device).normal_(generator=generator)
        return cls(choice, point, torch.rand(*shape, generator=generator, device=device))


class Imagined(NamedTuple):
    """Result of an imagined step: `[..., Z]`, `[...]` and `[...]` bool."""

    latent: Tensor
    rewards: Tensor
    ends: Tensor


class Steps(NamedTuple):
    """Real sequences of `L` steps, `[S, L, M, ...]`, with prediction targets and their weights.

    Attributes:
        latent: `[..., Z]` encoded observations.
        actions: `[..., A]` encoded actions.
        starts: bool, whether an episode begins with the step.
        following: `[..., Z]` encoded next observations.
        rewards: rewards of the steps.
        ends: bool, whether the next state is terminal.
        weights: 1 for valid steps, else 0.
    """

    latent: Tensor
    actions: Tensor
    starts: Tensor
    following: Tensor
    rewards: Tensor
    ends: Tensor
    weights: Tensor


@dataclass(frozen=True)
class MixtureRNNShape:
    """Shape of the networks.

    Attributes:
        latent: Z, size of a latent vector.
        actions: A, size of an encoded action.
        units: H, size of the hidden state.
        components: K, number of Gaussians in the mixture.
        steps: L, length of training sequences.
    """

    latent: int
    actions: int
    units: int
    components: int
    steps: int

    @property
    def outputs(self) -> int:
        """Number of outputs: logits, means and log standard deviations of the mixture, and the logit of termination."""
        return self.components * (1 + 2 * (self.latent + 1)) + 1

    @property
    def network(self) -> StackedGRU:
        """The recurrent unit, with a linear layer before and after it."""
        recurrence = Recurrence(units=self.units, steps=self.steps)
        return StackedGRU(self.latent + self.actions, (), self.outputs, activation="tanh", recurrence=recurrence)

    def initial(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the initial parameters `[S, P]`, one row per generator."""
        network = self.network
        return torch.stack([network.initial(generator, [(self.outputs, 0.5)]) for generator in generators])

    def bind(self, parameters: Tensor) -> "MixtureRNN":
        """Return the networks that compute with `parameters [S, P]`, sharing their memory."""
        network = self.network
        return MixtureRNN(self, network, network.layers(parameters))


@dataclass(frozen=True)
class MixtureRNN:
    """The networks with one set of parameters.

    Attributes:
        shape: shape of the networks.
        network: the recurrent unit.
        layers: layers of the network.
    """

    shape: MixtureRNNShape
    network: StackedGRU
    layers: Layers

    def follow(self, latent: Tensor, actions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs `[S, M, O]` after latent vectors `[S, M, Z]` and actions `[S, M, A]`, and `[S, M, H]`."""
        goes_on = torch.zeros_like(latent[..., :1])
        return self.network.step(self.layers, torch.cat((latent, actions, goes_on, hidden), -1))

    def split(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return logits `[..., K]`, means and log standard deviations `[..., K, Z + 1]`, and logits of ends `[...]`."""
        k, size = self.shape.components, self.shape.latent + 1
        logits, mean, log_std, end = outputs.split_with_sizes([k, k * size, k * size, 1], dim=-1)
        mean, log_std = (torch.unflatten(part, -1, (k, size)) for part in (mean, log_std))
        return logits, mean, ops.soft_clamp(log_std, *LOG_STD), end.squeeze(-1)

    def imagine(self, outputs: Tensor, noise: Noise, temperature: float) -> Imagined:
        """Sample the next latent vector, reward and end from outputs `[..., O]`, at a temperature above 0."""
        logits, mean, log_std, end = self.split(outputs)
        point = ops.gaussian_mixture_sample(logits, mean, log_std, noise.choice, noise.point, temperature=temperature)
        return Imagined(point[..., :-1], point[..., -1], noise.end < (end / temperature).sigmoid())

    def loss(self, outputs: Tensor, steps: Steps) -> tuple[Tensor, Tensor]:
        """Return the losses `[S]` of the mixture and of terminations, for outputs `[S, L, M, O]`.

        Terminal states have no next latent vector, so only their reward is predicted.
        """
        logits, mean, log_std, end = self.split(outputs)
        after = ops.gaussian_mixture_log_prob(
            logits, mean, log_std, torch.cat((steps.following, steps.rewards.unsqueeze(-1)), -1)
        )
        paid = ops.gaussian_mixture_log_prob(logits, mean[..., -1:], log_std[..., -1:], steps.rewards.unsqueeze(-1))
        mixture = -torch.where(steps.ends, paid, after)
        ends = -ops.bernoulli_log_prob(end.unsqueeze(-1), steps.ends.unsqueeze(-1).to(end.dtype))
        mixture, ends = (ops.weighted_mean(part.flatten(1), steps.weights.flatten(1)) for part in (mixture, ends))
        return mixture, ends

    def gradient(self, steps: Steps) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return the gradient `[S, P]` of both losses, and the losses `[S]`."""
        nothing = torch.zeros(*steps.starts.shape, self.shape.units, device=steps.latent.device)
        starts = steps.starts.unsqueeze(-1).to(steps.latent.dtype)
        inputs = torch.cat((steps.latent, steps.actions, starts, nothing), -1).flatten(1, 2)
        with torch.no_grad():
            trace = self.network.trace(self.layers, inputs)
        outputs = trace[-1].requires_grad_()
        losses = self.loss(torch.unflatten(outputs, 1, steps.starts.shape[1:]), steps)
        (cotangent,) = torch.autograd.grad((losses[0] + losses[1]).sum(), outputs)
        with torch.no_grad():
            gradient = torch.cat(self.network.pullback(self.layers, trace, cotangent), dim=1)
        return gradient, (losses[0].detach(), losses[1].detach())
