"""Bounded continuous actions: checks of spaces, bounds as float32, and the map onto them, `Bounded`."""

from typing import Any, TypeGuard

import gymnasium
import numpy as np
import torch
from torch import Tensor


class Bounded:
    """The map from [-1, 1], the range of a learner's actions, to the bounds of a space.

    Args:
        space: a one-dimensional box of floats with finite bounds.
        device: device of the actions.

    Attributes:
        dimensions: A, the dimension of an action.

    Raises:
        ValueError: if the space is of another kind, or a range is infinite.
    """

    def __init__(self, space: gymnasium.Space[Any], *, device: torch.device) -> None:
        if not is_continuous(space) or not is_bounded(space):
            raise ValueError(f"expected a one-dimensional Box of float with finite bounds, got {space}")
        self.low, self.high = bounds_within(space, device)
        self.middle, self.half = (self.low + self.high) / 2, (self.high - self.low) / 2
        self.dimensions = int(space.shape[0])

    def to_env(self, actions: Tensor) -> Tensor:
        """Map actions in [-1, 1] onto the bounds, and NaN to the center, without exceeding them by rounding."""
        return torch.addcmul(self.middle, actions.nan_to_num(), self.half).clamp(self.low, self.high)

    def uniform(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample actions `[*shape, A]` uniformly from [-1, 1]."""
        actions = torch.empty((*shape, self.dimensions), device=generator.device)
        return actions.uniform_(-1.0, 1.0, generator=generator)

    def normal(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample standard normal noise `[*shape, A]`, one number per dimension of an action."""
        return torch.empty((*shape, self.dimensions), device=generator.device).normal_(generator=generator)


def bounds_within(space: gymnasium.spaces.Box, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the bounds of a box as float32; float64 bounds are rounded inwards, so that they do not exceed the box."""
    with np.errstate(over="ignore"):
        low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
    return torch.as_tensor(low, device=device), torch.as_tensor(high, device=device)


def is_continuous(space: gymnasium.Space[Any]) -> TypeGuard[gymnasium.spaces.Box]:
    """Return whether the members of a space are vectors of floats."""
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        return False
    return np.issubdtype(space.dtype, np.floating)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def is_bounded(space: gymnasium.spaces.Box) -> bool:
    """Return whether all ranges of a box are finite in float32; the range between the largest floats is not."""
    low, high = bounds_within(space, torch.device("cpu"))
    return bool(((high - low) / 2).isfinite().all())
