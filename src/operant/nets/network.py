"""Whole networks from outside: any `torch.nn.Module` instead of all layers, stacked along the seed axis."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from operant.nets.functional import FunctionalModule, ModuleError
from operant.nets.mlp import Layers
from operant.nets.module import made_from

MakeNetwork = Callable[[Any, int], nn.Module]
"""Makes a network from the size D of an observation, or the shape `(C, H, W)` of an image, and the number of outputs
(of actions, where it is a critic of actions); a class will do. See `StackedNetwork` for its `forward`."""


class StackedNetwork(FunctionalModule):
    """`S` networks of one kind, with the interface of `operant.nets.StackedMLP`.

    The arguments and results of `forward` depend on the use of the network. M is the number of samples; observations
    are `[M, D]`, images `[M, C, H, W]` with numbers from 0 to 1.

    | network | made from | `forward` takes | and returns |
    |---|---|---|---|
    | of actor and critic together | `inputs, outputs` | observations | `(outputs [M, outputs], value [M] or [M, 1])` |
    | of outputs alone | `inputs, outputs` | observations | `[M, outputs]` |
    | of a critic of actions | `inputs, actions` | observations, actions `[M, actions]` | `[M]` or `[M, 1]` |

    Args:
        make: makes a network.
        shape: shape of an observation, `(D,)` or `(C, H, W)`.
        outputs: sizes of the tensors that `forward` returns: one, or policy and values.
        beside: number of action entries after the observation in the input of a critic; 0: no action.

    Attributes:
        size: P, number of parameters of one network.

    Raises:
        ModuleError: if `FunctionalModule` raises it, or no parameter requires a gradient.
    """

    KIND = "a network"

    def __init__(self, make: MakeNetwork, shape: Sequence[int], outputs: Sequence[int], *, beside: int = 0) -> None:
        self.shape, self.outputs, self.beside = tuple(shape), tuple(outputs), beside
        inputs = [self.shape, (beside,)] if beside else [self.shape]
        super().__init__(make, (made_from(self.shape), beside or self.outputs[0]), inputs, trials=(3, 1))
        self.size = self.parameters
        if not self.names:
            raise ModuleError(
                f"{self.name} has no parameters that require a gradient, so that it could not learn: a network that "
                "replaces all layers needs some"
            )

    def check(self, found: Any, samples: int) -> Tensor:
        """Return the outputs `[M, all parts]`.

        Raises:
            ModuleError: if a part is missing or has another shape.
        """
        several = len(self.outputs) > 1 and isinstance(found, tuple | list)
        parts = cast(Sequence[Any], found if several else [found])
        wanted = list(zip(parts, self.outputs, strict=False))
        if len(parts) != len(self.outputs) or not all(_fits(part, samples, width) for part, width in wanted):
            names = ["policy outputs", "value"] if len(self.outputs) > 1 else [""]
            shapes = [f"[{samples}, {width}]" + f" or [{samples}]" * (width == 1) for width in self.outputs]
            asked = ", ".join(f"{name} {shape}".strip() for name, shape in zip(names, shapes, strict=True))
            asked = f"({asked})" if len(self.outputs) > 1 else asked
            raise ModuleError(f"forward of {self.name} must return {asked} for {samples} samples, got {_shown(found)}")
        return torch.cat([part.reshape(samples, width) for part, width in wanted], dim=1)

    def initial(self, generator: torch.Generator, outputs: Sequence[tuple[int, float]] = ()) -> Tensor:
        """Return the initial parameters `[P]` of one network, which begins as it likes.

        Args:
            generator: draws them.
            outputs: not used.
        """
        return self.initial_module(generator)

    def layers(self, parameters: Tensor) -> Layers:
        """Return `parameters [S, P]` with an empty bias."""
        return [(parameters, parameters[:, :0])]

    def _outputs(self, own: Tensor, inputs: Tensor) -> Tensor:
        if not self.beside:
            return self.run(own, inputs)
        return self.run(own, inputs[..., : -self.beside], inputs[..., -self.beside :])

    def __call__(self, layers: Layers, inputs: Tensor) -> Tensor:
        """Return the outputs `[S, M, out]` for `inputs [S, M, ...]`."""
        return self._outputs(layers[0][0], inputs)

    def trace(self, layers: Layers, inputs: Tensor, buffers: Sequence[Tensor] = ()) -> list[Tensor]:
        """Return the parameters, the inputs, the outputs that autograd leads back from, and the outputs without it."""
        with torch.enable_grad():
            own = layers[0][0].detach().requires_grad_()
            leaf = inputs.detach().requires_grad_() if self.beside else inputs.detach()
            outputs = self._outputs(own, leaf)
        return [own, leaf, outputs, outputs.detach()]

    def buffers(self, inputs: Tensor) -> list[Tensor]:
        """Return no memory: autograd allocates its own in each pass."""
        return []

    def pullback(
        self, layers: Layers, trace: list[Tensor], gradient: Tensor, buffers: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """Return the gradient of the parameters by autograd, `[S, P]` and an empty piece.

        Args:
            layers: layers of the forward pass.
            trace: trace of the forward pass.
            gradient: gradient of the loss with respect to the outputs, `[S, M, out]`.
            buffers: not used.
        """
        own, _, outputs, _ = trace
        (found,) = torch.autograd.grad(outputs, own, gradient)
        return [found, found[:, :0]]

    def input_gradient(
        self, layers: Layers, trace: list[Tensor], gradient: Tensor, buffers: Sequence[Tensor] = ()
    ) -> Tensor:
        """Return the gradient of the inputs `[S, M, D + beside]` of a critic of actions, by autograd.

        Args:
            layers: layers of the forward pass.
            trace: trace of the forward pass.
            gradient: gradient of the loss with respect to the outputs, `[S, M, out]`.
            buffers: not used.
        """
        _, leaf, outputs, _ = trace
        (found,) = torch.autograd.grad(outputs, leaf, gradient)
        return found


def _fits(part: Any, samples: int, width: int) -> bool:
    if not isinstance(part, Tensor):
        return False
    return tuple(part.shape) == (samples, width) or (width == 1 and tuple(part.shape) == (samples,))


def _shown(found: Any) -> str:
    """Say what was returned: of tensors the shape."""
    if isinstance(found, tuple | list):
        return f"({', '.join(map(_shown, cast(Sequence[Any], found)))})"
    return str([*found.shape]) if isinstance(found, Tensor) else f"a {type(found).__name__}"
