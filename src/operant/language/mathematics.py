"""Whether two mathematical expressions are equal, by `math-verify`: runs inside a sandbox, which has the deadline."""

import contextlib
import logging
import re
from typing import Any

with contextlib.suppress(ImportError):  # a sandbox has more time to load this file than for the first comparison
    import math_verify  # noqa: F401 - for what the import does

_PLAIN = re.compile(r"[-+\d.,/% ]+|.*(?:\$|\\boxed|\\\(|\\\[).*", re.DOTALL)
"""Right answers that `math-verify` finds as they stand: numbers, and what is marked as LaTeX."""


def equivalent(gold: str, answer: str) -> float | None:
    """Tell whether an answer equals the right one: 1.0 or 0.0; None where the right one is nothing that can be read.

    Args:
        gold: the right answer and nothing else, LaTeX or plain. The comparison is not symmetric: an interval `(1, 2)`
            answers `1 < x < 2`, but not the other way round.
        answer: the text of the completion. What is boxed counts first, then other LaTeX in it, then plain expressions.
    """
    if answer.strip().lower() == gold.strip().lower():
        return 1.0
    from math_verify import parse, verify

    never: Any = None  # its own deadline is an alarm signal, which only main threads can have
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of that
    # Elsewhere the whole would be missed and a number in it found: 2 in (1, 2).
    right: list[Any] = parse(gold if _PLAIN.fullmatch(gold) else f"${gold}$", parsing_timeout=never)
    if not right:
        return None
    return float(verify(right, parse(answer, parsing_timeout=never), timeout_seconds=never))
