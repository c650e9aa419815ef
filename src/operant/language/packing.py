"""Batches of token sequences without padding: `Sample`, `pack`, `micro_batches`, `step_weights`.

All sequences of a batch are concatenated in one row; positions and attention separate them. Consecutive samples with
the same prompt share one copy of it, and of equal beginnings of their completions. Losses are computed on flat tensors
`[m]`, with one element per trained token in the order of the samples.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from operant import ops
from operant.language.attention import Segment, Segments
from operant.ops.weights import Aggregation
from operant.runtime.shards import share

Thing = TypeVar("Thing")

_ROOT = -1
"""Parent of the first token of a sequence."""

Plan = list[list[list[int]]]
"""Optimizer steps of an epoch, each a list of micro-batches, which are lists of sample indices."""


class Sample(NamedTuple):
    """One sequence.

    Attributes:
        prompt: token ids of the prompt; may be empty.
        completion: token ids that are trained or scored, including EOS if there is one; at least one, or two if the
            prompt is empty, since the first token of a sequence is not predicted.
        mask: mask of the trained tokens of the completion; None: all.
    """

    prompt: Sequence[int]
    completion: Sequence[int]
    mask: Sequence[bool] | None = None


@dataclass(frozen=True)
class Packed:
    """A batch of B samples with m trained tokens among n tokens.

    Attributes:
        ids: token ids, `[n]`.
        positions: position of each token in its sequence, from 0, `[n]`.
        layout: attention layout.
        before: index of the token before each trained token, from which it is predicted, `[m]`.
        targets: ids of the trained tokens, `[m]`.
        owner: index of the sample of each trained token, ascending, `[m]`.
        lengths: number of trained tokens of each sample, `[B]`.
        last: index of the last token of each sample, `[B]`; empty if packed without ends.
    """

    ids: Tensor
    positions: Tensor
    layout: Segments
    before: Tensor
    targets: Tensor
    owner: Tensor
    lengths: Tensor
    last: Tensor


def pack(
    samples: Sequence[Sample], *, share: bool = True, ends: bool = True, device: torch.device | str = "cpu"
) -> Packed:
    """Pack samples into one batch.

    Args:
        samples: samples, at least one.
        share: whether consecutive samples with equal prompts share the prompt and equal beginnings of the completions.
            The results are the same; sharing saves computation. Otherwise, the tokens of a sample are consecutive in
            the batch.
        ends: whether to include the last token of each sample. Scores and values need it; policies predict nothing
            from it.
        device: device of the model.

    Raises:
        ValueError: there is no sample, or a sample has no token to predict.
    """
    if not samples:
        raise ValueError("a batch needs at least one sample")
    row = _Row(share, ends)
    for index, sample in enumerate(samples):
        if not sample.completion or len(sample.prompt) + len(sample.completion) < 2:
            raise ValueError(
                f"sample {index} has a prompt of {len(sample.prompt)} and a completion of {len(sample.completion)} "
                "tokens, but a token can only be predicted from a preceding one: leave it out"
            )
        row.add(index, sample)
    return row.finish(device)


class _Row:
    """The row of a batch under construction: trees of tokens, in which each sequence is a path from a root."""

    def __init__(self, share: bool, ends: bool) -> None:
        self.share, self.ends = share, ends
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.parents: list[int] = []
        self.before: list[int] = []
        self.targets: list[int] = []
        self.lengths: list[int] = []
        self.last: list[int] = []
        self._prompt: Sequence[int] | None = None
        self._end = _ROOT
        self._children: dict[tuple[int, int], int] = {}

    def add(self, index: int, sample: Sample) -> None:
        prompt, completion = sample.prompt, sample.completion
        if self._prompt is None or not (prompt is self._prompt or prompt == self._prompt):
            self._prompt, self._children = prompt if self.share else None, {}
            self._end = [_ROOT, *self._extend(_ROOT, prompt, 0)][-1]
        counts = [True] * len(completion) if sample.mask is None else list(sample.mask)
        if len(counts) != len(completion):
            raise ValueError(f"sample {index} has {len(completion)} completion tokens but a mask of {len(counts)}")
        if not prompt:
            counts[0] = False
        path = self._extend(self._end, completion if self.ends else completion[:-1], len(prompt))
        previous = [self._end, *path][: len(completion)]
        self.before += [place for place, live in zip(previous, counts, strict=True) if live]
        self.targets += [token for token, live in zip(completion, counts, strict=True) if live]
        self.lengths.append(sum(counts))
        self.last += path[-1:] if self.ends else []

    def _extend(self, parent: int, tokens: Sequence[int], position: int) -> list[int]:
        """Return the path of some tokens after a parent, and add the tokens that are not in the tree."""
        path = list[int]()
        for offset, token in enumerate(tokens, position):
            child = self._children.get((parent, token))
            if child is None:
                child = len(self.ids)
                self.ids.append(token)
                self.positions.append(offset)
                self.parents.append(parent)
                if self.share:
                    self._children[parent, token] = child
            path.append(child)
            parent = child
        return path

    def _segments(self) -> list[Segment]:
        """Return the longest segments without a branch inside."""
        parents = np.array(self.parents)
        children = np.bincount(parents[parents >= 0], minlength=len(parents))
        begins = np.ones(len(parents), dtype=bool)
        begins[1:] = (parents[1:] != np.arange(len(parents) - 1)) | (children[parents[1:]] > 1)
        owners, starts = begins.cumsum() - 1, np.flatnonzero(begins)
        above = [int(owners[parent]) if parent >= 0 else None for parent in parents[starts].tolist()]
        lengths = np.diff(starts, append=len(parents)).tolist()
        return [Segment(*row) for row in zip(starts.tolist(), lengths, above, strict=True)]

    def finish(self, device: torch.device | str) -> Packed:
        lengths = torch.tensor(self.lengths)
        return Packed(
            ids=torch.tensor(self.ids, device=device),
            positions=torch.tensor(self.positions, device=device),
            layout=Segments(self._segments(), device),
            before=torch.tensor(self.before, dtype=torch.int64, device=device),
            targets=torch.tensor(self.targets, dtype=torch.int64, device=device),
            owner=torch.arange(len(lengths)).repeat_interleave(lengths).to(device),
            lengths=lengths.to(device),
            last=torch.tensor(self.last, dtype=torch.int64, device=device),
        )


def micro_batches(samples: Sequence[Sample], *, tokens: int, shards: int = 1) -> list[list[int]]:
    """Split a batch in order into micro-batches of at most `tokens` tokens.

    With loss weights of the whole batch, the sum of the losses of the micro-batches is the loss of the batch
    (`operant.ops.token_weights`, `total`).

    Args:
        samples: samples of the batch.
        tokens: maximum number of tokens of a micro-batch; a prompt shared by consecutive samples counts once, and a
            larger sample is a micro-batch of its own.
        shards: number of shards with nearly equal numbers of samples, each of which is split separately.

    Returns:
        The sample indices of each micro-batch.
    """
    if shards > 1:
        cuts = [share(len(samples), number, shards) for number in range(shards)]
        found = [micro_batches(take(samples, cut), tokens=tokens) for cut in cuts]
        return [take(cut, part) for cut, parts in zip(cuts, found, strict=True) for part in parts]
    parts: list[list[int]] = []
    used = 0
    previous: Sequence[int] | None = None
    for index, sample in enumerate(samples):
        shared = previous is not None and (sample.prompt is previous or sample.prompt == previous)
        need = len(sample.completion) + (0 if shared else len(sample.prompt))
        if not parts or used + need > tokens:
            parts.append([])
            used, need = 0, len(sample.completion) + len(sample.prompt)
        parts[-1].append(index)
        used += need
        previous = sample.prompt
    return parts


def group_batches(groups: Sequence[Sequence[Sample]], *, tokens: int, shards: int = 1) -> list[list[int]]:
    """Split groups of samples into micro-batches without splitting groups, whose samples a loss compares.

    Args:
        groups: samples of each prompt.
        tokens: as for `micro_batches`; a larger group is a micro-batch of its own.
        shards: as for `micro_batches`.

    Returns:
        The group indices of each micro-batch.
    """
    joined = [Sample(group[0].prompt, [token for s in group for token in s.completion]) for group in groups]
    return micro_batches(joined, tokens=tokens, shards=shards)


def step_weights(
    samples: Sequence[Sample],
    parts: Iterable[Sequence[int]],
    *,
    how: Aggregation,
    longest: int,
    answers: int | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """Compute the loss weight of each token of each sample in an optimizer step, `[N]` (`operant.ops.token_weights`).

    With |o| the number of tokens of a sample, the weights are: token_mean, `1 / Σ |o|` over the samples in `parts`;
    sequence_mean, `1 / (answers |o|)`; constant, `1 / (answers longest)`. Masked answers are excluded from the first
    denominator but count in the other two, as in TRL's losses dapo, grpo and dr_grpo: masking an answer changes the
    weights of others only for token_mean.

    Args:
        samples: all N samples of the batch, with all completion tokens trained.
        parts: micro-batches of the step; other samples have weight 0.
        how: token_mean, sequence_mean or constant.
        longest: denominator of `constant`, in tokens.
        answers: number of answers of the step, including masked ones; None: the samples in `parts`.
        device: device of the weights.
    """
    lengths = torch.zeros(len(samples), dtype=torch.int64)
    for part in parts:
        lengths[list(part)] = torch.tensor([len(samples[i].completion) for i in part])
    total = None if how == "token_mean" else answers
    return ops.token_weights(lengths, how=how, total=total, constant=longest if how == "constant" else None).to(device)


def take(things: Sequence[Thing], positions: Iterable[int]) -> list[Thing]:
    """Return the elements at the given indices."""
    return [things[position] for position in positions]
