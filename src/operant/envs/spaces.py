"""Tensor forms of an environment's spaces, and their sizes."""

import logging
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from operant.envs.base import Tree

logger = logging.getLogger(__name__)


class SpaceError(TypeError, ValueError):
    """A space has no tensor form; the message names it and the spaces that have one."""


class ActionFormat(NamedTuple):
    """Shape and dtype of the actions of `rows` copies of a space.

    Attributes:
        shape: of the whole batch, `[B, *space.shape]`.
        floating: whether actions are floating point numbers; int64 otherwise.
    """

    shape: tuple[int, ...]
    floating: bool

    @classmethod
    def of(cls, space: gymnasium.Space[Any], rows: int) -> "ActionFormat":
        """Return the format of `rows` actions of `space`.

        Raises:
            SpaceError: `space` is composite or holds no numbers.
        """
        if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise SpaceError(
                f"actions of {space} have no single tensor; give the environment a wrapper whose action space is "
                "a Box, Discrete, MultiDiscrete or MultiBinary"
            )
        shape = space.shape or ()
        return cls((rows, *shape), isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating))

    def check(self, actions: Tensor) -> None:
        """Check the shape and dtype of actions, not their values.

        Raises:
            ValueError: the shape differs, or the actions carry gradients.
            TypeError: the dtype differs.
        """
        if actions.shape != self.shape:
            raise ValueError(
                f"actions have shape {list(actions.shape)}, but {list(self.shape)} is needed: one per environment"
            )
        if not (actions.is_floating_point() if self.floating else actions.dtype is torch.int64):
            kind = "a floating point dtype" if self.floating else "torch.int64"
            raise TypeError(f"actions have dtype {actions.dtype}, but the action space needs {kind}")
        if actions.requires_grad:
            raise ValueError("actions carry gradients, but an environment is not differentiated: use actions.detach()")


class GymnasiumActions(NamedTuple):
    """Conversion of a learner's actions to a Gymnasium space.

    Attributes:
        space: the learner's space: a Discrete from 0; a MultiDiscrete of one axis from 0, also for a MultiBinary; a Box
            of floats of one axis; any other space unchanged.
        write: maps a batch `[B, ...]` of its members to actions `[B, ...]` of the Gymnasium space and its dtype.
    """

    space: gymnasium.Space[Any]
    write: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> "GymnasiumActions":
        """Return the conversion for `space`."""
        shape, dtype, seen = space.shape or (), space.dtype, space
        first = np.asarray(getattr(space, "start", 0), dtype)
        shifted = bool(first.any())
        if isinstance(space, spaces.Discrete):
            seen = spaces.Discrete(int(space.n))
        elif isinstance(space, spaces.MultiDiscrete):
            seen = spaces.MultiDiscrete(space.nvec.ravel())
        elif isinstance(space, spaces.MultiBinary):
            seen = spaces.MultiDiscrete(np.full(math.prod(shape), 2))
        elif isinstance(space, spaces.Box) and np.issubdtype(dtype, np.floating):
            seen = spaces.Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype.type)

        def write(actions: np.ndarray) -> np.ndarray:
            chosen = actions.reshape(-1, *shape).astype(dtype)
            return chosen + first if shifted else chosen

        return cls(seen, write)

    def allowed(self, mask: np.ndarray) -> np.ndarray:
        """Return the first actions `[B, ...]` of the Gymnasium space allowed by masks `[B, M]`.

        Args:
            mask: true for allowed ones; the masks of several choices are concatenated.
        """
        if isinstance(self.space, spaces.MultiDiscrete):
            choices = np.split(mask, np.cumsum(self.space.nvec)[:-1], axis=1)
            return self.write(np.stack([choice.argmax(1) for choice in choices], axis=1))
        return self.write(mask.argmax(1))


class ObservationFormat(NamedTuple):
    """Conversion of batched NumPy observations to tensors.

    Attributes:
        space: the space of one observation as a tensor.
        read: copies a batch `[B, ...]` to the device: floating point numbers become float32, members of discrete
            spaces int64, and dictionaries become mappings.
    """

    space: gymnasium.Space[Any]
    read: Callable[[Any], Tree]

    @classmethod
    def of(cls, space: gymnasium.Space[Any], device: torch.device) -> "ObservationFormat":
        """Return the format of observations of `space`.

        Raises:
            SpaceError: a part of `space` has no arrays of fixed shape. Text in a dictionary, such as the missions of
                MiniGrid, is dropped.
        """
        if isinstance(space, spaces.Dict):
            return cls._of_dict(space, device)
        if isinstance(space, spaces.Box):
            floating = np.issubdtype(space.dtype, np.floating)
            return cls(_float32(space), reader(device, np.float32)) if floating else cls(space, reader(device))
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return cls(space, reader(device, np.int64))
        if isinstance(space, spaces.MultiBinary):
            return cls(space, reader(device))
        raise SpaceError(
            f"observations of {space} have no tensor form; give the environment a wrapper whose observation space is "
            "a Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these"
        )

    @classmethod
    def _of_dict(cls, space: spaces.Dict, device: torch.device) -> "ObservationFormat":
        formats = {key: cls.of(part, device) for key, part in space.spaces.items() if not _is_text(part)}
        if not formats:
            raise SpaceError(f"observations of {space} have only text: give the environment a wrapper")
        if left_out := space.spaces.keys() - formats.keys():
            logger.warning("the text in observations is dropped: %s", ", ".join(sorted(left_out)))

        def read(obs: Any) -> Tree:
            return {key: part.read(obs[key]) for key, part in formats.items()}

        return cls(spaces.Dict({key: part.space for key, part in formats.items()}), read)


def _is_text(space: gymnasium.Space[Any]) -> bool:
    """Return whether a space holds text, such as the missions of MiniGrid."""
    return space.dtype is not None and space.dtype.kind == "U"


def reader(device: torch.device, dtype: Any = None) -> Callable[[np.ndarray], Tensor]:
    """Return a function that copies arrays to tensors on `device`, with a NumPy `dtype` or their own."""
    if device.type == "cpu":
        return lambda array: torch.from_numpy(np.array(array, dtype))
    return lambda array: torch.from_numpy(np.array(array, dtype)).to(device)


def _float32(box: spaces.Box) -> spaces.Box:
    if box.dtype == np.float32:
        return box
    return spaces.Box(box.low.astype(np.float32), box.high.astype(np.float32), dtype=np.float32)


def members(space: gymnasium.Space[Any]) -> int | None:
    """Return the size of a finite space; None for any but Discrete, Multi-, and Tuple or Dict of these."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return math.prod(space.nvec.ravel().tolist())
    if isinstance(space, spaces.MultiBinary):
        return 2 ** math.prod(space.shape)
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        counts = [members(part) for part in parts]
        return None if None in counts else math.prod(count for count in counts if count is not None)
    return None
