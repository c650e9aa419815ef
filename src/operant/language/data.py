"""Text examples: reading, validation, splitting and shuffling.

An example is a dict with TRL's column names, which determine its `kind`. All other columns, such as `answer`, are
passed to reward functions. A text is a string or a list of messages `{"role": ..., "content": ...}`.
"""

import json
import logging
import math
import reprlib
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from operant import streams
from operant.language.encoding import shared_length
from operant.language.layouts import standard
from operant.language.sources import Row, Source, is_message, read
from operant.language.templates import Message

__all__ = [
    "ACCEPTS",
    "Comparison",
    "Kind",
    "Row",
    "as_messages",
    "compare",
    "extremes",
    "fitting",
    "has_prompt",
    "kind",
    "order",
    "read_rows",
    "same_prompts",
    "split_rows",
    "unused",
]

logger = logging.getLogger(__name__)

Kind = Literal["preference", "stepwise", "ranking", "unpaired", "prompt-completion", "language-modeling", "prompt-only"]
# The kind of an example is the first accepted one whose columns it has.
COLUMNS: dict[Kind, tuple[tuple[str, ...], ...]] = {
    "preference": (("chosen", "rejected"),),
    "stepwise": (("prompt", "completions", "labels"),),
    "ranking": (("prompt", "completions"),),
    "unpaired": (("prompt", "completion", "label"),),
    "prompt-completion": (("prompt", "completion"),),
    "language-modeling": (("messages",), ("text",)),
    "prompt-only": (("prompt",),),
}
ASSISTANT = "\n\nAssistant:"  # begins the answers of hh-rlhf, whose texts contain their prompts
LISTS = ("completions", "labels", "label")  # columns that are not texts
ONE_FORM: dict[str, type] = {"messages": list, "text": str}  # columns that must be of this type
MESSAGES = "a list of messages with `role` and `content` (or `tool_calls`)"
PROMPTED: tuple[Kind, ...] = ("prompt-only", "prompt-completion", "unpaired", "preference", "stepwise", "ranking")
ACCEPTS: dict[str, tuple[Kind, ...]] = {
    "sft": ("language-modeling", "prompt-completion"),
    "reward-model": ("preference", "ranking"),
    "reward-model of steps": ("stepwise", "unpaired"),
    "dpo": ("preference", "ranking"),
    "rlhf": PROMPTED,
    "grpo": PROMPTED,
}
"""Kinds of examples for each algorithm."""


class Comparison(NamedTuple):
    """A preference example with an explicit prompt."""

    prompt: str | Sequence[Message]
    chosen: str | Sequence[Message]
    rejected: str | Sequence[Message]


def read_rows(source: Source, *, split: str = "train", accept: Sequence[Kind] = ()) -> list[Row]:
    """Read and validate examples.

    Args:
        source: a file (`.jsonl`, `.json`, `.parquet` or `.csv`), a folder written by `save_to_disk` of `datasets`, the
            name of a dataset on the Hugging Face Hub (`owner/name` or `owner/name:configuration`), or data in memory:
            a `datasets.Dataset`, a `DatasetDict`, a table of pandas or any iterable of dicts.
        split: split to read, if the source has splits.
        accept: kinds of which the first that the columns fit is validated; empty: all.

    Returns:
        The examples, in order. Well-known preference data sets are converted to TRL's columns
        (`operant.language.layouts`); their examples with fewer than two scored completions are dropped, with a warning.

    Raises:
        FileNotFoundError: there is no such file, folder or dataset.
        ValueError: an example is unreadable, or has other columns than the first; the message contains its position.
    """
    rows: list[Row] = []
    first: Kind | None = None
    empty = 0
    for where, raw in read(source, split=split):
        row = standard(raw)
        if row is None:
            empty += 1
            continue
        first = first or _kind(row, accept)
        if first:
            _check(row, first, where)
        rows.append(row)
    if not rows:
        raise ValueError(f"{source!r} has no rows{' that compare completions' * bool(empty)}, expected at least 1")
    if empty:
        logger.warning("Left out %d of %d rows: fewer than two completions with a score.", empty, empty + len(rows))
    return rows


def extremes(row: Row) -> Comparison | None:
    """Return the best and the worst completion of a ranking; None if all are tied."""
    ranks = row.get("ranks") or range(len(row["completions"]))
    order = sorted(zip(ranks, row["completions"], strict=True), key=lambda item: item[0])
    if order[0][0] == order[-1][0]:
        return None
    return Comparison(row["prompt"], order[0][1], order[-1][1])


