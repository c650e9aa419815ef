"""The sequential test: its error rate over all looks, and its decisions."""

import math
from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from operant.runtime.comparison import improvement_probability
from operant.runtime.group_sequential import enough_seeds


def test_five_seeds_that_are_apart_decide_and_four_cannot():
    """2 of the 252 ways to exchange ten seeds are as far apart: p = 0.0079 exactly, below 0.025."""
    found = enough_seeds([5, 6, 7, 8, 9], [0, 1, 2, 3, 4], permutations=20_000)
    assert (found.better, found.next_look, found.needed) == ("first", None, None)
    assert found.looks[0].p_value == pytest.approx(2 / 252, abs=0.002)
    assert enough_seeds([0, 1, 2, 3, 4], [5, 6, 7, 8, 9]).better == "second"
    four = enough_seeds([5, 6, 7, 8], [0, 1, 2, 3], looks=[4])
    assert (four.better, four.next_look) == (None, 8)
    assert math.isinf(four.looks[0].boundary)


def test_the_first_look_is_the_exact_permutation_test():
    """Enumerate all 252 exchanges: the same p-value and boundary, up to the error of random permutations."""
    rng = np.random.default_rng(3)
    one, other = rng.normal(0.8, 1, 5).round(1), rng.normal(0, 1, 5).round(1)
    both = np.concatenate([one, other])
    distances = []
    for chosen in combinations(range(10), 5):
        rest = [i for i in range(10) if i not in chosen]
        distances.append(abs(improvement_probability(both[list(chosen)], both[rest]) - 0.5))
    distances = np.array(distances)
    look = enough_seeds(one, other, permutations=40_000).looks[0]
    assert look.improvement == improvement_probability(one, other)
    assert look.p_value == pytest.approx(np.mean(distances >= abs(look.improvement - 0.5) - 1e-9), abs=0.01)
    rare = [d for d in np.unique(distances) if np.mean(distances >= d - 1e-9) <= 0.025]
    assert look.boundary == pytest.approx(min(rare))


def test_one_large_look_is_the_test_of_mann_and_whitney():
    rng = np.random.default_rng(0)
    one, other = rng.normal(0.4, 1, 60), rng.normal(0, 1, 60)
    look = enough_seeds(one, other, looks=[60], permutations=20_000).looks[0]
    assert look.p_value == pytest.approx(stats.mannwhitneyu(one, other).pvalue, abs=0.005)


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: rng.standard_cauchy(40),
        lambda rng: rng.integers(0, 3, 40).astype(float),
        lambda rng: np.minimum(500.0, rng.exponential(400, 40)),
    ],
    ids=["heavy tails", "many ties", "a ceiling"],
)
def test_equally_good_runs_are_distinguished_in_five_percent_of_cases_over_all_looks(draw):
    """Use 1500 comparisons of equal runs, each tested at 5, 10, 20 and 40 seeds: at most α 4/5 errors are spent."""
    rng = np.random.default_rng(1)
    verdicts = [enough_seeds(draw(rng), draw(rng), permutations=500) for _ in range(1500)]
    errors = sum(verdict.better is not None for verdict in verdicts)
    assert errors <= stats.binom.ppf(0.999, 1500, 0.05 * 4 / 5)
    assert errors >= 10, "the test never decides"


def test_a_repeated_test_without_a_sequence_errs_more_often():
    """Without a correction, 5 % at every one of four looks makes 11 % or more."""
    rng, errors = np.random.default_rng(1), 0
    for _ in range(400):
        one, other = rng.normal(size=40), rng.normal(size=40)
        errors += any(stats.mannwhitneyu(one[:n], other[:n]).pvalue < 0.05 for n in (5, 10, 20, 40))
    assert errors / 400 > 0.08


def test_spent_errors_add_up_and_no_look_exceeds_its_share():
    looks = enough_seeds(*np.random.default_rng(2).normal(size=(2, 45))).looks
    assert [look.seeds for look in looks] == [5, 10, 20, 40]
    assert [look.spent for look in looks] == pytest.approx([0.025, 0.05 * 2 / 3, 0.0375, 0.04])
    assert [look.boundary for look in looks] == sorted((look.boundary for look in looks), reverse=True)


def test_a_decision_is_not_taken_back_and_later_seeds_are_not_looked_at():
    rng = np.random.default_rng(0)
    one, other = rng.normal(4, 1, 20), rng.normal(0, 1, 20)
    early = enough_seeds(one[:5], other[:5])
    one[5:], other[5:] = other[5:].copy(), one[5:].copy()
    assert enough_seeds(one, other) == early
    assert early.better == "first"


@pytest.mark.parametrize(("shift", "most"), [(3.0, 10), (1.5, 40)])
def test_a_clear_difference_is_decided_soon(shift, most):
    rng = np.random.default_rng(0)
    verdicts = [enough_seeds(rng.normal(shift, 1, 40), rng.normal(size=40), permutations=500) for _ in range(100)]
    assert sum(verdict.better == "first" and verdict.looks[-1].seeds <= most for verdict in verdicts) > 95
    assert not any(verdict.better == "second" for verdict in verdicts)


def test_the_number_of_seeds_that_is_estimated_suffices_four_times_in_five():
    """By hand: P = 0.76 needs, at the third look with 5 % / 4, (2.498 + 0.842)² / (6 · 0.26²) = 27.5 seeds."""
    scores = [1, 3, 5, 7, 9], [0, 2, 4, 6, 0.5]
    found = enough_seeds(*scores)
    assert found.looks[0].improvement == 0.76
    assert (found.better, found.next_look, found.needed) == (None, 10, 40)
    assert (enough_seeds(*scores, looks=[5, 10, 27]).needed, enough_seeds(*scores, looks=[5, 10, 28]).needed) == (
        54,
        28,
    )
    rng, shift, looks = np.random.default_rng(0), math.sqrt(2) * stats.norm.ppf(0.76), [5, 10, 28]
    decided = [
        enough_seeds(rng.normal(shift, 1, 28), rng.normal(size=28), looks=looks, permutations=500).better
        for _ in range(300)
    ]
    assert sum(better == "first" for better in decided) / 300 == pytest.approx(0.8, abs=0.07)


def test_runs_of_different_lengths_are_tested_as_far_as_both_go():
    one, other = np.arange(12.0) + 100, np.arange(7.0)
    assert enough_seeds(one, other).looks[-1].seeds == 5
    none = enough_seeds(one[:3], other)
    assert (none.better, none.looks, none.next_look) == (None, (), 5)
    same = enough_seeds([1.0] * 6, [1.0] * 6)
    assert (same.better, same.needed) == (None, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"looks": [5, 5]}, "increasing positive numbers of seeds, such as 5, 10, 20, got"),
        ({"looks": [0, 5]}, "increasing positive numbers"),
        ({"alpha": 1.0}, "between 0 and 1, got 1.0"),
        ({"permutations": 100}, "at least 20 / alpha = 400, got 100"),
    ],
)
def test_wrong_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        enough_seeds([1.0] * 5, [2.0] * 5, **options)
    with pytest.raises(ValueError, match="one finite number per seed"):
        enough_seeds([math.nan] * 5, [2.0] * 5)


def test_looks_may_be_an_array():
    scores = np.arange(10.0)
    assert enough_seeds(scores, scores, looks=np.array([5, 8])) == enough_seeds(scores, scores, looks=[5, 8])
