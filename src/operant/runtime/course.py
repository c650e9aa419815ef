"""Changes of a run's score since its start: `Course`, and the paired difference of two evaluations, `change`."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from operant.runtime.evaluation import Evaluation

CONFIDENCE = 0.99
"""Confidence level of differences. With some twenty evaluations per run, 95 % would often be wrong."""
SURE = 0.999
"""Confidence level of differences from the best evaluation, whose score is biased upward."""
FEWEST, FEWEST_RECORDS = 8, 4
"""Minimum number of examples, and of records in a third of a run, to test a difference."""


class Change(NamedTuple):
    """Paired difference of two evaluations.

    Attributes:
        mean: mean difference, over the seeds, then over the examples.
        low: lower end of the 99 % interval over the examples (Student's t).
        high: upper end.
        examples: number of examples.
    """

    mean: float
    low: float
    high: float
    examples: int


class Point(NamedTuple):
    """An evaluation, and the budget used per seed."""

    consumed: int
    evaluation: Evaluation


@dataclass(frozen=True)
class Hints:
    """Details for the warning about a score below the start.

    Attributes:
        unit: unit of the budget.
        kept: whether the best weights are saved, for `--best`.
        advice: suggested changes; empty: none.
        penalty: option that penalizes the divergence from the start, such as `--beta`; empty: none.
    """

    unit: str = "steps"
    kept: bool = False
    advice: str = ""
    penalty: str = ""


@dataclass
class Course:
    """Evaluations of a run, in order, and rewards of the answers sampled in training.

    Attributes:
        points: all evaluations.
        rewards: mean reward of sampled answers per record of metrics; empty if training does not sample.
    """

    points: list[Point] = field(default_factory=list[Point])
    rewards: list[float] = field(default_factory=list[float])

    @classmethod
    def of_records(cls, records: Iterable[Mapping[str, Any]]) -> "Course":
        """Create a course from records of `eval/evaluations.jsonl`; other records are ignored."""
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
        """The change from the start to the latest evaluation if it is a significant decrease, else None."""
        found = self.from_start()
        return found if found is not None and found.high < 0 else None

    def from_start(self) -> Change | None:
        """The change from the start to the latest evaluation; None if it cannot be tested."""
        if self.start is None or self.points[-1].consumed == 0:
            return None
        return change(self.start.evaluation, self.points[-1].evaluation)

    def warning(self, hints: Hints) -> str | None:
        """Return a warning if the latest score is significantly below the start, else None."""
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
            f"{' (saved: --best)' if hints.kept else ''}{'. Try ' if hints.advice else ''}{hints.advice}"
        )

    def parting(self, hints: Hints) -> str | None:
        """Return a warning if the training reward rises while the held-out score falls, else None.

        The score falls if it is significantly below the start (99 %) or the best (99.9 %); the reward rises if its last
        third is significantly above its first third.
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
            f"({before.evaluation.mean:.4g}, {top}, to {self.points[-1].evaluation.mean:.4g}): the policy exploits the "
            "training reward (reward hacking), or memorizes training prompts. Try "
            f"{', '.join(advice)}{', or use the best weights: --best' if hints.kept else ''}"
        )


def _rise(rewards: Sequence[float]) -> tuple[float, float] | None:
    """Return the means of the first and last third of rewards if they rise significantly (99 %, Welch), else None."""
    third = len(rewards) // 3
    if third < FEWEST_RECORDS:
        return None
    first, last = np.asarray(rewards[:third]), np.asarray(rewards[-third:])
    error = math.sqrt((first.var(ddof=1) + last.var(ddof=1)) / third)
    reach = _reach(third - 1, CONFIDENCE) * error
    means = float(first.mean()), float(last.mean())
    return means if means[1] - means[0] > reach else None


def change(before: Evaluation, after: Evaluation, *, confidence: float = CONFIDENCE) -> Change | None:
    """Compute the paired difference of two evaluations on the same examples.

    Args:
        before: first evaluation.
        after: second evaluation.
        confidence: confidence level of the interval.

    Returns:
        The difference with its interval; None if fewer than 8 examples have a score in both.
    """
    tables = [np.asarray(one.episode_scores, np.float64) for one in (before, after)]
    if tables[0].shape != tables[1].shape or tables[0].shape[1] < FEWEST:
        return None
    differences = (tables[1] - tables[0]).mean(axis=0)
    differences = differences[np.isfinite(differences)]  # examples with a score in both
    if len(differences) < FEWEST:
        return None
    count, mean = len(differences), float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(count)
    reach = _reach(count - 1, confidence) * error
    return Change(mean, mean - reach, mean + reach, count)


def _reach(freedom: int, confidence: float) -> float:
    """Return half the width of a confidence interval, in standard errors (Student's t)."""
    from scipy import special  # noqa: PLC0415 # pyright: ignore[reportMissingTypeStubs] - slow to import; has no types

    return float(special.stdtrit(freedom, 0.5 + confidence / 2))
