"""Tokenization of strings and of consecutive texts."""

import functools
import logging
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from operant.language.huggingface import Tokenizer

__all__ = ["UnknownCharacterError", "encode", "encode_parts", "shared_length"]

logger = logging.getLogger(__name__)


class UnknownCharacterError(ValueError):
    """A character of a text has no token."""


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text, without BOS or EOS.

    Raises:
        UnknownCharacterError: a character has no token, and the tokenizer has no unknown token.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=False, verbose=False)
    except Exception as error:  # tokenizers raises no subclass
        for position, character in enumerate(text):
            try:
                tokenizer.encode(character, add_special_tokens=False)
            except Exception:
                raise UnknownCharacterError(
                    f"the tokenizer has no token for {character!r} (U+{ord(character):04X}), character {position} of "
                    f"{_shortened(text)}: remove it, or use a model whose tokenizer knows it"
                ) from error
        raise


def encode_parts(
    tokenizer: Tokenizer,
    parts: Sequence[str],
    encode: Callable[[Tokenizer, str], list[int]] = encode,
) -> list[list[int]]:
    """Return the ids of several consecutive texts, without BOS or EOS.

    The joined text is tokenized and split at the boundaries of the texts. If a token crosses a boundary (for example,
    the first text ends in a space), the texts are tokenized separately, with a warning. The first text therefore always
    has the same ids as alone.

    Args:
        tokenizer: tokenizer of the model.
        parts: texts, `[K]`.
        encode: function that tokenizes a text.
    """
    prefixes = [encode(tokenizer, text) for text in accumulate(parts)]
    if all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(prefixes)):
        return [longer[len(shorter) :] for shorter, longer in pairwise([[], *prefixes])]
    _warn_merged(tokenizer.name_or_path)
    return [encode(tokenizer, part) for part in parts]


def shared_length(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return the length of the common prefix of two sequences."""
    shortest = min(len(left), len(right))
    return next((i for i in range(shortest) if left[i] != right[i]), shortest)


@functools.cache
def _warn_merged(name: str) -> None:
    """Warn once per tokenizer that a token crosses the boundary of two texts."""
    logger.warning(
        "The tokenizer %r merges the end of a prompt or step with the start of the next text; such texts are "
        "tokenized separately. End prompts at the end of a word, without the space after it.",
        name,
    )


def _shortened(text: str) -> str:
    """Return a shortened text for an error message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
