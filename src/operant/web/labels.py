"""Preference labels: the store saves every label to disk before the call returns.

The page gets only a prompt and its completions in the order of the presentation, without names of models and runs.
"""

import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from operant.language.preferences import (
    ConflictError,
    Outcome,
    PreferenceStore,
    Presentation,
    StoreError,
    add_samples,
    agreement,
    export,
)
from operant.language.preferences.exporting import Form, HeldOut
from operant.runtime.run_paths import shown_path
from operant.web.folders import folder_of, names_of
from operant.web.runs import stamp
from operant.web.workers import NotFoundError

MOST_SECONDS = 86_400.0
"""Maximum time of an answer in seconds, by the clock of the page."""

LONGEST_NAME = 100
"""Maximum number of characters of an annotator's name."""

_open: dict[Path, PreferenceStore] = {}
_added: dict[Path, tuple[int, int, int]] = {}
"""Version of the file of samples that each store has."""


def index(runs: Path) -> dict[str, Any]:
    """Return the runs with items to label, and the folder of runs in shell syntax."""
    names = [name for name in names_of(runs) if _is_labelable(runs / name)]
    return {"runs": names, "folder": shown_path(runs)}


def following(runs: Path, run: str, annotator: str, overlap: int = 1, repeat: bool = False) -> dict[str, Any]:
    """Reserve and return the next item of an annotator, and their progress; `item` is None at the end.

    Args:
        runs: folder of runs.
        run: name of the run with the samples.
        annotator: name of the annotator.
        overlap: target number of annotators per item.
        repeat: whether to show labeled items again.
    """
    _check_name(annotator)
    store = _store(runs, run)
    shown = store.next_item(annotator, overlap=overlap, repeat=repeat)
    return _state(store, annotator, shown, repeat=repeat)


def record(  # noqa: PLR0917 - by name, from JSON
    runs: Path,
    run: str,
    annotator: str,
    item_id: str,
    outcome: str,
    event_id: str,
    seconds: float,
    ranks: list[int] | None = None,
    round: int = 0,  # noqa: A002 - its name in the log
    overlap: int = 1,
) -> dict[str, Any]:
    """Store a label and return the next item; an `event_id` that is already stored changes nothing.

    Args:
        runs: folder of runs.
        run: name of the run with the samples.
        annotator: name of the annotator.
        item_id: id of the item.
        outcome: outcome in the order shown: `A`, `B`, `tie`, `both-bad`, `skip` or `ranking`.
        event_id: id chosen by the page, the same for retries.
        seconds: seconds since the item was shown.
        ranks: rank of each completion in the order shown, for the outcome `ranking`.
        round: round of the presentation.
        overlap: target number of annotators per item.

    Raises:
        ConflictError: the item has been labeled in the meantime; nothing was stored.
        StoreError: the label could not be stored.
    """
    _check_name(annotator)
    store = _store(runs, run)
    try:
        shown = store.present(item_id, annotator, round=round)
    except KeyError as error:
        raise NotFoundError(f"unknown item {item_id!r}") from error
    now = time.time()
    taken = min(max(float(seconds), 0.0), MOST_SECONDS)
    outcome = cast(Outcome, outcome)
    try:
        store.record(shown, outcome, event_id=event_id, shown_at=now - taken, answered_at=now, ranks=ranks)
    except ConflictError as error:
        if not _is_stored(store, event_id, item_id, annotator, outcome):
            raise ConflictError(f"{annotator} has labeled this item in another window in the meantime") from error
    return {"saved": True, **following(runs, run, annotator, overlap, bool(round))}


def undo(runs: Path, run: str, annotator: str, event_id: str) -> dict[str, Any]:
    """Undo the last label of an annotator and show its item again; `undone` is false without one."""
    store = _store(runs, run)
    event = store.undo(annotator, event_id=event_id)
    if event is None:
        return {"undone": False}
    return {"undone": True, **_state(store, annotator, store.present(event.item_id, annotator, round=event.round))}


