"""Data types of preference labels: items, presentations, events.

An item is a prompt with K completions in one canonical order. Each annotator sees the completions in their own order;
answers are stored relative to that order ("A" is the first shown), together with it. `Event.ranks_of_item` translates
an answer into the canonical order.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from operant.streams import seed_sequence

Text = str | list[dict[str, Any]]
"""A string, or a conversation as a list of messages `{"role": ..., "content": ...}`."""

Outcome = Literal["A", "B", "tie", "both-bad", "skip", "ranking"]
"""Of two completions: the first or the second shown is better. Of any number: all are equally good, all are bad, or
skipped. Of three or more: a ranking."""

OUTCOMES: tuple[Outcome, ...] = ("A", "B", "tie", "both-bad", "skip", "ranking")
"""All outcomes."""


def encode(value: Any) -> str:
    """Return canonical JSON: sorted keys, no spaces, unescaped characters.

    Raises:
        ValueError: the value is not valid JSON (NaN, Inf) or UTF-8 (an unpaired surrogate).
    """
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    text.encode()
    return text


@dataclass(frozen=True)
class Completion:
    """Completion of a prompt.

    Attributes:
        text: text of the completion.
        provenance: source of the completion (run, consumed, seed, reward, ...), as JSON values; never shown to
            annotators.
    """

    text: Text
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Item:
    """A prompt with K different completions in canonical order; create it with `Item.of`.

    Attributes:
        item_id: hash of prompt and completions (32 hexadecimal digits), independent of the order of the completions.
        prompt: the prompt.
        completions: sorted by their text.
        gold: the known rank of each completion, 1 is best and ties share a rank; None if unknown. Items with a known
            answer are shown to every annotator.
        provenance: provenance of the prompt, such as the columns of its data set.
    """

    item_id: str
    prompt: Text
    completions: tuple[Completion, ...]
    gold: tuple[int, ...] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(
        cls,
        prompt: Text,
        completions: Sequence[Completion | Text],
        *,
        gold: Sequence[int] | None = None,
        provenance: Mapping[str, Any] | None = None,
    ) -> "Item":
        """Create an item.

        Args:
            prompt: a string or a list of messages.
            completions: two or more, all different.
            gold: the known rank of each, in the order of `completions`.
            provenance: provenance of the prompt.

        Raises:
            ValueError: there are fewer than two completions, two are equal, `gold` has another length, or something
                cannot be written as JSON.
        """
        given = [c if isinstance(c, Completion) else Completion(c) for c in completions]
        texts = [encode(c.text) for c in given]
        if len(given) < 2 or len(set(texts)) < len(texts):
            raise ValueError(f"an item needs two or more different completions, got {[c.text for c in given]}")
        if gold is not None and len(gold) != len(given):
            raise ValueError(f"gold must rank all {len(given)} completions, got {list(gold)}")
        order = sorted(range(len(given)), key=texts.__getitem__)
        identity = encode({"prompt": prompt, "completions": [given[i].text for i in order]})
        encode([given[i].provenance for i in order] + [provenance or {}])
        return cls(
            item_id=hashlib.sha256(identity.encode()).hexdigest()[:32],
            prompt=prompt,
            completions=tuple(given[i] for i in order),
            gold=None if gold is None else dense_ranks([gold[i] for i in order]),
            provenance=provenance or {},
        )


@dataclass(frozen=True)
class Presentation:
    """An item as presented to an annotator, without provenance, in an order per annotator.

    Attributes:
        item_id: id of the item.
        annotator: name of the annotator.
        round: 0 for the first time, 1 for a repeated question that measures consistency.
        prompt: the prompt.
        completions: texts of the completions in the order shown.
        shown: index in the item of the completion at each position.
    """

    item_id: str
    annotator: str
    round: int
    prompt: Text
    completions: tuple[Text, ...]
    shown: tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """Entry of the append-only log: a label, or the undo of a label.

    Attributes:
        event_id: unique id chosen by the client, so that retries have no effect.
        kind: "label" or "undo".
        item_id: id of the item.
        annotator: name of the annotator.
        round: as in `Presentation`.
        outcome: the answer, None for an undo.
        ranks: for a ranking, the rank of each completion in the order shown, 1 is best, ties share a rank.
        shown: the order shown, as in `Presentation`.
        shown_at: seconds since 1970; 0 if neither time nor order is known (imported labels).
        answered_at: time of the answer or undo; not before `shown_at`.
        supersedes: the event that this one replaces or undoes.
        sequence: its index in the log, set by the store; 0 before.
    """

    event_id: str
    kind: Literal["label", "undo"]
    item_id: str
    annotator: str
    round: int
    outcome: Outcome | None
    ranks: tuple[int, ...] | None
    shown: tuple[int, ...]
    shown_at: float
    answered_at: float
    supersedes: str | None = None
    sequence: int = 0

    def shown_ranks(self) -> tuple[int, ...] | None:
        """Return the rank of each completion in the order shown, None without a preference (skip, undo)."""
        if self.outcome == "A":
            return (1, 2)
        if self.outcome == "B":
            return (2, 1)
        if self.outcome in ("tie", "both-bad"):
            return (1,) * len(self.shown)
        return self.ranks

    def ranks_of_item(self) -> tuple[int, ...] | None:
        """Return the rank of each completion in canonical order, 1 is best; None without a preference."""
        ranks = self.shown_ranks()
        if ranks is None:
            return None
        places = sorted(range(len(self.shown)), key=self.shown.__getitem__)
        return tuple(ranks[place] for place in places)


def dense_ranks(values: Sequence[float]) -> tuple[int, ...]:
    """Return ranks 1, 2, ... without gaps in the order of `values`, the lowest first; equal values share a rank."""
    levels = sorted(set(values))
    return tuple(levels.index(value) + 1 for value in values)


def presentation_order(seed: int, item_id: str, annotator: str, round_: int, count: int) -> tuple[int, ...]:
    """Return the completion at each position, sampled from the stream of (seed, item, annotator, round)."""
    entropy = seed_sequence(seed, f"presentation {item_id} {annotator}", round_)
    return tuple(np.random.Generator(np.random.PCG64(entropy)).permutation(count).tolist())


def check_answer(outcome: str, ranks: Sequence[int] | None, count: int) -> tuple[int, ...] | None:
    """Check an answer to `count` completions and return its ranks without gaps (None unless it is a ranking).

    Raises:
        ValueError: the outcome does not exist or does not fit the number of completions, or the ranks are wrong.
    """
    if outcome not in OUTCOMES:
        raise ValueError(f"outcome must be one of {', '.join(OUTCOMES)}, got {outcome!r}")
    if outcome in ("A", "B") and count != 2:
        raise ValueError(f"outcome {outcome!r} needs two completions, this item has {count}: rank them")
    if outcome != "ranking":
        if ranks is not None:
            raise ValueError(f"ranks belong to the outcome 'ranking', got {list(ranks)} with {outcome!r}")
        return None
    if count == 2:
        raise ValueError("two completions need no ranking: the outcome is 'A', 'B' or 'tie'")
    if ranks is None or len(ranks) != count or not all(type(rank) is int and rank >= 1 for rank in ranks):
        raise ValueError(f"a ranking needs a rank of at least 1 for each of {count} completions, got {ranks}")
    if len(set(ranks)) == 1:
        raise ValueError(f"ranks {list(ranks)} are all equal: the outcome is 'tie' or 'both-bad'")
    return dense_ranks(ranks)
