"""Strings to token ids, where they stand alone and where one continues another."""

import functools
import logging
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["encode", "encode_parts", "shared_length"]

logger = logging.getLogger(__name__)


def encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Return the ids of a text, without BOS or EOS.

    Raises:
        ValueError: if the tokenizer does not know a character, and has no token for what it does not know.
    """
    try:
        return tokenizer.encode(text, add_special_tokens=False, verbose=False)
    except Exception as error:  # tokenizers raises no subclass
        for position, character in enumerate(text):
            try:
                tokenizer.encode(character, add_special_tokens=False)
            except Exception:
                raise ValueError(
                    f"the tokenizer has no token for {character!r} (U+{ord(character):04X}), character {position} of "
                    f"{_shortened(text)}: remove it, or take a model whose tokenizer knows it"
                ) from error
        raise


def encode_parts(
    tokenizer: "PreTrainedTokenizerBase",
    parts: Sequence[str],
    encode: Callable[["PreTrainedTokenizerBase", str], list[int]] = encode,
) -> list[list[int]]:
    """Return the ids of each of several texts that follow each other, without BOS or EOS.

    They are the tokens of the joined text, cut where the parts meet. A token that would reach over such a place (the
    first part ends in a space, and words carry the space before them) cannot be cut; then every part is tokenized by
    itself, with a warning. So the first part always has the ids that it has alone.

    Args:
        tokenizer: the model's tokenizer.
        parts: the texts, `[K]`.
        encode: what turns a text into ids.
    """
    prefixes = [encode(tokenizer, text) for text in accumulate(parts)]
    if all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(prefixes)):
        return [longer[len(shorter) :] for shorter, longer in pairwise([[], *prefixes])]
    _warn_merged(tokenizer.name_or_path)
    return [encode(tokenizer, part) for part in parts]


def shared_length(left: Sequence[Any], right: Sequence[Any]) -> int:
    """Return how many first elements two sequences have in common."""
    shortest = min(len(left), len(right))
    return next((i for i in range(shortest) if left[i] != right[i]), shortest)


@functools.cache
def _warn_merged(name: str) -> None:
    """Say once for each tokenizer that two parts share a token."""
    logger.warning(
        "The tokenizer %r joins the end of a prompt or step and the start of what follows in one token; such texts are "
        "tokenized apart. End prompts where a word ends, without the space after it.",
        name,
    )


def _shortened(text: str) -> str:
    """Return a text for an error message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
