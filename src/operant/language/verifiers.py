"""Rule-based rewards: verifiers, by name in `VERIFIERS`, and Python functions from files.

A name, with optional options, selects a factory: `find("numeric:tolerance=0.01")`. The result is a reward function with
TRL's signature (see `operant.language.rewards`). Verifiers that compare answers read the correct one from a column of
the examples, by default `answer`; they do not apply to examples in which it is None.
"""

import importlib.util
import math
import numbers
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import torch

from operant import doors, ops
from operant.language import options
from operant.language.numerals import after_mark, answer_number, last_box, last_number, stated_number
from operant.language.rewards import GIVEN, RewardFunction, text_of
from operant.language.sandbox import MEMORY, Sandbox
from operant.language.user_rewards import user_function
from operant.tensors import floats

ENTRY_POINTS = "operant.rewards"
"""Entry-point group of reward functions in installed packages."""

_MATHEMATICS = f"{Path(__file__).resolve().with_name('mathematics.py')}:equivalent"

_EQUATION = re.compile(r"\s*-?\d+\s*[a-z]\s*=")
_FONT = re.compile(r"\\(?:text|mathrm|mathbf)(?:bf|it|rm|normal)?\{((?:[^{}]|\{[^{}]*\})*)\}")
_LATEX = re.compile(r"\$|\\[(\[]")
_THINK = re.compile(r"<think>(?!.*<think>)(.*?)</think>.*", re.DOTALL)
_THINK_ANSWER = re.compile(r"<think>(?!.*<think>)(.*?)</think>\s*<answer>(?!.*<answer>)(.*?)</answer>\s*", re.DOTALL)


def find(
    text: str,
    *,
    max_completion_length: int | None = None,
    timeout: float = 60.0,
    workers: int = 1,
    memory: int | None = MEMORY,
) -> RewardFunction:
    """Return a reward function by its name or path.

    Args:
        text: name in `VERIFIERS`, with optional options (`numeric:tolerance=0.01`); name of an entry point of the group
            `operant.rewards`, `package.module:function` or a Python object (`operant.doors.hold`), which run in this
            process; or `path/to/file.py:function`, which runs in a sandbox. Functions have TRL's signature.
        max_completion_length: maximum number of tokens of a completion, for verifiers that need it.
        timeout: time limit in seconds per call of a function from a file.
        workers: number of processes of a function from a file, and of `accuracy`.
        memory: memory limit in bytes per process of a function from a file; None: no limit.

    Raises:
        ValueError: there is no such verifier, option or file, or a value is out of its range.
        SandboxError: the file cannot be imported, or has no such function.
    """
    if doors.is_object(text):
        return doors.load(text, expected="a reward function, f(prompts, completions, completion_ids, **columns)")
    if doors.is_file(text):
        return user_function(text, seconds=timeout, workers=workers, memory=memory)
    if text in doors.entry_points(ENTRY_POINTS) and text not in VERIFIERS:
        return doors.load(text, expected="a reward function with TRL's signature", group=ENTRY_POINTS)
    if text.partition(":")[0] not in VERIFIERS and doors.is_name(text):
        return doors.load(text, expected="a reward function with TRL's signature")
    limit = {} if max_completion_length is None else {"max_completion_length": max_completion_length}
    return options.build(text, VERIFIERS, "verifier", workers=workers, **limit)


def exact(*, column: str = "answer") -> RewardFunction:
    """Return 1 if the completion equals the correct answer up to surrounding white space, else 0.

    If the correct answer ends in `#### 18`, as in GSM8K, 18 is also correct, and so is 18 for the number 18.0.
    """

    def right(gold: Any) -> set[str]:
        text = _not_empty(column, gold, str(gold).strip())
        found = {text, after_mark(text) or text}
        if isinstance(gold, numbers.Real) and not isinstance(gold, numbers.Integral) and float(gold).is_integer():
            found.add(str(int(float(gold))))  # a column of integers with gaps has floats
        return found

    return _comparing("exact", column, lambda text, gold: float(text.strip() in right(gold)), check=right)


