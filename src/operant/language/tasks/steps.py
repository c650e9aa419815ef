"""Sums step by step, whose lines can be checked one by one: `12+7-5=` has the answer `12+7=19`, `19-5=14`, `14`.

Each line of an answer is a step; the last one is the result. The verifier of the whole answer checks only the last
line, so a policy may find shorter ways than the demonstrations. With a limit below the longest demonstration, and
prompts from trivial to hard, truncation and difficulty matter in this task.
"""

import re
from itertools import accumulate, pairwise

import numpy as np

from operant.language.options import Choices
from operant.language.rewards import text_of
from operant.language.tasks.arithmetic import calculate, chain, draw_numbers
from operant.language.tasks.task import Row, Task

EARLY = 0.1
"""Share of the stepwise examples that end before their result."""

_TERMS, _DIGITS = Choices((3,)), Choices((1, 2))
_PROMPT = re.compile(r"\d+(?:[-+]\d+)+=")


def steps(*, terms: Choices = _TERMS, digits: Choices = _DIGITS, operators: str = "+-", limit: int = 0) -> Task:
    """Create the task of calculating step by step.

    Args:
        terms: numbers per prompt, each count in proportion to its frequency in the list: `2-6`, or `2/2/2/6` for a
            quarter of long ones.
        digits: of each number. A range is sampled once per prompt, so some prompts are harder.
        operators: out of `+-`, equally likely.
        limit: maximum tokens of a completion; 0: that of the longest demonstration plus two.

    Raises:
        ValueError: an option is out of its range.
    """
    if min(terms) < 2 or min(digits) < 1 or limit < 0 or not operators or set(operators) - set("+-"):
        raise ValueError(
            "steps needs 2 terms or more, digits of at least 1, operators out of +- and a limit of at least 0, got "
            f"terms={terms}, digits={digits}, operators={operators!r}, limit={limit}"
        )

    def make(generator: np.random.Generator) -> Row:
        count, size = terms[generator.integers(len(terms))], digits[generator.integers(len(digits))]
        numbers = draw_numbers(generator, [size] * count)
        signs = [operators[i] for i in generator.integers(len(operators), size=count - 1)]
        prompt = f"{chain(numbers, signs)}="
        return {"prompt": prompt, "completion": "\n".join(solution(prompt)), "answer": str(calculate(numbers, signs))}

    given = f"terms={terms},digits={digits},operators={operators}"
    return Task(
        name=f"steps:{given},limit={limit}",
        title="Calculate step by step, as in 12+7-5=",
        make=make,
        rewards=(last_line,),
        max_completion_length=limit or _longest(max(terms), max(digits), "-" in operators) + 3,
        step_rewards=step_rewards,
        make_steps=make_steps,
    )


def solution(prompt: str) -> list[str]:
    """Return the lines of the correct answer to a prompt.

    Raises:
        ValueError: it is not a prompt of this task.
    """
    if _PROMPT.fullmatch(prompt) is None:
        raise ValueError(
            f"expected numbers with + and - between them and = at the end, such as 12+7-5=, got {prompt!r}"
        )
    first, *terms = re.findall(r"[-+]?\d+", prompt)
    totals = list(accumulate(map(int, terms), initial=int(first)))
    lines = [f"{before}{term}={after}" for before, term, after in zip(totals[:-1], terms, totals[1:], strict=True)]
    return [*lines, str(totals[-1])]


def step_rewards(prompt: str, completion: str) -> list[tuple[int, float]]:
    """Reward each line of an answer: 1 if it is the correct line at its position, else 0.

    So a line is correct if the total before it and the one after it are; everything after a mistake is wrong. The last
    line of an answer ends it, and is correct only where the correct answer ends too: otherwise an answer that stops
    after its first line would have no wrong step, and a policy would learn to stop early.

    Args:
        prompt: of this task.
        completion: the answer, without its end of sequence.

    Returns:
        For each line the number of characters up to and including its line break (the last has none), and its reward.
        Empty for an empty answer.

    Raises:
        ValueError: it is not a prompt of this task.
    """
    right = solution(prompt)
    lines = re.findall(r"[^\n]*\n|[^\n]+", completion)
    ends = accumulate(map(len, lines))
    found = [
        (end, float(place < len(right) and line.removesuffix("\n") == right[place]))
        for place, (line, end) in enumerate(zip(lines, ends, strict=True))
    ]
    if 0 < len(found) < len(right):
        found[-1] = (found[-1][0], 0.0)
    return found


def last_line(completions: list[str], answer: list[str], **_: object) -> list[float | None]:
    """Reward 1 if the last line of a completion is the answer, else 0; earlier lines are free."""
    return [float(text_of(c).split("\n")[-1] == right) for c, right in zip(completions, answer, strict=True)]


def make_steps(generator: np.random.Generator, row: Row) -> Row:
    """Return the answer to an example as steps with labels.

    In two fifths of the answers one result is wrong, and all that follows; a tenth stop too early.
    """
    lines = solution(row["prompt"])
    kind = generator.random()
    if kind < EARLY:
        lines = lines[: int(generator.integers(1, len(lines)))]
    elif kind < 0.5:
        place = int(generator.integers(len(lines)))
        error = int(generator.choice([-10, -2, -1, 1, 2, 10]))
        lines = [line if i < place else _shifted(line, error, i > place) for i, line in enumerate(lines)]
    labels = [reward == 1.0 for _, reward in step_rewards(row["prompt"], "\n".join(lines))]
    return {"prompt": row["prompt"], "completions": lines, "labels": labels}


def _shifted(line: str, error: int, carried: bool) -> str:
    """Add an error to the result of a line, and to the total before it if it was carried over."""
    before, equals, result = line.rpartition("=")
    wrong = str(int(result) + error)
    if not equals:
        return wrong
    total, term = re.findall(r"^-?\d+|[-+]\d+$", before)
    return f"{int(total) + error if carried else total}{term}={wrong}"


def _longest(terms: int, digits: int, signed: bool) -> int:
    """Return the length in characters of the longest demonstration."""
    highest = 10**digits - 1
    totals = [len(str(highest * count)) + signed for count in range(1, terms + 1)]
    totals[0] -= signed
    return sum(before + 1 + digits + 1 + after + 1 for before, after in pairwise(totals)) + totals[-1]
