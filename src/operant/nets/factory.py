"""Networks for spaces of observations."""

from collections.abc import Sequence
from math import prod
from typing import cast, get_args

from operant import doors
from operant.nets.cnn import EncoderName, StackedCNN
from operant.nets.gru import Recurrence, StackedGRU
from operant.nets.mlp import Activation, StackedMLP
from operant.nets.module import MakeModule, StackedModule
from operant.nets.network import MakeNetwork, StackedNetwork

ENTRY_POINTS = "operant.encoders"
"""Group of entry points by which installed packages provide encoders."""

NETWORKS = "operant.networks"
"""Group of entry points by which installed packages provide complete networks."""

Encoder = EncoderName | str | MakeModule
"""An encoder before the dense layers: built-in convolutions, or a custom `torch.nn.Module`, by class or name."""


def network_for(
    shape: Sequence[int],
    sizes: Sequence[int],
    *,
    activation: Activation,
    encoder: Encoder = "auto",
    recurrence: Recurrence | None = None,
    image: Sequence[int] | None = None,
) -> StackedMLP | StackedCNN | StackedGRU | StackedModule:
    """Return the network for observations of a shape: a perceptron for vectors, convolutions for images.

    Args:
        shape: shape of one observation, `(D,)` or `(C, H, W)` (see `operant.envs.Features`).
        sizes: sizes of the dense hidden layers and the output.
        activation: activation function of the dense hidden layers.
        encoder: the convolutions, or a custom module, a class or `file.py:Name`.
        recurrence: shape of the recurrent unit of a network for vectors; None: not recurrent.
        image: shape `(C, H, W)` of the image at the start of a vector, if any, for convolutions.

    Raises:
        ValueError: if there is no network for such a shape, convolutions are named but there is no image, or the module
            cannot be an encoder.
    """
    if make := _from_outside(encoder):
        if recurrence is not None:
            raise ValueError(f"recurrent networks support no custom encoders, got {encoder}: leave encoder at 'auto'")
        return StackedModule(make, shape, sizes, activation=activation)
    encoder = cast(EncoderName, encoder)
    if encoder != "auto" and image is None and len(shape) == 1:
        raise ValueError(
            f"encoder={encoder!r} is for images, which are bytes (uint8 from 0 to 255) with two or three axes, but "
            f"these observations are vectors {tuple(shape)}, to which others are flattened: leave encoder at 'auto', "
            "or add a wrapper that gives images"
        )
    if recurrence is not None:
        if len(shape) != 1 or image is not None:
            raise ValueError(f"recurrent networks take vectors (D,), got observations {tuple(image or shape)}")
        return StackedGRU(shape[0], sizes[:-1], sizes[-1], activation=activation, recurrence=recurrence)
    if image is not None:
        return StackedCNN(image, sizes, activation=activation, encoder=encoder, beside=shape[0] - prod(image))
    if len(shape) == 1:
        return StackedMLP([*shape, *sizes], activation=activation)
    if len(shape) == 3:
        return StackedCNN(shape, sizes, activation=activation, encoder=encoder)
    raise ValueError(f"networks take vectors (D,) or images (C, H, W), got {tuple(shape)}")


def network_of_vectors(
    width: int, sizes: Sequence[int], *, activation: Activation, encoder: Encoder = "auto", beside: int = 0
) -> StackedMLP | StackedModule:
    """Return the network for vectors `[D + beside]`, such as observations and actions for critics.

    Args:
        width: D, size of the observation.
        sizes: sizes of the dense hidden layers and the output.
        activation: activation function of the dense hidden layers.
        encoder: a custom module for the observation; `"auto"`: none.
        beside: number of inputs after the observation.

    Raises:
        ValueError: if the module cannot be an encoder.
    """
    if make := _from_outside(encoder):
        return StackedModule(make, (width,), sizes, activation=activation, beside=beside)
    return StackedMLP([width + beside, *sizes], activation=activation)


def encoders(value: object, *, images: bool = True) -> tuple[str, ...]:
    """Return the allowed values of an encoder field, for `operant.runtime.bounds.require`.

    Args:
        value: value of the field.
        images: whether the algorithm supports images, which need the built-in encoders.
    """
    own = get_args(EncoderName) if images else ("auto",)
    return doors.choices(own, value, ENTRY_POINTS, "a custom torch.nn.Module, path/to/file.py:Name")


def whole_network(
    network: str | MakeNetwork, shape: Sequence[int], outputs: Sequence[int], *, beside: int = 0
) -> StackedNetwork:
    """Return a custom network, which replaces all layers.

    Args:
        network: its factory, or the name of one.
        shape: shape of an observation, `(D,)` or `(C, H, W)`.
        outputs: sizes of the tensors that its `forward` returns.
        beside: number of action entries after the observation, an additional argument of its `forward`.

    Raises:
        ValueError: if the name does not refer to a module or its factory, or the module is unsuitable.
    """
    expected = "a torch.nn.Module class, or a function that creates one"
    make = doors.load(network, expected=expected, group=NETWORKS) if isinstance(network, str) else network
    return StackedNetwork(make, shape, outputs, beside=beside)


def modules(value: object) -> tuple[str | None, ...]:
    """Return the allowed values of a field for a custom network, for `operant.runtime.bounds.require`.

    Args:
        value: value of the field.
    """
    return None, *doors.choices((), value, NETWORKS, "a custom torch.nn.Module, path/to/file.py:Name")


def _from_outside(encoder: Encoder) -> MakeModule | None:
    """Return the factory of a custom module; None for a built-in encoder or an unknown value."""
    if not isinstance(encoder, str):
        return encoder
    if encoder in get_args(EncoderName):
        return None
    return doors.load(encoder, expected="a torch.nn.Module class, or a function that creates one", group=ENTRY_POINTS)
