"""Export of labels: pairs in TRL's format, rankings in NeMo-RL's, or the whole log.

Every file has a `<name>.manifest.json` with its SHA-256 and counts. Equal stores give equal bytes. Names of annotators
are replaced by pseudonyms, which are the same in all files of a store and cannot be guessed.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from operant.language.data import as_messages
from operant.language.preferences.items import Completion, Event, Item, Text, encode
from operant.language.preferences.store import PreferenceStore
from operant.language.sources import template_inputs
from operant.runtime.files import replace_durably, sha256

Form = Literal["pairs", "rankings", "events"]
"""`pairs`: `{prompt, chosen, rejected}`; `rankings`: `{context, completions: [{rank, completion}]}`; `events`: all
items and events, undone ones included. The texts of an item are strings, or messages if any of them are messages, which
NeMo-RL requires. Lines on held-out prompts have the mark `held_out`, which `import_file` reads."""

MANIFEST = 1
"""Version of the manifest."""


HeldOut = Literal["with", "without", "only"]
"""Labels to write: with those of held-out prompts, without, or only those."""


@dataclass(frozen=True)
class Exported:
    """Summary of an export.

    Attributes:
        path: path of the file.
        rows: number of rows.
        left_out: number of labels left out, by outcome, or `held-out`.
        held_out: number of lines on held-out prompts, which are for evaluations.
    """

    path: Path
    rows: int
    left_out: dict[str, int]
    held_out: int = 0


def export(
    store: PreferenceStore, path: Path, *, form: Form = "pairs", names: bool = False, held_out: HeldOut = "without"
) -> Exported:
    """Write the valid labels to a JSON Lines file, and its manifest next to it.

    A ranking gives a pair in `pairs` for every two completions of different rank. Ties, both-bad, skips and repeated
    questions are only in `events`.

    Args:
        store: store with the labels.
        path: path of the file. An earlier export is replaced; another file, or an edited one, is not.
        form: see `Form`.
        names: whether to write the annotators' names instead of pseudonyms.
        held_out: see `HeldOut`; ignored for `events`.

    Raises:
        ValueError: the file exists and is not an unedited export.
        OSError: the file cannot be written; an old file is unchanged.
    """
    _require_export(path)
    key = store.pseudonym_key()
    alias: Callable[[str], str] = (lambda name: name) if names else (lambda name: pseudonym(key, name))
    rows, left_out = _events(store, alias) if form == "events" else _labels(store, form, alias)
    scored = scored_items(store.items())
    if form != "events" and held_out != "with":
        kept = [row for row in rows if (row["item"] in scored) == (held_out == "only")]
        if len(kept) < len(rows):
            left_out["held-out" if held_out == "without" else "not held-out"] = len(rows) - len(kept)
        rows = kept
    rows = [row | {"held_out": True} if row.get("item") in scored else row for row in rows]
    count = sum(row.get("item") in scored for row in rows)
    data = b"".join(encode(row).encode() + b"\n" for row in rows)
    manifest = {
        "schema_version": MANIFEST,
        "file": path.name,
        "form": form,
        "rows": len(rows),
        "left_out": left_out,
        "pseudonyms": not names,
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    replace_durably(path, data)
    replace_durably(manifest_path(path), encode(manifest).encode() + b"\n")
    return Exported(path, len(rows), left_out, count)


def _require_export(path: Path) -> None:
    """Raise ValueError if a file exists and differs from the export that its manifest describes."""
    if not path.exists():
        return
    try:
        known = json.loads(manifest_path(path).read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        known = None
    if known is None:
        raise ValueError(f"{path} already exists, and is not an export of labels: choose another file")
    if known != sha256(path):
        raise ValueError(f"{path} was changed after its export: choose another file, or delete it")


def is_held_out(item: Item) -> bool:
    """Return whether an item has a held-out prompt: it has the mark, or its answers come from evaluations."""
    mark = item.provenance.get("held_out")
    return (
        bool(mark)
        if mark is not None
        else any({"run", "consumed"} <= completion.provenance.keys() for completion in item.completions)
    )


def scored_items(items: Sequence[Item]) -> set[str]:
    """Return the ids of items with held-out prompts, including those with other answers to the same prompts."""
    prompts = {encode(item.prompt) for item in items if is_held_out(item)}
    return {item.item_id for item in items if encode(item.prompt) in prompts}


def manifest_path(path: Path) -> Path:
    """Return the path of a file's manifest."""
    return path.with_name(f"{path.name}.manifest.json")


def pseudonym(key: str, annotator: str) -> str:
    """Return the name of an annotator in files: a keyed hash (HMAC-SHA-256)."""
    return f"annotator-{hmac.new(key.encode(), annotator.encode(), hashlib.sha256).hexdigest()[:12]}"


def _labels(
    store: PreferenceStore, form: Form, alias: Callable[[str], str]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return the lines in the order of items, then annotators, and the labels without a line."""
    items = store.items()
    labels: dict[str, list[Event]] = {item.item_id: [] for item in items}
    for event in store.labels():
        if event.round == 0:
            labels[event.item_id].append(event)
    columns = sorted({name for item in items for c in item.completions for name in c.provenance})
    rows: list[dict[str, Any]] = []
    left_out: dict[str, int] = {}
    for item in items:
        for event in sorted(labels[item.item_id], key=lambda event: alias(event.annotator)):
            who = {"annotator": alias(event.annotator), "item": item.item_id, "event": event.event_id}
            found = _pairs(item, event, columns) if form == "pairs" else _ranking(item, event)
            rows += [row | who for row in found]
            if not found:
                left_out[str(event.outcome)] = left_out.get(str(event.outcome), 0) + 1
    return rows, dict(sorted(left_out.items()))


def _pairs(item: Item, event: Event, columns: Sequence[str]) -> list[dict[str, Any]]:
    ranks = event.ranks_of_item() or ()
    best_first = sorted(range(len(ranks)), key=ranks.__getitem__)
    prompt, texts = _texts(item)
    return [
        {"prompt": prompt, "chosen": texts[i], "rejected": texts[j]}
        | template_inputs(item.provenance)
        | _provenance("chosen", item.completions[i], columns)
        | _provenance("rejected", item.completions[j], columns)
        for i in best_first
        for j in best_first
        if ranks[i] < ranks[j]
    ]


def _provenance(side: str, completion: Completion, columns: Sequence[str]) -> dict[str, Any]:
    return {f"{side}_{name}": completion.provenance.get(name) for name in columns}


def _ranking(item: Item, event: Event) -> list[dict[str, Any]]:
    """Return the label as a ranking from 0, lower is better; a label without a preference has no line."""
    ranks = event.ranks_of_item() or ()
    if len(set(ranks)) < 2:
        return []
    order = sorted(range(len(ranks)), key=ranks.__getitem__)
    prompt, texts = _texts(item)
    ranked = [{"rank": ranks[i] - 1, "completion": texts[i]} for i in order]
    return [{"context": prompt, "completions": ranked} | template_inputs(item.provenance)]


def _texts(item: Item) -> tuple[Text, list[Text]]:
    """Return prompt and completions in one form: strings, or messages if any of them are messages."""
    texts = [completion.text for completion in item.completions]
    if all(isinstance(text, str) for text in (item.prompt, *texts)):
        return item.prompt, texts
    return as_messages(item.prompt, "user"), [as_messages(text, "assistant") for text in texts]


def _events(store: PreferenceStore, alias: Callable[[str], str]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    rows = store.log()
    return [row | {"annotator": alias(row["annotator"])} if "annotator" in row else row for row in rows], {}
