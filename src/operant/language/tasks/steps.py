"""Calculations step by step: `7+8-9+3=` has the answer `7+8=15`, `15-9=6`, `6+3=9`, `9`, one step per line.

The last line is the result. The verifier of the whole answer checks only that line, so a policy may omit steps of the
demonstrations. A limit below the longest demonstration truncates answers, and lists of terms or digits mix easy and
hard prompts.

Numbers have one digit by default. There are 874 different steps (a total and a term), which occur in many prompts: a
small model learns them from a few thousand demonstrations, and can answer prompts that it has not seen. With two digits
there are 51 840 in prompts of three terms, and the built-in models memorize demonstrations: with `terms=3,digits=1-2`,
after SFT on 4 096 examples, 19 % of the two-digit prompts among them and 8 % of others are answered correctly.
"""

import re
from itertools import accumulate, pairwise

import numpy as np

from operant.language.options import Choices
from operant.language.rewards import text_of
from operant.language.tasks.arithmetic import calculate, chain, draw_numbers
from operant.language.tasks.task import Row, Task

EARLY = 0.1
"""Fraction of the stepwise examples that end before their result."""

_TERMS, _DIGITS = Choices((4,)), Choices((1,))
_PROMPT = re.compile(r"\d+(?:[-+]\d+)+=")


def steps(*, terms: Choices = _TERMS, digits: Choices = _DIGITS, operators: str = "+-", limit: int = 0) -> Task:
    """Create the task of calculating step by step.

    Args:
        terms: numbers per prompt, sampled from a list: `2-6`, or `2/2/2/6` for a quarter of long prompts.
        digits: digits of each number, sampled once per prompt.
        operators: some of `+-`, equally likely.
        limit: maximum tokens of a completion; 0: the length of the longest demonstration plus two.

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
        title="Calculate step by step, as in 7+8-9+3=",
        make=make,
        rewards=(last_line,),
        max_completion_length=limit or _longest(max(terms), max(digits), "-" in operators) + 3,
        step_rewards=step_rewards,
        make_steps=make_steps,
    )


def solution(prompt: str) -> list[str]:
    """Return the lines of the correct answer to a prompt.

    Raises:
        ValueError: the text is not a prompt of this task.
    """
    if _PROMPT.fullmatch(prompt) is None:
        raise ValueError(
            f"expected numbers with + and - between them and = at the end, such as 7+8-9+3=, got {prompt!r}"
        )
    first, *terms = re.findall(r"[-+]?\d+", prompt)
    totals = list(accumulate(map(int, terms), initial=int(first)))
    lines = [f"{before}{term}={after}" for before, term, after in zip(totals[:-1], terms, totals[1:], strict=True)]
    return [*lines, str(totals[-1])]


def step_rewards(prompt: str, completion: str) -> list[tuple[int, float]]:
    """Compute the reward of each line of an answer: 1 if it equals the line of the correct answer, else 0.

    So all lines after a mistake are wrong. The last line of an answer that is too short is wrong, too: otherwise an
    answer that ends after its first line would have no wrong step, and a policy would learn to stop early. A line break
    after the result makes the result wrong, as in `last_line`. An empty answer is one wrong step, which its EOS ends.

    Args:
        prompt: prompt of this task.
        completion: answer, without EOS.

    Returns:
        For each line the number of characters up to and including its line break (the last has none), and its reward.

    Raises:
        ValueError: the text is not a prompt of this task.
    """
    right = solution(prompt)
    lines = re.findall(r"[^\n]*\n|[^\n]+", completion) or [""]
    ends = accumulate(map(len, lines))
    found = [
        (end, float(place < len(right) and line == right[place] + "\n" * (place < len(right) - 1)))
        for place, (line, end) in enumerate(zip(lines, ends, strict=True))
    ]
    if len(found) < len(right):
        found[-1] = (found[-1][0], 0.0)
    return found


def last_line(completions: list[str], answer: list[str], **_: object) -> list[float | None]:
    """Compute the reward of each completion: 1 if its last line is the answer, else 0."""
    return [float(text_of(c).split("\n")[-1] == right) for c, right in zip(completions, answer, strict=True)]


def make_steps(generator: np.random.Generator, row: Row) -> Row:
    """Sample an answer with labels of its steps.

    Two fifths of the answers have a wrong result in one step, and continue with it; a tenth end too early.
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
    """Add an error to the result of a line, and to the total before it if the previous line has the error too."""
    before, equals, result = line.rpartition("=")
    wrong = str(int(result) + error)
    if not equals:
        return wrong
    total, term = re.findall(r"^-?\d+|[-+]\d+$", before)
    return f"{int(total) + error if carried else total}{term}={wrong}"


def _longest(terms: int, digits: int, signed: bool) -> int:
    """Return the maximum number of characters of a demonstration."""
    highest = 10**digits - 1
    totals = [len(str(highest * count)) + signed for count in range(1, terms + 1)]
    totals[0] -= signed
    return sum(before + 1 + digits + 1 + after + 1 for before, after in pairwise(totals)) + totals[-1]
