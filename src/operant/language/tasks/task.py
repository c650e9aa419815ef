"""Built-in tasks: `Task`, which generates any number of training and test examples."""

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
"""Splits: no prompt is in both."""

StepRewards = Callable[[str, str], "list[tuple[int, float]]"]
"""`f(prompt, completion)`: for each step the position after its last character, and its reward."""

HELD_OUT = 5
"""One prompt in this many is held out."""

_PATIENCE = 50
"""Consecutive repeated prompts, per different one so far, that indicate that there are no more."""


@dataclass(frozen=True)
class Task:
    """A task with generated prompts, demonstrations and rewards.

    A prompt's own checksum determines its split, so the two splits are disjoint for all seeds. Examples depend only on
    the task, the split and the seed, and the first n of them do not depend on their number.

    Attributes:
        name: with its options, as on the command line.
        title: one sentence about the task.
        make: samples one example, `{"prompt": ..., "completion": ..., ...}`; the completion is a demonstration.
        rewards: the verifiers, which use the columns of the examples.
        max_completion_length: maximum tokens of a completion, end of sequence included, with one token per character.
        reward_weights: one per verifier.
        step_rewards: rewards of steps, for process supervision; None if completions have no steps.
        make_steps: samples a stepwise example (`completions`, `labels`) for an example; None if there are no steps.
        make_pair: samples a preference (`chosen`, `rejected`) for an example; None if there are none.
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
        """Sample examples without end, some of them several times.

        Args:
            split: of the prompts.
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
        """Sample examples of TRL's type prompt-completion, with further columns for the verifiers.

        Args:
            split: of the prompts.
            count: number of examples.
            seed: of the draws; not negative.
            distinct: whether each prompt occurs at most once.

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
                    f"{self.name} has about {len(found)} different {split} prompts, but {count} were requested; "
                    "request fewer, allow repeated prompts (distinct=False) or make the task larger"
                )
            found.setdefault(row["prompt"], row)
        return list(found.values())

    def stepwise_rows(self, split: Split, count: int, *, seed: int) -> list[Row]:
        """Sample examples of TRL's type stepwise supervision: `{"prompt", "completions": [steps], "labels": [bool]}`.

        Prompts are those of `rows`; about half of the answers have a mistake.

        Raises:
            ValueError: answers of this task have no steps, or as of `rows`.
        """
        return self._varied("stepwise", self.make_steps, split, count, seed)

    def pairs(self, split: Split, count: int, *, seed: int) -> list[Row]:
        """Sample examples of TRL's type preference: `{"prompt", "chosen", "rejected"}`, with the prompts of `rows`.

        Raises:
            ValueError: this task has no preferences, or as of `rows`.
        """
        return self._varied("preference", self.make_pair, split, count, seed)

    def _varied(
        self, kind: str, make: Callable[[np.random.Generator, Row], Row] | None, split: Split, count: int, seed: int
    ) -> list[Row]:
        if make is None:
            raise ValueError(f"the task {self.name} has no {kind} examples")
        generator = np.random.default_rng(streams.seed_sequence(seed, f"{kind} rows of {self.name}: {split}"))
        return [make(generator, row) for row in self.rows(split, count, seed=seed)]


def held_out(prompt: str) -> bool:
    """Return whether a prompt is held out for testing."""
    return zlib.crc32(prompt.encode()) % HELD_OUT == 0
