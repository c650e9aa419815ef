"""Deduplicated image frames of a replay buffer: `FrameStore`."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from operant.runtime.available_memory import available
from operant.runtime.sizes import readable
from operant.state import Part, State, copy_into

BLOCK = 4096
"""Number of frames in one part of a saved state."""


class FrameStore:
    """Store of stacked frames `[C, H, W]`, which are represented by the indices `[C]` of their planes.

    An observation is the successor of the previous step, and with frame stacking (Mnih et al. 2015) all its planes
    except the newest have occurred before. Such planes are recognized by their contents and stored once: one plane per
    step with C stacked frames, instead of 2 C.

    Planes are numbered in order of arrival, in a ring buffer of blocks that grows while its oldest planes are in use.

    Args:
        shape: shape of an observation, `(C, H, W)`.
        dtype: dtype of observations.
        device: device of the planes.
        fresh: number of new planes of most steps: 1, or C.

    Attributes:
        first: number of the oldest stored plane, a multiple of `BLOCK`.
        head: number of the next plane.
        planes: ring buffer, `[blocks * BLOCK, H, W]`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, fresh: int = 1) -> None:
        self.channels, self.device, self.fresh = shape[0], device, fresh
        self.first = self.head = 0
        self.planes = torch.empty(0, *shape[1:], dtype=dtype, device=device)
        self._marks: dict[int, object] = {}

    @property
    def plane_size(self) -> int:
        """Size of a plane in bytes."""
        return math.prod(self.planes.shape[1:]) * self.planes.itemsize

    def size(self, steps: int) -> int:
        """Return the number of planes for `steps` steps, plus an eighth for the first observations of episodes."""
        return math.ceil(1.125 * self.fresh * steps)

    def reserve(self, planes: int) -> None:
        """Enlarge the ring buffer to `planes` planes, keeping its contents; it never shrinks.

        Raises:
            ValueError: the planes do not fit into available memory.
        """
        blocks = math.ceil(planes / BLOCK) + 1  # only the last plane of the oldest block may be in use
        if blocks * BLOCK <= len(self.planes):
            return
        needed, free = blocks * BLOCK * self.plane_size, available(self.device)
        if len(self.planes) and free is not None and needed > free:
            raise ValueError(
                f"the replay buffer has more images than expected, since episodes are short, and temporarily needs "
                f"{readable(needed)} more, but {readable(free)} are available on {self.device}: lower "
                "buffer_size"
            )
        old, self.planes = self.planes, self.planes.new_empty(blocks * BLOCK, *self.planes.shape[1:])
        for start in range(self.first, self.head, BLOCK):
            place, former = start % len(self.planes), start % len(old)
            self.planes[place : place + BLOCK] = old[former : former + BLOCK]

    def take(self, numbers: Tensor) -> Tensor:
        """Return the observations `[..., C, H, W]` of stored planes `[..., C]`."""
        places = numbers.flatten() % len(self.planes)
        return self.planes.index_select(0, places).view(*numbers.shape, *self.planes.shape[1:])

    def forget(self, below: int) -> None:
        """Drop the planes with numbers below `below`."""
        first = below // BLOCK * BLOCK
        if first > self.first:
            self.first = first
            self._marks = {start: mark for start, mark in self._marks.items() if start >= first}

    @staticmethod
    def moved(seen: Tensor, successors: Tensor) -> np.ndarray:
        """Return a mask `[T, R]` of the successors that are the observation shifted by one new plane."""
        return _same(seen[:, :, 1:], successors[:, :, :-1])

    def add(self, seen: Tensor, successors: Tensor, latest: Tensor | None) -> tuple[Tensor, Tensor]:
        """Store the observations and successors of some steps, and return their plane numbers.

        Args:
            seen: observations, `[T, R, C, H, W]`.
            successors: successors of the same steps, `[T, R, C, H, W]`.
            latest: plane numbers of the previous successors, `[R, C]`, or None.

        Returns:
            Plane numbers of the observations and of the successors, `[T, R, C]` each.
        """
        before = successors[:1] if latest is None else self.take(latest).unsqueeze(0)
        again = _same(seen, torch.cat((before, successors[:-1])))
        if latest is None:
            again[0] = False
        moved = self.moved(seen, successors)
        first, second = (torch.as_tensor(part, device=self.device) for part in self._numbers(again, moved, latest))
        self._write(~again, first, seen)
        self._write(~moved, second, successors)
        self._write(moved, second[:, :, -1:], successors[:, :, -1:])
        return first, second

    def _numbers(self, again: np.ndarray, moved: np.ndarray, latest: Tensor | None) -> tuple[np.ndarray, np.ndarray]:
        """Compute plane numbers for steps `[T, R]` that repeat the last successor (`again`) or shift it (`moved`)."""
        channels, shape = np.arange(self.channels), again.shape
        new = np.stack((np.where(again, 0, self.channels), np.where(moved, 1, self.channels)), axis=1)
        ends = self.head + new.ravel().cumsum().reshape(new.shape)
        first, second = np.empty((2, *shape, self.channels), np.int64)
        known = np.zeros((shape[1], self.channels), np.int64) if latest is None else latest.cpu().numpy()
        for t in range(shape[0]):
            fresh, following = (ends[t] - new[t])[..., None] + channels
            first[t] = np.where(again[t, :, None], known, fresh)
            shifted = np.concatenate((first[t, :, 1:], following[:, :1]), axis=1)
            known = second[t] = np.where(moved[t, :, None], shifted, following)
        head = int(ends[-1, -1, -1])
        if head - self.first > len(self.planes):
            self.reserve(math.ceil(1.25 * (head - self.first)))
        self.head = head
        return first, second

    def _write(self, chosen: np.ndarray, numbers: Tensor, frames: Tensor) -> None:
        """Store the planes `[T, R, c, H, W]` in the mask `chosen [T, R]` at their numbers `[T, R, c]`."""
        if not chosen.any():
            return
        if not chosen.all():
            rows = torch.as_tensor(chosen, device=self.device)
            numbers, frames = numbers[rows], frames[rows]
        places = numbers.flatten() % len(self.planes)
        self.planes.index_copy_(0, places, frames.reshape(-1, *self.planes.shape[1:]))

    def state_dict(self) -> State:
        """Return the stored planes, in blocks with change detection."""
        starts = range(self.first, self.head, BLOCK)
        places = {"first": self.first, "head": self.head, "fresh": self.fresh}
        return {**places, "segments": {str(start): self._part(start) for start in starts}}

    def _part(self, start: int) -> Part:
        place, full = start % len(self.planes), start + BLOCK <= self.head
        mark = self._marks.setdefault(start, object()) if full else object()
        return Part({"planes": self.planes[place : place + min(BLOCK, self.head - start)]}, mark=mark)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of `state_dict`.

        Raises:
            ValueError: the images have another size.
        """
        self.reserve(state["head"] - state["first"])
        self.first, self.head, self._marks = state["first"], state["head"], {}
        for start, part in state["segments"].items():
            place = int(start) % len(self.planes)
            copy_into(self.planes[place : place + len(part["planes"])], part["planes"], "frames")


def _same(left: Tensor, right: Tensor) -> np.ndarray:
    """Return which of two `[T, R, ...]` batches of images are equal."""
    equal = (left == right).flatten(2)
    # On the CPU PyTorch takes twenty times as long for this as NumPy.
    return np.logical_and.reduce(equal.numpy(), 2) if equal.device.type == "cpu" else equal.all(2).cpu().numpy()
