"""Agreement of annotators: with each other, with themselves, and with known answers.

The unit is a comparison of two completions of an item; a ranking of K completions has K (K - 1) / 2 comparisons. The
values are nominal, with the codes 0: the first in canonical order is better, 1: the second, 2: both are equally good,
3: both are bad. A skip is a missing value.

Every statistic is a function of sums over items, and the bootstrap resamples whole items, since the comparisons of one
ranking are not independent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.language.preferences.items import Event, Item
from operant.streams import seed_sequence

Floats = NDArray[np.float64]

MISSING = -1
"""Code of a missing value; values are 0, 1, ..."""


@dataclass(frozen=True)
class Estimate:
    """A statistic with its uncertainty.

    Attributes:
        value: the statistic, NaN if undefined (no two ratings of one unit, no variation).
        low: lower bound of the 95 % bootstrap interval over items; resamples with an undefined statistic are dropped.
        high: upper bound.
        count: number of units.
    """

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class Agreement:
    """Statistics of a store.

    Attributes:
        labels: number of valid labels, by outcome.
        percent: fraction of agreeing pairs of ratings of the same comparison by different annotators.
        alpha: nominal Krippendorff's alpha of all annotators.
        kappas: Cohen's kappa of each pair of annotators that share a comparison.
        first_shown: fraction of pairs in which the first completion shown was preferred; 0.5 means no bias. Labels with
            unknown order (imported ones) are ignored.
        repeats: fraction of repeated questions with the same answer, by annotator.
        gold: fraction of questions with known answer that are answered correctly, by annotator.
    """

    labels: dict[str, int]
    percent: Estimate
    alpha: Estimate
    kappas: dict[tuple[str, str], Estimate]
    first_shown: Estimate
    repeats: dict[str, Estimate]
    gold: dict[str, Estimate]

    @property
    def statistics(self) -> dict[str, Estimate]:
        """All estimates by a readable name."""
        return {
            "percent agreement": self.percent,
            "Krippendorff's alpha": self.alpha,
            **{f"Cohen's kappa, {a} and {b}": kappa for (a, b), kappa in self.kappas.items()},
            "preferred the first shown": self.first_shown,
            **{f"same answer to repeated questions, {name}": estimate for name, estimate in self.repeats.items()},
            **{f"known answer given, {name}": estimate for name, estimate in self.gold.items()},
        }


def percent_agreement(table: ArrayLike, groups: ArrayLike | None = None, *, seed: int = 0) -> Estimate:
    """Return the fraction of agreeing pairs among all pairs of ratings of the same unit.

    Args:
        table: `[raters, units]` codes 0, 1, ..., `MISSING` if there is none.
        groups: `[units]` the item of each unit, which the bootstrap resamples. Default: one item per unit.
        seed: seed of the bootstrap.
    """
    counts = _counts(_table(table))
    rated = counts.sum(-1)
    agreeing = (counts * (counts - 1)).sum(-1)
    return _estimate(np.stack([agreeing, rated * (rated - 1)], -1), _ratio, int((rated > 1).sum()), groups, seed)


def krippendorff_alpha(table: ArrayLike, groups: ArrayLike | None = None, *, seed: int = 0) -> Estimate:
    """Return Krippendorff's alpha for nominal values, any number of raters, and missing values.

    α = 1 - (n - 1) Σ_u Σ_{c≠k} n_uc n_uk / (m_u - 1) / Σ_{c≠k} n_c n_k, where n_uc of the m_u ratings of unit u are c,
    over the units with m_u ≥ 2, n_c = Σ_u n_uc and n = Σ_c n_c (Krippendorff 2011, "Computing Krippendorff's
    alpha-reliability"). 1 is perfect, 0 is chance. It is undefined if all ratings are equal.

    Args:
        table: `[raters, units]` codes 0, 1, ..., `MISSING` if there is none.
        groups: `[units]` the item of each unit, which the bootstrap resamples. Default: one item per unit.
        seed: seed of the bootstrap.
    """
    counts = _counts(_table(table))
    rated = counts.sum(-1)
    counts = np.where((rated > 1)[:, None], counts, 0.0)
    disagreeing = (rated**2 - (counts**2).sum(-1)) * (rated > 1) / np.maximum(rated - 1, 1)
    return _estimate(np.column_stack([disagreeing, counts]), _alpha, int((rated > 1).sum()), groups, seed)


def cohen_kappa(first: ArrayLike, second: ArrayLike, groups: ArrayLike | None = None, *, seed: int = 0) -> Estimate:
    """Return Cohen's kappa of two raters, (p_o - p_e) / (1 - p_e), over the units that both have rated.

    p_o is the share of agreement and p_e that of independent raters with the same shares of each value (Cohen 1960, "A
    coefficient of agreement for nominal scales", equation 1). It is undefined if p_e is 1.

    Args:
        first: `[units]` codes of one rater, `MISSING` if there is none.
        second: `[units]` codes of the other rater.
        groups: `[units]` the item of each unit, which the bootstrap resamples. Default: one item per unit.
        seed: seed of the bootstrap.
    """
    codes = _table(np.stack([np.asarray(first), np.asarray(second)]))
    both = (codes != MISSING).all(0)
    size = max(int(codes.max(initial=0)) + 1, 1)
    joint = np.zeros((codes.shape[1], size * size))
    joint[np.flatnonzero(both), codes[0, both] * size + codes[1, both]] = 1
    return _estimate(joint, _kappa, int(both.sum()), groups, seed)


def rate(hits: ArrayLike, groups: ArrayLike | None = None, *, seed: int = 0) -> Estimate:
    """Return the fraction of true units.

    Args:
        hits: `[units]` booleans.
        groups: `[units]` the item of each unit, which the bootstrap resamples. Default: one item per unit.
        seed: seed of the bootstrap.
    """
    values = np.asarray(hits, dtype=np.float64).reshape(-1)
    return _estimate(np.stack([values, np.ones_like(values)], -1), _ratio, len(values), groups, seed)


def comparisons(event: Event) -> dict[tuple[int, int], int]:
    """Return the value of each comparison in a label, by the canonical indices of the two completions."""
    ranks = event.ranks_of_item()
    return {} if ranks is None else _values(ranks, bad=event.outcome == "both-bad")


def agreement(items: Sequence[Item], labels: Sequence[Event], *, seed: int = 0) -> Agreement:
    """Return the statistics of labels.

    Args:
        items: the labeled items.
        labels: valid labels of all rounds.
        seed: seed of the bootstrap.
    """
    place = {item.item_id: i for i, item in enumerate(items)}
    rounds = [{(e.annotator, e.item_id): e for e in labels if e.round == n} for n in (0, 1)]
    names = sorted({annotator for annotator, _ in rounds[0]})
    units = sorted({(place[e.item_id], pair) for e in rounds[0].values() for pair in comparisons(e)})
    column = {unit: i for i, unit in enumerate(units)}
    table = np.full((len(names), len(units)), MISSING)
    for (annotator, item_id), event in rounds[0].items():
        for pair, value in comparisons(event).items():
            table[names.index(annotator), column[place[item_id], pair]] = value
    groups = np.array([item for item, _ in units], dtype=np.int64)
    pairs = [(i, j) for i, j in combinations(range(len(names)), 2) if ((table[[i, j]] != MISSING).all(0)).any()]
    first = [(place[e.item_id], hit) for e in labels for hit in _first_shown(e)]
    outcomes = [str(event.outcome) for event in rounds[0].values()]
    return Agreement(
        labels={outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes))},
        percent=percent_agreement(table, groups, seed=seed),
        alpha=krippendorff_alpha(table, groups, seed=seed),
        kappas={(names[i], names[j]): cohen_kappa(table[i], table[j], groups, seed=seed) for i, j in pairs},
        first_shown=rate([hit for _, hit in first], [item for item, _ in first], seed=seed),
        repeats=_by_annotator(_repeated(rounds, place), seed),
        gold=_by_annotator(_known(items, rounds[0], place), seed),
    )


def _values(ranks: Sequence[int], *, bad: bool = False) -> dict[tuple[int, int], int]:
    equal = 3 if bad else 2
    return {
        (i, j): equal if ranks[i] == ranks[j] else int(ranks[i] > ranks[j])
        for i, j in combinations(range(len(ranks)), 2)
    }


def _first_shown(event: Event) -> list[bool]:
    ranks = (event.shown_ranks() or ()) if event.shown_at else ()
    return [a < b for a, b in combinations(ranks, 2) if a != b]


Hit = tuple[str, int, bool]  # annotator, item, whether it agrees


def _repeated(rounds: Sequence[dict[tuple[str, str], Event]], place: dict[str, int]) -> list[Hit]:
    found = [
        (key, comparisons(rounds[0][key]), comparisons(event)) for key, event in rounds[1].items() if key in rounds[0]
    ]
    return [(key[0], place[key[1]], a[pair] == b[pair]) for key, a, b in found if a and b for pair in a]


def _known(items: Sequence[Item], labels: dict[tuple[str, str], Event], place: dict[str, int]) -> list[Hit]:
    gold = {item.item_id: item.gold for item in items if item.gold is not None}
    hits: list[Hit] = []
    for (annotator, item_id), event in labels.items():
        ranks = event.ranks_of_item()
        if item_id in gold and ranks is not None:
            truth, answer = _values(gold[item_id]), _values(ranks)
            hits += [(annotator, place[item_id], answer[pair] == truth[pair]) for pair in truth]
    return hits


def _by_annotator(hits: Sequence[Hit], seed: int) -> dict[str, Estimate]:
    names = sorted({name for name, _, _ in hits})
    mine = {name: [(item, hit) for who, item, hit in hits if who == name] for name in names}
    return {name: rate([h for _, h in found], [i for i, _ in found], seed=seed) for name, found in mine.items()}


def _table(table: ArrayLike) -> NDArray[np.int64]:
    codes = np.asarray(table, dtype=np.int64)
    if codes.ndim != 2 or (codes < MISSING).any():
        raise ValueError(f"ratings must be [raters, units] codes from {MISSING}, got shape {codes.shape}")
    return codes


def _counts(codes: NDArray[np.int64]) -> Floats:
    """Return the number of raters per value and unit, `[units, values]`."""
    values = np.arange(max(int(codes.max(initial=0)) + 1, 1))
    return (codes[..., None] == values).sum(0).astype(np.float64)


def _ratio(sums: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return sums[..., 0] / sums[..., 1]


def _alpha(sums: Floats) -> Floats:
    totals = sums[..., 1:]
    n = totals.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return 1 - (n - 1) * sums[..., 0] / (n**2 - (totals**2).sum(-1))


def _kappa(sums: Floats) -> Floats:
    size = round(sums.shape[-1] ** 0.5)
    with np.errstate(divide="ignore", invalid="ignore"):
        joint = sums.reshape(*sums.shape[:-1], size, size) / sums.sum(-1)[..., None, None]
        observed = np.trace(joint, axis1=-2, axis2=-1)
        expected = (joint.sum(-1) * joint.sum(-2)).sum(-1)
        return np.where(expected < 1, (observed - expected) / (1 - expected), np.nan)


def _estimate(
    features: Floats, formula: Callable[[Floats], Floats], count: int, groups: ArrayLike | None, seed: int
) -> Estimate:
    """Return `formula` of the sum of `features` `[units, F]`, with a bootstrap interval over items."""
    ids = np.arange(len(features)) if groups is None else np.asarray(groups)
    _, item = np.unique(ids, return_inverse=True)
    sums = np.zeros((int(item.max(initial=-1)) + 1, features.shape[1]))
    np.add.at(sums, item, features)
    value = float(formula(sums.sum(0)))
    if not np.isfinite(value):
        return Estimate(value, value, value, count)
    generator = np.random.Generator(np.random.PCG64(seed_sequence(seed, "bootstrap")))
    drawn = [formula(_redrawn(generator, len(sums)) @ sums) for _ in range(REPETITIONS // _BATCH)]
    low, high = np.nanpercentile(np.concatenate(drawn), [2.5, 97.5])
    return Estimate(value, float(low), float(high), count)


def _redrawn(generator: np.random.Generator, count: int) -> Floats:
    """Return the counts of each of `count` items in some resamples, `[samples, count]`."""
    items = generator.integers(count, size=(_BATCH, count)) + count * np.arange(_BATCH)[:, None]
    return np.bincount(items.reshape(-1), minlength=_BATCH * count).reshape(_BATCH, count).astype(np.float64)


REPETITIONS = 2000
"""Number of resamples."""

_BATCH = 100
