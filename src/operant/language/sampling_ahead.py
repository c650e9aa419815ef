"""Asynchronous sampling of the next batch during an update: `AheadSampler`.

The answers are sampled with weights that are one update old, as in asynchronous training with a staleness of at most
one (Noukhovitch et al. 2024, arXiv:2410.18252). Truncated importance weights correct the ratio of the policy to the
sampling policy (`operant.language.importance`).
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from operant.language.configs import SamplingConfig
from operant.language.engines.protocol import AheadEngine, Completion, Engine, Sampling
from operant.language.examples import Prompt
from operant.language.huggingface import Tokenizer
from operant.language.models import LanguageModel
from operant.language.rewards import RewardFunctions
from operant.language.rollouts import Answers, Sampler, answers_of, flat
from operant.state import State

RESTORED = -1
"""Version of pending completions of a restored state until `update`: they were sampled one update before the state."""


class AheadSampler(Sampler):
    """Sampler of the next batch's answers in a thread, between `begin` and `update`.

    After an update, sampling has finished, and the pending completions are part of the state, so that a resumed run
    trains on the same ones.
    """

    def __init__(self, *arguments: Any, max_staleness: int = 1, **options: Any):
        super().__init__(*arguments, max_staleness=max_staleness, **options)
        if self.shards.count > 1:
            raise ValueError("max_staleness=1 does not support shards: leave out --shards")
        self._waiting: list[Completion] | None = None
        self._progress: Future[list[list[Completion]]] | None = None
        self._staleness = 0

    def begin(self, count: int, group: int) -> None:
        """Start sampling the answers of the next draw, unless the budget is used up."""
        if self.asked < self.budget:
            if isinstance(self.engine, AheadEngine):
                self.engine.send_weights()
            pool = ThreadPoolExecutor(1, "sampling")
            asked = [prompt.prompt for prompt in self.next_prompts(count)], group, self.sampling
            self._progress = pool.submit(self.engine.generate, *asked, generator=self._chance)
            pool.shutdown(wait=False)

    def update(self, model: LanguageModel, version: int) -> None:
        """Wait for the answers in progress, then update the weights of the engine."""
        if self._progress is not None:
            found, self._progress = self._progress.result(), None
            self._waiting = flat(found)
        elif self._waiting is not None and self._waiting[0].version == RESTORED:
            self._waiting = [completion._replace(version=version - 1) for completion in self._waiting]
        self._staleness = 0
        super().update(model, version)

    def metrics(self) -> dict[str, float]:
        """Return the largest staleness of the answers since the last update, in updates."""
        return {"sampling/staleness": float(self._staleness)}

    def answers(self, count: int, group: int) -> Answers:
        """Return the answers sampled in advance; for the first batch, sample them now."""
        if self._waiting is None:
            return super().answers(count, group)
        completions, self._waiting, self._staleness = self._waiting, None, 1
        return answers_of(self.next_prompts(count), completions, tokenizer=self.tokenizer)

    def state_dict(self) -> State:
        """Return the state, including the pending completions."""
        waiting = self._waiting or []
        return super().state_dict() | {
            "waiting": {
                "ids": torch.tensor([token for c in waiting for token in c.ids], dtype=torch.int64),
                "log_probs": torch.tensor([value for c in waiting for value in c.log_probs], dtype=torch.float64),
                "lengths": torch.tensor([len(c.ids) for c in waiting], dtype=torch.int64),
                "truncated": torch.tensor([c.truncated for c in waiting], dtype=torch.bool),
            }
        }

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly."""
        super().load_state_dict({name: value for name, value in state.items() if name != "waiting"})
        saved = state["waiting"]
        ids, log_probs = (saved[name].split(saved["lengths"].tolist()) for name in ("ids", "log_probs"))
        rows = zip(ids, log_probs, saved["truncated"].tolist(), strict=True)
        self._progress, self._waiting = (
            None,
            [Completion(i.tolist(), p.tolist(), cut, RESTORED) for i, p, cut in rows] or None,
        )


def sampler_of(
    config: SamplingConfig,
    engine: Engine,
    prompts: Sequence[Prompt],
    rewards: RewardFunctions,
    tokenizer: Tokenizer,
    *,
    max_tokens: int,
    **options: Any,
) -> Sampler:
    """Create the sampler of a configuration; `max_tokens` limits answers, `options` are arguments of `Sampler`."""
    kind, options["max_staleness"] = AheadSampler if config.max_staleness else Sampler, config.max_staleness
    sampling = Sampling(max_tokens=max_tokens, temperature=config.temperature)
    return kind(engine, prompts, rewards, tokenizer, sampling, **options)
