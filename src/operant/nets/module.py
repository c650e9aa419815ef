"""Custom networks: any `torch.nn.Module` as the encoder of observations, stacked along the seed axis.

The modules of all seeds (and of actor and critic) are one function of a matrix of parameters `[S, P]`, evaluated by
`torch.func.functional_call` for all of them together. Built-in stacks are several times faster.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from operant.nets.functional import FunctionalModule, ModuleError
from operant.nets.mlp import Activation, Layers, StackedMLP

MakeModule = Callable[[Any], nn.Module]
"""Makes a module from the size D of an observation, or from the shape `(C, H, W)` of an image; a class is one. Its
`forward` takes observations `[M, D]` or `[M, C, H, W]`, images as numbers from 0 to 1, and returns features `[M, ...]`.
"""


class StackedModule(FunctionalModule):
    """`S` modules of one kind, each followed by dense layers, with the interface of `operant.nets.StackedMLP`.

    Args:
        make: makes a module.
        shape: shape of an observation, `(D,)` or `(C, H, W)`.
        sizes: sizes of the following dense hidden layers, and of the output.
        activation: activation function of the dense hidden layers.
        beside: number of inputs after the observation, `[D + beside]`, such as an action: only the dense layers see
            them.

    Attributes:
        size: P, the number of parameters of one network: those of the module by name, then those of the dense layers.

    Raises:
        ModuleError: if `FunctionalModule` raises it, or the module returns no features per observation.
    """

    def __init__(
        self,
        make: MakeModule,
        shape: Sequence[int],
        sizes: Sequence[int],
        *,
        activation: Activation,
        beside: int = 0,
    ) -> None:
        self.shape, self.activation, self.beside = tuple(shape), activation, beside
        super().__init__(make, [made_from(self.shape)], [self.shape])
        self._own = self.parameters
        self.dense = StackedMLP([self.tried[0][0].numel() + beside, *sizes], activation=activation)
        self.size = self._own + self.dense.size

    def check(self, found: Any, samples: int) -> Tensor:
        """Return the features `[M, ...]`."""
        if not isinstance(found, Tensor) or found.dim() < 2 or len(found) != samples:
            got = f"shape {[*found.shape]}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise ModuleError(
                f"forward of {self.name} must return features [{samples}, ...] of {samples} observations, got {got}"
            )
        return found

    def initial(self, generator: torch.Generator, outputs: Sequence[tuple[int, float]]) -> Tensor:
        """Return the initial parameters `[P]` of one network: the module's own, and orthogonal dense layers.

        Args:
            generator: draws them.
            outputs: see `StackedMLP.initial`.
        """
        return torch.cat((self.initial_module(generator), self.dense.initial(generator, outputs)))

    def layers(self, parameters: Tensor) -> Layers:
        """Return `parameters [S, P]` as views: those of the module `[S, n]`, with an empty bias; then dense layers."""
        own, dense = parameters.split_with_sizes([self._own, self.dense.size], dim=1)
        return [(own, own[:, :0]), *self.dense.layers(dense)]

    def _split(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the observations among the inputs, and the numbers that follow them, `[S, M, beside]`."""
        if not self.beside:
            return inputs, inputs.new_empty(*inputs.shape[:2], 0)
        return inputs[..., : -self.beside], inputs[..., -self.beside :]

    def _read(self, own: Tensor, obs: Tensor, rest: Tensor) -> Tensor:
        """Return the inputs of the dense layers, `[S, M, F + beside]`."""
        features = self.run(own, obs).flatten(2)
        return torch.cat((features, rest), dim=-1) if self.beside else features

    def __call__(self, layers: Layers, inputs: Tensor) -> Tensor:
        """Return the outputs `[S, M, out]` for `inputs [S, M, ...]`."""
        return self.dense(layers[1:], self._read(layers[0][0], *self._split(inputs)))

    def trace(self, layers: Layers, inputs: Tensor, buffers: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the module's parameters, its inputs and features, and the outputs of every dense layer.

        Autograd differentiates the features with respect to the first two; the dense layers backpropagate by hand.
        """
        with torch.enable_grad():
            own = layers[0][0].detach().requires_grad_()
            leaf = inputs.detach().requires_grad_() if self.beside else inputs.detach()
            read = self._read(own, *self._split(leaf))
        return [own, leaf, read, *self.dense.trace(layers[1:], read.detach(), buffers)]

    def buffers(self, inputs: Tensor) -> list[Tensor]:
        """Return no buffers: the dense layers allocate theirs in each pass."""
        return []

    def pullback(
        self, layers: Layers, trace: list[Tensor], gradient: Tensor, buffers: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Backpropagate: through the dense layers by hand, through the module by autograd.

        Args:
            layers: layers of the forward pass.
            trace: trace of the forward pass.
            gradient: gradient of the loss with respect to the outputs, `[S, M, out]`.
            buffers: not used.

        Returns:
            The gradient of the parameters, in pieces `[S, n]` in their order.
        """
        own, _, read, *dense = trace
        pieces = self.dense.pullback(layers[1:], dense, gradient)
        back = self.dense.input_gradient(layers[1:], dense, gradient)
        if not self.names:
            return [own, own[:, :0], *pieces]
        (found,) = torch.autograd.grad(read, own, back)
        return [found, found[:, :0], *pieces]

    def input_gradient(
        self, layers: Layers, trace: list[Tensor], gradient: Tensor, buffers: Sequence[Tensor] = ()
    ) -> Tensor:
        """Backpropagate to the inputs `[S, M, D + beside]` only, of networks with more inputs than an observation.

        Args:
            layers: layers of the forward pass.
            trace: trace of the forward pass.
            gradient: gradient of the loss with respect to the outputs, `[S, M, out]`.
            buffers: not used.
        """
        _, leaf, read, *dense = trace
        (found,) = torch.autograd.grad(read, leaf, self.dense.input_gradient(layers[1:], dense, gradient))
        return found


def made_from(shape: Sequence[int]) -> Any:
    """Return the input of a module's factory: the size D of a vector, or the shape `(C, H, W)` of an image."""
    return shape[0] if len(shape) == 1 else tuple(shape)
