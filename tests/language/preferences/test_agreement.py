import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operant.language.preferences import Item, PreferenceStore, SimulatedAnnotator, agreement
from operant.language.preferences.agreement import (
    MISSING,
    cohen_kappa,
    comparisons,
    krippendorff_alpha,
    percent_agreement,
    rate,
)
from operant.language.preferences.items import Event


def codes(*rows):
    """Turn rows of ratings into codes, and `.` into a missing one."""
    letters = sorted({c for row in rows for c in row.split()} - {"."})
    return np.array([[MISSING if c == "." else letters.index(c) for c in row.split()] for row in rows])


# Krippendorff 2011, "Computing Krippendorff's alpha-reliability", sections A, B and C.
TWO_BINARY = codes("0 1 0 0 0 0 0 0 1 0", "1 1 1 0 0 1 0 0 0 0")
TWO_NOMINAL = codes("a a b b d c c c e d d a", "b a b b b c c c e d d d")
FOUR_WITH_GAPS = codes(
    "1 2 3 3 2 1 4 1 2 . . .", "1 2 3 3 2 2 4 1 2 5 . 3", ". 3 3 3 2 3 4 2 2 5 1 .", "1 2 3 3 2 4 4 1 2 5 1 ."
)


@pytest.mark.parametrize(("table", "published"), [(TWO_BINARY, 0.095), (TWO_NOMINAL, 0.692), (FOUR_WITH_GAPS, 0.743)])
def test_alpha_of_the_published_examples(table, published):
    estimate = krippendorff_alpha(table)
    assert estimate.value == pytest.approx(published, abs=5e-4)
    assert estimate.low < estimate.value < estimate.high


def raters(table):
    """Turn a contingency table into the ratings of two raters."""
    rows = [(i, j) for i, row in enumerate(table) for j, count in enumerate(row) for _ in range(count)]
    return np.array(rows).T


@pytest.mark.parametrize(
    ("table", "published"),
    [
        ([[88, 14, 18], [10, 40, 10], [2, 6, 12]], 0.492),  # Cohen 1960, table 2
        ([[20, 5], [10, 15]], 0.4),  # worked by hand: (0.7 - 0.5) / (1 - 0.5)
    ],
)
def test_kappa_of_published_examples(table, published):
    assert cohen_kappa(*raters(table)).value == pytest.approx(published, abs=5e-4)


def test_percent_agreement_by_hand():
    table = codes("a b . a", "a a b .", "a b b .")
    # Unit 1: 3 of 3 pairs; unit 2: 1 of 3; unit 3: 1 of 1; unit 4: no pair.
    assert percent_agreement(table).value == 5 / 7
    assert percent_agreement(table).count == 3


tables = st.integers(2, 4).flatmap(
    lambda k: st.lists(st.lists(st.integers(-1, 2), min_size=k, max_size=k), min_size=1, max_size=12)
)


@given(tables)
def test_alpha_and_percent_against_counting_pairs(units):
    """Compare with the definition: pairs within units against pairs within all pairable values."""
    rated = [[v for v in unit if v != MISSING] for unit in units]
    rated = [unit for unit in rated if len(unit) > 1]
    pairs = [pair for unit in rated for pair in combinations(unit, 2)]
    table = np.array(units).T
    if not pairs:
        assert math.isnan(percent_agreement(table).value)
        assert math.isnan(krippendorff_alpha(table).value)
        return
    assert percent_agreement(table).value == pytest.approx(sum(a == b for a, b in pairs) / len(pairs))
    values = [v for unit in rated for v in unit]
    observed = sum(sum(a != b for a, b in combinations(unit, 2)) * 2 / (len(unit) - 1) for unit in rated) / len(values)
    expected = np.mean([a != b for a, b in combinations(values, 2)])
    alpha = krippendorff_alpha(table).value
    assert math.isnan(alpha) if expected == 0 else alpha == pytest.approx(1 - observed / expected)


@given(tables, st.randoms(use_true_random=False))
def test_nothing_depends_on_order_or_on_the_codes(units, random):
    table = np.array(units).T
    mixed = table[random.sample(range(len(table)), len(table))][:, random.sample(range(len(units)), len(units))]
    renamed = np.where(mixed == MISSING, MISSING, np.array([2, 0, 1])[np.maximum(mixed, 0)])
    for statistic in (percent_agreement, krippendorff_alpha):
        assert statistic(renamed).value == pytest.approx(statistic(table).value, nan_ok=True)


def test_perfect_agreement_and_none():
    same = codes("a b c a", "a b c a")
    for statistic in (percent_agreement, krippendorff_alpha):
        assert (statistic(same).value, statistic(same).low) == (1.0, 1.0)
    assert cohen_kappa(*same).value == 1.0
    constant = codes("a a a", "a a a")
    assert math.isnan(krippendorff_alpha(constant).value)
    assert math.isnan(cohen_kappa(*constant).value)
    assert percent_agreement(constant).value == 1.0


