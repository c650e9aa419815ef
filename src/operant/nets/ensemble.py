"""Several networks of one shape for each of `S` seeds, such as the two critics of SAC."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from operant.nets.mlp import Layers, StackedMLP
from operant.nets.module import StackedModule
from operant.nets.network import StackedNetwork
from operant.nets.tracing import tracing

_Buffers = tuple[list[Tensor], list[Tensor]]


class Ensemble:
    """Networks of one shape: `K` for each seed, parameters `[S, P]`, inputs `[S, M, in]`.

    All members have the same inputs, and together take the same number of operations as one. A single network is an
    ensemble of one.

    Args:
        network: network of one member, `StackedMLP` or `StackedModule` (`operant.nets.network_of_vectors`), or
            `StackedNetwork`.
        members: K.
    """

    def __init__(self, network: StackedMLP | StackedModule | StackedNetwork, *, members: int) -> None:
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        self.mlp, self.members = network, members

    def single(self) -> "Ensemble":
        """Return the shape of a single member."""
        return Ensemble(self.mlp, members=1)

    def initial(self, generators: Sequence[torch.Generator], outputs: Sequence[tuple[int, float]]) -> Tensor:
        """Return the initial parameters `[S, P]`, one row per generator (see `StackedMLP.initial`)."""
        rows = [self.mlp.initial(generator, outputs) for generator in generators for _ in range(self.members)]
        return torch.stack(rows).view(len(generators), -1)

    def bind(self, parameters: Tensor) -> "BoundEnsemble":
        """Return the networks that compute with `parameters [S, P]`, sharing their memory."""
        seeds = len(parameters)
        return BoundEnsemble(self, self.mlp.layers(parameters.view(seeds * self.members, -1)), seeds)


@dataclass(frozen=True)
class BoundEnsemble:
    """Networks with one set of parameters, sliced once for many calls.

    Attributes:
        seeds: S.
    """

    shape: Ensemble
    layers: Layers
    seeds: int
    _memory: dict[int, _Buffers] = field(default_factory=dict[int, _Buffers], compare=False, repr=False)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the outputs `[K, S, M, out]` for `inputs [S, M, in]`."""
        return self.by_member(self.shape.mlp(self.layers, inputs.repeat_interleave(self.shape.members, 0)))

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """Return the inputs of all members and the outputs of every layer, each `[S * K, M, ...]`."""
        return self.shape.mlp.trace(self.layers, inputs.repeat_interleave(self.shape.members, 0))

    def trace_in_place(self, inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the trace in buffers that the next pass of the same size overwrites, and buffers for gradients.

        A traced pass has no such buffers, because its program allocates memory.
        """
        stacked = inputs.repeat_interleave(self.shape.members, 0)
        mlp, samples = self.shape.mlp, inputs.shape[1]
        if tracing():
            return mlp.trace(self.layers, stacked), []
        if samples not in self._memory:
            self._memory[samples] = mlp.buffers(stacked), mlp.buffers(stacked)
        forward, backward = self._memory[samples]
        return mlp.trace(self.layers, stacked, forward), backward

    def frozen(self, inputs: Tensor) -> Tensor:
        """Return the outputs `[K, S, M, out]`, which autograd differentiates with respect to `inputs [S, M, in]` only.

        Gradients of the parameters are not computed. Differentiate before the next call.
        """
        return cast(Tensor, _Frozen.apply(inputs, self))  # pyright: ignore[reportUnknownMemberType]

    def first(self) -> "BoundEnsemble":
        """Return the first member of each seed as an ensemble of one, sharing its memory."""
        members = self.shape.members
        layers = [(weight[::members], bias[::members]) for weight, bias in self.layers]
        return BoundEnsemble(self.shape.single(), layers, self.seeds)

    def by_member(self, stacked: Tensor) -> Tensor:
        """View `[S * K, M, ...]` as `[K, S, M, ...]`."""
        return stacked.view(self.seeds, self.shape.members, *stacked.shape[1:]).movedim(1, 0)

    def by_row(self, members: Tensor) -> Tensor:
        """Reshape `[K, S, M, ...]` to `[S * K, M, ...]`."""
        return members.movedim(0, 1).reshape(-1, *members.shape[2:])


class EnsemblePass:
    """One forward pass, and the backward pass to the parameters.

    A loss is computed from `outputs` and differentiated by autograd with respect to them; from there the gradient is
    propagated through the networks by hand, which avoids most of autograd's overhead. The next pass of the same
    networks with the same number of samples reuses the buffers, so compute the gradient before it.

    Args:
        bound: networks and parameters.
        inputs: `[S, M, in]`.

    Attributes:
        outputs: `[K, S, M, out]`, the leaves of autograd.
    """

    @torch.no_grad()
    def __init__(self, bound: BoundEnsemble, inputs: Tensor) -> None:
        self.bound = bound
        self.trace, self.buffers = bound.trace_in_place(inputs)
        self.outputs = bound.by_member(self.trace[-1]).requires_grad_()

    def gradient(self, loss: Tensor) -> Tensor:
        """Return the gradient `[S, P]` of a scalar function of `outputs`."""
        (cotangent,) = torch.autograd.grad(loss, self.outputs)
        with torch.no_grad():
            bound = self.bound
            pieces = bound.shape.mlp.pullback(bound.layers, self.trace, bound.by_row(cotangent), self.buffers)
            return torch.cat(pieces, dim=1).view(bound.seeds, -1)


class _Frozen(torch.autograd.Function):
    """Hand-written backpropagation to the inputs."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, bound: BoundEnsemble) -> Tensor:
        ctx.bound = bound
        ctx.trace, ctx.buffers = bound.trace_in_place(inputs)
        return bound.by_member(ctx.trace[-1])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        bound: BoundEnsemble = ctx.bound
        cotangent = bound.by_row(gradients[0])
        gradient = bound.shape.mlp.input_gradient(bound.layers, ctx.trace, cotangent, ctx.buffers)
        return gradient.view(bound.seeds, bound.shape.members, *gradient.shape[1:]).sum(1), None
