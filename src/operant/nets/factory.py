"""The network for a kind of observation."""

from collections.abc import Sequence
from math import prod

from operant.nets.cnn import StackedCNN, TorsoName
from operant.nets.gru import Memory, StackedGRU
from operant.nets.mlp import Activation, StackedMLP


def network_for(
    shape: Sequence[int],
    sizes: Sequence[int],
    *,
    activation: Activation,
    torso: TorsoName = "auto",
    memory: Memory | None = None,
    picture: Sequence[int] | None = None,
) -> StackedMLP | StackedCNN | StackedGRU:
    """Return the network for observations of a shape: a perceptron for vectors, convolutions for pictures.

    Args:
        shape: of one observation, `(D,)` or `(C, H, W)` (see `operant.envs.Features`).
        sizes: widths of the dense hidden layers, and of the output.
        activation: of the dense hidden layers.
        torso: the convolutions, where there are any.
        memory: makes a recurrent network of the one for vectors.
        picture: `(C, H, W)` of the picture that a vector begins with, if it does: it gets convolutions.

    Raises:
        ValueError: there is no network for such a shape.
    """
    if memory is not None:
        if len(shape) != 1 or picture is not None:
            raise ValueError(f"networks with a memory look at vectors (D,), got observations {tuple(picture or shape)}")
        return StackedGRU(shape[0], sizes[:-1], sizes[-1], activation=activation, memory=memory)
    if picture is not None:
        return StackedCNN(picture, sizes, activation=activation, torso=torso, beside=shape[0] - prod(picture))
    if len(shape) == 1:
        return StackedMLP([*shape, *sizes], activation=activation)
    if len(shape) == 3:
        return StackedCNN(shape, sizes, activation=activation, torso=torso)
    raise ValueError(f"networks look at vectors (D,) or pictures (C, H, W), got {tuple(shape)}")
