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
"""Number of consecutive repeated prompts, per distinct prompt so far, after which a task counts as exhausted."""


@dataclass(frozen=True)
class Task:
    """A task with generated prompts, demonstrations and rewards.

    The checksum of a prompt determines its split, so the two splits are disjoint for all seeds. Examples depend only on
    the task, the split and the seed; more examples have the same beginning.

    Attributes:
        name: name with all options, as on the command line.
        title: description in one sentence.
        make: samples one example, `{"prompt": ..., "completion": ..., ...}`; the completion is a demonstration.
        rewards: reward functions, which use the columns of the examples.
        max_completion_length: maximum number of tokens of a completion, including EOS, with one token per character.
        reward_weights: weight of each reward function.
        step_rewards: reward function of steps, for process supervision; None if completions have no steps.
        make_steps: samples a stepwise example (`completions`, `labels`) for an example; None if completions have no
            steps.
        make_pair: samples a preference (`chosen`, `rejected`) for an example; None if there are no preferences.
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
        """Yield random examples without end; prompts may repeat.

        Args:
            split: split of the prompts.
            seed: random seed, at least 0.

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
        """Sample examples of TRL's type prompt-completion, with additional columns for the reward functions.

        Args:
            split: split of the prompts.
            count: number of examples.
            seed: random seed, at least 0.
            distinct: whether each prompt occurs at most once. Prompts of a small part of the task, such as those of one
                digit, then become rarer with the number of examples.

        Raises:
            ValueError: there is no such split, or it has fewer distinct prompts.
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
                    "request fewer, or make the task larger by its parameters"
                )
            found.setdefault(row["prompt"], row)
        return list(found.values())

    def stepwise_rows(self, split: Split, count: int, *, seed: int) -> list[Row]:
        """Sample examples of TRL's type stepwise supervision: `{"prompt", "completions": [steps], "labels": [bool]}`.

        The prompts are those of `rows`; about half of the answers have a mistake.

        Raises:
            ValueError: answers of this task have no steps, or for the reasons of `rows`.
        """
        return self._varied("stepwise", self.make_steps, split, count, seed)

    def pairs(self, split: Split, count: int, *, seed: int) -> list[Row]:
        """Sample examples of TRL's type preference: `{"prompt", "chosen", "rejected"}`, with the prompts of `rows`.

        Raises:
            ValueError: this task has no preferences, or for the reasons of `rows`.
        """
        return self._varied("preference", self.make_pair, split, count, seed)

    def _varied(
        self, kind: str, make: Callable[[np.random.Generator, Row], Row] | None, split: Split, count: int, seed: int
    ) -> list[Row]:
        if make is None:
            other = {"preference": "preference", "stepwise": "steps"}[kind]
            raise ValueError(
                f"the task {self.name} has no {kind} examples: use the task {other}, or your own examples (dataset)"
            )
        generator = np.random.default_rng(streams.seed_sequence(seed, f"{kind} rows of {self.name}: {split}"))
        return [make(generator, row) for row in self.rows(split, count, seed=seed)]


def held_out(prompt: str) -> bool:
    """Return whether a prompt is held out for testing."""
    return zlib.crc32(prompt.encode()) % HELD_OUT == 0
