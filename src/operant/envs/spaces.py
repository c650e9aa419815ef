"""Tensor forms of an environment's spaces, and their sizes."""

import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from operant.envs.base import Tree
from operant.tensors import from_numpy

if TYPE_CHECKING:
    from typing_extensions import TypeIs  # in `typing` from Python 3.13 on

logger = logging.getLogger(__name__)

SMALLEST_IMAGE = 16
"""Height and width of arrays of three axes from which they may be images."""


def is_box(space: gymnasium.Space[Any]) -> "TypeIs[spaces.Box[Any]]":
    """Return whether a space is a Box, narrowing its type."""
    return isinstance(space, spaces.Box)


def is_multi_discrete(space: gymnasium.Space[Any]) -> "TypeIs[spaces.MultiDiscrete[Any]]":
    """Return whether a space is a MultiDiscrete, narrowing its type."""
    return isinstance(space, spaces.MultiDiscrete)


def is_dict(space: gymnasium.Space[Any]) -> "TypeIs[spaces.Dict[Any]]":
    """Return whether a space is a Dict, narrowing its type."""
    return isinstance(space, spaces.Dict)


def is_tuple(space: gymnasium.Space[Any]) -> "TypeIs[spaces.Tuple[Any]]":
    """Return whether a space is a Tuple, narrowing its type."""
    return isinstance(space, spaces.Tuple)


def discrete(space: gymnasium.Space[Any]) -> spaces.Discrete:
    """Return a Discrete space, narrowing its type.

    Raises:
        SpaceError: if the space is not Discrete.
    """
    if not isinstance(space, spaces.Discrete):
        raise SpaceError(f"expected a Discrete space, got {space}")
    return space


def first_member(space: gymnasium.Space[Any]) -> Any:
    """Return the first member of a Discrete or MultiDiscrete space; 0 for other spaces."""
    return space.start if isinstance(space, spaces.Discrete) or is_multi_discrete(space) else 0


class VectorSpaces(Protocol):
    """Typed spaces of a vector environment, whose annotations in Gymnasium are incomplete."""

    @property
    def single_observation_space(self) -> gymnasium.Space[Any]:
        """Space of one environment's observation."""
        ...

    @property
    def single_action_space(self) -> gymnasium.Space[Any]:
        """Space of one environment's action."""
        ...

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """Space of the observations of all environments."""
        ...

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        """Space of the actions of all environments."""
        ...


def spaces_of(env: VectorSpaces) -> VectorSpaces:
    """Return a vector environment, typed as `VectorSpaces`."""
    return env


class SpaceError(TypeError, ValueError):
    """Raised if a space cannot be represented by tensors; the message lists the supported spaces."""


class ActionFormat(NamedTuple):
    """Shape and dtype of the actions of `rows` copies of a space.

    Attributes:
        shape: shape of the batch, `[B, *space.shape]`.
        floating: whether actions are floating-point; otherwise int64.
    """

    shape: tuple[int, ...]
    floating: bool

    @classmethod
    def of(cls, space: gymnasium.Space[Any], rows: int) -> "ActionFormat":
        """Return the format of `rows` actions of `space`.

        Raises:
            SpaceError: `space` is composite or not numeric.
        """
        floating = is_box(space) and np.issubdtype(space.dtype, np.floating)
        if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
            raise SpaceError(
                f"actions of {space} cannot be a single tensor: add a wrapper whose action space is "
                "a Box, Discrete, MultiDiscrete or MultiBinary"
            )
        shape = space.shape or ()
        return cls((rows, *shape), floating)

    def check(self, actions: Tensor) -> None:
        """Check the shape and dtype of actions, but not their values.

        Raises:
            ValueError: if the shape differs, or the actions require gradients.
            TypeError: if the dtype differs.
        """
        if actions.shape != self.shape:
            raise ValueError(
                f"actions have shape {list(actions.shape)}, but {list(self.shape)} is needed: one per environment"
            )
        if not (actions.is_floating_point() if self.floating else actions.dtype is torch.int64):
            kind = "a floating point dtype" if self.floating else "torch.int64"
            raise TypeError(f"actions have dtype {actions.dtype}, but the action space needs {kind}")
        if actions.requires_grad:
            raise ValueError("actions require gradients, but environments are not differentiated: use actions.detach()")