def numeric(*, column: str = "answer", tolerance: float = 1e-9) -> RewardFunction:
    r"""Return 1 if the number that is the completion's answer equals the correct one, else 0.

    The answer is the content of the last `\boxed{...}`, otherwise the first number after the last `####`, otherwise the
    last number. Formats: `-3`, `3.0`, `1,234.5`, `1e-3`, `1/2`, and their LaTeX equivalents
    (`operant.language.numerals`).

    Args:
        column: column with the correct numbers, as numbers or text; for answers such as GSM8K's the number after
            `####` is used.
        tolerance: maximum difference, relative to the correct number if that is above 1.

    Raises:
        ValueError: the tolerance is negative.
    """
    if not 0 <= tolerance < math.inf:
        raise ValueError(f"tolerance must be finite and not negative, got {tolerance}")
    slack = Fraction(tolerance)

    def number(gold: Any) -> Fraction:
        right = _stated_or_last(right_answer(gold))
        if right is None:
            raise ValueError(
                f"the column {column!r} must contain numbers, got {gold!r}: correct it, or set it to null, so that "
                "answers get no reward"
            )
        return right

    def near(text: str, gold: Any) -> float:
        right, given = number(gold), answer_number(text)
        return float(given is not None and abs(given - right) <= slack * max(1, abs(right)))

    return _comparing("numeric", column, near, check=number)


def boxed(*, column: str = "answer") -> RewardFunction:
    r"""Return 1 if the content of the last `\boxed{...}` of the completion is the correct answer, else 0.

    Answers are the same if they are equal numbers, also with a unit or as `x = 18`, or equal text up to spaces, dollar
    signs, `\left`, `\right`, a final period, the size of fractions and a font of the whole answer (`\text{A}`). For
    general mathematics use `accuracy`.
    """

    def plain(gold: Any) -> str:
        return _not_empty(column, gold, _plain(right_answer(gold)))

    def same(text: str, gold: Any) -> float:
        answer, right = last_box(text), plain(gold)
        if answer is None:
            return 0.0
        return float(_plain(answer) == right or _same_number(answer, right_answer(gold)))

    return _comparing("boxed", column, same, check=plain)


def accuracy(*, column: str = "", seconds: float = 10.0, workers: int = 1) -> RewardFunction:
    """Return 1 if the completion is mathematically equal to the correct answer, by `math-verify`, else 0.

    If the correct answer is a number, and the completion has a number in a box or after `####`, or has no LaTeX, the
    numbers are compared (`operant.language.numerals`). Otherwise `math-verify` compares the expressions in separate
    processes. The result is None after the time limit, or if the correct answer is unreadable.

    Args:
        column: column with the correct answers; by default `solution`, as in TRL, or `answer` in rows without it.
        seconds: time limit of a comparison.
        workers: number of processes.

    Raises:
        ModuleNotFoundError: `math-verify` is not installed.
        ValueError: an argument is out of its range.
    """
    if importlib.util.find_spec("math_verify") is None:
        raise ModuleNotFoundError('the verifier accuracy needs math-verify: pip install "operant[language]"')
    sandbox = Sandbox(_MATHEMATICS, seconds=seconds, workers=workers, memory=4 << 30)
    names = (column,) if column else ("solution", "answer")
    check = partial(_require_one, names)

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        given = [name for name in names if name in columns] or names[-1:]
        rows = zip(*(_gold("accuracy", name, columns) for name in given), strict=True)
        golds = [next((gold for gold in row if gold is not None), None) for row in rows]
        for gold in golds:
            if gold is not None:
                check(gold)
        rights = {row: right_answer(gold) for row, gold in enumerate(golds) if gold is not None}
        texts = {row: text_of(completions[row]) for row in rights}
        found: dict[int, float | None] = {row: _by_number(texts[row], right) for row, right in rights.items()}
        asked = [row for row, reward in found.items() if reward is None]
        found.update(zip(asked, sandbox.map([(rights[row], texts[row]) for row in asked]), strict=True))
        return [found.get(row) for row in range(len(completions))]

    vars(reward).update(required_columns=(names,), check_columns={names: check})
    return _named("accuracy", reward)


