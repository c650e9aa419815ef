"""A recurrent mixture density network (MDN-RNN): what comes next after a latent vector and an action.

A gated recurrent unit remembers what has happened; from its state it predicts a mixture of Gaussians over the next
latent vector and the reward together, and the probability that the episode ends (Ha & Schmidhuber 2018,
arXiv:1803.10122, sections 2.2 and 4).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from operant import ops
from operant.nets import Memory, StackedGRU
from operant.nets.mlp import Layers

LOG_STD = (-4.0, 2.0)
"""Bounds of the logarithm of the standard deviations: a reward that is always the same would need none."""


class Noise(NamedTuple):
    """What one imagined step needs, `[..., K]`, `[..., Z + 1]` and `[...]`.

    Attributes:
        choice: standard Gumbel, for the component of the mixture.
        point: standard normal, for the next latent vector and the reward.
        end: uniform in [0, 1), for the end of the episode.
    """

    choice: Tensor
    point: Tensor
    end: Tensor

    @classmethod
    def draw(cls, shape: Sequence[int], components: int, latent: int, generator: torch.Generator) -> "Noise":
        """Draw the noise of as many imagined steps as `shape` says."""
        device = generator.device
        choice = torch.empty(*shape, components, device=device).exponential_(generator=generator).log().neg()
        point = torch.empty(*shape, latent + 1, device=device).normal_(generator=generator)
        return cls(choice, point, torch.rand(*shape, generator=generator, device=device))


class Imagined(NamedTuple):
    """What is imagined of a step: `[..., Z]`, `[...]` and `[...]` bool."""

    latent: Tensor
    rewards: Tensor
    ends: Tensor


class Steps(NamedTuple):
    """Real experience in `L` steps of `M` rows, `[S, L, M, ...]`, with prediction targets and their weights.

    Attributes:
        latent: `[..., Z]` seen.
        actions: `[..., A]` done.
        starts: bool, whether an episode begins with the step.
        following: `[..., Z]` the latent vector after the step.
        rewards: rewards of the step.
        ends: bool, whether the state after it is terminal.
        weights: 1 for steps to learn from, else 0.
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
        latent: Z, numbers of a latent vector.
        actions: A, numbers of an action.
        units: H, numbers that are remembered.
        components: K, Gaussians of the mixture.
        steps: L, length of the sequences to learn from.
    """

    latent: int
    actions: int
    units: int
    components: int
    steps: int

    @property
    def outputs(self) -> int:
        """Numbers that are predicted from: logits, means and deviations of the mixture, and the logit of the end."""
        return self.components * (1 + 2 * (self.latent + 1)) + 1

    @property
    def network(self) -> StackedGRU:
        """The recurrent unit with a linear layer before and behind it."""
        memory = Memory(units=self.units, steps=self.steps)
        return StackedGRU(self.latent + self.actions, (), self.outputs, activation="tanh", memory=memory)

    def initial(self, generators: Sequence[torch.Generator]) -> Tensor:
        """Return the initial parameters `[S, P]`, a row for each generator."""
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
        """Return logits `[..., K]`, means and log-deviations `[..., K, Z + 1]`, and the logit of the end `[...]`."""
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
        """Return the loss `[S]` of the mixture and of the end of episodes, for outputs `[S, L, M, O]`.

        After a terminal state there is no next latent vector: its reward alone counts.
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
