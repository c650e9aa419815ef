"""Conversion of observations to network inputs: a vector, an image, or a vector that starts with an image."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.functional import one_hot

from operant.envs.base import Tree
from operant.envs.spaces import is_box, is_dict, is_multi_discrete, warn_of_flattening
from operant.tensors import from_numpy

MASK = "action_mask"
"""Key of the action mask in observations."""


@dataclass(frozen=True)
class Features:
    """Encoding of the observations of a space as a single tensor.

    - Images (uint8 boxes from 0 to 255 with two or three axes) are uint8 `[C, H, W]`. The channel axis is the shorter
      of the first and the last one; it is added if missing.
    - Dictionaries are one float32 vector of their parts in alphabetical order of the keys: flattened boxes, and one-hot
      vectors for discrete spaces. An image among the parts comes first, as numbers from 0 to 255; `action_mask` comes
      last.
    - All other observations are encoded as a vector in the same way.

    Attributes:
        shape: shape of one observation: `(D,)` or `(C, H, W)`.
        masked: length of the action mask at the end of the vector; 0 without a mask.
        encode: function from a batch of observations `[M, ...]` to `[M, *shape]`.
        image: shape `(C, H, W)` of the image at the start of the vector, or None.
        slices: slices of a dictionary's parts in the vector, by key; keys of nested dictionaries are joined by a dot.
            Empty for other observations.
    """

    shape: tuple[int, ...]
    masked: int
    encode: Callable[[Tree], Tensor]
    image: tuple[int, int, int] | None = None
    slices: Mapping[str, slice] = field(default_factory=dict[str, slice], compare=False)

    @classmethod
    def of(cls, space: gymnasium.Space[Any], action_space: gymnasium.Space[Any]) -> "Features":
        """Return the features of the observations of `space`.

        Raises:
            ValueError: a dictionary has several images, an image in a nested dictionary, or only a mask, the mask does
                not match the actions, or the observations are empty.
            TypeError: a part of the space is not an array of fixed shape.
        """
        if is_image(space):
            return _image(space.shape or ())
        warn_of_flattening(space)
        masked = 0
        if is_dict(space) and MASK in space.spaces:
            masked = _mask_size(space.spaces[MASK], action_space)
        image, rest = _taken_out(space)
        width, encode = _vector(rest, "")
        slices = dict(_slices(rest, 0 if image is None else math.prod(image[1].shape)))
        if image is not None:
            slices[image[0]] = slice(0, math.prod(image[1].shape))
            return replace(_with_image(*image, width, masked, encode), slices=slices)
        if width == masked:
            found = "contain only a mask" if masked else "are empty"
            raise ValueError(f"observations of {space} {found}: add inputs for the policy")
        return cls((width,), masked, encode, slices=slices)

    @classmethod
    def numbers(cls, space: gymnasium.Space[Any]) -> "Features | None":
        """Return the features `(1,)` of a finite space as int64 indices, for embedding look-ups.

        They are equivalent to the one-hot vectors of `of`; None for any other space.
        """
        if not isinstance(space, spaces.Discrete):
            return None
        return cls((1,), 0, lambda obs: (_tensor(obs).long() - int(space.start)).unsqueeze(-1))

    def by_seed(self, obs: Tree) -> Tensor:
        """Encode observations `[S, N, ...]` as `[S, N, *shape]`.

        Raises:
            ValueError: the observations have another shape.
        """
        seeds, rows = _leading(obs)
        encoded = self.encode(_merged(obs))
        if encoded.shape != (seeds * rows, *self.shape):
            raise ValueError(
                f"encoded observations have shape {[*encoded.shape]}, but {[seeds * rows, *self.shape]} is needed: "
                "they belong to another environment, or have another preprocessing"
            )
        return encoded.view(seeds, rows, *self.shape)


def is_image(space: gymnasium.Space[Any]) -> bool:
    """Return whether a space contains images: uint8 from 0 to 255 with two or three axes."""
    return (
        is_box(space)
        and space.dtype == np.uint8
        and len(space.shape) in (2, 3)
        and bool((space.low == 0).all() and (space.high == 255).all())
    )


def _leading(obs: Tree) -> tuple[int, int]:
    while not isinstance(obs, Tensor):
        obs = next(iter(obs.values()))
    return obs.shape[0], obs.shape[1]


def _merged(obs: Tree) -> Tree:
    """Merge the first two axes of a tree into one."""
    if isinstance(obs, Tensor):
        return obs.flatten(0, 1)
    return {key: _merged(part) for key, part in obs.items()}


def _image(shape: tuple[int, ...]) -> Features:
    if len(shape) == 2:
        return Features((1, *shape), 0, lambda obs: _tensor(obs).unsqueeze(1))
    if shape[0] <= shape[2]:
        return Features(shape, 0, _tensor)
    return Features((shape[2], *shape[:2]), 0, lambda obs: _tensor(obs).movedim(3, 1).contiguous())


def _taken_out(space: gymnasium.Space[Any]) -> tuple[tuple[str, Features] | None, gymnasium.Space[Any]]:
    """Return the image of a dictionary with its key, if any, and the other parts."""
    parts: dict[str, gymnasium.Space[Any]] = space.spaces if is_dict(space) else {}
    found = [key for key, part in parts.items() if is_image(part)]
    if len(found) > 1:
        raise ValueError(
            f"parts {', '.join(found)} of the observation are images: add a wrapper that concatenates them into one "
            "image, along the channels"
        )
    if not found:
        return None, space
    rest = spaces.Dict({key: part for key, part in parts.items() if key != found[0]})
    return (found[0], _image(parts[found[0]].shape or ())), rest


def _with_image(key: str, seen: Features, width: int, masked: int, encode: Callable[[Tree], Tensor]) -> Features:
    """Return the features of a dictionary with an image, whose features are `seen`, and a vector of other parts."""

    def both(obs: Tree) -> Tensor:
        if isinstance(obs, Tensor):
            raise TypeError("observations must be a dictionary, got one tensor")
        first = seen.encode(obs[key]).flatten(1).float()
        return torch.cat((first, encode(obs)), dim=1) if width else first

    channels, height, side = seen.shape
    return Features((math.prod(seen.shape) + width,), masked, both, (channels, height, side))


def _mask_size(mask: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> int:
    if isinstance(actions, spaces.Discrete):
        count, counted = int(actions.n), "actions"
    elif is_multi_discrete(actions):
        count, counted = int(actions.nvec.sum()), f"alternatives of {len(actions.nvec)} choices, concatenated"
    else:
        raise ValueError(f"{MASK!r} can only mask discrete actions, but they are {actions}")
    if not isinstance(mask, spaces.Box | spaces.MultiBinary) or mask.shape != (count,):
        raise ValueError(
            f"{MASK!r} must be a MultiBinary or Box with one entry for each of {count} {counted}, got {mask}"
        )
    return count


def _vector(space: gymnasium.Space[Any], key: str) -> tuple[int, Callable[[Tree], Tensor]]:
    """Return the width of the vector that encodes members of `space`, and its encoder."""
    if is_dict(space):
        return _dictionary(space)
    if isinstance(space, spaces.Discrete):
        return int(space.n), lambda obs: one_hot(_tensor(obs).long() - int(space.start), int(space.n)).float()
    if is_multi_discrete(space):
        return _multi_discrete(space)
    if is_box(space) or isinstance(space, spaces.MultiBinary):
        if key and is_image(space):
            raise ValueError(
                f"part {key!r} of a nested dictionary of the observation is an image: add a wrapper that moves it to "
                "the top level, or removes it"
            )
        width = math.prod(space.shape)
        return width, lambda obs: _vectors(_tensor(obs), width)
    raise TypeError(f"observations of {space} cannot be encoded as a vector; use a Box, Discrete or Dict of these")


def _vectors(obs: Tensor, width: int) -> Tensor:
    """Return observations as vectors `[B, width]` of float32."""
    if obs.dim() == 2 and obs.dtype == torch.float32:  # a view and a conversion without effect take time in each step
        return obs
    return obs.reshape(-1, width).float()


def _dictionary(space: spaces.Dict) -> tuple[int, Callable[[Tree], Tensor]]:
    parts = {key: _vector(space.spaces[key], key) for key in _in_order(space)}

    def encode(obs: Tree) -> Tensor:
        if isinstance(obs, Tensor):
            raise TypeError(f"observations of {space} must be a dictionary, got one tensor")
        return torch.cat([read(obs[key]) for key, (_, read) in parts.items()], dim=1)

    return sum(width for width, _ in parts.values()), encode


def _in_order(space: spaces.Dict) -> list[str]:
    """Return the keys in the order of their parts in a vector."""
    return sorted(space.spaces, key=lambda key: (key == MASK, key))


def _slices(space: gymnasium.Space[Any], start: int, path: str = "") -> Iterator[tuple[str, slice]]:
    """Yield the slices of a dictionary's parts in its vector, which starts at `start`."""
    if not is_dict(space):
        return
    for key in _in_order(space):
        width, _ = _vector(space.spaces[key], key)
        yield f"{path}{key}", slice(start, start + width)
        yield from _slices(space.spaces[key], start, f"{path}{key}.")
        start += width


def _multi_discrete(space: spaces.MultiDiscrete) -> tuple[int, Callable[[Tree], Tensor]]:
    sizes, first = from_numpy(space.nvec.ravel()).long(), from_numpy(space.start.ravel()).long()
    width, offsets = int(sizes.sum()), sizes.cumsum(0) - sizes

    def encode(obs: Tree) -> Tensor:
        given = _tensor(obs).flatten(1).long()
        numbers = given - first.to(given.device)
        if ((numbers < 0) | (numbers >= sizes.to(numbers.device))).any():
            raise ValueError(f"an observation is not a member of {space}")
        places = numbers + offsets.to(numbers.device)
        return torch.zeros(len(places), width, device=places.device).scatter_(1, places, 1.0)

    return width, encode


def _tensor(obs: Tree) -> Tensor:
    if not isinstance(obs, Tensor):
        raise TypeError(f"observations must be one tensor, got a {type(obs).__name__}")
    return obs
