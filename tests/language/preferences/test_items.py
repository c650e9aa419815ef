import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operant.language.preferences.items import (
    Completion,
    Event,
    Item,
    check_answer,
    dense_ranks,
    encode,
    presentation_order,
)


def event(outcome, shown, ranks=None):
    return Event("e", "label", "i", "ann", 0, outcome, ranks, shown, 1.0, 2.0)


def test_the_same_question_is_the_same_item_in_any_order():
    first = Item.of("p", [Completion("b", {"seed": 1}), Completion("a", {"seed": 2})], gold=[2, 1])
    second = Item.of("p", ["a", "b"])
    assert first.item_id == second.item_id
    assert [(c.text, c.provenance) for c in first.completions] == [("a", {"seed": 2}), ("b", {"seed": 1})]
    assert first.gold == (1, 2)
    assert len({Item.of("p", texts).item_id for texts in (["a", "b"], ["a", "c"], ["a", "b", "c"])}) == 3
    assert Item.of("q", ["a", "b"]).item_id != second.item_id


def test_conversations_are_texts_too():
    message = [{"role": "user", "content": "2 + 2"}]
    item = Item.of(message, [[{"role": "assistant", "content": text}] for text in "54"])
    assert item.prompt == message
    assert [c.text[0]["content"] for c in item.completions] == ["4", "5"]


@pytest.mark.parametrize(
    ("completions", "gold", "message"),
    [
        (["a"], None, "two or more different completions"),
        (["a", "a"], None, "two or more different completions"),
        (["a", "b"], [1, 2, 3], "gold must rank all 2"),
        (["a", "\ud800"], None, "surrogates not allowed"),
        (["a", Completion("b", {"reward": math.nan})], None, "not JSON compliant"),
    ],
)
def test_invalid_items_are_rejected(completions, gold, message):
    with pytest.raises(ValueError, match=message):
        Item.of("p", completions, gold=gold)


def test_json_has_one_form():
    assert encode({"b": [1, None], "a": "é\0"}) == '{"a":"é\\u0000","b":[1,null]}'


@pytest.mark.parametrize(
    ("outcome", "shown", "ranks", "expected"),
    [
        ("A", (0, 1), None, (1, 2)),
        ("A", (1, 0), None, (2, 1)),
        ("B", (0, 1), None, (2, 1)),
        ("B", (1, 0), None, (1, 2)),
        ("tie", (1, 0), None, (1, 1)),
        ("both-bad", (2, 0, 1), None, (1, 1, 1)),
        ("skip", (0, 1), None, None),
        ("ranking", (2, 0, 1), (3, 1, 2), (1, 2, 3)),
    ],
)
def test_an_answer_in_canonical_order(outcome, shown, ranks, expected):
    assert event(outcome, shown, ranks).ranks_of_item() == expected


@given(st.permutations(range(4)), st.permutations(range(1, 5)))
def test_a_ranking_follows_the_completions(shown, ranks):
    canonical = event("ranking", tuple(shown), tuple(ranks)).ranks_of_item()
    assert all(canonical[completion] == rank for completion, rank in zip(shown, ranks, strict=True))


def test_ranks_without_gaps():
    assert dense_ranks([0.5, -2.0, 0.5, 7.0]) == (2, 1, 2, 3)


def test_the_order_belongs_to_seed_item_annotator_and_round():
    orders = {presentation_order(s, i, a, r, 20) for s in (0, 1) for i in "xy" for a in "mn" for r in (0, 1)}
    assert len(orders) == 16
    assert presentation_order(0, "x", "m", 0, 6) == presentation_order(0, "x", "m", 0, 6)
    assert sorted(presentation_order(0, "x", "m", 0, 6)) == list(range(6))


def test_each_side_comes_first_half_of_the_time():
    first = sum(presentation_order(0, f"item {i}", "ann", 0, 2)[0] for i in range(2000))
    assert abs(first - 1000) < 4 * math.sqrt(500)  # four standard deviations


@pytest.mark.parametrize(
    ("outcome", "ranks", "count", "message"),
    [
        ("C", None, 2, "outcome must be one of A, B, tie"),
        ("A", None, 3, "this item has 3: rank them"),
        ("A", [1, 2], 2, "ranks belong to the outcome 'ranking'"),
        ("ranking", [1, 2], 2, "two completions need no ranking"),
        ("ranking", None, 3, "a rank of at least 1 for each of 3"),
        ("ranking", [1, 2], 3, "a rank of at least 1 for each of 3"),
        ("ranking", [0, 1, 2], 3, "a rank of at least 1 for each of 3"),
        ("ranking", [1.0, 2, 3], 3, "a rank of at least 1 for each of 3"),
        ("ranking", [2, 2, 2], 3, "are all equal"),
    ],
)
def test_invalid_answers_are_rejected(outcome, ranks, count, message):
    with pytest.raises(ValueError, match=message):
        check_answer(outcome, ranks, count)


def test_ranks_of_an_answer_lose_their_gaps():
    assert check_answer("ranking", [9, 1, 9], 3) == (2, 1, 2)
    assert check_answer("skip", None, 5) is None
