"""Gated recurrent networks stacked along the seed axis, with the interface of `operant.nets.StackedMLP`."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from operant.nets.mlp import Activation, Layers, StackedMLP


@dataclass(frozen=True)
class Recurrence:
    """Shape of a recurrent network.

    Attributes:
        units: H, size of the hidden state.
        steps: L, length of the training sequences.
    """

    units: int
    steps: int


class StackedGRU:
    """`S` recurrent networks of one shape: dense layers, a gated recurrent unit (Cho et al. 2014), and a linear layer.

    The unit computes, with `x` from the dense layers and the hidden state `h` (as in PyTorch, the reset gate is applied
    after the matrix, so that all gates need one product):

    ```text
    r = σ(W_r x + U_r h)    z = σ(W_z x + U_z h)    n = tanh(W_n x + r (U_n h))    h' = (1 - z) n + z h
    ```

    Each input is one step: the observation, whether an episode begins (0 or 1), and the previous hidden state. A call
    computes single steps. `trace`, used in training, treats the inputs as `M / L` sequences of `L` steps, ordered by
    time and then by sequence: only the first hidden state is used, and gradients flow back to the first step, but not
    across the start of an episode.

    Args:
        inputs: D, size of an observation.
        hidden: sizes of the dense layers.
        outputs: size of the output.
        activation: activation function of the dense layers.
        recurrence: units and steps.

    Attributes:
        size: P, number of parameters of one network.
        units: H.

    Raises:
        ValueError: if a width or the number of steps is not positive.
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, *, activation: Activation, recurrence: Recurrence
    ) -> None:
        if recurrence.units < 1 or recurrence.steps < 1:
            raise ValueError(f"a recurrent network needs at least one unit and one step, got {recurrence}")
        self.inputs, self.units, self.steps = inputs, recurrence.units, recurrence.steps
        self.encoder = StackedMLP([inputs, *hidden, 3 * self.units], activation=activation)
        self.head = StackedMLP([self.units, outputs], activation=activation)
        self.gates = (self.units, 3 * self.units)
        self.sizes = [self.encoder.size, prod(self.gates) + self.gates[1], self.head.size]
        self.size = sum(self.sizes)

    def initial(self, generator: torch.Generator, outputs: Sequence[tuple[int, float]]) -> Tensor:
        """Return the initial parameters `[P]` of one network: orthogonal weights of every gate, zero biases."""
        recurrent = torch.zeros(self.sizes[1])
        for gate in recurrent[: prod(self.gates)].view(self.gates).chunk(3, dim=1):
            torch.nn.init.orthogonal_(gate, generator=generator)
        encoder = self.encoder.initial(generator, [(self.units, 1.0)] * 3)
        return torch.cat((encoder, recurrent, self.head.initial(generator, outputs)))

    def layers(self, parameters: Tensor) -> Layers:
        """Return `parameters [S, P]` as views: of the dense layers, of the unit's `U`, and of the last layer."""
        encoder, recurrent, head = parameters.split_with_sizes(self.sizes, dim=1)
        weight, bias = recurrent.split_with_sizes([prod(self.gates), self.gates[1]], dim=1)
        unit = weight.view(-1, *self.gates), bias.view(-1, 1, self.gates[1])
        return [*self.encoder.layers(encoder), unit, *self.head.layers(head)]

    def __call__(self, layers: Layers, inputs: Tensor) -> Tensor:
        """Return the outputs `[S, M, out]` of single steps `[S, M, D + 1 + H]`."""
        return self.step(layers, inputs)[0]

    def step(self, layers: Layers, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs `[S, M, out]` of single steps `[S, M, D + 1 + H]`, and the state `[S, M, H]`."""
        obs, starts, hidden_state = self._split(inputs)
        hidden_state = self._unit(layers[-2], self.encoder(layers[:-2], obs), hidden_state.masked_fill(starts, 0.0))[-1]
        return self.head(layers[-1:], hidden_state), hidden_state

    def _split(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        obs, starts, hidden_state = inputs.split_with_sizes([self.inputs, 1, self.units], dim=-1)
        return obs, starts > 0, hidden_state

    @staticmethod
    def _unit(unit: tuple[Tensor, Tensor], driven: Tensor, hidden_state: Tensor) -> tuple[Tensor, ...]:
        """Return the gates, the gated products, the candidate state and the new hidden state."""
        weight, bias = unit
        recalled = torch.baddbmm(bias, hidden_state, weight)
        (reset, update, new), (reset_, update_, through) = driven.chunk(3, dim=-1), recalled.chunk(3, dim=-1)
        r, z = torch.sigmoid(reset + reset_), torch.sigmoid(update + update_)
        n = torch.tanh(torch.addcmul(new, r, through))
        return r, z, through, n, torch.lerp(n, hidden_state, z)

    def trace(self, layers: Layers, inputs: Tensor) -> list[Tensor]:
        """Return the trace for `pullback`; its last entry is the outputs `[S, M, out]`.

        Raises:
            ValueError: if the number of samples is not a multiple of L.
        """
        seeds, samples, _ = inputs.shape
        if samples % self.steps:
            raise ValueError(f"{samples} samples are not a multiple of the {self.steps} steps of a sequence")
        obs, starts, hidden_state = self._split(inputs)
        encoded = self.encoder.trace(layers[:-2], obs)
        driven = encoded[-1].view(seeds, self.steps, -1, self.gates[1]).unbind(1)
        begins = starts.view(seeds, self.steps, -1, 1)
        h = hidden_state.view(seeds, self.steps, -1, self.units)[:, 0]
        columns: list[tuple[Tensor, ...]] = []
        for t in range(self.steps):
            h = h.masked_fill(begins[:, t], 0.0)
            columns.append((h, *self._unit(layers[-2], driven[t], h)))
            h = columns[-1][-1]
        *kept, hidden_states = (torch.stack(column, dim=1) for column in zip(*columns, strict=True))
        return [*encoded, begins, *kept, *self.head.trace(layers[-1:], hidden_states.flatten(1, 2))]

    def pullback(self, layers: Layers, trace: list[Tensor], gradient: Tensor) -> list[Tensor]:
        """Backpropagate through time by hand.

        Args:
            layers: layers of the forward pass.
            trace: trace of the forward pass.
            gradient: gradient of the loss with respect to the outputs, `[S, M, out]`.

        Returns:
            The gradient of the parameters, in pieces `[S, n]` in their order.
        """
        encoded, (begins, before, r, z, through, n), after = trace[:-8], trace[-8:-2], trace[-2:]
        head = self.head.pullback(layers[-1:], after, gradient)
        outer = self.head.input_gradient(layers[-1:], after, gradient).view_as(n)
        # Gradients of the inputs of the gates and of the candidate state per unit of the gradient of the new hidden
        # state.
        new = (1 - z) * (1 - n * n)
        update = (before - n) * z * (1 - z)
        reset = new * through * r * (1 - r)
        slopes = torch.cat((reset, update, new * r), dim=-1)
        weight, carried = layers[-2][0].mT, torch.zeros_like(outer[:, 0])
        pieces: list[Tensor] = []
        totals: list[Tensor] = []
        for t in reversed(range(self.steps)):
            total = outer[:, t] + carried
            totals.append(total)
            piece = slopes[:, t] * total.repeat(1, 1, 3)
            pieces.append(piece)
            carried = torch.baddbmm(total * z[:, t], piece, weight).masked_fill(begins[:, t], 0.0)
        recalled = torch.stack(pieces[::-1], dim=1).flatten(1, 2)
        total = torch.stack(totals[::-1], dim=1)
        driven = torch.cat((recalled[..., : 2 * self.units], (new * total).flatten(1, 2)), dim=-1)
        unit = [torch.bmm(before.flatten(1, 2).mT, recalled).flatten(1), recalled.sum(1)]
        return [*self.encoder.pullback(layers[:-2], encoded, driven), *unit, *head]