def kind(rows: Sequence[Row], *, accept: Sequence[Kind] = ()) -> Kind:
    """Determine the kind of examples from their columns, and validate all of them for it.

    It is the first of these that is accepted and whose columns are there; a stepwise example is no ranking.

    | kind | columns (each a string or messages, unless noted) |
    |---|---|
    | `preference` | `chosen`, `rejected`, and `prompt` unless both start with it; a number `margin` is allowed |
    | `stepwise` | `prompt`, `completions` (the steps, strings), `labels` (a boolean or number from 0 to 1 per step) |
    | `ranking` | `prompt`, `completions`, best first unless `ranks` has an integer for each, 1 the best |
    | `unpaired` | `prompt`, `completion`, `label` (a boolean) |
    | `prompt-completion` | `prompt`, `completion` |
    | `language-modeling` | `messages`, or `text` (a string) |
    | `prompt-only` | `prompt` |

    Args:
        rows: examples; a column with value None counts as absent.
        accept: accepted kinds; empty: all.

    Raises:
        ValueError: the columns match no accepted kind, or an example is invalid.
    """
    if not rows:
        raise ValueError("there are no rows, expected at least 1")
    found = _kind(rows[0], accept)
    if found is None:
        other = _kind(rows[0])
        what = "of no known kind" if other is None else f"of the kind {other}"
        wanted = "; ".join(f"{name} takes {', '.join(kinds)}" for name, kinds in ACCEPTS.items())
        forms = "; ".join(f"{name} has {_columns(name)}" for name in dict.fromkeys(accept or COLUMNS))
        raise ValueError(
            f"the rows have the columns {sorted(map(str, _present(rows[0])))}, which are {what}. Expected: {forms}. "
            f"Rename the columns, or use another algorithm ({wanted})"
        )
    for number, row in enumerate(rows, 1):
        _check(row, found, f"row {number}")
    return found


def unused(row: Row, found: Kind) -> list[str]:
    """Return the columns of an example that are those of other kinds and have no effect in this one."""
    present = _present(row)
    form = next(form for form in COLUMNS[found] if present.issuperset(form))
    used = {*form, *(() if found == "language-modeling" else ("prompt",))}
    others = [column for name in fitting(row) for form in COLUMNS[name] for column in form]
    return [column for column in dict.fromkeys(others) if column in present - used]


def compare(row: Row) -> Comparison:
    r"""Return prompt, chosen and rejected of a preference example, whose prompt may be implicit.

    An implicit prompt is the common prefix of both completions: the first common messages, or that of strings up to the
    last `\n\nAssistant:` in it, as in hh-rlhf. Without this mark it is the longest common prefix of strings that ends
    with a word, without the following space. It may then include a part of the answers, which does not change losses of
    pairs, since the common part cancels, but is no prompt to sample for (`has_prompt`).

    A string prompt with completions of messages is converted to a user message after those that both begin with, such
    as one of the system, unless these contain a user message; strings
    that complete a prompt of messages are converted to messages of the assistant. A prompt of messages that both
    completions repeat is removed from them.
    """
    prompt, chosen, rejected = row.get("prompt"), row["chosen"], row["rejected"]
    if prompt is not None and not isinstance(prompt, str):
        asked, chosen, rejected = list(prompt), as_messages(chosen, "assistant"), as_messages(rejected, "assistant")
        sides = chosen[: len(asked)], rejected[: len(asked)]
        if sides == (asked, asked) and len(asked) < min(len(chosen), len(rejected)):
            chosen, rejected = chosen[len(asked) :], rejected[len(asked) :]
        return Comparison(prompt, chosen, rejected)
    if isinstance(chosen, str):
        if prompt is not None:
            return Comparison(prompt, chosen, rejected)
        turn = chosen.rfind(ASSISTANT, 0, shared_length(chosen, rejected))
        shared = _shared_words(chosen, rejected) if turn < 0 else turn + len(ASSISTANT)
    else:
        shared = min(shared_length(chosen, rejected), len(chosen) - 1, len(rejected) - 1)
        if isinstance(prompt, str) and all(m.get("role") != "user" for m in chosen[:shared]):
            return Comparison([*chosen[:shared], *as_messages(prompt, "user")], chosen[shared:], rejected[shared:])
    return Comparison(chosen[:shared], chosen[shared:], rejected[shared:])


def has_prompt(row: Row) -> bool:
    """Return whether the prompt of a preference example (`compare`) is known to contain no part of the answers."""
    return row.get("prompt") is not None or not isinstance(row["chosen"], str) or ASSISTANT in compare(row).prompt