def pattern(*, pattern: str) -> RewardFunction:
    """Return 1 if the whole completion matches a regular expression (a dot also matches a line break), else 0.

    Raises:
        ValueError: the regular expression is invalid.
    """
    try:
        compiled = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ValueError(f"pattern must be a regular expression, got {pattern!r}: {error}") from None
    return _matching("format", compiled)


def think_format() -> RewardFunction:
    """Return 1 if the completion begins with one `<think>...</think>`, else 0, like TRL's `think_format_reward`."""
    return _matching("think_format", _THINK)


def think_answer_format() -> RewardFunction:
    """Return 1 if the completion consists of one `<think>...</think>` and one `<answer>...</answer>`, else 0."""
    return _matching("think_answer_format", _THINK_ANSWER)


def length(*, target: int | None = None, limit: int | None = None) -> RewardFunction:
    """Return a reward for the number of tokens, including EOS. Set either `target` or `limit`.

    Args:
        target: best number; the reward decreases linearly from 1 at the target to 0 at zero and at twice the target.
        limit: maximum number; the reward is 1 up to it and 0 beyond.

    Raises:
        ValueError: both or neither are given, or the number is not positive.
    """
    number = limit if target is None else target
    if (target is None) == (limit is None) or number is None or number < 1:
        raise ValueError(f"length needs a positive target or a positive limit, got target={target} and limit={limit}")

    def reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float | None]:
        lengths = [len(ids) for ids in completion_ids]
        if target is None:
            return [float(n <= number) for n in lengths]
        return [max(0.0, 1 - abs(n - number) / number) for n in lengths]

    return _named("length", reward)


def repetition(*, ngram_size: int = 3, max_penalty: float = -1.0) -> RewardFunction:
    """Return a penalty for repeated n-grams of words: `max_penalty` times the fraction that occurred before.

    0 for completions with fewer than n words. From Yeo et al. 2025 (arXiv:2502.03373, appendix C.2), like TRL's
    `get_repetition_penalty_reward`.

    Args:
        ngram_size: number of words of an n-gram, n; case is ignored.
        max_penalty: penalty for only repetitions, at most 0.

    Raises:
        ValueError: an argument is out of its range.
    """
    if ngram_size < 1:
        raise ValueError(f"ngram_size must be at least 1, got {ngram_size}")
    if not -math.inf < max_penalty <= 0:
        raise ValueError(f"max_penalty must be finite and at most 0, got {max_penalty}")

    def penalty(text: str) -> float:
        words = text.lower().split()
        grams = Counter(tuple(words[i : i + ngram_size]) for i in range(len(words) - ngram_size + 1))
        return max_penalty * (1 - len(grams) / grams.total()) if grams else 0.0

    def reward(completions: Sequence[Any], **_: Any) -> list[float | None]:
        return [penalty(text_of(completion)) for completion in completions]

    return _named("repetition", reward)


