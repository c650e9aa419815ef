"""Conversion of well-known preference data sets to TRL's columns: `standard`.

| data set | columns | converted to |
|---|---|---|
| openbmb/UltraFeedback | `instruction`, `completions` of `{response, overall_score, annotations, ...}` | ranking |
| argilla/ultrafeedback-binarized-preferences | `instruction`, `chosen_response`, `rejected_response` | preference |
| distilabel's UltraFeedback step | `instruction` (or `input`, `prompt`), `generations`, `ratings` | ranking |
| Intel/orca_dpo_pairs and Argilla's of it | `system`, `question` or `input`, `chosen`, `rejected` | preference |
| Alpaca's and LLaMA-Factory's layout | `instruction`, `input`, `chosen`, `rejected` | preference |
| openai/summarize_from_feedback | `info`, `summaries` of `{text}`, `choice` | preference |
| NeMo-RL | `context`, `completions` of `{rank, completion}` | ranking |

HuggingFaceH4/ultrafeedback_binarized, argilla/ultrafeedback-binarized-preferences-cleaned and Anthropic/hh-rlhf have
`chosen` and `rejected` already (`operant.language.data.compare`). Other columns stay as they are.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from operant.language.sources import Row

QUESTIONS = ("instruction", "question", "input")
"""Names of the prompt column."""
ASPECTS = ("instruction_following", "honesty", "truthfulness", "helpfulness")
"""Criteria of UltraFeedback's ratings."""


def standard(row: Row) -> Row | None:
    """Convert an example to TRL's columns `prompt`, `chosen`, `rejected`, or `prompt`, `completions`, `ranks`.

    Args:
        row: example of any layout; examples of unknown layouts are returned unchanged.

    Returns:
        The converted example; None if fewer than two completions have a score.
    """
    for layout in (_ultrafeedback, _nemo, _binarized, _rated, _orca, _summaries):
        found = layout(row)
        if found is not None:
            return found or None
    return row


def _list(given: object) -> list[Any] | None:
    return cast(list[Any], given) if isinstance(given, list) else None


def _tables(given: object) -> list[Mapping[str, Any]] | None:
    """Return a list of mappings; None if it is something else."""
    listed = _list(given)
    return listed if listed is not None and all(isinstance(one, Mapping) for one in listed) else None


def _ultrafeedback(row: Row) -> Row | None:
    completions = _tables(row.get("completions"))
    if not isinstance(row.get("instruction"), str) or completions is None or row.get("prompt") is not None:
        return None
    if not all("response" in one for one in completions):
        return None
    texts = [one["response"] for one in completions]
    return _ranked(row, row["instruction"], texts, list(map(_score, completions)), drop=("instruction", "completions"))


def _score(completion: Mapping[str, Any]) -> float | None:
    """Return the score of a completion of UltraFeedback: its overall score, or the mean of its ratings."""
    for name in ("overall_score", "fine-grained_score"):
        if (found := _number(completion.get(name))) is not None:
            return found
    annotations: Mapping[str, Mapping[str, Any] | None] = completion.get("annotations") or {}
    ratings = [_number((annotations.get(aspect) or {}).get("Rating")) for aspect in ASPECTS]
    known = [rating for rating in ratings if rating is not None]
    return sum(known) / len(known) if known else None


def _nemo(row: Row) -> Row | None:
    completions = _tables(row.get("completions"))
    if "context" not in row or "prompt" in row or completions is None:
        return None
    if not all({"rank", "completion"} <= item.keys() for item in completions):
        return None
    return {
        **_without(row, ("context",)),
        "prompt": row["context"],
        "completions": [item["completion"] for item in completions],
        "ranks": [item["rank"] for item in completions],
    }


def _binarized(row: Row) -> Row | None:
    if not _strings(row, ("instruction", "chosen_response", "rejected_response")) or row.get("chosen") is not None:
        return None
    return {
        **_without(row, ("instruction", "chosen_response", "rejected_response")),
        "prompt": row["instruction"],
        "chosen": row["chosen_response"],
        "rejected": row["rejected_response"],
    }


