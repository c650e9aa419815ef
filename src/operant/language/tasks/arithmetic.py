"""Mental arithmetic: the answer to `47+85=` is `132`."""

from collections.abc import Sequence

import numpy as np

from operant.language import verifiers
from operant.language.tasks.task import Row, Task

_OPERATORS = "+-*"
MOST_DIGITS = 18
"""Maximum number of digits of a number, which has 64 bits."""


def arithmetic(*, digits: int = 2, steps: int = 1, operators: str = "") -> Task:
    """Create the task of adding, subtracting or multiplying numbers.

    Args:
        digits: number of digits of each number. The first digit is not 0, except in numbers of one digit.
        steps: number of operations per prompt, one fewer than the numbers.
        operators: some of `+-*`, equally likely; by default `+` for one step and `+-` for more. Products are computed
            first.

    Raises:
        ValueError: an option is out of its range.
    """
    operators = operators or ("+" if steps == 1 else "+-")
    if not 1 <= digits <= MOST_DIGITS or steps < 1 or set(operators) - set(_OPERATORS):
        raise ValueError(
            f"arithmetic needs digits from 1 to {MOST_DIGITS}, steps of at least 1 and operators out of {_OPERATORS}, "
            f"got digits={digits}, steps={steps} and operators={operators!r}"
        )
    longest = digits * (steps + 1) if "*" in operators else len(str((steps + 1) * (10**digits - 1)))

    def make(generator: np.random.Generator) -> Row:
        numbers = draw_numbers(generator, [digits] * (steps + 1))
        signs = [operators[i] for i in generator.integers(len(operators), size=steps)]
        answer = str(calculate(numbers, signs))
        return {"prompt": f"{chain(numbers, signs)}=", "completion": answer, "answer": answer}

    return Task(
        name=f"arithmetic:digits={digits},steps={steps},operators={operators}",
        title=f"Calculate with {steps + 1} numbers of {digits} digits, as in 47+85=",
        make=make,
        rewards=(verifiers.exact(),),
        max_completion_length=longest + ("-" in operators) + 3,  # EOS, and two characters for mistakes
    )


def draw_numbers(generator: np.random.Generator, digits: Sequence[int]) -> list[int]:
    """Sample a number for each number of digits."""
    ranges: list[tuple[int, int]] = [(0 if d == 1 else 10 ** (d - 1), 10**d) for d in digits]
    return [int(generator.integers(low, high)) for low, high in ranges]


def chain(numbers: Sequence[int], signs: Sequence[str]) -> str:
    """Return the expression of numbers with signs between them."""
    return "".join(f"{number}{sign}" for number, sign in zip(numbers, [*signs, ""], strict=True))


def calculate(numbers: Sequence[int], signs: Sequence[str]) -> int:
    """Return the value of numbers with `+`, `-` and `*` between them, products first."""
    total, product = 0, numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            product *= number
        else:
            total, product = total + product, number if sign == "+" else -number
    return total + product
