"""The numbers game Countdown: an answer to `use 3 5 8 to make 39:` is `(8+5)*3`.

An answer is correct if it is an expression of the given numbers, each at most as often as given, with `+ - * /` and
parentheses, whose exact value is the target. It may omit numbers, and intermediate results may be fractions.
"""

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from operant.language.options import Choices
from operant.language.rewards import text_of
from operant.language.tasks.task import Row, Task

LONGEST = 100
"""Maximum characters of an expression; longer ones get no reward."""

_NUMBERS = Choices((3,))
_ATTEMPTS = 10_000


def countdown(*, numbers: Choices = _NUMBERS, highest: int = 20, target: int = 99, operators: str = "+-*") -> Task:
    """Create the task of reaching a target with given numbers.

    Args:
        numbers: number of given numbers, all of which the demonstration uses.
        highest: maximum of the given numbers; the minimum is 1.
        target: maximum target; the minimum is 1.
        operators: operators of the demonstrations, some of `+-*`. Answers may use all four.

    Raises:
        ValueError: an option is out of its range.
    """
    if min(numbers) < 2 or highest < 1 or target < 2 * highest or not operators or set(operators) - set("+-*"):
        raise ValueError(
            "countdown needs 2 numbers or more, a target of at least twice the highest number and operators out of "
            f"+-*, got numbers={numbers}, highest={highest}, target={target}, operators={operators!r}"
        )

    def make(generator: np.random.Generator) -> Row:
        count = numbers[generator.integers(len(numbers))]
        for _ in range(_ATTEMPTS):
            given = [int(number) for number in generator.integers(1, highest + 1, size=count)]
            expression, value = _combine(generator, given, operators)
            if 1 <= value <= target:
                break
        else:
            raise ValueError(
                f"{count} numbers up to {highest} with {operators} rarely make 1 to {target}: raise target"
            )
        shown = " ".join(map(str, sorted(given)))
        columns = {"numbers": sorted(given), "target": int(value)}
        return {"prompt": f"use {shown} to make {int(value)}:", "completion": expression, **columns}

    most = max(numbers)
    options = f"numbers={numbers},highest={highest},target={target},operators={operators}"
    return Task(
        name=f"countdown:{options}",
        title="Reach a target with given numbers, as in use 3 5 8 to make 39:",
        make=make,
        rewards=(solves,),
        # Numbers, operators, a pair of parentheses around all inner ones, EOS and two characters for mistakes.
        max_completion_length=most * len(str(highest)) + most - 1 + 2 * (most - 1) + 3,
    )


def solves(
    completions: Sequence[Any], numbers: Sequence[Sequence[int]], target: Sequence[int], **_: Any
) -> list[float | None]:
    """Compute the reward of each completion: 1 if it is a correct answer, else 0."""
    rewards: list[float | None] = []
    for completion, given, goal in zip(completions, numbers, target, strict=True):
        found = evaluate(text_of(completion))
        rewards.append(float(found is not None and found[0] == goal and not Counter(found[1]) - Counter(given)))
    return rewards


def evaluate(expression: str) -> tuple[Fraction, list[int]] | None:
    """Return the exact value of an expression and its numbers; None if it is invalid or divides by 0.

    Expressions consist of integers without signs, `+ - * /`, parentheses and spaces.
    """
    symbols = re.findall(r"[0-9]+|[-+*/()]", expression)
    if len(expression) > LONGEST or re.fullmatch(r"[-+*/() 0-9]+", expression) is None:
        return None
    try:
        parser = _Parser(symbols)
        value = parser.sum()
    except (SyntaxError, ZeroDivisionError):
        return None
    return (value, parser.numbers) if not parser.rest else None


class _Parser:
    """Recursive-descent parser of an expression, whose remaining symbols are in `rest` in reverse order."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.rest = [*reversed(symbols)]
        self.numbers: list[int] = []

    def sum(self) -> Fraction:
        value = self.product()
        while self._next("+-"):
            value = value + self.product() if self.rest.pop() == "+" else value - self.product()
        return value

    def product(self) -> Fraction:
        value = self.atom()
        while self._next("*/"):
            value = value * self.atom() if self.rest.pop() == "*" else value / self.atom()
        return value

    def atom(self) -> Fraction:
        symbol = self.rest.pop() if self.rest else ""
        if symbol.isdecimal():
            self.numbers.append(int(symbol))
            return Fraction(int(symbol))
        if symbol == "(":
            value = self.sum()
            if self.rest and self.rest.pop() == ")":
                return value
        raise SyntaxError(f"a number or parentheses expected, got {symbol!r}")

    def _next(self, symbols: str) -> bool:
        return bool(self.rest) and self.rest[-1] in symbols


def _combine(generator: np.random.Generator, given: Sequence[int], operators: str) -> tuple[str, int]:
    """Return a random expression of all numbers, and its value."""
    parts = [(str(number), number, "") for number in given]
    while len(parts) > 1:
        left, right = (parts.pop(generator.integers(len(parts))) for _ in range(2))
        sign = operators[generator.integers(len(operators))]
        value = {"+": left[1] + right[1], "-": left[1] - right[1], "*": left[1] * right[1]}[sign]
        text = f"{_inside(left, sign, first=True)}{sign}{_inside(right, sign, first=False)}"
        parts.append((text, value, sign))
    return parts[0][:2]


def _inside(part: tuple[str, int, str], sign: str, *, first: bool) -> str:
    """Return an operand of `sign`, in parentheses if needed."""
    text, _, own = part
    needed = (sign == "*" and own in ("+", "-")) or (sign == "-" and own in ("+", "-") and not first)
    return f"({text})" if own and needed else text
