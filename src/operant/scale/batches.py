"""Batches of custom training loops: sequences, their validation, and losses (`Datum`, `Loss`)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from operant import ops

Loss = Literal["cross_entropy", "importance_sampling", "ppo", "cispo"]
"""Names of losses, which are sums over tokens, not means."""

NEEDS: Mapping[str, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": ("logprobs", "advantages"),
    "ppo": ("logprobs", "advantages"),
    "cispo": ("logprobs", "advantages"),
}
"""Fields of a datum that each loss needs, in addition to the target tokens."""
_THRESHOLDS: Mapping[str, Mapping[str, float]] = {
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 1.2},
}
"""Default bounds of the probability ratio; `cispo` has no lower one by default, as in its paper."""


class Datum(NamedTuple):
    """A training sequence of n tokens.

    Attributes:
        tokens: input ids.
        target_tokens: id to predict at each input token; for ordinary text that of the next token.
        weights: loss weight of each target, for `cross_entropy`.
        logprobs: log-probability of each target under the sampling policy.
        advantages: advantage of each target; 0 for tokens of a prompt.
    """

    tokens: Sequence[int]
    target_tokens: Sequence[int]
    weights: Sequence[float] | None = None
    logprobs: Sequence[float] | None = None
    advantages: Sequence[float] | None = None


def check(data: Sequence[Datum], loss: str) -> None:
    """Validate a batch.

    Args:
        data: batch.
        loss: name of the loss.

    Raises:
        ValueError: the loss is unknown, or a datum lacks a field or has one that the loss does not use; the message
            names it.
    """
    require_loss(loss)
    if not data:
        raise ValueError("a batch needs at least one datum")
    for index, datum in enumerate(data):
        if not len(datum.tokens):  # of an array, too
            raise ValueError(f"datum {index} has no tokens")
        for name in ("target_tokens", *NEEDS[loss]):
            values: Sequence[float] | None = getattr(datum, name)
            if values is None:
                raise ValueError(f"datum {index} has no {name}, which {loss} needs")
            if len(values) != len(datum.tokens):
                raise ValueError(f"datum {index} has {len(datum.tokens)} tokens but {len(values)} {name}")
        require_used((name for name in datum._fields[2:] if getattr(datum, name) is not None), loss, index)


def require_loss(loss: str) -> None:
    """Raise an error if there is no such loss.

    Raises:
        ValueError: there is none; the message lists all.
    """
    if loss not in NEEDS:
        raise ValueError(f"there is no loss {loss!r}; there are {', '.join(get_args(Loss))}")


def require_used(names: Iterable[str], loss: str, index: int) -> None:
    """Raise an error for an input that a loss does not use.

    Args:
        names: names of the inputs of a datum, without its tokens.
        loss: name of the loss.
        index: number of the datum.

    Raises:
        ValueError: an input is not used.
    """
    used = ("target_tokens", *NEEDS[loss])
    if unused := sorted(set(names) - set(used)):
        raise ValueError(
            f"datum {index} has {unused[0]}, which is not supported for {loss}: it uses {', '.join(used)}; "
            f"leave {unused[0]} out"
        )


def check_tokens(data: Sequence[Datum], vocabulary: int, context: int | None) -> None:
    """Validate the lengths and the ids of a batch.

    Args:
        data: batch that passed `check`.
        vocabulary: number of token embeddings.
        context: maximum tokens of a sequence; None: unlimited.

    Raises:
        ValueError: a sequence is too long, or an id is not in the vocabulary; the message names the datum.
    """
    for index, datum in enumerate(data):
        length = len(datum.tokens) + 1  # the last target is a part of the sequence
        if context is not None and length > context:
            raise ValueError(
                f"datum {index} has {length} tokens with its last target, expected at most the {context} of the "
                "model's context; shorten or split it"
            )
        for name in ("tokens", "target_tokens"):
            check_ids(getattr(datum, name), vocabulary, of=f"datum {index} in {name}")


def check_ids(ids: Sequence[int], vocabulary: int, *, of: str) -> None:
    """Validate token ids.

    Args:
        ids: token ids.
        vocabulary: number of token embeddings.
        of: name of the sequence, for the message.

    Raises:
        ValueError: an id is not in the vocabulary.
    """
    wrong = next((each for each in ids if not 0 <= each < vocabulary), None)
    if wrong is not None:
        raise ValueError(
            f"{of} has the id {wrong}, expected 0 to {vocabulary - 1} (a vocabulary of {vocabulary}); encode the text "
            "with the model's tokenizer"
        )


def check_prompt(prompt: Sequence[int], max_tokens: int, vocabulary: int, context: int | None, *, of: str) -> None:
    """Validate a prompt and the length of its completions.

    Args:
        prompt: token ids.
        max_tokens: maximum tokens of a completion.
        vocabulary: number of token embeddings.
        context: maximum tokens of a sequence; None: unlimited.
        of: name of the prompt, for the message.

    Raises:
        ValueError: the sequences are too long, or an id is not in the vocabulary.
    """
    check_ids(prompt, vocabulary, of=of)
    if context is not None and len(prompt) + max_tokens > context:
        raise ValueError(
            f"{of} has {len(prompt)} tokens and its completion up to {max_tokens}, expected at most {context} "
            "together, the context of the model; shorten the prompt, or lower max_tokens"
        )


def thresholds_of(loss: str, config: Mapping[str, float]) -> dict[str, float]:
    """Return the bounds of the probability ratio of a loss.

    Args:
        loss: name of the loss.
        config: given bounds.

    Raises:
        ValueError: the loss has no such setting, or the bounds contain no ratio.
    """
    allowed = _THRESHOLDS.get(loss, {})
    if unknown := sorted(config.keys() - allowed.keys()):
        known = f"it has {' and '.join(allowed)}" if allowed else "it has none"
        raise ValueError(f"{loss} has no setting {unknown[0]!r}; {known}")
    found = {**allowed, **config}
    if not found:
        return found
    low, high = found["clip_low_threshold"], found["clip_high_threshold"]
    if loss == "ppo" and not 0 <= low < 1 < high:
        raise ValueError(f"clip_low_threshold is {low} and clip_high_threshold {high}, expected 0 <= low < 1 < high")
    if loss == "cispo" and not (0 <= low <= high and high > 0):
        raise ValueError(
            f"clip_low_threshold is {low} and clip_high_threshold {high}, expected 0 <= low <= high and high > 0"
        )
    return found


def losses(log_probs: Tensor, batch: Sequence[Datum], loss: str, thresholds: Mapping[str, float]) -> Tensor:
    """Return the losses of all targets of a batch, `[m]`.

    Args:
        log_probs: log-probabilities of the targets, `[m]`.
        batch: batch that passed `check`.
        loss: name of the loss.
        thresholds: result of `thresholds_of`.
    """
    columns = [
        torch.tensor([x for datum in batch for x in getattr(datum, name)], dtype=torch.float32, device=log_probs.device)
        for name in NEEDS[loss]
    ]
    if loss == "cross_entropy":
        return ops.policy_gradient(log_probs, columns[0])
    old_log_probs, advantages = columns
    if loss == "importance_sampling":
        return ops.surrogate(log_probs, old_log_probs, advantages)
    low, high = thresholds["clip_low_threshold"], thresholds["clip_high_threshold"]
    if loss == "cispo":
        return ops.cispo(log_probs, old_log_probs, advantages, cap=high, floor=low)
    return ops.clipped_surrogate(log_probs, old_log_probs, advantages, clip_low=1.0 - low, clip_high=high - 1.0)
