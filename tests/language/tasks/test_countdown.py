from fractions import Fraction

import pytest

from operant.language.options import Choices
from operant.language.tasks.countdown import LONGEST, countdown, evaluate, solves


@pytest.mark.parametrize(
    ("text", "value", "numbers"),
    [
        ("(8+5)*3", 39, [8, 5, 3]),
        ("1+2*3", 7, [1, 2, 3]),
        ("8-3-2", 3, [8, 3, 2]),
        ("8/2/2", 2, [8, 2, 2]),
        ("1/3", Fraction(1, 3), [1, 3]),
        ("6/(1-3/4)", 24, [6, 1, 3, 4]),
        (" ( 12 ) ", 12, [12]),
        ("2-(3-4)", 3, [2, 3, 4]),
        ("(" * 49 + "7" + ")" * 49, 7, [7]),
    ],
)
def test_expressions(text, value, numbers):
    assert evaluate(text) == (value, numbers)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "()", "(1", "1)", "1+", "+1", "-1", "1 2", "1**2", "1//2", "2(3)", "1=1", "3*5=15", "1.5", "1/0"),
        *(
            "1/(2-2)",
            "x",
            "__import__('os')",
            "1\n",
            "\N{ARABIC-INDIC DIGIT THREE}",
            "(" * LONGEST,
            "9" * (LONGEST + 1),
        ),
    ],
)
def test_invalid_expressions_have_no_value(text):
    assert evaluate(text) is None


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        ("(8+5)*3", 1),
        ("3*(5+8)", 1),
        ("38+1", 0),  # 38 and 1 are not given
        ("39", 0),
        ("(8+5)*3+8-8", 0),  # 8 is given once
        ("8*5-1", 0),  # 1 is not given
        ("8*5", 0),
        ("(8+5)*3=39", 0),
    ],
)
def test_the_rule(text, reward):
    assert solves(completions=[text], numbers=[[3, 5, 8]], target=[39]) == [reward]


def test_not_all_numbers_need_be_used_and_twins_count_twice():
    assert solves(completions=["8*5", "4+4", "4+4+4"], numbers=[[3, 5, 8], [4, 4], [4, 4]], target=[40, 8, 12]) == [
        1,
        1,
        0,
    ]


def test_demonstrations_use_all_numbers_and_reach_the_target():
    rows = countdown(numbers=Choices((3, 5)), operators="+-*").rows("train", 300, seed=0)
    for row in rows:
        value, numbers = evaluate(row["completion"])
        assert (value, sorted(numbers)) == (row["target"], row["numbers"])
        assert 1 <= row["target"] <= 99
        assert row["prompt"] == f"use {' '.join(map(str, row['numbers']))} to make {row['target']}:"
    assert {len(row["numbers"]) for row in rows} == {3, 5}


def test_options_with_almost_no_puzzles_are_rejected():
    with pytest.raises(ValueError, match=r"12 numbers up to 20 with \* rarely make 1 to 40: raise target"):
        countdown(numbers=Choices((12,)), target=40, operators="*").rows("train", 1, seed=0)


@pytest.mark.parametrize(
    "options", [{"numbers": Choices((1, 3))}, {"highest": 0}, {"target": 10}, {"operators": ""}, {"operators": "/"}]
)
def test_options_out_of_range_are_rejected(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        countdown(**options)
