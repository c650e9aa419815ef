"""Custom networks: any `torch.nn.Module` as the encoder of observations, stacked along the seed axis.

The modules of all seeds (and of actor and critic) are one function of a matrix of parameters `[S, P]`, evaluated by
`torch.func.functional_call` for all of them together. Built-in stacks are several times faster.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from operant.nets.mlp import Activation, Layers, StackedMLP

MakeModule = Callable[[Any], nn.Module]
"""Makes a module from the size D of an observation, or from the shape `(C, H, W)` of an image; a class is one. Its
`forward` takes observations `[M, D]` or `[M, C, H, W]`, images as numbers from 0 to 1, and returns features `[M, ...]`.
"""


class ModuleError(ValueError):
    """A module cannot be an encoder."""


class StackedModule:
    """`S` modules of one kind, each followed by dense layers, with the interface of `operant.nets.StackedMLP`.

    Args:
        make: makes a module.
        shape: of an observation, `(D,)` or `(C, H, W)`.
        sizes: widths of the dense hidden layers that follow, and of the output.
        activation: of the dense hidden layers.
        beside: number of inputs after the observation, `[D + beside]`, such as an action: only the dense layers see
            them.

    Attributes:
        size: P, the number of parameters of one network: those of the module by name, then those of the dense layers.
        names: of the module's parameters, in their order.
        at_once: whether one call computes all seeds; else one after another.

    Raises:
        ModuleError: the module has buffers, draws random numbers, or returns no features per observation.
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
        self.make, self.shape, self.activation, self.beside = make, tuple(shape), activation, beside
        self.module = self._made(torch.Generator().manual_seed(0))
        parameters = dict(self.module.named_parameters())
        if buffers := [name for name, _ in self.module.named_buffers()]:
            raise ModuleError(
                f"{self.name} has buffers ({', '.join(buffers)}), which change outside of gradients and would differ "
                "between the seeds and in evaluations: use LayerNorm instead of BatchNorm, or parameters"
            )
        self.names, self._shapes = list(parameters), [parameter.shape for parameter in parameters.values()]
        self._own = sum(map(prod, self._shapes))
        features, self.at_once = self._features_and_way()
        self.dense = StackedMLP([features + beside, *sizes], activation=activation)
        self.size = self._own + self.dense.size

    @property
    def name(self) -> str:
        """The module's name in messages."""
        return type(self.module).__name__

    def _made(self, generator: torch.Generator) -> nn.Module:
        """Make a module with initial parameters drawn by a generator, without changing torch's global stream."""
        seed = int(torch.randint(2**62, (), generator=generator))
        with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
            # Constructors of torch draw from its global stream, which is restored afterwards.
            torch.set_rng_state(torch.Generator().manual_seed(seed).get_state())
            made = self.make(self.shape[0] if len(self.shape) == 1 else self.shape)
        if not isinstance(made, nn.Module):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"an encoder must be a torch.nn.Module, but {self.make!r} made {made!r}")
        return made.float()

    def _features_and_way(self) -> tuple[int, bool]:
        """Test the module on two networks; return its number of features, and whether one call computes all seeds."""
        inputs = torch.rand(2, 3, *self.shape, generator=torch.Generator().manual_seed(0))
        flat = self._flat(self.module).expand(2, -1)
        try:
            single = self._call(flat[0], inputs[0])
        except Exception as error:
            raise ModuleError(
                f"{self.name} does not take observations of shape {[3, *self.shape]}: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(single, Tensor) or single.dim() < 2 or len(single) != len(inputs[0]):  # pyright: ignore[reportUnnecessaryIsInstance] - from anywhere
            got = f"shape {[*single.shape]}" if isinstance(single, Tensor) else f"a {type(single).__name__}"  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ModuleError(f"forward of {self.name} must return features [3, ...] of 3 observations, got {got}")
        with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
            if not torch.equal(single, self._call(flat[0], inputs[0])):
                raise ModuleError(
                    f"{self.name} draws random numbers (Dropout?), which would not belong to a seed: remove them"
                )
        try:
            vmap(self._call)(flat, inputs)
        except Exception:
            return single[0].numel(), False  # e.g. a branch on the values of tensors
        return single[0].numel(), True

    @staticmethod
    def _flat(module: nn.Module) -> Tensor:
        return torch.cat([torch.zeros(0), *(parameter.detach().flatten() for parameter in module.parameters())])

    def initial(self, generator: torch.Generator, outputs: Sequence[tuple[int, float]]) -> Tensor:
        """Return the initial parameters `[P]` of one network: the module's own, and orthogonal dense layers.

        Args:
            generator: draws them.
            outputs: see `StackedMLP.initial`.
        """
        return torch.cat((self.initial_module(generator), self.dense.initial(generator, outputs)))

    def initial_module(self, generator: torch.Generator) -> Tensor:
        """Return the initial parameters `[n]` of a module only."""
        return self._flat(self._made(generator))

    def layers(self, parameters: Tensor) -> Layers:
        """Return `parameters [S, P]` as views: those of the module `[S, n]`, with an empty bias; then dense layers."""
        own, dense = parameters.split_with_sizes([self._own, self.dense.size], dim=1)
        return [(own, own[:, :0]), *self.dense.layers(dense)]

    def by_name(self, parameters: Tensor) -> dict[str, Tensor]:
        """Return the module's parameters `[S, ...]` by name, as views of `parameters [S, P]`."""
        own = parameters[:, : self._own].split_with_sizes([prod(shape) for shape in self._shapes], dim=1)
        return {
            name: part.unflatten(1, shape) if shape else part.squeeze(1)
            for name, shape, part in zip(self.names, self._shapes, own, strict=True)
        }

    def _call(self, own: Tensor, inputs: Tensor) -> Tensor:
        """Return the features `[M, ...]` of one network with the parameters `[n]`."""
        parts = own.split_with_sizes([prod(shape) for shape in self._shapes])
        named = {name: part.view(shape) for name, shape, part in zip(self.names, self._shapes, parts, strict=True)}
        return functional_call(self.module, named, (inputs,))

    def _features(self, own: Tensor, inputs: Tensor) -> Tensor:
        """Return the features `[S, M, F]`."""
        inputs = inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs
        if self.at_once:
            found = vmap(self._call)(own, inputs)
        else:
            found = torch.stack([self._call(*pair) for pair in zip(own, inputs, strict=True)])
        return found.flatten(2)

    def _split(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the observations among the inputs, and the numbers that follow them, `[S, M, beside]`."""
        if not self.beside:
            return inputs, inputs.new_empty(*inputs.shape[:2], 0)
        return inputs[..., : -self.beside], inputs[..., -self.beside :]

    def _read(self, own: Tensor, obs: Tensor, rest: Tensor) -> Tensor:
        """Return the inputs of the dense layers, `[S, M, F + beside]`."""
        features = self._features(own, obs)
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
            layers: of the forward pass.
            trace: of the forward pass.
            gradient: of the loss with respect to the outputs, `[S, M, out]`.
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
            layers: of the forward pass.
            trace: of the forward pass.
            gradient: of the loss with respect to the outputs, `[S, M, out]`.
            buffers: not used.
        """
        _, leaf, read, *dense = trace
        (found,) = torch.autograd.grad(read, leaf, self.dense.input_gradient(layers[1:], dense, gradient))
        return found
