"""Import of labels: TRL's pairs, NeMo-RL's rankings, or the log of another store."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from operant.language.data import Row, compare
from operant.language.layouts import standard
from operant.language.preferences.exporting import manifest_path
from operant.language.preferences.items import Event, Item, Outcome, Text, dense_ranks, encode
from operant.language.preferences.journal import event_of, item_of
from operant.language.preferences.recovery import read_lines
from operant.language.preferences.store import ConflictError, PreferenceStore
from operant.language.sources import is_message, read, template_inputs


@dataclass(frozen=True)
class Imported:
    """Summary of an import.

    Attributes:
        items: number of new items.
        events: number of new events.
        rows: number of lines.
        skipped: number of lines without a comparison: fewer than two different completions, or fewer with a score.
    """

    items: int
    events: int
    rows: int
    skipped: int = 0


def import_file(store: PreferenceStore, path: Path, *, annotator: str = "imported") -> Imported:
    """Add the labels of a JSON Lines file to a store in one transaction.

    Labels that are already in the store are skipped, so importing a file twice has no effect.

    Lines may be `{prompt, chosen, rejected}` (without `prompt` as in `operant.language.data.compare`),
    `{prompt, completions}` best first or with `ranks`, `{context, completions: [{rank, completion}]}` where lower ranks
    are better, those of UltraFeedback and other data sets (`operant.language.layouts`), or a log from `export`. Of
    equal completions only the best one is used. Lines without a comparison are skipped. Labels of held-out prompts,
    which are for evaluations, remain marked as such.

    Args:
        store: store to add to.
        path: path of the file: JSON lines, or .json, .csv or .parquet. A manifest next to it must match.
        annotator: name of the annotator of rows without a column `annotator`.

    Raises:
        ValueError: the manifest does not match, or a line is invalid (the message contains its number).
        ConflictError: a label contradicts another one of the same annotator.
        OSError: the file cannot be read, or the labels cannot be stored.
    """
    _check_manifest(path)
    items = rows = skipped = 0
    with store.transaction():
        before = len(store.events())
        held = {(e.item_id, e.annotator, e.ranks_of_item()) for e in store.labels() if e.round == 0}
        for where, row in _rows(path):
            try:
                item, event = _read(row, annotator)
                items += item is not None and store.add_item(item)
                skipped += item is None and event is None and row.get("type") != "header"
                if event and (row.get("type") or (event.item_id, event.annotator, event.ranks_of_item()) not in held):
                    store.append(event)
            except ConflictError as error:
                hint = "rows of several annotators need a column `annotator`"
                raise ConflictError(f"{path}, {where}: {error}; {hint}") from error
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path}, {where}: {error}") from error
            rows += 1
        return Imported(items, len(store.events()) - before, rows, skipped)


def _rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the rows of a file with their positions."""
    if path.suffix.lower() in (".json", ".csv", ".parquet"):
        for where, row in read(path, split="train"):
            yield where.removeprefix(f"{path}, "), row
    else:
        yield from ((f"line {number}", row) for number, row in read_lines(path))


def _check_manifest(path: Path) -> None:
    manifest = manifest_path(path)
    if not manifest.exists():
        return
    try:
        expected = json.loads(manifest.read_bytes())["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{manifest} is damaged: {error}") from error
    if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        raise ValueError(f"{path} has changed since its export: {manifest.name} has another SHA-256; remove it if so")


def _read(row: Mapping[str, Any], annotator: str) -> tuple[Item | None, Event | None]:
    """Return the contents of a line."""
    kind = row.get("type")
    if kind == "header":
        return None, None
    if kind == "item":
        return item_of(row), None
    if kind == "event":
        return None, event_of(row)
    who = row.get("annotator", annotator)
    if not isinstance(who, str) or not who:
        raise ValueError(f"annotator must be a nonempty string, got {who!r}")
    found = standard(dict(row))
    label = None if found is None else _labeled(found, who)
    return (None, None) if label is None else label


def _labeled(row: Row, who: str) -> tuple[Item, Event] | None:
    """Return the item and the label of a pair or a ranking; None if it compares no different completions."""
    if {"chosen", "rejected"} <= row.keys():
        prompt, *pair = compare(row)  # one may be text, the others messages that contain it
        return _label(prompt, pair, [0, 1], who, _provenance(row))
    texts = row.get("completions")
    if row.get("labels") is not None and texts is not None:
        raise ValueError(
            f"labels={row['labels']!r:.80} are of the steps of one solution, which are no comparison, expected chosen "
            "and rejected, or completions with ranks: use `operant train process-reward-model --dataset`, or remove "
            "the column `labels`"
        )
    if "prompt" in row and isinstance(texts, list):
        listed = cast(list[Any], texts)
        return _label(row["prompt"], listed, row.get("ranks") or list(range(len(listed))), who, _provenance(row))
    raise ValueError(
        "a row must have chosen and rejected (and prompt), or prompt and completions (and ranks), or context and "
        f"completions of rank and completion, or come from a log; this one has {sorted(row)}"
    )


def _plain(text: Any) -> Text:
    """Return a text with plain messages.

    Raises:
        ValueError: it is neither a string nor a list of messages.
    """
    if isinstance(text, str):
        return text
    messages = cast(list[Any], text) if isinstance(text, list) else None
    if messages is None or not all(map(is_message, messages)):
        raise ValueError(f"{text!r:.80} is no text, expected a string, or a list of messages with role and content")
    return [dict(message) for message in messages]


def _provenance(row: Row) -> dict[str, Any]:
    """Return the provenance of the prompt of a line: whether it is held out, and other inputs of the chat template."""
    return ({"held_out": True} if _held_out(row) else {}) | template_inputs(row)


def _held_out(row: Row) -> bool:
    """Return whether a line has a held-out prompt: by its column, or in files of older versions by its answers."""
    if "held_out" in row:
        return bool(row["held_out"])
    return any(row.get(f"{side}_run") and row.get(f"{side}_consumed") is not None for side in ("chosen", "rejected"))


def _label(
    prompt: Any, texts: Sequence[Any], ranks: Sequence[float], annotator: str, provenance: Mapping[str, Any]
) -> tuple[Item, Event] | None:
    """Return the item, and the label as if the completions had been shown in canonical order.

    Of equal completions only the best one is used. None if fewer than two are left.
    """
    if len(ranks) != len(texts):
        raise ValueError(f"ranks must have a number for each of {len(texts)} completions, got {ranks}")
    best: dict[str, tuple[Text, float]] = {}
    for rank, text in sorted(zip(ranks, map(_plain, texts), strict=True), key=lambda answer: answer[0]):
        best.setdefault(encode(text), (text, rank))
    if len(best) < 2:
        return None
    different, levels = zip(*best.values(), strict=True)
    item = Item.of(_plain(prompt), different, gold=dense_ranks(levels), provenance=provenance)
    order = item.gold or ()
    item = replace(item, gold=None)
    outcome: Outcome = "ranking"
    if len(set(order)) == 1:
        outcome = "tie"
    elif len(order) == 2:
        outcome = "A" if order[0] == 1 else "B"
    identity = encode([annotator, item.item_id, list(order)])
    event = Event(
        event_id=f"imported-{hashlib.sha256(identity.encode()).hexdigest()[:32]}",
        kind="label",
        item_id=item.item_id,
        annotator=annotator,
        round=0,
        outcome=outcome,
        ranks=dense_ranks(order) if outcome == "ranking" else None,
        shown=tuple(range(len(order))),
        shown_at=0.0,
        answered_at=0.0,
    )
    return item, event
