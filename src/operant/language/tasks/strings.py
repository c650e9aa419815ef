"""Tasks on strings: the answer to `reverse abc:` is `cba`, and to `sort 3142:` it is `1234`."""

from collections.abc import Callable
from string import ascii_lowercase, digits

import numpy as np

from operant.language import verifiers
from operant.language.options import Choices
from operant.language.tasks.task import Row, Task

_LENGTHS = Choices(range(3, 7))
_SYMBOLS = {"letters": ascii_lowercase, "digits": digits}


def reverse(*, length: Choices = _LENGTHS) -> Task:
    """Create the task of reversing lowercase letters.

    Args:
        length: length of a string.

    Raises:
        ValueError: a length is not positive.
    """
    return _task("reverse", "Write letters backwards, as in reverse abc:", lambda text: text[::-1], length, "letters")


def sort(*, length: Choices = _LENGTHS, of: str = "digits") -> Task:
    """Create the task of sorting the characters of a string.

    Args:
        length: length of a string.
        of: alphabet, `digits` or `letters`.

    Raises:
        ValueError: a length is not positive, or there is no such alphabet.
    """
    if of not in _SYMBOLS:
        raise ValueError(f"sort has strings of digits or of letters, got of={of!r}")
    return _task("sort", f"Sort {of}, as in sort {_SYMBOLS[of][2::-1]}:", lambda t: "".join(sorted(t)), length, of)


def _task(name: str, title: str, solve: Callable[[str], str], lengths: Choices, of: str) -> Task:
    if min(lengths) < 1:
        raise ValueError(f"{name} needs lengths of at least 1, got {lengths}")

    def make(generator: np.random.Generator) -> Row:
        symbols, length = _SYMBOLS[of], lengths[generator.integers(len(lengths))]
        text = "".join(symbols[i] for i in generator.integers(len(symbols), size=length))
        return {"prompt": f"{name} {text}:", "completion": solve(text), "answer": solve(text)}

    options = f"length={lengths}" + (f",of={of}" if name == "sort" else "")
    return Task(f"{name}:{options}", title, make, (verifiers.exact(),), max_completion_length=max(lengths) + 3)
