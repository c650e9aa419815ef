"""Protocols of sampling engines: `Engine`, `ShardEngine`, `Sampling`, `Completion`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from operant.language.models import LanguageModel


@dataclass(frozen=True)
class Sampling:
    """Sampling options.

    Raises:
        ValueError: a value is out of range.
    """

    max_tokens: int
    """Maximum number of tokens of a completion, including the end of sequence."""
    temperature: float = 1.0
    """Divisor of the logits; 0 selects the most probable token."""
    top_k: int = 0
    """Number of most probable tokens to sample from; 0: all. Log-probabilities are those before the cut."""
    top_p: float = 1.0
    """Total probability of the smallest set of tokens to sample from. Log-probabilities are those before the cut."""

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
        log_probs: log-probability of each token at the sampling temperature; at temperature 1 for greedy tokens.
        truncated: whether the completion reached `max_tokens` without an end of sequence.
        version: version of the weights that sampled all of its tokens, the number of updates before.
    """

    ids: list[int]
    log_probs: list[float]
    truncated: bool
    version: int = 0


class Engine(Protocol):
    """Engine that samples completions from the latest received weights.

    The weights do not change during `generate`, so all tokens of a completion have the same version.

    Attributes:
        version: version of the weights, incremented by every `update`; a resumed run continues the count.
    """

    version: int

    def reach(self) -> None:
        """Check that the engine is available, without sampling.

        Raises:
            OSError: it is not; the message says how to fix it.
        """
        ...

    def generate(
        self, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling, *, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Sample `count` completions of each prompt.

        Args:
            prompts: token ids of each prompt, at least one.
            count: number of completions per prompt.
            sampling: sampling options.
            generator: random number generator on the CPU.

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


@runtime_checkable
class AheadEngine(Protocol):
    """Optional part of an engine whose source of samples may lack the current weights."""

    def send_weights(self) -> None:
        """Send the current weights to where they are missing.

        It is called before the model learns in parallel with `generate`, which reads no weights of the model then.
        """
        ...


@runtime_checkable
class ShardEngine(Protocol):
    """Optional part of an engine: it samples several shards of a batch in one call."""

    def generate_shards(
        self,
        shards: Sequence[Sequence[Sequence[int]]],
        count: int,
        sampling: Sampling,
        *,
        generators: Sequence[torch.Generator],
    ) -> list[list[list[Completion]]]:
        """Sample `count` completions of each prompt of several shards.

        Those of a shard have the same bits whichever other shards are sampled in the same call, since the shards of a
        call depend on the number of processes.

        Args:
            shards: token ids of each prompt of each shard. A shard may have no prompts.
            count: number of completions per prompt.
            sampling: sampling options.
            generators: random generator of each shard, on the CPU.

        Returns:
            The completions of each prompt of each shard.
        """
        ...


def generate_shards(
    engine: Engine,
    shards: Sequence[Sequence[Sequence[int]]],
    count: int,
    sampling: Sampling,
    *,
    generators: Sequence[torch.Generator],
) -> list[list[list[Completion]]]:
    """Sample completions of several shards, in one call if the engine can (see `ShardEngine`), else one per shard."""
    if isinstance(engine, ShardEngine):
        return engine.generate_shards(shards, count, sampling, generators=generators)
    return [
        engine.generate(prompts, count, sampling, generator=generator) if prompts else []
        for prompts, generator in zip(shards, generators, strict=True)
    ]
