import pytest

pytest.importorskip("math_verify")

from operant.language.mathematics import equivalent


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        (r"\frac{1}{3}", r"My answer is \boxed{\frac{1}{3}}"),
        ("1/2", "0.5"),
        ("12", "the answer is 12."),
        (r"\sqrt{8}", r"$2\sqrt{2}$"),
        (r"$\{1,2\}$", r"\boxed{\{2,1\}}"),
        ("(1, 2)", "$(1,2)$"),
        ("x + 1", "$1+x$"),
        ("Paris", " paris\n"),
    ],
)
def test_equal(gold, answer):
    assert equivalent(gold, answer) == 1.0


@pytest.mark.parametrize(
    ("gold", "answer"),
    [(r"\frac{1}{3}", r"\boxed{\frac{1}{2}}"), ("(1, 2)", "2"), ("5", "no idea"), ("5", ""), ("Paris", "Rome")],
)
def test_different(gold, answer):
    assert equivalent(gold, answer) == 0.0


def test_the_right_answer_comes_first():
    assert equivalent("$1<x<2$", "$(1,2)$") == 1.0
    assert equivalent("$(1,2)$", "$1<x<2$") == 0.0