class GymnasiumActions(NamedTuple):
    """Conversion of a learner's actions to a Gymnasium space.

    Attributes:
        space: the learner's space: a Discrete from 0; a MultiDiscrete with one axis from 0, also for a MultiBinary; a
            float Box with one axis; other spaces are unchanged.
        write: function from a batch `[B, ...]` of its members to actions `[B, ...]` of the Gymnasium space.
    """

    space: gymnasium.Space[Any]
    write: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def of(cls, space: gymnasium.Space[Any]) -> "GymnasiumActions":
        """Return the conversion for `space`."""
        shape, dtype, seen = space.shape or (), space.dtype, space
        first = np.asarray(first_member(space), dtype)
        shifted = bool(first.any())
        if isinstance(space, spaces.Discrete):
            seen = spaces.Discrete(int(space.n))
        elif is_multi_discrete(space):
            seen = spaces.MultiDiscrete(space.nvec.ravel())
        elif isinstance(space, spaces.MultiBinary):
            seen = spaces.MultiDiscrete(np.full(math.prod(shape), 2))
        elif is_box(space) and np.issubdtype(dtype, np.floating):
            seen = spaces.Box(space.low.ravel(), space.high.ravel(), dtype=space.dtype.type)

        def write(actions: np.ndarray) -> np.ndarray:
            chosen = actions.reshape(-1, *shape).astype(dtype)
            return chosen + first if shifted else chosen

        return cls(seen, write)

    def allowed(self, mask: np.ndarray) -> np.ndarray:
        """Return the first allowed action of each environment, `[B, ...]` in the Gymnasium space.

        Args:
            mask: true for allowed actions, `[B, M]`; masks of the components of a MultiDiscrete are concatenated.
        """
        if is_multi_discrete(self.space):
            choices = np.split(mask, np.cumsum(self.space.nvec)[:-1], axis=1)
            return self.write(np.stack([choice.argmax(1) for choice in choices], axis=1))
        return self.write(mask.argmax(1))


class ObservationFormat(NamedTuple):
    """Conversion of batched NumPy observations to tensors.

    Attributes:
        space: space of one observation, as a tensor.
        read: function that copies a batch `[B, ...]` to the device; floats become float32, members of discrete spaces
            int64, and dictionaries mappings.
    """

    space: gymnasium.Space[Any]
    read: Callable[[Any], Tree]

    @classmethod
    def of(cls, space: gymnasium.Space[Any], device: torch.device) -> "ObservationFormat":
        """Return the format of observations of `space`.

        Raises:
            SpaceError: if a part of `space` is not an array of fixed shape. Text in a dictionary, such as the missions
                of MiniGrid, is dropped.
        """
        if is_dict(space):
            return cls._of_dict(space, device)
        if is_box(space):
            floating = np.issubdtype(space.dtype, np.floating)
            return cls(_float32(space), reader(device, np.float32)) if floating else cls(space, reader(device))
        if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
            return cls(space, reader(device, np.int64))
        if isinstance(space, spaces.MultiBinary):
            return cls(space, reader(device))
        raise SpaceError(
            f"observations of {space} cannot be represented by tensors: add a wrapper whose observation space is "
            "a Box, Discrete, MultiDiscrete, MultiBinary or a Dict of these"
        )

    @classmethod
    def _of_dict(cls, space: spaces.Dict, device: torch.device) -> "ObservationFormat":
        formats = {key: cls.of(part, device) for key, part in space.spaces.items() if not _is_text(part)}
        if not formats:
            raise SpaceError(f"observations of {space} contain only text: add a wrapper that encodes it")
        if left_out := space.spaces.keys() - formats.keys():
            logger.warning("the text in observations is dropped: %s", ", ".join(sorted(left_out)))

        def read(obs: Any) -> Tree:
            return {key: part.read(obs[key]) for key, part in formats.items()}

        return cls(spaces.Dict({key: part.space for key, part in formats.items()}), read)


def warn_of_flattening(space: gymnasium.Space[Any]) -> None:
    """Log a warning that what may be images is flattened to a vector: stacked color images, and images of floats."""
    if not is_box(space):
        return
    if space.dtype == np.uint8 and len(space.shape) == 4:
        logger.warning(
            "observations of shape %s are not images, which have two or three axes, and are flattened to vectors: for "
            "convolutions, join stack and channels in a wrapper, as in [12, 84, 84]",
            list(space.shape),
        )
    elif space.dtype != np.uint8 and len(space.shape) == 3 and sorted(space.shape)[1] >= SMALLEST_IMAGE:
        logger.warning(
            "observations of shape %s and type %s are flattened to vectors: for convolutions, return bytes (uint8, "
            "bounds 0 and 255)",
            *(list(space.shape), space.dtype),
        )


def _is_text(space: gymnasium.Space[Any]) -> bool:
    """Return whether a space is text, such as the missions of MiniGrid."""
    return space.dtype is not None and space.dtype.kind == "U"


def reader(device: torch.device, dtype: Any = None) -> Callable[[np.ndarray], Tensor]:
    """Return a function that copies arrays to tensors on `device`, converted to a NumPy `dtype` if given."""
    if device.type == "cpu":
        return lambda array: from_numpy(np.array(array, dtype))
    return lambda array: from_numpy(np.array(array, dtype)).to(device)


def _float32(box: spaces.Box) -> spaces.Box:
    if box.dtype == np.float32:
        return box
    with np.errstate(over="ignore"):  # bounds beyond float32 become infinite
        low, high = box.low.astype(np.float32), box.high.astype(np.float32)
    return spaces.Box(low, high, dtype=np.float32)


def members(space: gymnasium.Space[Any]) -> int | None:
    """Return the number of members of a finite space: Discrete, MultiDiscrete, MultiBinary, and Tuple or Dict of these.

    None for other spaces.
    """
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if is_multi_discrete(space):
        return math.prod(space.nvec.ravel().tolist())
    if isinstance(space, spaces.MultiBinary):
        return 2 ** math.prod(space.shape)
    if is_dict(space) or is_tuple(space):
        parts = space.spaces.values() if is_dict(space) else space.spaces
        counts = [members(part) for part in parts]
        return None if None in counts else math.prod(count for count in counts if count is not None)
    return None
