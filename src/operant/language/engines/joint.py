"""Next tokens of several batches in one forward pass, each with the bits that it has in a pass of its own: `JointPass`.

Shards of one process sample together, while other processes sample the same shards alone, so the results must not
depend on which batches share a pass. All layers but attention work on single tokens, and attention is computed batch by
batch. What remains are kernels that depend on the number of tokens:

* Elementwise functions compute the last few numbers in another way than whole vectors. The tokens of each batch are
  padded to a multiple of `TILE`, alone and together, so that there is no such rest.
* Matrix products may add in another order. Passes of each size are compared with passes of `TILE` tokens, on random
  tokens and with the network in use, before they are used (see `Agreement`). Where a number differs, batches are passed
  one by one.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from operant.language.engines.cache import Slots
from operant.language.models import LanguageModel
from operant.nets import Agreement

TILE = 16
"""Numbers of tokens of a batch are padded to multiples of this."""
LIMIT = 256
"""Maximum number of tokens of a pass of several batches, since larger ones gain little."""
MIXING = ("expert", "dynamic", "longrope")
"""Words in the configuration of networks whose layers depend on the other tokens of a pass: mixtures of experts, and
rotary embeddings scaled by the largest position."""


class NextTokens(NamedTuple):
    """The next tokens of the active sequences of a batch.

    Attributes:
        ids: token ids, `[n]`.
        slots: cache of the sequences.
    """

    ids: Tensor
    slots: Slots


class JointPass:
    """Forward passes of several batches through one network."""

    def __init__(self) -> None:
        self._tests: dict[int, Agreement] = {}

    def logits(self, model: LanguageModel, batches: Sequence[NextTokens]) -> Iterator[Tensor]:
        """Yield the logits `[n, V]` that follow the tokens of each batch, and store the tokens in its cache.

        Args:
            model: network.
            batches: batches, with at least one token each.
        """
        for group in self._groups(model, batches):
            layout = _Apart([batch.slots for batch in group])
            ids = torch.cat([pad(batch.ids, (0, _rest(len(batch.ids)))) for batch in group])
            positions = torch.cat([pad(batch.slots.begin(), (0, _rest(len(batch.ids)))) for batch in group])
            found = model.logits(model.hidden(ids, positions, layout))
            yield from (found[rows] for rows in layout.rows)

    def _groups(self, model: LanguageModel, batches: Sequence[NextTokens]) -> Iterator[Sequence[NextTokens]]:
        """Yield consecutive batches that are passed together, as many as possible."""
        sizes, start = [len(batch.ids) + _rest(len(batch.ids)) for batch in batches], 0
        while start < len(batches):
            ends = range(len(batches), start, -1)
            end = next(end for end in ends if end == start + 1 or self._joinable(model, sizes[start:end]))
            yield batches[start:end]
            start = end

    def _joinable(self, model: LanguageModel, sizes: Sequence[int]) -> bool:
        """Return whether a pass of all batches gives the same bits as one for each."""
        total = sum(sizes)
        return total <= LIMIT and all(self._alike(model, size) for size in {*sizes, total})

    def _alike(self, model: LanguageModel, size: int) -> bool:
        """Return whether a pass of `size` tokens gives the same bits as passes of `TILE` tokens each."""
        test = self._tests.get(size)
        if test is None:
            test = self._tests[size] = Agreement(differs=any(word in str(model.config.to_dict()) for word in MIXING))
            chance = torch.Generator().manual_seed(size)
            while not (test.differs or test.certain):
                ids = torch.randint(model.vocabulary, (size,), generator=chance).to(model.device)
                # A network with learned positions may have fewer of them than the pass has tokens.
                positions = torch.arange(size, device=model.device) % (model.context or size)
                tiles = [slice(start, start + TILE) for start in range(0, size, TILE)]
                parts = zip(*(_numbers(model, ids[rows], positions[rows]) for rows in tiles), strict=True)
                test.compare(_numbers(model, ids, positions), [torch.cat(part) for part in parts])
        return test.certain


def _rest(count: int) -> int:
    """Return the number of tokens that `count` tokens lack to a multiple of `TILE`."""
    return -count % TILE


def _numbers(model: LanguageModel, ids: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return hidden states and logits of tokens that attend to nothing."""
    hidden = model.hidden(ids, positions, _Nothing())
    return hidden, model.logits(hidden)


class _Apart:
    """Layout of several batches of next tokens, each padded to a multiple of `TILE`.

    Args:
        slots: cache of each batch, with at least one active sequence.

    Attributes:
        rows: the tokens of each batch.
    """

    def __init__(self, slots: Sequence[Slots]):
        self.slots, self.rows, start = slots, list[slice](), 0
        for own in slots:
            self.rows.append(slice(start, start + own.used))
            start += own.used + _rest(own.used)

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
        """Attend batch by batch; see `Layout`. Padding gets zeros."""
        found = torch.zeros(queries.shape, dtype=queries.dtype, device=queries.device)
        for slots, rows in zip(self.slots, self.rows, strict=True):
            own = (tensor[rows].contiguous() for tensor in (queries, keys, values))  # strides as in a pass of its own
            found[rows] = slots.attend(layer, *own, **options)
        return found


class _Nothing:
    """Layout without attention, which makes the outputs depend on queries, keys and values of the same token."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, **_: Any) -> Tensor:
        """Return the sum of query, key and value of each head; see `Layout`."""
        return queries + (keys + values).repeat_interleave(queries.shape[1] // keys.shape[1], 1)
