"""Simulated annotator with a known reward function, for tests of learning from human preferences.

Its noise follows the models of reward learning: of two answers with rewards r, Bradley and Terry (1952) choose the
first with probability σ((r_1 - r_2) / T); a ranking of K follows Plackett (1975) and Luce (1959). Both are the order of
r / T plus independent Gumbel noise.
"""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from operant.language.preferences.items import Event, Item, Outcome, Presentation, dense_ranks, encode
from operant.language.preferences.store import PreferenceStore
from operant.streams import seed_sequence


class Reward(Protocol):
    """A reward function: one reward per completion, None if it does not apply."""

    def __call__(
        self, prompts: list[Any], completions: list[Any], completion_ids: list[list[int]], **columns: Any
    ) -> Sequence[float | None]:
        """Return the rewards; for an item of a store, `columns` are its provenance, and `completion_ids` are empty."""
        ...


@dataclass(frozen=True)
class SimulatedAnnotator:
    """Simulated annotator with a known reward function.

    An answer depends only on (seed, name, item, round), not on the order of the items or on interruptions.

    Attributes:
        reward: reward function.
        name: name of the annotator.
        seed: seed of the random stream.
        temperature: T, in units of the reward. Higher values make answers more random; with 0 all are correct.
        tie_threshold: difference of rewards below which the answer is a tie. Higher values give fewer, clearer
            preferences.
        error_rate: probability of a uniformly random answer, independent of the rewards. Christiano et al. 2017
            (arXiv 1706.03741, §2.2.3) assume 0.1 for people.
        position_bias: bonus added to the reward of the completion shown first.
        both_bad_below: answer `both-bad` if all rewards are below this value. Default: never.
    """

    reward: Reward
    name: str = "simulated"
    seed: int = 0
    temperature: float = 1.0
    tie_threshold: float = 0.0
    error_rate: float = 0.0
    position_bias: float = 0.0
    both_bad_below: float | None = None

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and self.tie_threshold >= 0 and 0 <= self.error_rate <= 1):
            raise ValueError(
                "temperature and tie_threshold must be at least 0 and error_rate in [0, 1], got "
                f"{self.temperature}, {self.tie_threshold} and {self.error_rate}"
            )

    def answer(
        self, presentation: Presentation, columns: dict[str, Any] | None = None
    ) -> tuple[Outcome, tuple[int, ...] | None]:
        """Return an answer based on the texts shown.

        Args:
            presentation: presentation of the item.
            columns: columns of the prompt for the reward function.

        Returns:
            Outcome, and the ranks in the order shown for a ranking.
        """
        count = len(presentation.completions)
        repeated: dict[str, list[Any]] = {name: [value] * count for name, value in (columns or {}).items()}
        given: dict[str, list[Any]] = {
            "prompts": [presentation.prompt] * count,
            "completions": list(presentation.completions),
            "completion_ids": [[]] * count,
        }
        return self.choose(presentation, self.reward(**(repeated | given)))

    def choose(
        self, presentation: Presentation, rewards: Sequence[float | None]
    ) -> tuple[Outcome, tuple[int, ...] | None]:
        """Return the answer that is based on the rewards of the completions shown.

        Args:
            presentation: presentation of the item.
            rewards: reward of each completion in the order shown, by the annotator's function.

        Returns:
            As `answer`.
        """
        known = _known(list(rewards), presentation)
        if known is None:
            return "skip", None
        generator = self._stream(presentation)
        count = len(known)
        mistaken, noise = generator.random() < self.error_rate, generator.gumbel(size=count)
        if mistaken:
            return _ordered(noise)
        if self.both_bad_below is not None and max(known) < self.both_bad_below:
            return "both-bad", None
        seen = np.array(known) + self.position_bias * (np.arange(count) == 0)
        if np.ptp(known) < self.tie_threshold:
            return "tie", None
        return _ordered(seen / self.temperature + noise if self.temperature else seen)

    def label(self, store: PreferenceStore, *, repeat: bool = False, now: float | None = None) -> list[Event]:
        """Label every item of a store that has no label by this annotator, in one transaction.

        Args:
            store: store with the items.
            repeat: whether to label items with one label again.
            now: seconds since 1970. Default: the clock.

        Returns:
            New events.
        """
        now, round_ = time.time() if now is None else now, int(repeat)
        with store.transaction():
            mine = [event for event in store.labels() if event.annotator == self.name]
            labeled = {event.item_id for event in mine if event.round == round_}
            judged = {event.item_id for event in mine if event.round == 0 and event.outcome != "skip"}
            items = [item for item in store.items() if item.item_id not in labeled]
            return [self._label(store, item, round_, now) for item in items if not repeat or item.item_id in judged]

    def _label(self, store: PreferenceStore, item: Item, round_: int, now: float) -> Event:
        presentation = store.present(item.item_id, self.name, round=round_, now=now)
        outcome, ranks = self.answer(presentation, dict(item.provenance))
        identity = encode([self.name, self.seed, item.item_id, round_, now])
        event_id = f"simulated-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
        return store.record(presentation, outcome, event_id=event_id, shown_at=now, answered_at=now, ranks=ranks)

    def _stream(self, presentation: Presentation) -> np.random.Generator:
        purpose = f"annotator {self.name} {presentation.item_id}"
        return np.random.Generator(np.random.PCG64(seed_sequence(self.seed, purpose, presentation.round)))


def _known(rewards: Sequence[float | None], presentation: Presentation) -> list[float] | None:
    """Return the rewards of the completions shown; None if one is missing."""
    count = len(presentation.completions)
    if len(rewards) != count:
        raise ValueError(f"the reward function gave {len(rewards)} rewards for {count} completions")
    known = [float(reward) for reward in rewards if reward is not None]
    if not np.isfinite(known).all():
        raise ValueError(f"rewards must be finite, got {rewards} for the prompt {presentation.prompt!r}")
    return known if len(known) == count else None


def _ordered(utility: np.ndarray) -> tuple[Outcome, tuple[int, ...] | None]:
    """Return the answer that ranks completions by their utility; equal utilities are ties."""
    ranks = dense_ranks((-utility).tolist())
    if len(set(ranks)) == 1:
        return "tie", None
    if len(ranks) == 2:
        return ("A" if ranks[0] == 1 else "B"), None
    return "ranking", ranks
