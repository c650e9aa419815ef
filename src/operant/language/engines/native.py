"""Sampling from a model in this process: `NativeEngine`.

Each prompt is prefilled once for all its completions, and completions with equal beginnings share them: they are one
branch until they choose different tokens. Finished sequences leave the batch immediately, and the next ones in the
queue replace them (continuous batching). Random numbers are drawn per sequence in advance, so a sequence does not
depend on the others in the batch (up to rounding).
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from operant.language.attention import Segment, Segments
from operant.language.engines.cache import Slots
from operant.language.engines.joint import JointPass, NextTokens
from operant.language.engines.protocol import Completion, Sampling
from operant.language.models import LanguageModel
from operant.runtime.checkpoints import NonFiniteError
from operant.runtime.evaluation import StoppedError
from operant.tensors import integers, rows_of_floats, rows_of_integers

ROWS = 256
"""Default maximum number of parallel sequences."""
PREFILL_TOKENS = 8192
"""Maximum number of prompt tokens per forward pass; a longer prompt has a separate pass."""


class NativeEngine:
    """Engine that samples from a transformers model in this process.

    Args:
        model: model shared with the trainer, so its weights are always the latest.
        rows: maximum number of parallel sequences. More is faster and needs more memory.
        interrupted: function polled before every token; `generate` stops if it returns true.

    Attributes:
        version: version of the weights; see `Engine`.
    """

    def __init__(
        self, model: LanguageModel, *, rows: int = ROWS, interrupted: Callable[[], bool] = lambda: False
    ) -> None:
        if rows < 1:
            raise ValueError(f"rows must be at least 1, got {rows}")
        self.model, self.rows, self.interrupted, self.version = model, rows, interrupted, 0
        self._joint = JointPass()

    def reach(self) -> None:
        """Do nothing: this engine runs in this process."""

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling, *, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Sample completions; see `Engine`.

        Raises:
            ValueError: a prompt is empty, or `count` is not positive.
            NonFiniteError: a logit is NaN.
            StoppedError: sampling was interrupted.
        """
        (found,) = self._sample([prompts], count, sampling, [generator], _separate)
        return found

    @torch.no_grad()
    def generate_shards(
        self,
        shards: Sequence[Sequence[Sequence[int]]],
        count: int,
        sampling: Sampling,
        *,
        generators: Sequence[torch.Generator],
    ) -> list[list[list[Completion]]]:
        """Sample completions of the prompts of several shards; see `ShardEngine`.

        They equal the ones that `generate` returns for the shard up to rounding.

        Raises:
            ValueError: a prompt is empty, or `count` is not positive.
            NonFiniteError: a logit is NaN.
            StoppedError: sampling was interrupted.
        """
        return self._sample(shards, count, sampling, generators, self._joint.logits)

    def _sample(
        self,
        parts: Sequence[Sequence[Sequence[int]]],
        count: int,
        sampling: Sampling,
        generators: Sequence[torch.Generator],
        logits: Callable[[LanguageModel, Sequence[NextTokens]], Iterable[Tensor]],
    ) -> list[list[list[Completion]]]:
        """Sample completions of the prompts of each part; `logits` returns those that follow the tokens of batches."""
        if count < 1 or not all(map(all, parts)):
            raise ValueError("every prompt must have at least one token, and count must be at least 1")
        options: dict[str, Any] = {"count": count, "sampling": sampling, "rows": self.rows}
        with self.model.uneven():
            batches = [
                _Batch(self.model, prompts, generator=generator, **options) if prompts else None
                for prompts, generator in zip(parts, generators, strict=True)
            ]
            busy = [batch for batch in batches if batch]
            while busy:
                if self.interrupted():
                    raise StoppedError("interrupted during sampling")
                active = [batch for batch in busy if batch.start()]
                found = logits(self.model, [batch.next_tokens() for batch in active])
                for batch, own in zip(active, found, strict=True):
                    batch.choose(own)
                busy = [batch for batch in busy if batch.busy]
        return [batch.completions(self.version) if batch else [] for batch in batches]

    def stream(
        self, prompt: Sequence[int], sampling: Sampling, *, generator: torch.Generator
    ) -> Generator[list[int], None, None]:
        """Sample the same completion of one prompt as `generate`, and yield its tokens one by one.

        Raises:
            ValueError: the prompt is empty.
            NonFiniteError: a logit is NaN.
        """
        if not prompt:
            raise ValueError("the prompt must have at least one token")
        batch = _Batch(self.model, [prompt], count=1, sampling=sampling, generator=generator, rows=1)
        seen = 0
        while batch.busy:
            with torch.no_grad():
                if batch.start():
                    batch.choose(next(_separate(self.model, [batch.next_tokens()])))
            yield integers(batch.ids[0, seen : batch.lengths[0]])
            seen = batch.lengths[0]

    def update(self, model: LanguageModel) -> None:
        """Increment the version; the weights are shared."""
        self.model = model
        self.version += 1

    def close(self) -> None:
        """Do nothing: this engine holds no resources."""


