"""The pictures of a memory, each plane of which is held once: `Pictures`."""

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
"""Planes in one part of a saved state."""


class Pictures:
    """Pictures `[C, H, W]` as the numbers `[C]` of their planes, in the order in which environments show them.

    What is seen next is what the last action led to, and where the last few pictures of a game are seen at once, as in
    Mnih et al. 2015, all planes but the newest, which is the last, have been seen before. Such planes are recognized by
    what they hold, and not held again: of C pictures seen at once it is one a step, in place of 2 C.

    Planes are numbered as they come. They lie in a ring of blocks, which grows when its oldest planes are still needed.

    Args:
        shape: `(C, H, W)` of a picture.
        dtype: of its numbers.
        device: where planes are held.
        fresh: how many new planes most steps bring: 1, or C.

    Attributes:
        first: number of the oldest plane that is held, a multiple of `BLOCK`.
        head: number of the next plane.
        planes: the ring, `[blocks * BLOCK, H, W]`.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, *, fresh: int = 1) -> None:
        self.channels, self.device, self.fresh = shape[0], device, fresh
        self.first = self.head = 0
        self.planes = torch.empty(0, *shape[1:], dtype=dtype, device=device)
        self._marks: dict[int, object] = {}

    @property
    def plane_size(self) -> int:
        """Bytes of one plane."""
        return math.prod(self.planes.shape[1:]) * self.planes.itemsize

    def size(self, steps: int) -> int:
        """Return how many planes some steps take, and an eighth to spare: every episode brings a picture of its own."""
        return math.ceil(1.125 * self.fresh * steps)

    def reserve(self, planes: int) -> None:
        """Make the ring large enough for that many planes, with what it holds; it never shrinks.

        Raises:
            ValueError: so many do not fit into what is free.
        """
        blocks = math.ceil(planes / BLOCK) + 1  # the oldest block may be needed for its last plane alone
        if blocks * BLOCK <= len(self.planes):
            return
        needed, free = blocks * BLOCK * self.plane_size, available(self.device)
        if len(self.planes) and free is not None and needed > free:
            raise ValueError(
                f"the replay buffer holds more images than expected, since episodes are short, and needs "
                f"{readable(needed)} more for a while, but {readable(free)} are available on {self.device}: lower "
                "buffer_size"
            )
        old, self.planes = self.planes, self.planes.new_empty(blocks * BLOCK, *self.planes.shape[1:])
        for start in range(self.first, self.head, BLOCK):
            place, former = start % len(self.planes), start % len(old)
            self.planes[place : place + BLOCK] = old[former : former + BLOCK]

    def take(self, numbers: Tensor) -> Tensor:
        """Return the pictures `[..., C, H, W]` of planes `[..., C]` that are held."""
        places = numbers.flatten() % len(self.planes)
        return self.planes.index_select(0, places).view(*numbers.shape, *self.planes.shape[1:])

    def forget(self, below: int) -> None:
        """Give up the planes with numbers less than this."""
        first = below // BLOCK * BLOCK
        if first > self.first:
            self.first = first
            self._marks = {start: mark for start, mark in self._marks.items() if start >= first}

    @staticmethod
    def moved(seen: Tensor, successors: Tensor) -> np.ndarray:
        """Return which successors `[T, R, C, H, W]` are what was seen, moved on by one new plane: `[T, R]`."""
        return _same(seen[:, :, 1:], successors[:, :, :-1])

    def add(self, seen: Tensor, successors: Tensor, latest: Tensor | None) -> tuple[Tensor, Tensor]:
        """Hold what was seen in some steps and what it led to, both `[T, R, C, H, W]`, and return their numbers.

        Args:
            seen: by step and row.
            successors: of the same steps.
            latest: numbers `[R, C]` of what the step before led to; None: there is none.

        Returns:
            Numbers `[T, R, C]` of what was seen, and of its successors.
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
        """Number the planes of steps `[T, R]` that saw the last successors `again`, and whose successors `moved` on."""
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

    def _write(self, chosen: np.ndarray, numbers: Tensor, pictures: Tensor) -> None:
        """Put those planes `[T, R, c, H, W]` that are `chosen [T, R]` where their numbers `[T, R, c]` say."""
        if not chosen.any():
            return
        if not chosen.all():
            rows = torch.as_tensor(chosen, device=self.device)
            numbers, pictures = numbers[rows], pictures[rows]
        places = numbers.flatten() % len(self.planes)
        self.planes.index_copy_(0, places, pictures.reshape(-1, *self.planes.shape[1:]))

    def state_dict(self) -> State:
        """Return the planes that are held, in blocks that say whether they have changed."""
        starts = range(self.first, self.head, BLOCK)
        places = {"first": self.first, "head": self.head, "fresh": self.fresh}
        return {**places, "segments": {str(start): self._part(start) for start in starts}}

    def _part(self, start: int) -> Part:
        place, full = start % len(self.planes), start + BLOCK <= self.head
        mark = self._marks.setdefault(start, object()) if full else object()
        return Part({"planes": self.planes[place : place + min(BLOCK, self.head - start)]}, mark=mark)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `state_dict`.

        Raises:
            ValueError: the pictures are of another size.
        """
        self.reserve(state["head"] - state["first"])
        self.first, self.head, self._marks = state["first"], state["head"], {}
        for start, part in state["segments"].items():
            place = int(start) % len(self.planes)
            copy_into(self.planes[place : place + len(part["planes"])], part["planes"], "pictures")


def _same(left: Tensor, right: Tensor) -> np.ndarray:
    """Return which of two times `[T, R, ...]` pictures hold the same."""
    equal = (left == right).flatten(2)
    # On the CPU PyTorch takes twenty times as long for this as NumPy.
    return np.logical_and.reduce(equal.numpy(), 2) if equal.device.type == "cpu" else equal.all(2).cpu().numpy()
