"""Checks of the arguments of equations."""

import torch
from torch import Tensor


def require_shape(expected: torch.Size, owner: str, **tensors: Tensor) -> None:
    """Raise ValueError if a tensor has another shape than the argument `owner`, since torch would broadcast it."""
    for name, tensor in tensors.items():
        if tensor.shape != expected:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}, expected {tuple(expected)} as {owner}: "
                "reshape it, since broadcasting would pair the wrong elements"
            )