def _separate(model: LanguageModel, batches: Sequence[NextTokens]) -> Iterator[Tensor]:
    """Yield the logits that follow the tokens of each batch, from one pass per batch."""
    for ids, slots in batches:
        yield model.logits(model.hidden(ids, slots.begin(), slots))


Branch = list[int]
"""Sequences of one prompt with the same tokens so far, which share a slot."""


class _Batch:
    """Batch of prompts that are sampled by `NativeEngine`; sequences are numbered prompt by prompt."""

    def __init__(
        self,
        model: LanguageModel,
        prompts: Sequence[Sequence[int]],
        *,
        count: int,
        sampling: Sampling,
        generator: torch.Generator,
        rows: int,
    ):
        self.model, self.prompts, self.count, self.sampling = model, prompts, count, sampling
        total = len(prompts) * count
        device = model.device
        chance = chances(total, sampling, generator)
        self.chance = chance.to(device) if sampling.temperature else None
        self.ids = torch.zeros(total, sampling.max_tokens, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(total, sampling.max_tokens, device=device)
        self.lengths = [0] * total
        self.truncated = [False] * total
        self.slots = Slots(min(rows, total), max(map(len, prompts)) + sampling.max_tokens)
        self.active: list[Branch] = []
        self.waiting = total
        self._tokens = torch.zeros(0, dtype=torch.int64, device=device)

    @property
    def busy(self) -> bool:
        return bool(self.active or self.waiting)

    def start(self) -> bool:
        """Start waiting sequences if a quarter of all can start; return whether a sequence is active."""
        free = self.slots.rows - sum(map(len, self.active))
        if self.waiting and (not self.active or free * 4 >= self.slots.rows):
            self._take_up(free)
        return bool(self.active)

    def next_tokens(self) -> NextTokens:
        """Return the tokens of all branches that have no successor."""
        return NextTokens(self._tokens, self.slots)

    def completions(self, version: int) -> list[list[Completion]]:
        """Return the completions of each prompt, sampled by a version of the weights."""
        ids, log_probs = rows_of_integers(self.ids), rows_of_floats(self.log_probs)
        found = [
            Completion(tokens[:n], logs[:n], cut, version)
            for tokens, logs, n, cut in zip(ids, log_probs, self.lengths, self.truncated, strict=True)
        ]
        return [found[i : i + self.count] for i in range(0, len(found), self.count)]

    def _take_up(self, free: int) -> None:
        first = len(self.lengths) - self.waiting
        end = first + min(free, self.waiting)
        tokens, wanted = 0, list[int]()
        for prompt in range(first // self.count, -(-end // self.count)):
            tokens += len(self.prompts[prompt])
            if wanted and tokens > PREFILL_TOKENS:
                end = prompt * self.count
                break
            wanted.append(prompt)
        self.waiting -= end - first
        prefill, starts = Prefill.of([self.prompts[p] for p in wanted], self.model.device)
        hidden = self.model.hidden(prefill.ids, prefill.positions, prefill)
        sizes = [len(self.prompts[p]) for p in wanted]
        last = torch.tensor([start + size - 1 for start, size in zip(starts, sizes, strict=True)], device=hidden.device)
        self.slots.fill(prefill.stored, starts, sizes)
        self.active += [[*range(max(first, p * self.count), min(end, (p + 1) * self.count))] for p in wanted]
        self.choose(self.model.logits(hidden.index_select(0, last)))

    def choose(self, logits: Tensor) -> None:
        """Sample the next token of the sequences of the last n branches, split branches, and remove ended sequences.

        Args:
            logits: logits of the last n branches, `[n, V]`; the other branches have their next tokens.

        Raises:
            NonFiniteError: a logit is NaN.
        """
        first = len(self.active) - len(logits)
        branches = self.active[first:]
        places = [(row, i, sequence) for row, branch in enumerate(branches) for i, sequence in enumerate(branch)]
        row, position, at = torch.tensor(places, device=logits.device).unbind(1)
        column = torch.tensor([self.lengths[branch[0]] for branch in branches], device=logits.device)[row]
        chance = None
        if self.chance is not None:
            chance = self.chance.new_zeros(len(branches), max(map(len, branches)))
            chance[row, position] = self.chance[at, column]
        drawn, log_probs = draw(logits, self.sampling, chance)
        if chance is None:
            position = torch.zeros_like(position)
        tokens = drawn[row, position]
        self.ids[at, column], self.log_probs[at, column] = tokens, log_probs[row, position]
        chosen = iter(integers(tokens))
        others = zip(integers(self._tokens[:first]), self.active, strict=False)
        found = [[other] for other in others] + [self._parted(branch, chosen) for branch in branches]
        continued = [found[slot].pop() for slot in self.slots.keep([len(parts) for parts in found])]
        self.active = [branch for _, branch in continued]
        self._tokens = torch.tensor([token for token, _ in continued], dtype=torch.int64, device=logits.device)

    def _parted(self, branch: Branch, tokens: Iterator[int]) -> list[tuple[int, Branch]]:
        """Add a token to each sequence of a branch; return the branches that continue, each with its token."""
        parts = dict[int, Branch]()
        full = self.lengths[branch[0]] + 1 >= self.sampling.max_tokens
        for sequence, token in zip(branch, tokens, strict=False):
            self.lengths[sequence] += 1
            if token in self.model.stop:
                continue
            if full:
                self.truncated[sequence] = True
            else:
                parts.setdefault(token, []).append(sequence)
        return [*parts.items()]


class Prefill(Segments):
    """Layout of packed prompts that caches keys and values."""

    def __init__(self, segments: Sequence[Segment], ids: Tensor, positions: Tensor):
        super().__init__(segments, ids.device)
        self.ids, self.positions = ids, positions
        self.stored: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def of(cls, prompts: Sequence[Sequence[int]], device: torch.device) -> tuple["Prefill", list[int]]:
        """Return the layout of prompts, and their start positions."""
        starts, ids, positions = list[int](), list[int](), list[int]()
        for prompt in prompts:
            starts.append(len(ids))
            ids += prompt
            positions += range(len(prompt))
        segments = [Segment(start, len(prompt)) for start, prompt in zip(starts, prompts, strict=True)]
        return cls(segments, torch.tensor(ids, device=device), torch.tensor(positions, device=device)), starts

    def attend(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, *, scale: float, window: int | None
    ) -> Tensor:
        """Store keys and values; see `Layout`."""
        self.stored.append((keys, values))
        return super().attend(layer, queries, keys, values, scale=scale, window=window)


def chances(sequences: int, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Return uniform random numbers in [0, 1) for all tokens, `[sequences, max_tokens]`."""
    return torch.rand(sequences, sampling.max_tokens, generator=generator, dtype=torch.float64)


def draw(logits: Tensor, sampling: Sampling, chance: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sample k tokens from each row of logits.

    Args:
        logits: logits `[n, V]`.
        sampling: sampling options.
        chance: uniform numbers `[n, k]` in [0, 1); None selects the most probable token, with k = 1.

    Returns:
        Tokens and their log-probabilities, `[n, k]` each.

    Raises:
        NonFiniteError: a logit is NaN.
    """
    if sampling.temperature:
        logits = logits / sampling.temperature
    log_probs = logits.log_softmax(-1)
    if bool(log_probs[:, 0].isnan().any()):  # one NaN or positive infinity makes a row NaN
        raise NonFiniteError(
            "the model's logits are NaN or too large, so no token can be sampled: its weights or activations overflow; "
            "lower the learning rate, or use another --dtype or a higher temperature"
        )
    if chance is None:
        tokens = log_probs.argmax(-1, keepdim=True)
    else:
        mass = _cut(log_probs.exp(), sampling).double().cumsum(-1)
        tokens = torch.searchsorted(mass, chance * mass[:, -1:], right=True)
    return tokens, log_probs.gather(1, tokens)


def _cut(probabilities: Tensor, sampling: Sampling) -> Tensor:
    """Set probabilities excluded by `top_k` and `top_p` to 0."""
    if sampling.top_k and sampling.top_k < probabilities.shape[-1]:
        least = probabilities.topk(sampling.top_k).values[:, -1:]
        probabilities = probabilities.masked_fill(probabilities < least, 0)
    if sampling.top_p < 1:
        ordered, order = probabilities.sort(-1, descending=True)
        before = ordered.cumsum(-1) - ordered
        enough = before >= sampling.top_p * ordered.sum(-1, keepdim=True)
        probabilities = probabilities.masked_fill(enough.gather(1, order.argsort(-1)), 0)
    return probabilities
