"""Ledger of a training batch: the contribution of each token to the loss.

The numbers are by-products of the optimizer steps, so recording them costs only copies.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from operant.language.grpo_batch import Learned, TokenStats, clipped
from operant.language.huggingface import Tokenizer
from operant.language.models import LanguageModel
from operant.runtime.ledger import Ledger, Visit
from operant.tensors import floats

MOST_TOKENS = 1 << 16
"""Maximum number of tokens in a ledger, unless those of the first prompt are more; the others are only summed."""


@runtime_checkable
class Teachable(Protocol):
    """A learner that stores its last training batch."""

    @property
    def model(self) -> LanguageModel:
        """The policy."""
        ...

    def take_learned(self) -> Learned | None:
        """Return the batch; None if it was already returned."""
        ...


def take_ledger(learner: object, *, consumed: int, seed: int) -> Ledger | None:
    """Return the ledger of a learner's last batch; None if no tokens were trained since the last call.

    Args:
        learner: any learner.
        consumed: number of prompts used by the run, including the batch: the minimum over its seeds.
        seed: seed of the learner.
    """
    if not isinstance(learner, Teachable):
        return None
    learned = learner.take_learned()
    if learned is None or not learned.found:
        return None
    return ledger_of(learned, learner.model.tokenizer, consumed=consumed, seed=seed)


def ledger_of(learned: Learned, tokenizer: Tokenizer, *, consumed: int, seed: int) -> Ledger:
    """Return the ledger of a batch.

    Args:
        learned: batch with at least one optimizer step.
        tokenizer: tokenizer of the model.
        consumed: number of prompts used, including the batch.
        seed: seed of the learner.
    """
    samples, count, owners = learned.batch.samples, len(learned.found), _owners(learned)
    everything = _visits(learned)
    table, kept = _columns(learned, everything), _kept(everything, owners)
    firsts = [owners.index(owner) for owner in dict.fromkeys(owners[:kept])]
    prompts = {owners[i]: place for place, i in enumerate(firsts)}
    own = [visit for visit in everything if visit.answer < kept]
    starts = accumulate((visit.length for visit in own), initial=0)
    visits = [visit._replace(start=start) for visit, start in zip(own, starts, strict=False)]
    chosen = torch.cat([torch.arange(visit.start, visit.start + visit.length) for visit in own])
    rest = torch.ones(len(table["policy"]), dtype=torch.bool)
    rest[chosen] = False
    ids = [token for visit in visits for token in samples[visit.answer].completion]
    distinct, piece = np.unique(ids, return_inverse=True)
    names = ("policy", "reference") if learned.reference else ("policy",)
    logged = {"policy": "losses/policy", "reference": "losses/kl"}
    return Ledger(
        consumed=consumed,
        seed=seed,
        group=learned.group,
        steps=count,
        loss={logged[name]: sum(float(report[logged[name]]) for report, _ in learned.found) / count for name in names},
        prompts=[text(tokenizer, samples[i].prompt) for i in firsts],
        answers=_answers(learned, tokenizer, [prompts[owner] for owner in owners[:kept]]),
        pieces=[text(tokenizer, [token]) for token in distinct.tolist()],
        visits=visits,
        columns={"piece": piece.astype(np.int32)} | {name: row[chosen].numpy() for name, row in table.items()},
        rest={"tokens": int(rest.sum())} | {name: float(table[name][rest].double().sum()) for name in names},
    )


def _answers(learned: Learned, tokenizer: Tokenizer, prompts: Sequence[int]) -> list[dict[str, Any]]:
    batch, rewards = learned.batch, floats(learned.batch.rewards)
    return [
        {
            "prompt": prompt,
            "text": text(tokenizer, batch.samples[i].completion),
            "reward": rewards[i] if math.isfinite(rewards[i]) else None,
            "counts": bool(batch.counts[i]),
            "version": batch.versions[i],
        }
        for i, prompt in enumerate(prompts)
    ]


def _owners(learned: Learned) -> Sequence[int]:
    """Return the index of each answer's prompt."""
    return learned.owners or [i // learned.group for i in range(len(learned.batch.samples))]


def text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Decode token ids to text, including special tokens."""
    return str(tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _visits(learned: Learned) -> list[Visit]:
    """Return the answer of each trained token, in the order of training."""
    seen = [(i, k) for k, step in enumerate(learned.steps) for part in step.parts for i in part]
    lengths = [len(learned.batch.samples[i].completion) for i, _ in seen]
    starts = accumulate(lengths, initial=0)
    return [Visit(i, k, start, length) for (i, k), start, length in zip(seen, starts, lengths, strict=False)]


def _columns(learned: Learned, visits: Sequence[Visit]) -> dict[str, Tensor]:
    """Return the values of every trained token in the order of training, by column, on the CPU."""
    seen = [tokens for _, parts in learned.found for tokens in parts]
    tokens = TokenStats(*(torch.cat(rows).float().cpu() for rows in zip(*seen, strict=True)))
    low, high = clipped(tokens.ratios, tokens.advantages, clip_low=learned.clip[0], clip_high=learned.clip[1])
    count = len(learned.found)
    found = {
        "log_prob": tokens.before,
        "behavior": tokens.behavior,
        "advantage": tokens.advantages,
        "weight": tokens.weight,
        "importance": tokens.trust,
        "ratio": tokens.ratios.exp(),
        "clipped": (low | high).to(torch.uint8),
        "entropy": tokens.entropy,
        "policy": tokens.policy / count,
    }
    for name, rows in learned.columns.items():
        found[name] = torch.cat([rows[visit.answer] for visit in visits]).float().cpu()
    return found | ({"kl": tokens.kl, "reference": tokens.reference / count} if learned.reference else {})


def _kept(visits: Sequence[Visit], owners: Sequence[int]) -> int:
    """Return the number of answers to store: those of the first prompt, and of more prompts while tokens are few."""
    sizes = dict.fromkeys(owners, 0)
    for visit in visits:
        sizes[owners[visit.answer]] += visit.length
    count = max(1, sum(total <= MOST_TOKENS for total in accumulate(sizes.values())))
    fitting = {*[*sizes][:count]}
    return sum(owner in fitting for owner in owners)
