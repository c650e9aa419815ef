"""Several networks of one shape for each of `S` seeds, such as the two critics of SAC."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from operant.nets.mlp import Layers, StackedMLP
from operant.nets.module import StackedModule
from operant.nets.network import StackedNetwork
from operant.nets.parted_mlp import PartedMLP
from operant.nets.tracing import tracing

LEAST_IN_PARTS = 2**15
"""Parameters of a network from which a copy for each part of the samples takes longer than to keep the parts apart."""

_Buffers = tuple[list[Tensor], list[Tensor]]


class Ensemble:
    """Networks of one shape: `K` for each seed, parameters `[S, P]`, inputs `[S, M, in]`.

    All members have the same inputs, and together take the same number of operations as one. A single network is an
    ensemble of one.

    Args:
        network: network of one member, `StackedMLP` or `StackedModule` (`operant.nets.network_of_vectors`), or
            `StackedNetwork`.
        members: K.

    Attributes:
        parts: P, in which the samples of each seed come: inputs are `[S * P, M, in]`, and outputs and gradients have
            S * P seeds, too (see `PartedMLP`).
    """

    def __init__(self, network: StackedMLP | StackedModule | StackedNetwork, *, members: int) -> None:
        if members < 1:
            raise ValueError(f"members must be at least 1, got {members}")
        self.mlp, self.members = network, members
        self.parts = network.parts if isinstance(network, PartedMLP) else 1

    def single(self) -> "Ensemble":
        """Return the shape of a single member."""
        return Ensemble(self.mlp, members=1)

    def in_parts(self, parts: int) -> "Ensemble | None":
        """Return the shape for samples in parts; None for modules from outside, and where copies take less time."""
        if not isinstance(self.mlp, StackedMLP) or self.mlp.size < LEAST_IN_PARTS:
            return None
        return Ensemble(PartedMLP(self.mlp, parts), members=self.members)

    def initial(self, generators: Sequence[torch.Generator], outputs: Sequence[tuple[int, float]]) -> Tensor:
        """Return the initial parameters `[S, P]`, one row per generator (see `StackedMLP.initial`)."""
        rows = [self.mlp.initial(generator, outputs) for generator in generators for _ in range(self.members)]
        return torch.stack(rows).view(len(generators), -1)

    def bind(self, parameters: Tensor) -> "BoundEnsemble":
        """Return the networks that compute with `parameters [S, P]`, sharing their memory."""
        seeds, kind = len(parameters), _BoundInParts if isinstance(self.mlp, PartedMLP) else BoundEnsemble
        return kind(self, self.mlp.layers(parameters.view(seeds * self.members, -1)), seeds)


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
        return self.by_member(self.shape.mlp(self.layers, self._stacked(inputs)))

    def trace(self, inputs: Tensor) -> list[Tensor]:
        """Return the inputs of all members and the outputs of every layer, each `[S * K, M, ...]`."""
        return self.shape.mlp.trace(self.layers, self._stacked(inputs))

    def trace_in_place(self, inputs: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the trace in buffers that the next pass of the same size overwrites, and buffers for gradients.

        A traced pass has no such buffers, because its program allocates memory.
        """
        stacked = self._stacked(inputs)
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
        return type(self)(self.shape.single(), layers, self.seeds)

    def by_member(self, stacked: Tensor) -> Tensor:
        """View `[S * K, M, ...]` as `[K, S, M, ...]`."""
        return stacked.view(self.seeds, self.shape.members, *stacked.shape[1:]).movedim(1, 0)

    def by_row(self, members: Tensor) -> Tensor:
        """Reshape `[K, S, M, ...]` to `[S * K, M, ...]`."""
        return members.movedim(0, 1).reshape(-1, *members.shape[2:])

    def gradient(self, pieces: Sequence[Tensor]) -> Tensor:
        """Return the gradients of all parameters `[S, P]` from those of the layers, in their order."""
        return torch.cat(list(pieces), dim=-1).view(self.seeds, -1)

    def input_gradient(self, stacked: Tensor) -> Tensor:
        """Return the gradient of the inputs `[S, M, in]` from those of the inputs of all members."""
        return stacked.view(self.seeds, self.shape.members, *stacked.shape[1:]).sum(1)

    def _stacked(self, inputs: Tensor) -> Tensor:
        """Return the inputs of all members, `[S * K, M, in]`."""
        return inputs.repeat_interleave(self.shape.members, 0)


class _BoundInParts(BoundEnsemble):
    """Networks whose samples come in P parts: S * P seeds outside, and P * M samples of each seed for the layers."""

    def by_member(self, stacked: Tensor) -> Tensor:
        apart = cast(PartedMLP, self.shape.mlp).by_part(stacked)
        return apart.view(self.seeds, self.shape.members, *apart.shape[1:]).transpose(0, 1).flatten(1, 2)

    def by_row(self, members: Tensor) -> Tensor:
        return super().by_row(members.reshape(len(members), self.seeds, -1, *members.shape[3:]))

    def gradient(self, pieces: Sequence[Tensor]) -> Tensor:
        members, parts = self.shape.members, self.shape.parts
        apart = [piece.view(self.seeds, members, parts, -1).transpose(1, 2) for piece in pieces]
        return torch.cat(apart, dim=-1).view(self.seeds * parts, -1)

    def input_gradient(self, stacked: Tensor) -> Tensor:
        return super().input_gradient(stacked).view(self.seeds * self.shape.parts, -1, stacked.shape[2])

    def _stacked(self, inputs: Tensor) -> Tensor:
        return super()._stacked(inputs.reshape(self.seeds, -1, inputs.shape[2]))


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
            return bound.gradient(pieces)


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
        cotangent, mlp = bound.by_row(gradients[0]), bound.shape.mlp
        return bound.input_gradient(mlp.input_gradient(bound.layers, ctx.trace, cotangent, ctx.buffers)), None