def soft_overlong(*, max_completion_length: int, buffer: int | None = None) -> RewardFunction:
    """Return DAPO's soft penalty for long completions, from 0 linearly to -1 at the limit (`ops.overlong_penalty`).

    Args:
        max_completion_length: maximum number of tokens of a completion, including EOS.
        buffer: number of tokens before the limit over which the penalty grows; None: a fifth of the limit, as in the
            paper.

    Raises:
        ValueError: the buffer is not in [1, max_completion_length].
    """
    buffer = max(1, max_completion_length // 5) if buffer is None else buffer
    ops.overlong_penalty(torch.zeros(0, dtype=torch.int64), max_length=max_completion_length, buffer=buffer)

    def reward(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float | None]:
        lengths = torch.tensor([len(ids) for ids in completion_ids], dtype=torch.int64)
        return [*floats(ops.overlong_penalty(lengths, max_length=max_completion_length, buffer=buffer))]

    return _named("soft_overlong", reward)


def right_answer(gold: Any) -> str:
    r"""Return the correct answer in a column: the content of its last box, the text after `####`, or the whole text."""
    text = str(gold)
    found = last_box(text)
    found = after_mark(text) if found is None else found
    return text if found is None else found


def _plain(text: str) -> str:
    """Remove LaTeX that does not change the value."""
    text = re.sub(r"\\left|\\right|\\[,;! ]|[\s$]", "", text)
    text = re.sub(r"\\[dt]frac", r"\\frac", text).rstrip(".")
    found = _FONT.fullmatch(text)
    return _plain(found[1]) if found else text


def _stated_or_last(text: str) -> Fraction | None:
    stated = stated_number(text)
    return last_number(text) if stated is None else stated


def _same_number(text: str, other: str) -> bool:
    numbers = stated_number(text), stated_number(other)
    return None not in numbers and numbers[0] == numbers[1]


def _by_number(text: str, right: str) -> float | None:
    """Return 1.0 or 0.0 if the answers can be compared as numbers, else None."""
    number = stated_number(right)
    if number is None:
        return None
    answer, box = answer_number(text), last_box(text)
    if box is not None and _EQUATION.match(box):
        return 0.0  # math-verify treats 2x = 18 as 18
    if answer is None:
        return 0.0 if box is None and not _LATEX.search(text) else None
    return float(answer == number) if box is not None or answer == number or not _LATEX.search(text) else None


def _comparing(
    name: str, column: str, compare: Callable[[str, Any], float], *, check: Callable[[Any], object] = lambda gold: gold
) -> RewardFunction:
    """Create a reward function that compares each completion with the correct answer in a column.

    Args:
        name: name of the function.
        column: column with the correct answers.
        compare: reward of a completion, given the correct answer.
        check: raises ValueError for an invalid correct answer. Default: texts, numbers and booleans are valid.
    """

    def valid(gold: Any) -> None:
        _require_one((column,), gold)
        check(gold)

    def reward(completions: Sequence[Any], **columns: Any) -> list[float | None]:
        golds = _gold(name, column, columns)
        return [
            None if gold is None else compare(text_of(completion), gold)
            for completion, gold in zip(completions, golds, strict=True)
        ]

    vars(reward).update(required_columns=(column,), check_columns={column: valid})
    return _named(name, reward)


def _require_one(columns: Sequence[str], gold: Any) -> None:
    """Check that a correct answer is one text or number; that of a list would be compared as the text of the list."""
    if not isinstance(gold, str | numbers.Real):
        where = " or ".join(map(repr, columns))
        raise ValueError(
            f"the column {where} must contain texts or numbers, got {gold!r}: give one correct answer per row, or "
            "null, so that answers get no reward"
        )


def _not_empty(column: str, gold: Any, text: str) -> str:
    """Return the text of a correct answer, which must not be empty; an empty completion would be correct."""
    if not text:
        raise ValueError(
            f"the column {column!r} must contain correct answers that are not empty, got {gold!r}: correct it, or set "
            "it to null, so that answers get no reward"
        )
    return text


def _matching(name: str, expression: re.Pattern[str]) -> RewardFunction:
    def reward(completions: Sequence[Any], **_: Any) -> list[float | None]:
        return [float(expression.fullmatch(text_of(completion)) is not None) for completion in completions]

    return _named(name, reward)


def _gold(name: str, column: str, columns: Mapping[str, Any]) -> Sequence[Any]:
    if column not in columns:
        others = ", ".join(key for key in columns if key not in GIVEN) or "none"
        raise ValueError(
            f"the verifier {name} reads the column {column!r}, which the examples lack; their columns: {others}"
        )
    return columns[column]


def _named(name: str, function: Callable[..., list[float | None]]) -> RewardFunction:
    function.__name__ = name
    return function


VERIFIERS: dict[str, Callable[..., RewardFunction]] = {
    "exact": exact,
    "numeric": numeric,
    "boxed": boxed,
    "accuracy": accuracy,
    "format": pattern,
    "think-format": think_format,
    "think-answer-format": think_answer_format,
    "length": length,
    "repetition": repetition,
    "soft-overlong": soft_overlong,
}
"""Factories of reward functions, by name."""
