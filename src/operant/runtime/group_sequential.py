"""Group-sequential test of two runs, which may be repeated as seeds are added: `enough_seeds`.

A 5 % test that is repeated after every few seeds until it is significant has an error rate far above 5 %. A
group-sequential test spends an error probability of 5 % over all looks: O'Brien and Fleming 1979; Lan and DeMets 1983,
"Discrete sequential boundaries for clinical trials", for a number of looks that is not fixed in advance. This one is a
permutation test (Mehta, Patel and Senchaudhuri 1994), which is valid for any distribution of scores and as few as five
seeds: if both runs are equally good, the seeds between two looks are exchangeable between the runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.streams import seed_sequence

FIRST_LOOK = 5
"""Number of seeds per run at the first default look; four seeds can never decide at 5 % over several looks."""

POWER = 0.8
"""Power of the test with the estimated number of seeds, if the true difference equals the observed one."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """The test after a number of seeds.

    Attributes:
        seeds: number of seeds per run.
        improvement: probability that a seed of the first run scores higher than one of the second; ties count half.
        boundary: minimum distance of `improvement` from 0.5 at which the test decides; above 0.5: it cannot decide.
        p_value: fraction of the permutations, without earlier decisions, that are at least as far from 0.5.
        spent: error probability spent up to this look.
    """

    seeds: int
    improvement: float
    boundary: float
    p_value: float
    spent: float


@dataclass(frozen=True)
class Decision:
    """Result of a group-sequential test.

    Attributes:
        better: index of the run that scores higher; None if undecided.
        looks: looks up to the decision, or all for which there are enough seeds.
        next_look: number of seeds per run at the next look; None if decided.
        needed: estimated number of seeds per run for a decision with probability `POWER`, if the true difference equals
            the observed one; None if decided, or if there is no difference.
    """

    better: Literal["first", "second"] | None
    looks: tuple[Look, ...]
    next_look: int | None
    needed: int | None


def enough_seeds(
    scores: ArrayLike,
    others: ArrayLike,
    *,
    looks: Sequence[int] | None = None,
    alpha: float = 0.05,
    permutations: int = 2000,
) -> Decision:
    """Test sequentially whether the seeds of one run score higher or lower than those of another.

    Up to look k at most `alpha k / (k + 1)` is spent, so the number of looks is unlimited. The statistic is the
    distance of the probability of improvement (the Mann-Whitney statistic over `n²`) from 0.5. At every look the
    boundary is the lowest value that the allowed fraction of permutations exceeds at this look or before.

    Args:
        scores: scores of the seeds of one run, in order of arrival, `[n]`.
        others: scores of the seeds of the other run, `[m]`.
        looks: increasing numbers of seeds per run, chosen without knowledge of the scores; after the last one, they
            double. Default: 5, 10, 20, ...
        alpha: probability of a decision at any look if the runs are equally good.
        permutations: number of permutations, at least 20 / alpha.

    Raises:
        ValueError: a score is NaN or Inf, or an argument is out of its range.
    """
    schedule = _schedule(looks, max(np.size(scores), np.size(others)))
    first, second = np.asarray(scores, np.float64), np.asarray(others, np.float64)
    _validate(first, second, alpha, permutations)
    seen = [look for look in schedule if look <= min(first.size, second.size)]
    alive = np.ones(permutations + 1, np.bool_)
    crossed, made = 0, list[Look]()
    for k, n in enumerate(seen, 1):
        spent = alpha * k / (k + 1)
        improvements = _improvements(first[:n], second[:n], _exchanges(tuple(seen[:k]), permutations))
        distances = np.abs(improvements - 0.5)
        boundary = _boundary(distances[alive], math.floor(spent * alive.size) - crossed)
        rivals: Bools = alive & (distances >= distances[0] - 1e-12)
        p_value = float(rivals.mean())
        made.append(Look(n, float(improvements[0]), boundary, p_value, spent))
        crosses: Bools = alive & (distances >= boundary - 1e-12)
        if crosses[0]:
            return Decision("first" if improvements[0] > 0.5 else "second", tuple(made), None, None)
        alive, crossed = alive & ~crosses, crossed + int(crosses.sum())
    upcoming = next(look for look in schedule if look > min(first.size, second.size))
    return Decision(None, tuple(made), upcoming, _needed(first, second, schedule, upcoming, alpha))


def _schedule(looks: Sequence[int] | None, seeds: int) -> list[int]:
    """Return the looks up to the first one above `seeds`, doubling after the last given one."""
    schedule = [FIRST_LOOK] if looks is None or not len(looks) else [*looks]
    if any(late <= early for early, late in zip([0, *schedule], schedule, strict=False)):
        raise ValueError(f"looks must be increasing positive numbers of seeds, such as 5, 10, 20, got {schedule}")
    while schedule[-1] <= seeds:
        schedule.append(2 * schedule[-1])
    return schedule


def _validate(first: Floats, second: Floats, alpha: float, permutations: int) -> None:
    if first.ndim != 1 or second.ndim != 1 or not np.isfinite(first).all() or not np.isfinite(second).all():
        raise ValueError("scores must be one finite number per seed: leave out seeds without a score")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be a probability between 0 and 1, got {alpha}")
    if permutations < 20 / alpha:
        raise ValueError(f"permutations must be at least 20 / alpha = {20 / alpha:.0f}, got {permutations}")


@lru_cache(maxsize=16)
def _exchanges(looks: tuple[int, ...], permutations: int) -> Bools:
    """Return masks of the seeds assigned to the first run, `[permutations + 1, 2 n]`; row 0 is the original assignment.

    Columns are the seeds of the first run, then those of the second. Assignments are shuffled among the seeds between
    two looks.
    """
    generator = np.random.Generator(np.random.PCG64(seed_sequence(0, "exchanges")))
    first, second = list[Bools](), list[Bools]()
    for before, after in zip((0, *looks), looks, strict=False):
        new = after - before
        labels = np.argsort(generator.random((permutations + 1, 2 * new)), axis=1) < new
        labels[0] = np.arange(2 * new) < new
        first.append(labels[:, :new])
        second.append(labels[:, new:])
    return np.concatenate([*first, *second], axis=1)


def _improvements(first: Floats, second: Floats, labels: Bools) -> Floats:
    """Return the probability of improvement for every permutation, `[permutations + 1]`."""
    n, values = first.size, np.concatenate([first, second])
    order = np.sort(values)
    ranks = (np.searchsorted(order, values, "left") + np.searchsorted(order, values, "right") + 1) / 2
    return (labels @ ranks - n * (n + 1) / 2) / n**2


def _boundary(distances: Floats, allowed: int) -> float:
    """Return the lowest distance that at most `allowed` of the distances reach; Inf if there is none."""
    values, counts = np.unique(distances.round(12), return_counts=True)
    reach = counts[::-1].cumsum()[::-1]
    rare = values[reach <= allowed]
    return float(rare[0]) if rare.size else math.inf


def _needed(first: Floats, second: Floats, schedule: list[int], upcoming: int, alpha: float) -> int | None:
    """Return the look with enough seeds for a decision, by the normal approximation of Noether 1987.

    Earlier looks have spent a part of alpha, so the k-th look tests at about `alpha / (k + 1)`.
    """
    n = min(first.size, second.size)
    if n == 0:
        return None
    distance = abs(float(_improvements(first[:n], second[:n], np.arange(2 * n)[None] < n)[0]) - 0.5)
    if distance == 0:
        return None
    quantile, looks, k = NormalDist().inv_cdf, list(schedule), 1
    while True:
        exact = (quantile(1 - alpha / (k + 1) / 2) + quantile(POWER)) ** 2 / (6 * distance**2)
        if looks[k - 1] >= max(exact, upcoming):
            return looks[k - 1]
        k += 1
        if k > len(looks):
            looks.append(2 * looks[-1])
