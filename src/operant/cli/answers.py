"""Answers of language models, as text for a terminal."""

import unicodedata
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from operant.cli.output import number, table

if TYPE_CHECKING:
    from operant.language.evaluation import Sampled

SHOWN = 8
"""Maximum answers in a table."""
PROMPT_WIDTH, COMPLETION_WIDTH = 36, 52
"""Maximum characters of a prompt and of a completion in a table."""


def visible(text: str, *, keep: str = "") -> str:
    """Return a text with terminal control characters replaced by visible escape codes.

    Args:
        text: text from any source.
        keep: control characters to leave unchanged, such as the line feed.
    """
    return "".join(
        c if c in keep or c.isprintable() or unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()
        for c in text
    )


def as_text(text: Any) -> str:
    """Return a prompt or completion, a string or a conversation, as a string."""
    if isinstance(text, str):
        return text
    return "\n".join(f"{message.get('role')}: {message.get('content')}" for message in text)


def answer_table(samples: Sequence[Mapping[str, Any]]) -> str:
    """Return the greedy answers of the first seed as a table: prompt, completion, reward.

    Args:
        samples: records of `eval/samples.jsonl`, from one evaluation.

    Returns:
        The table; empty without answers.
    """
    likeliest = [s for s in samples if s["seed"] == samples[0]["seed"] and not s.get("temperature")]
    if not likeliest:
        return ""
    rows = [["prompt", "completion", "reward"]]
    for sample in likeliest[:SHOWN]:
        prompt, completion = _cut(as_text(sample["prompt"]), PROMPT_WIDTH, end=True), as_text(sample["completion"])
        completion = _cut(completion, COMPLETION_WIDTH)
        rows.append([prompt, completion + (" (cut off)" if sample["truncated"] else ""), _reward(sample["reward"])])
    return table(rows, "<<>")


def _reward(value: float | None) -> str:
    return "none" if value is None else number(value)


def sampled_table(seeds: Sequence[int], statistics: Sequence["Sampled"]) -> str:
    """Return a table of avg@k with its interval and of pass@k, one row per seed.

    Args:
        seeds: seeds of the run.
        statistics: statistics of several answers to each prompt, one entry per seed.
    """
    missing = any(sampled.missing for sampled in statistics)
    rows = [["seed", f"avg@{statistics[0].samples}", "95 % interval", *(f"pass@{k}" for k in statistics[0].passes)]]
    rows[0] += ["without a reward"] if missing else []
    for seed, sampled in zip(seeds, statistics, strict=True):
        low, high = sampled.interval
        passes = [f"{value:.4g}" for value in sampled.passes.values()]
        counts = [str(sampled.missing)] if missing else []
        rows.append([str(seed), f"{sampled.average:.4g}", f"[{low:.4g}, {high:.4g}]", *passes, *counts])
    return table(rows, ">" * len(rows[0]))


def sampled_fields(seeds: Sequence[int], statistics: Sequence["Sampled"]) -> dict[str, Any]:
    """Return avg@k and pass@k of every seed for `--json`."""
    each = [
        {
            "seed": seed,
            "average": s.average,
            "interval": s.interval,
            "pass": {str(k): v for k, v in s.passes.items()},
            "missing": s.missing,
            "pass_reward": s.pass_reward,
        }
        for seed, s in zip(seeds, statistics, strict=True)
    ]
    return {"samples": {"count": statistics[0].samples, "temperature": 1.0, "per_seed": each}}


def _cut(text: str, width: int, *, end: bool = False) -> str:
    """Return a text as one line of at most `width` characters, with its end or its start cut off."""
    text = visible(text) or "(empty)"
    if len(text) <= width:
        return text
    return f"…{text[1 - width :]}" if end else f"{text[: width - 1]}…"
