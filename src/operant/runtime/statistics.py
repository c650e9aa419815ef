"""Statistics over few seeds: the interquartile mean, performance profiles, and their bootstrap intervals.

They follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021,
arXiv:2108.13264): scores of several runs (seeds), on one task or several, are summarized by the mean of their middle
half, and the uncertainty is bootstrapped over runs, task by task.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.streams import seed_sequence

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Function that reduces the last axis."""


def iqm(scores: ArrayLike) -> NDArray[np.float64]:
    """Return the interquartile mean along the last axis.

    The `floor(n / 4)` lowest and highest of `n` scores are dropped, without fractional weights, exactly as in
    `scipy.stats.trim_mean(scores, 0.25)` and the paper's library. For fewer than 4 scores it is the mean. NaN results
    in NaN.

    Args:
        scores: `[..., n]`.

    Returns:
        `[...]`.

    Raises:
        ValueError: there are no scores.
    """
    values = _scores(scores)
    n = values.shape[-1]
    middle = np.sort(values, axis=-1)[..., n // 4 : n - n // 4].mean(axis=-1)
    return np.where(np.isnan(values).any(axis=-1), np.nan, middle)


def stratified_bootstrap(
    scores: ArrayLike,
    statistic: Statistic = iqm,
    *,
    repetitions: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the bootstrap percentile interval of a statistic, resampling runs within each task.

    With one run per task the interval has zero width: the uncertainty is unknown, not small. Below about 5 runs
    the interval is too narrow.

    Args:
        scores: `[seeds]` or `[tasks, seeds]`.
        statistic: function that reduces the last axis of `[repetitions, tasks * seeds]`. Default: `iqm`.
        repetitions: number of resamples.
        confidence: probability mass of the interval.
        seed: seed of the random numbers; equal seeds give equal intervals.

    Returns:
        Lower and upper bound.

    Raises:
        ValueError: an empty or wrongly shaped `scores`, or a parameter out of range.
    """
    resampled = _drawn_again(scores, repetitions, seed).reshape(repetitions, -1)
    with np.errstate(invalid="ignore"):
        low, high = np.percentile(statistic(resampled), _tails(confidence))
    return float(low), float(high)


@dataclass(frozen=True)
class Profile:
    """Fraction of runs with a score above each of several thresholds (run-score distribution).

    Attributes:
        thresholds: thresholds `[n]`.
        share: fraction of runs `[n]`, with equal weight for each task.
        low: lower bound `[n]` of the interval of `share` at each threshold.
        high: upper bound `[n]`.
    """

    thresholds: NDArray[np.float64]
    share: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def performance_profile(
    scores: ArrayLike,
    thresholds: ArrayLike,
    *,
    repetitions: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Profile:
    """Return the run-score distribution with its stratified bootstrap intervals (Agarwal et al. 2021, section 4.2).

    `F(τ) = mean over tasks and seeds of [score > τ]`. Where the profile of one algorithm is above that of another
    everywhere, its scores are stochastically larger; if they cross, each is better by some statistic.

    Args:
        scores: `[seeds]` or `[tasks, seeds]`.
        thresholds: thresholds τ, `[n]`.
        repetitions: number of resamples within each task.
        confidence: probability mass of the pointwise intervals.
        seed: seed of the random numbers; equal seeds give equal intervals.

    Raises:
        ValueError: an empty or wrongly shaped argument, or a parameter out of range.
    """
    levels = np.asarray(thresholds, np.float64)
    if levels.ndim != 1 or not levels.size:
        raise ValueError(f"thresholds must be [n] with at least one, got shape {levels.shape}")
    resampled = _drawn_again(scores, repetitions, seed).reshape(repetitions, -1)
    shares = np.stack([(resampled > level).mean(-1) for level in levels], axis=-1)
    low, high = np.percentile(shares, _tails(confidence), axis=0)
    values = np.ravel(np.asarray(scores, np.float64))
    return Profile(levels, (values[:, None] > levels).mean(0), low, high)


def _drawn_again(scores: ArrayLike, repetitions: int, seed: int) -> NDArray[np.float64]:
    """Return runs resampled with replacement within each task, `[repetitions, tasks, seeds]`."""
    values = _scores(scores)
    if values.ndim > 2:
        raise ValueError(f"scores must be [seeds] or [tasks, seeds], got shape {values.shape}")
    if repetitions < 1:
        raise ValueError(f"repetitions must be at least 1, got {repetitions}")
    table = np.atleast_2d(values)
    generator = np.random.Generator(np.random.PCG64(seed_sequence(seed, "bootstrap")))
    drawn = generator.integers(table.shape[1], size=(repetitions, *table.shape))
    return np.take_along_axis(table[None], drawn, axis=-1)


def _tails(confidence: float) -> list[float]:
    """Return the percentiles of the bounds of an interval."""
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be a probability between 0 and 1, got {confidence}")
    tail = 50.0 * (1.0 - confidence)
    return [tail, 100.0 - tail]


def _scores(scores: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim == 0 or values.size == 0:
        raise ValueError(f"scores must contain at least one number per task, got shape {values.shape}")
    return values
