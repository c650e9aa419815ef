"""Engines from outside, `--engine path/to/file.py:Name`: `OutsideEngine`, which checks their log-probabilities."""

from collections.abc import Sequence
from typing import Any

import torch

from operant import doors
from operant.language.configs import ENGINES
from operant.language.engines.protocol import AheadEngine, Completion, Engine, Sampling, generate_shards
from operant.language.importance import GAPS
from operant.language.models import LanguageModel
from operant.language.packing import Sample, pack

EXPECTED = "a class whose instances are engines (see operant.language.engines.Engine), made from the model"

CHECKED = 4
"""Completions of a batch whose log-probabilities are compared, at most."""
PROBE_TOKENS = 16
"""Tokens of a completion that is sampled for a check alone."""


class OutsideEngine:
    """An engine from outside, whose answers must be those of the model.

    The trainer scores some completions of every batch. An engine that samples while the model learns is checked after
    each update instead, by completions of one token sequence. Completions get the version of the last update.

    Args:
        name: `file.py:Name` or an entry point, maybe with parameters, as `my.py:MyEngine(port=8000)`. It is called with
            the model and these.
        model: to sample from.
        ahead: whether `generate` may run while the model learns.

    Raises:
        DoorError: there is no such engine.
        TypeError: it is no engine: a method is missing.
    """

    def __init__(self, name: str, model: LanguageModel, *, ahead: bool = False):
        made = doors.Call.of(name).load(expected=EXPECTED, group=ENGINES)(model)
        missing = [method for method in ("reach", "generate", "update", "close") if not hasattr(made, method)]
        if missing:
            raise TypeError(
                f"{name} is no engine: it has no {', '.join(missing)} (see operant.language.engines.Engine)"
            )
        self.name, self.model, self.ahead, self.version = name, model, ahead, 0
        self.engine: Engine = made
        self._compared = False

    def reach(self) -> None:
        """Check cheaply that the source of samples is available."""
        self.engine.reach()

    def generate(
        self, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling, *, generator: torch.Generator
    ) -> list[list[Completion]]:
        """Sample completions; see `Engine`.

        Raises:
            ValueError: the completions do not match the request, or their log-probabilities are not the model's.
        """
        found = self.engine.generate(prompts, count, sampling, generator=generator)
        return self._checked(found, prompts, count, sampling)

    def generate_shards(
        self,
        shards: Sequence[Sequence[Sequence[int]]],
        count: int,
        sampling: Sampling,
        *,
        generators: Sequence[torch.Generator],
    ) -> list[list[list[Completion]]]:
        """Sample completions of several shards, in one call if the engine can; see `ShardEngine`.

        Raises:
            ValueError: as for `generate`.
        """
        found = generate_shards(self.engine, shards, count, sampling, generators=generators)
        if len(found) != len(shards):
            raise ValueError(f"{self.name} returned completions of {len(found)} shards, expected {len(shards)}")
        return [self._checked(own, prompts, count, sampling) for prompts, own in zip(shards, found, strict=True)]

    def send_weights(self) -> None:
        """Send the current weights to where they are missing, if the engine can; see `AheadEngine`."""
        if isinstance(self.engine, AheadEngine):
            self.engine.send_weights()

    def update(self, model: LanguageModel) -> None:
        """Sample from the current weights of `model` from now on.

        Raises:
            ValueError: the engine's log-probabilities are not the model's afterwards.
        """
        self.model = model
        self.version += 1
        self.engine.update(model)
        if self.ahead:
            prompts, sampling = [[min(model.stop)]], Sampling(PROBE_TOKENS)
            found = self.engine.generate(prompts, CHECKED, sampling, generator=torch.Generator().manual_seed(0))
            self._require_shape(found, prompts, CHECKED, sampling)
            self._compare(prompts, found, sampling)

    def close(self) -> None:
        """Release all resources."""
        self.engine.close()

    def _checked(
        self,
        found: Sequence[Sequence[Completion]],
        prompts: Sequence[Sequence[int]],
        count: int,
        sampling: Sampling,
    ) -> list[list[Completion]]:
        """Return completions with the version of the weights, after checking them."""
        self._require_shape(found, prompts, count, sampling)
        if not self.ahead or not self._compared:
            self._compare(prompts, found, sampling)
        return [
            [Completion(one.ids, one.log_probs, one.truncated, self.version) for one in answers] for answers in found
        ]

    def _require_shape(self, found: Any, prompts: Sequence[Sequence[int]], count: int, sampling: Sampling) -> None:
        sizes = [len(answers) for answers in found]
        if sizes != [count] * len(prompts):
            raise ValueError(
                f"{self.name} returned {sum(sizes)} completions of {len(sizes)} prompts, expected {count} of each of "
                f"{len(prompts)}"
            )
        for completion in (completion for answers in found for completion in answers):
            length = len(completion.ids)
            if not 0 < length <= sampling.max_tokens or len(completion.log_probs) != length:
                raise ValueError(
                    f"{self.name} returned a completion of {length} tokens with {len(completion.log_probs)} "
                    f"log-probabilities, expected 1 to {sampling.max_tokens} with one each"
                )
            if min(completion.ids) < 0 or max(completion.ids) >= self.model.vocabulary:
                raise ValueError(
                    f"{self.name} returned tokens from {min(completion.ids)} to {max(completion.ids)}, expected 0 to "
                    f"{self.model.vocabulary - 1}: it has another model"
                )
            if not completion.truncated and completion.ids[-1] not in self.model.stop:
                raise ValueError(
                    f"{self.name} returned a completion that ends in the token {completion.ids[-1]} and is not "
                    f"truncated, expected one of {sorted(self.model.stop)} at its end: keep the end of sequence, "
                    "without which no policy learns to stop"
                )

    @torch.no_grad()
    def _compare(
        self, prompts: Sequence[Sequence[int]], found: Sequence[Sequence[Completion]], sampling: Sampling
    ) -> None:
        """Compare the log-probabilities of some completions, of different prompts if possible."""
        turns = zip(*found, strict=True)  # the first answers to all prompts, then the second ones, ...
        pairs = [pair for answers in turns for pair in zip(prompts, answers, strict=True)][:CHECKED]
        if not pairs:
            return
        self._compared = True
        packed = pack([Sample(prompt, completion.ids) for prompt, completion in pairs], device=self.model.device)
        expected, _ = self.model.log_probs(packed, temperature=sampling.temperature or 1.0)
        given = torch.tensor([value for _, completion in pairs for value in completion.log_probs])
        gap = float((expected.float().cpu() - given).abs().mean())
        if not gap <= GAPS[self.model.dtype]:
            raise ValueError(
                f"the log-probabilities of {self.name} are {gap:.2g} nats off the trainer's after update "
                f"{self.version} (at most {GAPS[self.model.dtype]:g} can be rounding): it samples from other weights, "
                "at another temperature or in another precision, or returns log-probabilities after a cut by top_k or "
                "top_p"
            )
