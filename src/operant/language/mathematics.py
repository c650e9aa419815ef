"""Equality of two mathematical expressions, by `math-verify`: runs inside a sandbox, which sets the deadline."""

import contextlib
import importlib
import logging
import re
from typing import Any

with contextlib.suppress(ImportError):  # a sandbox allows more time for loading this file than for the first comparison
    importlib.import_module("math_verify")

_PLAIN = re.compile(r"[-+\d.,/% ]+|.*(?:\$|\\boxed|\\\(|\\\[).*", re.DOTALL)
"""Correct answers that `math-verify` can parse directly: numbers, and marked LaTeX."""


def equivalent(gold: str, answer: str) -> float | None:
    """Compare an answer with the correct one: 1.0 or 0.0; None if the correct one is unreadable.

    Args:
        gold: the correct answer only, LaTeX or plain. The comparison is not symmetric: an interval `(1, 2)` answers `1
            < x < 2`, but not the other way round.
        answer: the text of the completion. Boxed parts count first, then other LaTeX in it, then plain expressions.
    """
    if answer.strip().lower() == gold.strip().lower():
        return 1.0
    verifier: Any = importlib.import_module("math_verify")

    never: Any = None  # its own deadline uses an alarm signal, which needs the main thread
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns about that
    # Otherwise a number inside would match instead of the whole: 2 in (1, 2).
    right: list[Any] = verifier.parse(gold if _PLAIN.fullmatch(gold) else f"${gold}$", parsing_timeout=never)
    if not right:
        return None
    return float(verifier.verify(right, verifier.parse(answer, parsing_timeout=never), timeout_seconds=never))
