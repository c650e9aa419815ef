"""Equality of mathematical expressions by `math-verify`; runs in a sandbox, which enforces a time limit."""

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
    """Return 1.0 if an answer equals the correct one, else 0.0; None if the correct one is unreadable.

    Args:
        gold: correct answer, in LaTeX or plain text. The comparison is not symmetric: an interval `(1, 2)` is accepted
            for `1 < x < 2`, but not the reverse.
        answer: text of the completion, of which boxed parts take precedence, then other LaTeX, then plain expressions.
    """
    if answer.strip().lower() == gold.strip().lower():
        return 1.0
    verifier: Any = importlib.import_module("math_verify")

    never: Any = None  # the package's time limit uses an alarm signal, which needs the main thread
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn about the disabled time limit
    # Otherwise a number inside would match instead of the whole expression: 2 in (1, 2).
    right: list[Any] = verifier.parse(gold if _PLAIN.fullmatch(gold) else f"${gold}$", parsing_timeout=never)
    if not right:
        return None
    return float(verifier.verify(right, verifier.parse(answer, parsing_timeout=never), timeout_seconds=never))
