"""Key-value cache of sequences being completed: `Slots`."""

from collections.abc import Sequence

import torch
from torch import Tensor

from operant.language.attention import dot_product_attention

STEP = 64
"""Increment of the cache length in tokens."""


class Slots:
    """A layout (`operant.language.attention.Layout`) in which each row is the next token of a different sequence.

    Active sequences come first, so a step attends to a view of the cache.

    Args:
        rows: maximum number of parallel sequences.
        longest: maximum number of tokens of a sequence, which limits the cache; None if unknown.
    """

    def __init__(self, rows: int, longest: int | None = None):
        self.rows, self.longest = rows, longest
        self.lengths = torch.zeros(rows, dtype=torch.int64)
        self.used = 0
        self._room = 0
        self._stored: list[tuple[Tensor, Tensor]] = []
        self._places: Tensor | None = None
        self._mask: Tensor | None = None
        self._reach = 0

    def fill(self, stored: list[tuple[Tensor, Tensor]], starts: list[int], lengths: list[int]) -> None:
        """Add a sequence for each start, with the keys and values of its prompt.

        Args:
            stored: keys and values `[n, K, D]` of packed prompts for every layer.
            starts: start index of the prompt of each new sequence in them; sequences with equal starts share a prompt.
            lengths: lengths of the prompts.
        """
        first, count = self.used, len(starts)
        self._grow(max(lengths) + 1, stored)
        index = torch.tensor(starts).unsqueeze(1) + torch.arange(max(lengths)).clamp(
            max=torch.tensor(lengths).unsqueeze(1) - 1
        )
        index = index.to(stored[0][0].device)
        for (keys, values), (new_keys, new_values) in zip(self._stored, stored, strict=True):
            for target, source in ((keys, new_keys), (values, new_values)):
                target[first : first + count, :, : max(lengths)] = source[index].transpose(1, 2)
        self.lengths[first : first + count] = torch.tensor(lengths)
        self.used += count

    def begin(self) -> Tensor:
        """Reserve space for one more token of every sequence; return the positions of these tokens, `[used]`."""
        positions = self.lengths[: self.used].clone()
        self._reach = int(positions.max()) + 1
        self._grow(self._reach)
        device = self._stored[0][0].device
        self._places = positions.to(device)
        uniform = bool((positions == positions[0]).all())
        seen = None if uniform else torch.arange(self._reach) <= positions.unsqueeze(1)
        self._mask = None if seen is None else seen[:, None, None].to(device)
        self._rows_in_use = torch.arange(self.used, device=device)
        self.lengths[: self.used] += 1
        return self._places

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        """Store the new tokens' keys and values and attend to all of their sequences; see `Layout`."""
        stored_keys, stored_values = self._stored[layer]
        stored_keys[self._rows_in_use, :, self._places] = keys
        stored_values[self._rows_in_use, :, self._places] = values
        mask = self._mask if window is None or window >= self._reach else self._windowed(window)
        grouped = queries.view(self.used, keys.shape[1], -1, queries.shape[-1])
        seen_keys, seen_values = (stored[: self.used, :, : self._reach] for stored in (stored_keys, stored_values))
        found = dot_product_attention(grouped, seen_keys, seen_values, mask, scale=scale)
        return found.reshape(queries.shape)

    def keep(self, counts: Sequence[int]) -> list[int]:
        """Set the number of copies of each active sequence: 0 frees its slot, and copies can continue differently.

        Args:
            counts: number of copies of each active sequence, with a sum of at most `rows`.

        Returns:
            For each slot that is active afterwards, the previous slot of its sequence.
        """
        left, before = sum(counts), list(range(sum(counts)))
        gaps = [slot for slot in range(left) if slot >= self.used or not counts[slot]]
        sources = [slot for slot, count in enumerate(counts) for _ in range(count - (slot < left and count > 0))]
        if gaps:
            device = self._stored[0][0].device
            target, source = torch.tensor(gaps, device=device), torch.tensor(sources, device=device)
            reach = int(self.lengths[sources].max())
            for pair in self._stored:
                for stored in pair:
                    stored[target, :, :reach] = stored[source, :, :reach]
            self.lengths[gaps] = self.lengths[sources]
            for gap, slot in zip(gaps, sources, strict=True):
                before[gap] = slot
        self.used = left
        return before

    def _windowed(self, window: int) -> Tensor:
        assert self._places is not None  # noqa: S101 - set by `begin`
        distance = self._places[:, None] - torch.arange(self._reach, device=self._places.device)
        return ((distance >= 0) & (distance < window))[:, None, None]

    def _grow(self, length: int, like: list[tuple[Tensor, Tensor]] | None = None) -> None:
        """Reserve space for sequences of `length` tokens."""
        if length <= self._room:
            return
        room = -(-length // STEP) * STEP
        room = room if self.longest is None else min(room, max(length, self.longest))
        old, self._room = self._room, room
        if not self._stored:
            assert like is not None  # noqa: S101 - given in the first call
            self._stored = [
                (
                    keys.new_zeros(self.rows, keys.shape[1], room, keys.shape[2]),
                    values.new_zeros(self.rows, values.shape[1], room, values.shape[2]),
                )
                for keys, values in like
            ]
            return
        for layer, (keys, values) in enumerate(self._stored):  # one layer at a time, to avoid two copies of all layers
            self._stored[layer] = self._wider(keys, old, room), self._wider(values, old, room)

    def _wider(self, stored: Tensor, old: int, room: int) -> Tensor:
        wider = stored.new_zeros(*stored.shape[:2], room, stored.shape[3])
        wider[: self.used, :, :old] = stored[: self.used]
        return wider
