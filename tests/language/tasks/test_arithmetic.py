import ast
import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from operant.language.tasks.arithmetic import arithmetic, calculate, chain, draw_numbers

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def by_python(text):
    def value(node):
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        return node.value

    return value(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    ("numbers", "signs", "answer"),
    [([47, 85], "+", 132), ([12, 7, 5], "+-", 14), ([2, 3, 4], "+*", 14), ([9, 2, 3, 4], "-*+", 7), ([5], "", 5)],
)
def test_hand_worked(numbers, signs, answer):
    assert calculate(numbers, signs) == answer


@given(st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 99)), min_size=1, max_size=6), st.integers(0, 99))
def test_python_agrees(rest, first):
    numbers, signs = [first, *(number for _, number in rest)], [sign for sign, _ in rest]
    assert calculate(numbers, signs) == by_python(chain(numbers, signs))


def test_the_default_is_the_sum_of_two_numbers_of_two_digits():
    rows = arithmetic().rows("train", 300, seed=0)
    for row in rows:
        first, second = map(int, row["prompt"].removesuffix("=").split("+"))
        assert 10 <= min(first, second) <= max(first, second) <= 99
        assert row["completion"] == row["answer"] == str(first + second)


def test_digits_and_steps():
    for row in arithmetic(digits=3, steps=2, operators="-").rows("train", 50, seed=0):
        first, second, third = map(int, row["prompt"].removesuffix("=").split("-"))
        assert min(first, second, third) >= 100
        assert int(row["answer"]) == first - second - third
    signs = {sign for row in arithmetic(steps=2).rows("train", 50, seed=0) for sign in row["prompt"] if sign in "+-*"}
    assert signs == {"+", "-"}


def test_numbers_have_the_digits_asked_for():
    generator = np.random.default_rng(0)
    drawn = [draw_numbers(generator, [1, 2]) for _ in range(2000)]
    assert {first for first, _ in drawn} == set(range(10))
    assert {second for _, second in drawn} == set(range(10, 100))


@pytest.mark.parametrize("options", [{"digits": 0}, {"digits": 19}, {"steps": 0}, {"operators": "+/"}])
def test_options_out_of_range_are_rejected(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}="):
        arithmetic(**options)
