"""How many seeds are enough: a test of two runs that may be repeated as seeds come in (`enough_seeds`).

A test at 5 % that is repeated after every few seeds until it is significant errs far more often than in 5 % of the
cases. A group-sequential test spends its 5 % on all the looks together: O'Brien and Fleming 1979; Lan and DeMets 1983,
"Discrete sequential boundaries for clinical trials", for looks whose number is not fixed in advance. This one is a
permutation test (Mehta, Patel and Senchaudhuri 1994), so that it is valid for any distribution of scores, and for five
seeds: if the two runs are equally good, the seeds that came in between two looks could as well have had their runs
exchanged.
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
"""Fewest seeds of each run that the default looks begin with: four can never decide at 5 % over several looks."""

POWER = 0.8
"""Probability with which the estimated number of seeds decides, if the difference is the one that was seen."""

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """The test after a number of seeds.

    Attributes:
        seeds: of each run.
        improvement: probability that a seed of the first run scores higher than one of the second; ties count one half.
        boundary: distance of `improvement` from one half from which on the test decides; more than one half: no
            outcome decides.
        p_value: share of the exchanges of runs that were not decided before and are at least as far from one half.
        spent: of the error probability, up to this look.
    """

    seeds: int
    improvement: float
    boundary: float
    p_value: float
    spent: float


@dataclass(frozen=True)
class Decision:
    """What the seeds so far tell.

    Attributes:
        better: which run scores higher; None: that is undecided.
        looks: the looks up to the one that decided, or all that there are seeds for.
        next_look: seeds of each run at the next look; None if it is decided.
        needed: seeds of each run that decide with probability `POWER` if the difference is the one that was seen, a
            look; None if it is decided, or no difference was seen.
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
    """Test whether the seeds of one run score higher than those of another, or lower, at look after look.

    At look k at most `alpha k / (k + 1)` is spent, so that the looks never end. The statistic is the distance of the
    probability of improvement (the Mann-Whitney statistic over `n²`) from one half. At every look the boundary is the
    lowest one that as many of the exchanged data sets cross, now or before, as are spent.

    Args:
        scores: `[n]`, of the seeds of one run in the order in which they came in.
        others: `[m]`, of the other run.
        looks: rising numbers of seeds of each run, chosen without a look at the scores; from the last one on they
            double. Default: 5, 10, 20, ...
        alpha: probability of a decision, at any look, where the runs are equally good.
        permutations: exchanged data sets, at least 20 / alpha.

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
    """Return looks up to one beyond the seeds, doubling from the last one that was asked for."""
    schedule = list(looks) if looks else [FIRST_LOOK]
    if any(late <= early for early, late in zip([0, *schedule], schedule, strict=False)):
        raise ValueError(f"looks must be rising positive numbers of seeds, such as 5, 10, 20, got {schedule}")
    while schedule[-1] <= seeds:
        schedule.append(2 * schedule[-1])
    return schedule


def _validate(first: Floats, second: Floats, alpha: float, permutations: int) -> None:
    if first.ndim != 1 or second.ndim != 1 or not np.isfinite(first).all() or not np.isfinite(second).all():
        raise ValueError("scores must be one finite number per seed: leave out seeds that have none")
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must be a probability between 0 and 1, got {alpha}")
    if permutations < 20 / alpha:
        raise ValueError(f"permutations must be at least 20 / alpha = {20 / alpha:.0f}, got {permutations}")


@lru_cache(maxsize=16)
def _exchanges(looks: tuple[int, ...], permutations: int) -> Bools:
    """Return which seeds count as the first run's, `[permutations + 1, 2 n]`: its own in row 0, exchanged in others.

    The columns are those of the first run, then those of the second. Between two looks as many seeds of each run come
    in as there are labels, which are shuffled among them.
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
    """Return the probability of improvement `[permutations + 1]` for every exchange of runs."""
    n, values = first.size, np.concatenate([first, second])
    order = np.sort(values)
    ranks = (np.searchsorted(order, values, "left") + np.searchsorted(order, values, "right") + 1) / 2
    return (labels @ ranks - n * (n + 1) / 2) / n**2


def _boundary(distances: Floats, allowed: int) -> float:
    """Return the lowest of some distances that at most `allowed` of them reach; infinity if none is so rare."""
    values, counts = np.unique(distances.round(12), return_counts=True)
    reach = counts[::-1].cumsum()[::-1]
    rare = values[reach <= allowed]
    return float(rare[0]) if rare.size else math.inf


def _needed(first: Floats, second: Floats, schedule: list[int], upcoming: int, alpha: float) -> int | None:
    """Return the look at which as many seeds of each run decide, by the normal approximation of Noether 1987.

    Looks before that one have spent a part of alpha, so that the k-th one tests at about `alpha / (k + 1)`.
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
