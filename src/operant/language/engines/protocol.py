"""Token ids in, token ids and log-probabilities out: `Engine`, `Sampling`, `Completion`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from operant.language.models import LanguageModel


@dataclass(frozen=True)
class Sampling:
    """How completions are drawn.

    Raises:
        ValueError: a value is out of its range.
    """

    max_tokens: int
    """Most tokens of a completion, its end of sequence included."""
    temperature: float = 1.0
    """Divides the logits; 0 takes the likeliest token."""
    top_k: int = 0
    """Draw from this many likeliest tokens; 0: from all. Log-probabilities are those before this cut."""
    top_p: float = 1.0
    """Draw from the fewest tokens that have this probability together. Log-probabilities are those before this cut."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work."""
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be at least 0 and finite, got {self.temperature}")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"top_k must be at least 0 and top_p in (0, 1], got {self.top_k} and {self.top_p}")


class Completion(NamedTuple):
    """What was drawn after a prompt.

    Attributes:
        ids: token ids, with the end of sequence if it was drawn.
        log_probs: of each token, as it was drawn (temperature included); those of greedy tokens are at temperature 1.
        truncated: whether it reached `max_tokens` without an end of sequence.
    """

    ids: list[int]
    log_probs: list[float]
    truncated: bool


class Engine(Protocol):
    """Samples completions from the latest weights that it was given.

    Attributes:
        version: of the weights; it grows with every `update`.
    """

    version: int

    def reach(self) -> None:
        """Make sure, without much work, that what it samples from is there.

        Raises:
            OSError: it is not; the message says what to do.
        """
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling, *, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Draw `count` completions for each prompt.

        Args:
            prompts: token ids, at least one each.
            count: completions of each prompt.
            sampling: how they are drawn.
            generator: where chance comes from, on the CPU.

        Returns:
            For each prompt its completions.
        """
        ...

    def update(self, model: LanguageModel) -> None:
        """Sample from the weights that `model` has now."""
        ...

    def close(self) -> None:
        """Give back what it holds. Twice does no harm."""
        ...
