"""Token ids in, token ids and log-probabilities out: `Engine`, `Sampling`, `Completion`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from operant.language.models import LanguageModel

GAPS: Mapping[torch.dtype, float] = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Maximum mean error of an engine's log-probabilities, in nats, by precision of the trainer."""


@dataclass(frozen=True)
class Sampling:
    """Options of sampling.

    Raises:
        ValueError: a value is out of its range.
    """

    max_tokens: int
    """Maximum tokens of a completion, end of sequence included."""
    temperature: float = 1.0
    """Divides the logits; 0 selects the most probable token."""
    top_k: int = 0
    """Sample from this many most probable tokens; 0: all. Log-probabilities are those before this cut."""
    top_p: float = 1.0
    """Sample from the fewest tokens that reach this total probability. Log-probabilities are those before this cut."""

    def __post_init__(self) -> None:
        """Validate."""
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be at least 0 and finite, got {self.temperature}")
        if self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ValueError(f"top_k must be at least 0 and top_p in (0, 1], got {self.top_k} and {self.top_p}")


class Completion(NamedTuple):
    """A sampled completion of a prompt.

    Attributes:
        ids: token ids, including the end of sequence if it was sampled.
        log_probs: of each token, as sampled (temperature included); those of greedy tokens are at temperature 1.
        truncated: whether it reached `max_tokens` without an end of sequence.
    """

    ids: list[int]
    log_probs: list[float]
    truncated: bool


class Engine(Protocol):
    """Samples completions from the latest weights that it received.

    Attributes:
        version: of the weights; every `update` increases it.
    """

    version: int

    def reach(self) -> None:
        """Check cheaply that the source of samples is available.

        Raises:
            OSError: it is not; the message says how to fix it.
        """
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling, *, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Sample `count` completions of each prompt.

        Args:
            prompts: token ids, at least one each.
            count: completions per prompt.
            sampling: options.
            generator: random numbers, on the CPU.

        Returns:
            The completions of each prompt.
        """
        ...

    def update(self, model: LanguageModel) -> None:
        """Sample from the current weights of `model` from now on."""
        ...

    def close(self) -> None:
        """Release all resources. Repeated calls are safe."""
        ...