def as_messages(text: str | Sequence[Message], role: str) -> list[Any]:
    """Return a text as messages: a string is one message of `role`."""
    return [{"role": role, "content": text}] if isinstance(text, str) else list(text)


def split_rows(
    rows: Sequence[Row], held_out: float, seed: int, *, accept: Sequence[Kind] = ()
) -> tuple[list[Row], list[Row]]:
    """Split examples into training and held-out ones. Examples with the same prompt stay together.

    The examples of a prompt are held out if their number then is closer to `held_out`. If no prompt has few enough
    examples, as in a data set with a single prompt, examples are held out one by one, with a warning.

    Args:
        rows: examples.
        held_out: amount to hold out: a fraction (float below 1) or a number (int).
        seed: random seed of the split.
        accept: as for `kind`, which determines the prompts.

    Returns:
        Training and held-out examples, in order.

    Raises:
        ValueError: `held_out` is out of range, or no training example is left.
    """
    wanted = round(held_out * len(rows)) if isinstance(held_out, float) else held_out
    if held_out < 0 or (isinstance(held_out, float) and held_out >= 1):
        raise ValueError(f"held_out is {held_out}, expected a fraction in [0, 1) or a number of rows")
    prompts: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        prompts.setdefault(_identity(row, accept), []).append(i)
    out = _held_out([*prompts.values()], wanted, seed)
    if wanted and not out and len(rows) > 1:
        out = _held_out([[i] for i in range(len(rows))], wanted, seed)
        logger.warning(
            "Held out %d of %d rows whose prompts are trained on, too: no prompt has few enough rows to be held out "
            "with all of them (%d prompts); --eval-dataset gives other rows.",
            *(len(out), len(rows), len(prompts)),
        )
    if len(out) == len(rows) or (wanted and not out):
        raise ValueError(
            f"held_out is {held_out}, which leaves none of the {len(rows)} rows ({len(prompts)} prompts) to train on: "
            "hold out fewer, use more rows, or evaluate on other rows with --eval-dataset"
        )
    return [row for i, row in enumerate(rows) if i not in out], [rows[i] for i in sorted(out)]


def same_prompts(rows: Sequence[Row], others: Sequence[Row], *, accept: Sequence[Kind] = ()) -> int:
    """Return the number of examples in `others` whose prompts are those of `rows`."""
    known = {_identity(row, accept) for row in rows}
    return sum(_identity(row, accept) in known for row in others)


def _held_out(groups: Sequence[Sequence[int]], wanted: int, seed: int) -> set[int]:
    """Return the rows of random groups, each of which brings their number closer to `wanted`."""
    out: set[int] = set()
    order: list[int] = np.random.default_rng(streams.seed_sequence(seed, "held-out")).permutation(len(groups)).tolist()
    for group in (groups[index] for index in order):
        if abs(len(out) + len(group) - wanted) < wanted - len(out):
            out.update(group)
    return out


def order(count: int, epoch: int, seed: int) -> NDArray[np.int64]:
    """Return the order of `count` examples in an epoch, a permutation `[count]`.

    It depends only on the arguments, and epochs are independent, so the number of examples used so far is sufficient
    for an exact resume.
    """
    return np.random.default_rng(streams.seed_sequence(seed, "order", epoch)).permutation(count)


def _present(row: Row) -> set[str]:
    """Return the columns of an example that are not None."""
    return {column for column, value in row.items() if value is not None}


def fitting(row: Row) -> list[Kind]:
    """Return the kinds whose columns an example has."""
    present = _present(row)
    kinds: list[Kind] = [name for name, forms in COLUMNS.items() if any(present.issuperset(form) for form in forms)]
    # The completions of a stepwise example are its steps.
    if "stepwise" in kinds:
        kinds.remove("ranking")
    return kinds


def _kind(row: Row, accept: Sequence[Kind] = ()) -> Kind | None:
    """Return the first accepted kind of one example, None if it has none."""
    return next((name for name in fitting(row) if not accept or name in accept), None)


def _columns(name: Kind) -> str:
    """Return the column names of a kind, as text."""
    return " or ".join(" + ".join(f"`{column}`" for column in form) for form in COLUMNS[name])