def _rated(row: Row) -> Row | None:
    texts, ratings = _list(row.get("generations")), _list(row.get("ratings"))
    if row.get("chosen") is not None or texts is None or ratings is None:
        return None
    name = next((name for name in (*QUESTIONS, "prompt") if row.get(name) is not None), None)
    if name is None or len(texts) != len(ratings):
        return None
    prompt, columns = _question(row, name)
    return _ranked(row, prompt, texts, list(map(_number, ratings)), drop=(*columns, "generations", "ratings"))


def _orca(row: Row) -> Row | None:
    name = next((name for name in QUESTIONS if isinstance(row.get(name), str)), None)
    if name is None or row.get("prompt") is not None or not _strings(row, ("chosen", "rejected")):
        return None
    if row["chosen"].startswith(row[name]) and row["rejected"].startswith(row[name]):
        return None  # both sides contain the prompt
    prompt, columns = _question(row, name)
    rest = _without(row, (*columns, "system", "chosen", "rejected"))
    if not isinstance(row.get("system"), str):
        return {**rest, "prompt": prompt, "chosen": row["chosen"], "rejected": row["rejected"]}
    system = [{"role": "system", "content": row["system"]}] if row["system"] else []
    sides = {side: [{"role": "assistant", "content": row[side]}] for side in ("chosen", "rejected")}
    return {**rest, "prompt": [*system, {"role": "user", "content": prompt}], **sides}


def _question(row: Row, name: str) -> tuple[Any, tuple[str, ...]]:
    """Return the prompt of a row whose first column of it is `name`, and the columns that it consists of.

    An instruction may have an input, as in Alpaca's data, which follows it on the next line.
    """
    given = row.get("input") if name == "instruction" else None
    if not isinstance(given, str) or not isinstance(row[name], str) or given == row[name]:
        return row[name], (name,)
    return f"{row[name]}\n{given}" if given else row[name], (name, "input")


def _summaries(row: Row) -> Row | None:
    infos, summaries, choice = _tables([row.get("info")]), _tables(row.get("summaries")), row.get("choice")
    if infos is None or summaries is None or choice not in (0, 1) or len(summaries) != 2:
        return None
    if not all(isinstance(one.get("text"), str) for one in summaries):
        return None
    (info,) = infos
    where = f"SUBREDDIT: r/{info['subreddit']}\n" if info.get("subreddit") else ""
    title = f"TITLE: {info['title']}\n" if info.get("title") else ""
    prompt = f"{where}{title}POST: {info.get('post') or info.get('article') or ''}\nTL;DR:"
    return {
        **_without(row, ("info", "summaries", "choice")),
        "prompt": prompt,
        "chosen": summaries[choice]["text"],
        "rejected": summaries[1 - choice]["text"],
    }


def _ranked(row: Row, prompt: Any, texts: Sequence[Any], scores: Sequence[float | None], *, drop: Sequence[str]) -> Row:
    """Return the ranking of the scored completions; empty if there are fewer than two."""
    found = [(score, text) for score, text in zip(scores, texts, strict=True) if score is not None and text is not None]
    if len(found) < 2:
        return {}
    levels = sorted({score for score, _ in found}, reverse=True)
    return {
        **_without(row, drop),
        "prompt": prompt,
        "completions": [text for _, text in found],
        "ranks": [1 + levels.index(score) for score, _ in found],
    }


def _number(value: Any) -> float | None:
    """Return a score as a number; None if it is not numeric, such as N/A."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _strings(row: Row, names: Sequence[str]) -> bool:
    return all(isinstance(row.get(name), str) for name in names)


def _without(row: Row, names: Sequence[str]) -> Row:
    return {column: value for column, value in row.items() if column not in names}
