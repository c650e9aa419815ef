"""What a built-in task is: `Task`, which makes any number of rows to train on and others to test on."""

import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from operant import streams
from operant.language.rewards import RewardFunction
from operant.language.sources import Row

Split = Literal["train", "held-out"]
"""Which rows: no prompt is in both."""

StepRewards = Callable[[str, str], "list[tuple[int, float]]"]
"""`f(prompt, completion)`: for each step the place after its last character, and its reward."""

HELD_OUT = 5
"""One prompt in so many is held out."""

_PATIENCE = 50
"""Repeated prompts in a row, for each different one so far, after which there seem to be no more."""


@dataclass(frozen=True)
class Task:
    """A task whose prompts, demonstrations and rewards are made, not collected.

    A prompt is held out or not by its own checksum, so the two splits never meet, whatever the seeds. Rows depend on
    the task, the split and the seed alone, and the first n of them are the same however many are asked for.

    Attributes:
        name: with its options, as on the command line.
        title: one sentence on what is to be learned.
        make: draws one row, `{"prompt": ..., "completion": ..., ...}`; the completion is a demonstration.
        rewards: the verifiers, which read the columns of the rows.
        max_completion_length: tokens that a completion may have, its end of sequence included, one character being one
            token.
        reward_weights: of the verifiers, one for each.
        step_rewards: rewards of single steps, for process supervision; None where a completion has no steps.
        make_steps: draws a stepwise row (`completions`, `labels`) for a row; None where there are no steps.
        make_pair: draws a preference (`chosen`, `rejected`) for a row; None where none are made.
    """

    name: str
    title: str
    make: Callable[[np.random.Generator], Row]
    rewards: tuple[RewardFunction, ...]
    max_completion_length: int
    reward_weights: tuple[float, ...] = (1.0,)
    step_rewards: StepRewards | None = None
    make_steps: Callable[[np.random.Generator, Row], Row] | None = None
    make_pair: Callable[[np.random.Generator, Row], Row] | None = None

    def stream(self, split: Split, *, seed: int) -> Iterator[Row]:
        """Draw rows without end, some of them several times.

        Args:
            split: which prompts.
            seed: of the draws; not negative.

        Raises:
            ValueError: there is no such split.
        """
        if split not in ("train", "held-out"):
            raise ValueError(f"split must be 'train' or 'held-out', got {split!r}")
        generator = np.random.default_rng(streams.seed_sequence(seed, f"rows of {self.name}: {split}"))
        return (
            row for row in iter(lambda: self.make(generator), None) if held_out(row["prompt"]) == (split == "held-out")
        )

    def rows(self, split: Split, count: int, *, seed: int, distinct: bool = True) -> list[Row]:
        """Draw rows of TRL's type prompt-completion, with further columns for the verifiers.

        Args:
            split: which prompts.
            count: how many rows.
            seed: of the draws; not negative.
            distinct: whether each prompt comes once at most.

        Raises:
            ValueError: there is no such split, or there are not as many different prompts.
        """
        stream = self.stream(split, seed=seed)
        if not distinct:
            return list(itertools.islice(stream, count))
        found: dict[str, Row] = {}
        misses = 0
        while len(found) < count:
            row = next(stream)
            misses = misses + 1 if row["prompt"] in found else 0
            if misses > _PATIENCE * (len(found) + 10):
                raise ValueError(
                    f"{self.name} has about {len(found)} different {split} prompts, but {count} rows were asked for; "
                    "ask for fewer, allow repeated prompts (distinct=False) or make the task larger"
                )
            found.setdefault(row["prompt"], row)
        return list(found.values())

    def stepwise_rows(self, split: Split, count: int, *, seed: int) -> list[Row]:
        """Draw rows of TRL's type stepwise supervision: `{"prompt", "completions": [steps], "labels": [bool]}`.

        Prompts are those of `rows`; about half of the answers have a mistake.

        Raises:
            ValueError: answers of this task have no steps, or as of `rows`.
        """
        return self._varied("stepwise", self.make_steps, split, count, seed)

    def pairs(self, split: Split, count: int, *, seed: int) -> list[Row]:
        """Draw rows of TRL's type preference: `{"prompt", "chosen", "rejected"}`, the prompts being those of `rows`.

        Raises:
            ValueError: this task makes no preferences, or as of `rows`.
        """
        return self._varied("preference", self.make_pair, split, count, seed)

    def _varied(
        self, kind: str, make: Callable[[np.random.Generator, Row], Row] | None, split: Split, count: int, seed: int
    ) -> list[Row]:
        if make is None:
            raise ValueError(f"the task {self.name} makes no {kind} rows")
        generator = np.random.default_rng(streams.seed_sequence(seed, f"{kind} rows of {self.name}: {split}"))
        return [make(generator, row) for row in self.rows(split, count, seed=seed)]


def held_out(prompt: str) -> bool:
    """Tell whether a prompt is kept for testing."""
    return zlib.crc32(prompt.encode()) % HELD_OUT == 0
