"""Scores of a run compared with its start: `Course`, and the paired difference of two evaluations, `change`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy import special  # pyright: ignore[reportMissingTypeStubs] - SciPy has none

from operant.runtime.evaluation import Evaluation

CONFIDENCE = 0.99
"""Confidence of a difference. A run compares some twenty evaluations with its start, so 95 % would often err."""
SURE = 0.999
"""The same for a difference from the best of many evaluations, whose score is biased upward."""
FEWEST, FEWEST_RECORDS = 8, 4
"""Minimum number of examples, and of records in a third of a run, for a statement about a difference."""


class Change(NamedTuple):
    """Paired difference of two evaluations.

    Attributes:
        mean: of the differences, over the seeds, then over the examples.
        low: lower end of its 99 % interval over the examples (Student's t).
        high: upper end.
        examples: their number.
    """

    mean: float
    low: float
    high: float
    examples: int


class Point(NamedTuple):
    """An evaluation, and the budget used by each seed."""

    consumed: int
    evaluation: Evaluation


@dataclass(frozen=True)
class Hints:
    """Details for the warning about a score below the start.

    Attributes:
        unit: of the budget.
        kept: whether the best weights are kept, for `--best`.
        advice: what to try instead; empty: none.
        penalty: option that penalizes leaving the start, such as `--beta`; empty: none.
    """

    unit: str = "steps"
    kept: bool = False
    advice: str = ""
    penalty: str = ""


@dataclass
class Course:
    """The evaluations of a run, in order, and the rewards of its samples between them.

    Attributes:
        points: all evaluations.
        rewards: mean reward of the sampled answers, one per record of metrics; empty without samples.
    """

    points: list[Point] = field(default_factory=list[Point])
    rewards: list[float] = field(default_factory=list[float])

    @classmethod
    def of_records(cls, records: Iterable[Mapping[str, Any]]) -> "Course":
        """Return the course in lines of `eval/evaluations.jsonl`; other lines are ignored."""
        found = [r for r in records if "episode_scores" in r]
        return cls([Point(int(r.get("consumed", 0)), Evaluation.of_record(r)) for r in found])

    def add_reward(self, reward: Any) -> None:
        """Add the reward of a record of metrics, a number or one per seed; NaN and Inf are ignored."""
        values = np.atleast_1d(np.asarray(math.nan if reward is None else reward, np.float64))
        if np.isfinite(values).any():
            self.rewards.append(float(values[np.isfinite(values)].mean()))

    @property
    def start(self) -> Point | None:
        """The evaluation before the first update, or None."""
        return next((point for point in self.points if point.consumed == 0), None)

    @property
    def best(self) -> Point | None:
        """The first evaluation with the highest mean score, or None."""
        finite = [point for point in self.points if not math.isnan(point.evaluation.mean)]
        return max(finite, key=lambda point: point.evaluation.mean, default=None)

    def below_start(self) -> Change | None:
        """The change from the start to the latest evaluation if it is a loss beyond noise, else None."""
        found = self.from_start()
        return found if found is not None and found.high < 0 else None

    def from_start(self) -> Change | None:
        """The change from the start to the latest evaluation; None if it is not informative."""
        if self.start is None or self.points[-1].consumed == 0:
            return None
        return change(self.start.evaluation, self.points[-1].evaluation)

    def warning(self, hints: Hints) -> str | None:
        """The warning if the latest score is below the start, else None."""
        loss, start, best = self.below_start(), self.start, self.best
        if loss is None or start is None or best is None:
            return None
        now = self.points[-1].evaluation
        if best.consumed:
            top = f"the best was {best.evaluation.mean:.4g} at {best.consumed:,} {hints.unit}"
        else:
            top = "the start is the best so far"
        return (
            f"eval {now.mean:.4g} is below the start, {start.evaluation.mean:.4g} ({loss.mean:+.2g}, 99 % interval "
            f"{loss.low:+.2g} to {loss.high:+.2g} over {loss.examples} pairs of scores); {top}"
            f"{', kept: --best' if hints.kept else ''}{'. Try ' if hints.advice else ''}{hints.advice}"
        )

    def parting(self, hints: Hints) -> str | None:
        """The warning if the sampled reward rises while the held-out score falls, else None.

        The score has fallen if it is below the start, or significantly below the best (99.9 %); the
        reward rises if its last third is above its first one beyond noise.
        """
        rise, best = _rise(self.rewards), self.best
        if rise is None or best is None or best is self.points[-1]:
            return None
        loss = self.below_start()
        if loss is None:
            found = change(best.evaluation, self.points[-1].evaluation, confidence=SURE)
            if found is None or found.high >= 0:
                return None
        before = self.start if loss is not None and self.start is not None else best
        top = "start" if before is self.start else f"best at {before.consumed:,} {hints.unit}"
        advice = [f"a larger {hints.penalty}"] if hints.penalty else []
        advice += [f"fewer {hints.unit}", "another reward model", "a clipped score"]
        return (
            f"the reward of sampled answers rises ({rise[0]:.4g} to {rise[1]:.4g}) while the held-out score falls "
            f"({before.evaluation.mean:.4g}, {top}, to {self.points[-1].evaluation.mean:.4g}): the policy learns what "
            "earns reward, not what is scored (reward hacking, or memorized training prompts). Try "
            f"{', '.join(advice)}{', or take the best weights: --best' if hints.kept else ''}"
        )


def _rise(rewards: Sequence[float]) -> tuple[float, float] | None:
    """The mean of the first and of the last third of rewards if it has risen beyond noise (99 %, Welch), else None."""
    third = len(rewards) // 3
    if third < FEWEST_RECORDS:
        return None
    first, last = np.asarray(rewards[:third]), np.asarray(rewards[-third:])
    error = math.sqrt((first.var(ddof=1) + last.var(ddof=1)) / third)
    reach = float(special.stdtrit(third - 1, 0.5 + CONFIDENCE / 2)) * error
    means = float(first.mean()), float(last.mean())
    return means if means[1] - means[0] > reach else None


def change(before: Evaluation, after: Evaluation, *, confidence: float = CONFIDENCE) -> Change | None:
    """The paired difference of two evaluations on the same examples.

    Args:
        before: one.
        after: the other.
        confidence: of the interval.

    Returns:
        The difference with its interval; None if fewer than 8 examples have a score in both.
    """
    tables = [np.asarray(one.episode_scores, np.float64) for one in (before, after)]
    if tables[0].shape != tables[1].shape or tables[0].shape[1] < FEWEST:
        return None
    differences = (tables[1] - tables[0]).mean(axis=0)
    differences = differences[np.isfinite(differences)]  # of the examples that have a score in both
    if len(differences) < FEWEST:
        return None
    count, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    reach = float(special.stdtrit(count - 1, 0.5 + confidence / 2)) * error
    return Change(mean, mean - reach, mean + reach, count)