def test_kappa_leaves_out_what_one_has_not_rated():
    first, second = codes("a b . a b", "a b b . a")
    assert cohen_kappa(first, second) == cohen_kappa(*codes("a b b", "a b a"))


def test_nothing_to_count():
    empty = np.zeros((2, 0), dtype=int)
    assert [math.isnan(f(empty).value) for f in (percent_agreement, krippendorff_alpha)] == [True, True]
    assert math.isnan(rate([]).value)
    assert math.isnan(cohen_kappa([], []).value)


def test_wrong_tables_are_rejected():
    with pytest.raises(ValueError, match=r"\[raters, units\] codes"):
        krippendorff_alpha([1, 2])
    with pytest.raises(ValueError, match=r"\[raters, units\] codes"):
        percent_agreement([[-2, 0]])


def test_the_interval_covers_the_truth():
    """Binary raters who agree at random or by a common truth: α is known, and 95 % intervals cover it as often."""
    generator = np.random.Generator(np.random.PCG64(0))
    truth, hits = 0.36, 0  # each rater copies a fair common coin with probability 0.6: P(agree) = ½ + 0.36 / 2
    for n in range(100):
        coin, own = generator.integers(2, size=100), generator.integers(2, size=(2, 100))
        estimate = krippendorff_alpha(np.where(generator.random((2, 100)) < 0.6, coin, own), seed=n)
        hits += estimate.low <= truth <= estimate.high
    assert hits >= 88


def test_comparisons_of_an_item_are_drawn_together():
    hits = np.repeat([True, False] * 10, 6)
    alone, together = rate(hits), rate(hits, np.repeat(np.arange(20), 6))
    assert alone.value == together.value == 0.5
    ratio = (together.high - together.low) / (alone.high - alone.low)
    assert ratio == pytest.approx(math.sqrt(6), rel=0.15)


def event(annotator, item, outcome, shown=(0, 1), *, ranks=None, round_=0, shown_at=1.0):
    name = f"{annotator}{item.item_id}{round_}"
    return Event(name, "label", item.item_id, annotator, round_, outcome, ranks, shown, shown_at, 2.0)


def test_comparisons_of_a_label():
    item = Item.of("p", "abc")
    assert comparisons(event("x", item, "ranking", (2, 0, 1), ranks=(1, 2, 2))) == {(0, 1): 2, (0, 2): 1, (1, 2): 1}
    assert comparisons(event("x", item, "both-bad", (2, 0, 1))) == {(0, 1): 3, (0, 2): 3, (1, 2): 3}
    assert comparisons(event("x", item, "skip", (2, 0, 1))) == {}


def test_the_statistics_of_labels_by_hand():
    items = [Item.of(f"p{n}", "ab", gold=[1, 2] if n == 0 else None) for n in range(4)]
    labels = [
        event("x", items[0], "A"),
        event("x", items[1], "B", shown=(1, 0)),
        event("x", items[2], "tie"),
        event("x", items[3], "skip"),
        event("y", items[0], "B"),
        event("y", items[1], "A"),
        event("y", items[2], "both-bad"),
        event("y", items[3], "A", shown_at=0.0),
        event("x", items[0], "A", round_=1),
        event("x", items[1], "A", shown=(1, 0), round_=1),
    ]
    report = agreement(items, labels)
    assert report.labels == {"A": 3, "B": 2, "both-bad": 1, "skip": 1, "tie": 1}
    assert (report.percent.value, report.percent.count) == (1 / 3, 3)  # agreed on item 1 alone
    assert report.kappas.keys() == {("x", "y")}
    assert report.kappas["x", "y"].value == pytest.approx((1 / 3 - 2 / 9) / (1 - 2 / 9))
    assert (report.first_shown.value, report.first_shown.count) == (4 / 6, 6)  # A A A A of A B B A A A
    assert {name: (e.value, e.count) for name, e in report.repeats.items()} == {"x": (0.5, 2)}
    assert {name: (e.value, e.count) for name, e in report.gold.items()} == {"x": (1.0, 1), "y": (0.0, 1)}


def test_no_labels_at_all():
    report = agreement([Item.of("p", "ab")], [])
    assert (report.labels, report.kappas, report.repeats, report.gold) == ({}, {}, {}, {})
    assert math.isnan(report.alpha.value)


def test_the_bias_of_an_annotator_shows(tmp_path):
    def reward(prompts, completions, completion_ids):
        return [0.0] * len(completions)

    with PreferenceStore(tmp_path / "s.sqlite") as store:
        store.add_items(Item.of(f"p{n}", ["a", "b"]) for n in range(300))
        SimulatedAnnotator(reward, name="fair").label(store, now=1.0)
        SimulatedAnnotator(reward, name="biased", position_bias=1.0).label(store, now=1.0)
        items, labels = store.items(), store.labels()
    bias = {n: agreement(items, [e for e in labels if e.annotator == n]).first_shown for n in ("fair", "biased")}
    assert bias["fair"].low < 0.5 < bias["fair"].high
    assert bias["biased"].low < 1 / (1 + math.exp(-1)) < bias["biased"].high
    assert bias["biased"].low > 0.6
