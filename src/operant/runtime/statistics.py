"""Statistics over few seeds: the interquartile mean and its bootstrap interval.

Both follow Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021,
arXiv:2108.13264): scores of several runs (seeds), on one task or several, are summarized by the mean of their middle
half, and the uncertainty is bootstrapped over runs, task by task.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.streams import seed_sequence

Statistic = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Reduces the last axis."""


def iqm(scores: ArrayLike) -> NDArray[np.float64]:
    """Return the interquartile mean along the last axis.

    The `floor(n / 4)` lowest and as many highest of `n` scores are left out, without fractional weights, exactly as
    `scipy.stats.trim_mean(scores, 0.25)` and the paper's own library do. Fewer than 4 scores give their mean. NaN gives
    NaN.

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

    With one run per task the interval is the point itself: the uncertainty is unknown, not small. Below about 5 runs
    the interval is too narrow.

    Args:
        scores: `[seeds]` or `[tasks, seeds]`.
        statistic: reduces the last axis of `[repetitions, tasks * seeds]`. Default: `iqm`.
        repetitions: number of resamples.
        confidence: probability mass of the interval.
        seed: of the random numbers; equal seeds give equal intervals.

    Returns:
        The lower and the upper end.

    Raises:
        ValueError: an empty or wrongly shaped `scores`, or a parameter out of range.
    """
    values = _scores(scores)
    if values.ndim > 2:
        raise ValueError(f"scores must be [seeds] or [tasks, seeds], got shape {values.shape}")
    if repetitions < 1 or not 0 < confidence < 1:
        raise ValueError(f"need repetitions >= 1 and 0 < confidence < 1, got {repetitions} and {confidence}")
    table = np.atleast_2d(values)
    generator = np.random.Generator(np.random.PCG64(seed_sequence(seed, "bootstrap")))
    drawn = generator.integers(table.shape[1], size=(repetitions, *table.shape))
    resampled = np.take_along_axis(table[None], drawn, axis=-1).reshape(repetitions, -1)
    tail = 50.0 * (1.0 - confidence)
    with np.errstate(invalid="ignore"):
        low, high = np.percentile(statistic(resampled), [tail, 100.0 - tail])
    return float(low), float(high)


def _scores(scores: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim == 0 or values.size == 0:
        raise ValueError(f"scores must hold at least one number per task, got shape {values.shape}")
    return values
