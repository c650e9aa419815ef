"""Sorting, merging and counting."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operant.mdp.entries import COLUMNS, Entries, compress, start_distribution


def entries(rows, **sizes):
    columns = dict(zip(COLUMNS, zip(*rows, strict=True), strict=False))
    return Entries.of(columns, sizes.get("states"), sizes.get("actions"))


def compressed(rows, **sizes):
    return [column.tolist() for column in compress(entries(rows, **sizes))]


def test_rows_are_sorted_by_state_action_and_successor():
    table = [(1, 0, 0, 1, 3), (0, 1, 1, 0.75, 2), (0, 1, 0, 0.25, 1), (0, 0, 1, 1, 0)]
    assert compressed(table) == [
        [0, 1, 3, 4, 4],
        [1, 0, 1, 0],
        [1, 0.25, 0.75, 1],
        [0, 1, 2, 3],
        [False] * 4,
    ]


def test_entries_that_say_the_same_become_one():
    table = [(0, 0, 0, 0.25, 1), (0, 0, 1, 0.5, 1), (0, 0, 0, 0.25, 1)]
    assert compressed(table) == [[0, 2, 2], [0, 1], [0.5, 0.5], [1, 1], [False, False]]


def test_entries_that_differ_in_reward_or_ending_stay_apart():
    table = [
        (0, 0, 0, 0.25, 5, 1),
        (0, 0, 0, 0.125, 5, 0),
        (0, 0, 0, 0.25, -1, 0),
        (0, 0, 0, 0.125, 5, 0),
        (0, 0, 0, 0.25, -1, 1),
    ]
    _, successors, probabilities, rewards, terminates = compressed(table)
    assert successors == [0] * 4
    assert probabilities == [0.25, 0.25, 0.25, 0.25]
    assert rewards == [-1, 5, -1, 5]
    assert terminates == [False, False, True, True]


def test_entries_of_probability_zero_are_left_out():
    assert compressed([(0, 0, 0, 1, 2), (0, 0, 1, 0, 7)]) == [[0, 1, 1], [0], [1], [2], [False]]


def test_a_row_of_zeros_is_not_an_infeasible_action():
    with pytest.raises(ValueError, match="state 0, action 1: the probabilities sum to 0, expected 1"):
        compressed([(0, 0, 0, 1, 0), (0, 1, 0, 0, 0)])


def test_merging_does_not_hide_a_negative_probability():
    with pytest.raises(ValueError, match=r"state 0, action 0: the probability of state 0 is -0.5"):
        compressed([(0, 0, 0, 0.75, 0), (0, 0, 0, 0.75, 0), (0, 0, 0, -0.5, 0)])


def test_the_arrays_belong_to_the_result():
    table = entries([(0, 0, 0, 1.0, 2.0)])
    rows = compress(table)
    table.rewards[0] = 9
    assert rows.rewards.tolist() == [2]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_order_gives_the_same_rows(data):
    cells = data.draw(st.lists(st.tuples(*[st.integers(0, 3)] * 3, st.integers(0, 1), st.booleans()), min_size=1))
    totals: dict[tuple[int, int], int] = {}
    for s, a, *_ in cells:
        totals[s, a] = totals.get((s, a), 0) + 1
    table = [(s, a, successor, 1 / totals[s, a], r, t) for s, a, successor, r, t in cells]
    expected: dict[tuple[int, ...], float] = {}
    for s, a, successor, p, r, t in table:
        expected[s, a, successor, t, r] = expected.get((s, a, successor, t, r), 0) + p
    shuffled = data.draw(st.permutations(table))
    rows = compress(entries(shuffled, states=4, actions=4))
    index = np.repeat(np.arange(16), np.diff(rows.indptr))
    keys = zip(*np.divmod(index, 4), rows.successors, rows.terminates, rows.rewards, strict=True)
    assert [tuple(map(int, key)) for key in keys] == sorted(expected)
    np.testing.assert_allclose(rows.probabilities, [expected[key] for key in sorted(expected)], rtol=1e-14)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [(0, 0, 2, 1, 0)],
            "state 1 does not occur, but state 2 does; number without gaps, or pass states=3 in Python",
        ),
        (
            [(1, 0, 2, 1, 0), (2, 0, 1, 1, 0)],
            "state 0 does not occur, but state 2 does; numbering starts at 0$",
        ),
        ([(0, 1, 0, 1, 0)], "action 0 does not occur, but action 1 does"),
        ([(0, 0, 10**15, 1, 0)], rf"state 1 does not occur, but state {10**15} does"),
        ([(0, 10**15, 0, 1, 0)], "action 0 does not occur"),
        ([(-1, 0, 0, 1, 0)], "a state is -1, expected 0 or more"),
    ],
)
def test_sizes_are_counted_only_without_gaps(rows, message):
    with pytest.raises(ValueError, match=message):
        entries(rows)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((3, 0, 0, 1, 0), "column s number 0 is 3, expected 0 to 2"),
        ((1, 2, 0, 1, 0), "state 1: the action is 2, expected 0 to 1"),
        ((1, 1, 3, 1, 0), "state 1, action 1: the successor is 3, expected 0 to 2"),
    ],
)
def test_indices_stay_within_the_sizes_that_are_given(row, message):
    with pytest.raises(ValueError, match=message):
        entries([row], states=3, actions=2)


def test_an_empty_table_is_rejected():
    with pytest.raises(ValueError, match="the table is empty"):
        Entries.of({name: [] for name in COLUMNS}, 1, 1)


def test_columns_are_as_long_as_each_other():
    columns = {"s": [0, 0], "a": [0, 0], "s'": [0, 0], "p": [1.0], "r": [0, 0]}
    with pytest.raises(ValueError, match=r"column p has shape \(1,\), expected \(2,\)"):
        Entries.of(columns, None, None)


def test_start():
    terminal = np.array([False, True, False])
    assert start_distribution(None, terminal).tolist() == [0.5, 0, 0.5]
    assert start_distribution(2, terminal).tolist() == [0, 0, 1]
    assert start_distribution([0.25, 0, 0.75], terminal).tolist() == [0.25, 0, 0.75]
    single = start_distribution(np.full(3, 1 / 3, np.float32), np.zeros(3, np.bool_))
    assert single.sum() == pytest.approx(1, abs=1e-15)
    with pytest.raises(ValueError, match="start is 3, expected 0 to 2"):
        start_distribution(3, terminal)