def _identity(row: Row, accept: Sequence[Kind] = ()) -> str:
    """Return a key that is equal for examples with the same prompt."""
    found = _kind(row, accept)
    if found == "preference":
        return json.dumps(compare(row).prompt, sort_keys=True, default=str)
    if found == "language-modeling" and row.get("messages") is not None:
        asked = takewhile(lambda message: message.get("role") != "assistant", row["messages"])
        return json.dumps([*asked], sort_keys=True, default=str)
    column = next((column for column in ("prompt", "text") if row.get(column) is not None), None)
    return json.dumps(row[column] if column else row, sort_keys=True, default=str)


def _shared_words(left: str, right: str) -> int:
    """Return the length of the longest proper common prefix of two strings that ends at the end of a word."""
    shared = shared_length(left, right)
    if shared == min(len(left), len(right)):
        shared = len(left[:shared].rstrip())
        while shared and not left[shared - 1].isspace():
            shared -= 1
    elif left[shared].isalnum() or right[shared].isalnum():
        while shared and left[shared - 1].isalnum():
            shared -= 1
    return shared - (left[:shared].endswith(" "))


def _check(row: Row, name: Kind, where: str) -> None:
    """Validate an example of a kind."""
    present = _present(row)
    if not any(present.issuperset(form) for form in COLUMNS[name]):
        raise ValueError(
            f"{where}: columns {sorted(map(str, present))}, expected {_columns(name)} as in the first row: add what is "
            "missing, or remove the row"
        )
    asked = {"prompt"} if name != "language-modeling" else set[str]()
    texts = asked | {column for form in COLUMNS[name] for column in form if column not in LISTS}
    for column in sorted(texts & present):
        problem = _text_problem(row[column])
        if problem or (column in ONE_FORM and not isinstance(row[column], ONE_FORM[column])):
            expected = {"messages": MESSAGES, "text": "a string"}.get(column, f"a string or {MESSAGES}")
            raise _error(where, column, problem or f"a {type(row[column]).__name__}", expected)
    for one, other in (("prompt", "completion"), ("chosen", "rejected")):
        if {one, other} <= present & texts and isinstance(row[one], str) != isinstance(row[other], str):
            raise _error(where, other, f"another form than `{one}` has", "two strings or two lists of messages")
    if name == "unpaired" and row["label"] not in (True, False):
        raise _error(where, "label", repr(row["label"]), "true or false (rename the column if it means something else)")
    if name == "preference" and row.get("margin") is not None and not _is_number(row["margin"]):
        raise _error(where, "margin", repr(row["margin"]), "a finite number")
    if name in ("stepwise", "ranking"):
        _check_completions(row, name, where)


def _check_completions(row: Row, name: Kind, where: str) -> None:
    """Validate completions with their labels or ranks."""
    least, numbers = (1, "labels") if name == "stepwise" else (2, "ranks")
    given, values = row["completions"], row.get(numbers)
    completions = cast(list[Any], given) if isinstance(given, list) else []
    if len(completions) < least:
        raise _error(where, "completions", reprlib.repr(row["completions"]), f"a list of at least {least}")
    for completion in completions:
        problem = _text_problem(completion)
        if problem or (name == "stepwise" and not isinstance(completion, str)):
            raise _error(where, "completions", problem or "messages", "strings" + " or messages" * (least == 2))
    if values is None:
        return
    listed = cast(list[Any], values) if isinstance(values, list) else []
    if len(listed) != len(completions) or not all(map(_is_number, listed)):
        raise _error(
            where,
            numbers,
            reprlib.repr(row[numbers]),
            f"a list of {len(completions)} numbers, one for each completion",
        )
    if name == "stepwise" and not all(0 <= value <= 1 for value in listed):
        raise _error(
            where,
            numbers,
            reprlib.repr(row[numbers]),
            "probabilities from 0 (wrong) to 1 (right). PRM800K rates steps -1, 0 (neutral) or 1: replace -1 by 0, and "
            "choose whether neutral steps count as wrong or right",
        )


def _is_number(value: Any) -> bool:
    """Return whether a value is a finite number or a boolean."""
    return isinstance(value, int | float) and math.isfinite(value)


def _text_problem(value: Any) -> str | None:
    """Return the problem of a text, or None."""
    if isinstance(value, str):
        return None
    messages = cast(list[Any], value) if isinstance(value, list) else []
    if not messages:
        return reprlib.repr(cast(object, value))
    wrong = next((number for number, message in enumerate(messages, 1) if not is_message(message)), None)
    return None if wrong is None else f"{reprlib.repr(messages[wrong - 1])} as message {wrong}"


def _error(where: str, column: str, found: str, expected: str) -> ValueError:
    """Return the error about one column of one row."""
    return ValueError(f"{where}, column {column!r}: found {found}, expected {expected}")
