"""One network of a stack as a module of standard torch layers, for programs without operant: `module_of`."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from operant.nets.cnn import Convolution, StackedCNN
from operant.nets.functional import FunctionalModule
from operant.nets.mlp import Layers, StackedMLP
from operant.nets.module import StackedModule
from operant.nets.network import StackedNetwork


def module_of(stack: Any, layers: Layers, index: int) -> nn.Module:
    """Return one network of a stack as a module that takes observations `[M, ...]` and returns outputs `[M, out]`.

    Args:
        stack: the shape of the networks.
        layers: layers of all networks.
        index: index of the network.

    Raises:
        ValueError: if the network is recurrent, or has another type without such a module.
    """
    own = [(weight[index].detach().cpu(), bias[index].detach().cpu()) for weight, bias in layers]
    if isinstance(stack, StackedMLP):
        return _perceptron(stack, own)
    if isinstance(stack, StackedCNN):
        return _Convolutions(stack, own)
    if isinstance(stack, StackedModule):
        module = _Bytes(_loaded(stack, own[0][0]))
        return nn.Sequential(module, nn.Flatten(), _perceptron(stack.dense, own[1:]))
    if isinstance(stack, StackedNetwork):
        return _Bytes(_loaded(stack, own[0][0]))
    raise ValueError(
        f"this policy is a {type(stack).__name__}, which is no function of one observation: it acts by "
        "`operant.load(run).predict`"
    )


def _perceptron(stack: StackedMLP, layers: Sequence[tuple[Tensor, Tensor]]) -> nn.Sequential:
    """Return dense layers with weights `[in, out]` and biases `[1, out]`."""
    found: list[nn.Module] = []
    for weight, bias in layers:
        linear = nn.Linear(weight.shape[0], weight.shape[1])
        linear.load_state_dict({"weight": weight.T, "bias": bias[0]})
        found += [linear, nn.Tanh() if stack.activation == "tanh" else nn.ReLU()]
    return nn.Sequential(*found[:-1])


def _loaded(stack: FunctionalModule, own: Tensor) -> nn.Module:
    """Return a custom module with the parameters `[n]`."""
    module = stack.initial_copy()
    module.load_state_dict({name: part[0] for name, part in stack.by_name(own[None]).items()}, strict=False)
    return module


class _Bytes(nn.Module):
    """A module with images of bytes scaled to [0, 1], and only the outputs of the policy."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, obs: Tensor) -> Tensor:
        """Return the outputs `[M, ...]`."""
        found: Any = self.module(obs.float() / 255 if obs.dtype == torch.uint8 else obs)
        return cast(Tensor, found[0] if isinstance(found, tuple | list) else found)


class _Convolutions(nn.Module):
    """Built-in convolutions, followed by dense layers."""

    def __init__(self, stack: StackedCNN, layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        if stack.beside is not None:
            raise ValueError("an observation of an image and other numbers is no single array")
        count = len(stack.filters)
        self.pieces = stack.pieces
        self.convolutions = nn.ModuleList()
        plain = (piece for piece in self.pieces if isinstance(piece, Convolution))
        for piece, (weight, bias) in zip(plain, layers[:count], strict=True):
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2:], piece.stride, piece.padding)  # pyright: ignore[reportArgumentType] - the kernel is square
            layer.load_state_dict({"weight": weight, "bias": bias})
            self.convolutions.append(layer)
        self.dense = _perceptron(stack.dense, layers[count:])

    def forward(self, images: Tensor) -> Tensor:
        """Return the outputs `[M, out]` for images of bytes `[M, C, H, W]`."""
        x, skips, convolutions = images.float() / 255, list[Tensor](), iter(self.convolutions)
        for piece in self.pieces:
            if isinstance(piece, Convolution):
                x = next(convolutions)(x)
            elif piece == "relu":
                x = x.relu()
            elif piece == "pool":
                x = F.max_pool2d(x, 3, 2, 1)
            elif piece == "fork":
                skips.append(x)
            else:
                x = x + skips.pop()
        return self.dense(x.flatten(1))