def overview(runs: Path, run: str) -> dict[str, Any]:
    """Return the number of labels per annotator of a run, and the agreement between annotators.

    Returns:
        `annotators`, each `{"name", "labels"}`; `outcomes`, the number of labels by outcome; `statistics`, each
        `{"name", "value", "low", "high", "count"}`, NaN if undefined; and `items`, the number of items.
    """
    store = _store(runs, run)
    items, labels = store.items(), store.labels()
    report = agreement(items, labels)
    counts = Counter(event.annotator for event in labels if event.round == 0)
    return {
        "items": len(items),
        "annotators": [{"name": name, "labels": count} for name, count in sorted(counts.items())],
        "outcomes": report.labels,
        "statistics": [{"name": name, **vars(estimate)} for name, estimate in report.statistics.items()],
    }


def exported(runs: Path, run: str, form: str = "pairs", held_out: str = "without") -> dict[str, Any]:
    """Return the labels of a run as JSON Lines, as written by `operant label RUN --export`.

    Args:
        runs: folder of runs.
        run: name of the run with the samples.
        form: `pairs` in the format of TRL, `rankings`, or `events`, the complete log.
        held_out: labels on held-out prompts: `with`, `without`, or `only`.

    Returns:
        `text`, the numbers of `rows` and `left_out` labels, and of lines on `held_out` prompts.
    """
    if form not in get_args(Form) or held_out not in get_args(HeldOut):
        raise ValueError(
            f"form must be one of {', '.join(get_args(Form))} and held_out one of {', '.join(get_args(HeldOut))}, got "
            f"{form!r} and {held_out!r}"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "labels.jsonl"
        found = export(_store(runs, run), path, form=cast(Form, form), held_out=cast(HeldOut, held_out))
        text = path.read_text(encoding="utf-8")
    return {"text": text, "rows": found.rows, "left_out": found.left_out, "held_out": found.held_out}


def _check_name(annotator: str) -> None:
    if not 1 <= len(annotator) <= LONGEST_NAME:
        raise ValueError(f"annotator must be a name of at most {LONGEST_NAME} characters, got {annotator!r}")


def _is_stored(store: PreferenceStore, event_id: str, item_id: str, annotator: str, outcome: str) -> bool:
    """Return whether an answer is already stored, ignoring times, which differ in retries."""
    return any(
        (event.event_id, event.item_id, event.annotator, event.outcome) == (event_id, item_id, annotator, outcome)
        for event in store.events()
    )


def _state(
    store: PreferenceStore, annotator: str, shown: Presentation | None, *, repeat: bool = False
) -> dict[str, Any]:
    answered = sum(event.annotator == annotator for event in store.labels())
    counts = {"answered": answered, "items": len(store.items())}
    if shown is None:
        return {"item": None, "waiting": store.waiting(annotator, repeat=repeat), **counts}
    texts = [_text(text) for text in shown.completions]
    return {
        "item": {"id": shown.item_id, "round": shown.round, "prompt": _text(shown.prompt), "completions": texts},
        **counts,
    }


def _text(text: Any) -> str | list[dict[str, str]]:
    """Return a string, or the messages of a conversation."""
    if isinstance(text, str):
        return text
    messages = cast(list[Mapping[str, Any]], text)
    return [{"role": str(m.get("role", "")), "content": str(m.get("content", ""))} for m in messages]


def _is_labelable(path: Path) -> bool:
    return (path / "preferences.sqlite").is_file() or (path / "eval" / "samples.jsonl").is_file()


def _store(runs: Path, run: str) -> PreferenceStore:
    """Return the cached store of a run, with all samples of the run so far."""
    path = folder_of(runs, run)
    if not _is_labelable(path):
        raise NotFoundError(f"there is nothing to label in {run}: it has no eval/samples.jsonl and no preferences")
    database, samples = path / "preferences.sqlite", path / "eval" / "samples.jsonl"
    if database in _open and not database.exists():
        _open.pop(database).close()
    if database not in _open:
        _added.pop(database, None)
        _open[database] = PreferenceStore(database)
    found = stamp(samples)
    if any(found) and found != _added.get(database):  # a run that trains adds samples
        try:
            add_samples(_open[database], samples, run=path.resolve().name)
        except (StoreError, ValueError, OSError):
            _open.pop(database).close()
            raise
        _added[database] = found
    return _open[database]
