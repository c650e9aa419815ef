"""Tokenized and truncated examples, ready for packing.

Long prompts are truncated at the beginning, after BOS and the system message. Long completions are truncated at the
end, without EOS, so that the model does not learn to stop there. Unusable examples are dropped; a warning reports their
number and the reasons.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

from operant.language.data import PROMPTED, Row, compare, extremes, has_prompt, kind
from operant.language.huggingface import Tokenizer
from operant.language.packing import Sample
from operant.language.templates import inputs_of, system_length
from operant.language.tokenizer import EARLIER_TURNS, encode_pair, encode_prompt, encode_steps, encode_text

__all__ = [
    "Pair",
    "Prompt",
    "Ranking",
    "Stepwise",
    "cut_left",
    "demonstrations",
    "pairs",
    "prompts",
    "rankings",
    "stepwise",
]

logger = logging.getLogger(__name__)


class Prompt(NamedTuple):
    """A prompt to sample completions for."""

    prompt: list[int]
    """Token ids."""
    row: Row
    """The example, whose other columns are passed to the reward functions."""


class Pair(NamedTuple):
    """Two completions of a prompt, one preferred."""

    prompt: list[int]
    """Token ids."""
    chosen: list[int]
    """Token ids of the better completion."""
    rejected: list[int]
    """Token ids of the worse completion, which differs from the better one."""
    margin: float = 0.0
    """Margin of the better completion, in units of reward."""


class Ranking(NamedTuple):
    """K completions of a prompt, best first."""

    prompt: list[int]
    """Token ids."""
    completions: list[list[int]]
    """Token ids of each completion; all are different."""
    ranks: list[float]
    """Rank of each completion, lower is better; equal ranks are ties, but not all ranks are equal."""


class Stepwise(NamedTuple):
    """A solution with a label for each step."""

    prompt: list[int]
    """Token ids."""
    steps: list[list[int]]
    """Token ids of each step; the label belongs to the last token."""
    labels: list[float]
    """Label of each step, 1 correct and 0 incorrect."""


Example = TypeVar("Example", Prompt, Sample, Pair, Ranking, Stepwise)


def cut_left(ids: list[int], most: int, *, keep: int) -> list[int]:
    """Return the first `keep` and the last tokens of a prompt, `most` in total."""
    return ids[:keep] + ids[len(ids) - most + keep :]


class _UnusableError(Exception):
    """Reason to drop an example."""


@dataclass
class _Encoder:
    """A tokenizer with length limits that counts truncations."""

    tokenizer: Tokenizer
    eos_ids: Collection[int]
    max_prompt_length: int | None
    max_completion_length: int | None
    cut: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        """Validate the limits."""
        for name, limit in (
            ("max_prompt_length", self.max_prompt_length),
            ("max_completion_length", self.max_completion_length),
        ):
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is {limit} tokens, expected at least 1, or None for no limit")

    def prompt(self, ids: list[int], text: Any, row: Row) -> list[int]:
        """Truncate a prompt to its last tokens, after the system message of a conversation."""
        if not ids:
            raise _UnusableError(
                "an empty prompt, and the tokenizer has no BOS (give prompts, or for sft texts in a column `text`)"
            )
        most = self.max_prompt_length
        if most is None or len(ids) <= most:
            return ids
        system = 0 if isinstance(text, str) else system_length(self.tokenizer, text, ids, **self.template(row))
        if system >= most:
            raise ValueError(
                f"the system message has {system} tokens, which leaves no room for a prompt of {most}: use a larger "
                "--max-prompt-length, or a shorter system message"
            )
        kept = " after the system message" if system else ""
        self.cut[f"prompts on the left{kept}, to {most} tokens"] += 1
        first = system or int(ids[0] == self.tokenizer.bos_token_id)
        return cut_left(ids, most, keep=first)

    def completion(self, ids: list[int]) -> list[int]:
        """Truncate a completion."""
        if all(token in self.eos_ids for token in ids):
            raise _UnusableError("an empty completion")
        if self.max_completion_length is not None and len(ids) > self.max_completion_length:
            self.cut[f"completions on the right, to {self.max_completion_length} tokens"] += 1
        return ids[: self.max_completion_length]

    def answers(self, prompt: Any, completions: Sequence[Any], row: Row) -> tuple[list[int], list[list[int]]]:
        """Tokenize and truncate a prompt and several completions."""
        given: dict[str, Any] = {**self.template(row), "eos_ids": self.eos_ids, "advice": EARLIER_TURNS}
        if len(completions) == 1:
            given["advice"] += ", or pass the whole conversation as `messages`, whose every assistant turn is trained"
        encoded = [encode_pair(self.tokenizer, prompt, completion, **given) for completion in completions]
        return self.prompt(encoded[0][0], prompt, row), [self.completion(ids) for _, ids in encoded]

    def template(self, row: Row) -> dict[str, Any]:
        """Return the inputs of the chat template other than messages."""
        return inputs_of(self.tokenizer, row)

    def convert(self, rows: Sequence[Row], one: Callable[[Row], Example]) -> list[Example]:
        """Convert examples, and log the numbers of dropped and truncated ones."""
        examples: list[Example] = []
        reasons, touched = Counter[str](), 0
        for number, row in enumerate(rows, 1):
            before = self.cut.total()
            try:
                examples.append(one(row))
            except _UnusableError as reason:
                reasons[str(reason)] += 1
            except ValueError as error:
                start = f"counted among these {len(rows)} rows; it starts with {row!r:.80}"
                raise ValueError(f"row {number}: {error}; {start}") from error
            touched += self.cut.total() > before
        why = "; ".join(f"{count} with {reason}" for reason, count in reasons.most_common())
        if not examples:
            raise ValueError(f"none of the {len(rows)} rows is usable: {why}")
        if reasons:
            logger.warning("Left out %d of %d rows: %s.", reasons.total(), len(rows), why)
        if self.cut:
            flags = " and ".join(dict.fromkeys(f"--max-{what.partition('s ')[0]}-length" for what in self.cut))
            cut = "; ".join(f"{count} {what}" for what, count in self.cut.items())
            share = 100 * touched / len(rows)
            lost = "Cut %s. Text of %d of %d rows (%.0f %%) is lost: raise %s to keep it"
            logger.warning(lost, cut, touched, len(rows), share, flags)
        return examples


def prompts(
    tokenizer: Tokenizer, rows: Sequence[Row], *, max_prompt_length: int | None = None, columns: Sequence[str] = ()
) -> list[Prompt]:
    """Return the tokenized prompts of examples of any kind with prompts.

    Args:
        tokenizer: tokenizer of the model.
        rows: examples (`operant.language.data.read_rows`).
        max_prompt_length: maximum number of tokens of a prompt, including BOS; longer prompts are truncated at the
            beginning, conversations after their system message. None: no limit.
        columns: columns that are None in prompts of examples without them.

    Raises:
        ValueError: an example has no prompt, or an implicit one that may contain a part of the answers.
    """
    found = kind(rows, accept=PROMPTED)
    encoder, missing = _Encoder(tokenizer, (), max_prompt_length, None), dict.fromkeys(columns)

    def one(row: Row) -> Prompt:
        if found == "preference" and not has_prompt(row):
            raise ValueError(
                "no prompt, and the common beginning of `chosen` and `rejected` may contain a part of the answers: add "
                "a column `prompt`, or use messages, or texts whose answers begin after '\\n\\nAssistant:'"
            )
        text = compare(row).prompt if found == "preference" else row["prompt"]
        ids = encoder.prompt(encode_prompt(tokenizer, text, **encoder.template(row)), text, row)
        return Prompt(ids, row if row.keys() >= missing.keys() else {**missing, **row})

    return encoder.convert(rows, one)


def demonstrations(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    *,
    eos_ids: Collection[int],
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
) -> list[Sample]:
    """Return tokenized demonstrations from examples with a prompt and a completion, a text or a conversation.

    Only the assistant's turns of a conversation are trained.

    Args:
        tokenizer: tokenizer of the model.
        rows: prompt-completion or language-modeling examples.
        eos_ids: tokens that end a completion (`operant.language.tokenizer.stop_ids`).
        max_prompt_length: as for `prompts`. The prompt of a text is its first token, that of a conversation everything
            before the assistant's first turn.
        max_completion_length: maximum number of tokens of a completion, including EOS; longer completions are
            truncated at the end. None: no limit.

    Raises:
        ValueError: the examples are of another kind, one cannot be tokenized, or none is left.
    """
    found = kind(rows, accept=("language-modeling", "prompt-completion"))
    encoder = _Encoder(tokenizer, eos_ids, max_prompt_length, max_completion_length)

    def one(row: Row) -> Sample:
        if found == "prompt-completion":
            prompt, (completion,) = encoder.answers(row["prompt"], [row["completion"]], row)
            return Sample(prompt, completion)
        text = row["text"] if row.get("messages") is None else row["messages"]
        ids, trained = encode_text(tokenizer, text, eos_ids=eos_ids, **encoder.template(row))
        start = max(trained.index(True), 1)  # the first token has no prediction
        completion = encoder.completion(ids[start:])
        mask = trained[start:][: len(completion)]
        return Sample(encoder.prompt(ids[:start], text, row), completion, None if all(mask) else mask)

    return encoder.convert(rows, one)


def pairs(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    *,
    eos_ids: Collection[int],
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
) -> list[Pair]:
    """Return the tokenized pairs of preference examples; those equal after truncation are dropped.

    Args:
        tokenizer: tokenizer of the model.
        rows: preference examples, whose prompt may be implicit, or rankings, of which the best and the worst are used.
        eos_ids: tokens that end a completion (`operant.language.tokenizer.stop_ids`).
        max_prompt_length: as for `prompts`.
        max_completion_length: as for `demonstrations`.

    Raises:
        ValueError: the examples are of another kind, one cannot be tokenized, or none is left.
    """
    found = kind(rows, accept=("preference", "ranking"))
    encoder = _Encoder(tokenizer, eos_ids, max_prompt_length, max_completion_length)

    def one(row: Row) -> Pair:
        comparison = compare(row) if found == "preference" else extremes(row)
        if comparison is None:
            raise _UnusableError("no completion that is better than another")
        text, *sides = comparison
        prompt, (chosen, rejected) = encoder.answers(text, sides, row)
        if chosen == rejected:
            raise _UnusableError("two sides that are the same within the limits")
        return Pair(prompt, chosen, rejected, float(row.get("margin") or 0.0))

    return encoder.convert(rows, one)


def rankings(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    *,
    eos_ids: Collection[int],
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
) -> list[Ranking]:
    """Return tokenized rankings of K completions; preference examples are rankings of two.

    Of completions that are equal after truncation, only the best one is used.

    Args:
        tokenizer: tokenizer of the model.
        rows: rankings or preference examples.
        eos_ids: tokens that end a completion (`operant.language.tokenizer.stop_ids`).
        max_prompt_length: as for `prompts`.
        max_completion_length: as for `demonstrations`.

    Raises:
        ValueError: the examples are of another kind, one cannot be tokenized, or none is left.
    """
    found = kind(rows, accept=("ranking", "preference"))
    encoder = _Encoder(tokenizer, eos_ids, max_prompt_length, max_completion_length)

    def one(row: Row) -> Ranking:
        text, *texts = compare(row) if found == "preference" else (row["prompt"], *row["completions"])
        ranks = (found == "ranking" and row.get("ranks")) or list(range(1, len(texts) + 1))
        prompt, completions = encoder.answers(text, texts, row)
        best: dict[tuple[int, ...], float] = {}
        for rank, completion in sorted(zip(map(float, ranks), completions, strict=True), key=lambda item: item[0]):
            best.setdefault(tuple(completion), rank)
        if len(set(best.values())) < 2:
            raise _UnusableError("no completion that is better than another within the limits")
        return Ranking(prompt, [list(completion) for completion in best], list(best.values()))

    return encoder.convert(rows, one)


def stepwise(
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    *,
    eos_ids: Collection[int],
    max_prompt_length: int | None = None,
    max_completion_length: int | None = None,
    separator: str = "\n",
    finished: bool = True,
) -> list[Stepwise]:
    """Return tokenized solutions with a label for each step; unpaired examples are solutions with one step.

    Args:
        tokenizer: tokenizer of the model.
        rows: stepwise or unpaired examples.
        eos_ids: tokens that end a completion (`operant.language.tokenizer.stop_ids`).
        max_prompt_length: as for `prompts`.
        max_completion_length: maximum number of tokens of a solution, which is truncated before the first step that
            does not fit.
        separator: separator between steps, which no step contains.
        finished: whether the last step ends the solution, with EOS; otherwise it ends with the separator.

    Raises:
        ValueError: the examples are of another kind, one cannot be tokenized, a step contains the separator, or none is
            left.
    """
    found = kind(rows, accept=("stepwise", "unpaired"))
    encoder = _Encoder(tokenizer, eos_ids, max_prompt_length, max_completion_length)

    def one(row: Row) -> Stepwise:
        if found == "unpaired":
            labels = [row["label"]]
            step = row["completion"] if isinstance(row["completion"], str) else row["completion"][-1].get("content")
            if isinstance(step, str):
                _check_steps([step.removesuffix(separator)], separator)  # scored as one step with it, too
            prompt, *steps = encode_pair(
                tokenizer, row["prompt"], row["completion"], eos_ids=eos_ids, **encoder.template(row)
            )
        else:
            labels = row["labels"]
            _check_steps(row["completions"], separator)
            prompt, steps = encode_steps(
                tokenizer,
                row["prompt"],
                row["completions"],
                eos_ids=eos_ids,
                separator=separator,
                finished=finished,
                **encoder.template(row),
            )
        kept = len(encoder.completion([token for step in steps for token in step]))
        whole = sum(end <= kept for end in accumulate(map(len, steps)))
        if not whole:
            raise _UnusableError("no step that fits the limit")
        if not all(steps):
            raise _UnusableError("an empty step")
        return Stepwise(
            encoder.prompt(prompt, row["prompt"], row), steps[:whole], [float(label) for label in labels[:whole]]
        )

    return encoder.convert(rows, one)


def _check_steps(steps: Sequence[str], separator: str) -> None:
    """Check that each step ends at its first separator, since answers are divided there to score them."""
    for number, step in enumerate(steps, 1):
        if (step + separator).index(separator) < len(step) and separator:
            raise ValueError(
                f"step {number}, {step!r:.80}, contains the separator {separator!r}, so its parts would be scored as "
                "steps: set --step-separator to a text that no step contains, or replace it in the steps"
            )
