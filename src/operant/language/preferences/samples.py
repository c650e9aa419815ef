"""Conversion of a run's sampled completions to items to label."""

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from operant.language.data import Row, compare, kind
from operant.language.preferences.items import Completion, Item, Text, encode
from operant.language.preferences.store import PreferenceStore
from operant.language.sources import template_inputs
from operant.streams import seed_sequence


def read_samples(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of `eval/samples.jsonl`: `{"consumed", "seed", "prompt", "completion", "reward", ...}`.

    Other lines, such as an incomplete one after a crash, are skipped.

    Raises:
        OSError: the file is unreadable.
    """
    with path.open("rb") as file:
        for line in file:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(record, dict) and {"prompt", "completion"} <= record.keys():
                yield record


def add_samples(
    store: PreferenceStore, path: Path, *, run: str, completions: int = 2, seed: int = 0
) -> tuple[int, int]:
    """Add a run's samples to a store.

    The distinct completions of a prompt are shuffled and split into items of `completions`; a single remaining one is
    dropped. Completions that are already part of an item are excluded first, so a repeated call adds nothing, and a
    call after more training adds only new completions.

    Args:
        store: store to add to.
        path: file of samples.
        run: name of the run, for the provenance.
        completions: number of completions per item.
        seed: random seed of the order.

    Returns:
        Number of new items, and of prompts in the file.

    Raises:
        ValueError: `completions` is below 2.
        OSError: the file is unreadable.
        StoreError: the items could not be stored.
    """
    if completions < 2:
        raise ValueError(f"completions must be at least 2, got {completions}")
    asked: dict[str, set[str]] = {}
    with store.transaction():
        for item in store.items():
            asked.setdefault(encode(item.prompt), set()).update(encode(c.text) for c in item.completions)
        prompts: dict[str, dict[str, Completion]] = {}
        for record in read_samples(path):
            found = prompts.setdefault(encode(record["prompt"]), {})
            found.setdefault(encode(record["completion"]), _completion(record, run))
        new = 0
        for prompt, found in prompts.items():
            fresh = [c for text, c in found.items() if text not in asked.get(prompt, ())]
            new += store.add_items(groups(json.loads(prompt), fresh, completions, seed))
    return new, len(prompts)


def add_rows(
    store: PreferenceStore,
    rows: Sequence[Row],
    *,
    file: str,
    held_out: Container[str] = (),
    completions: int = 2,
    seed: int = 0,
) -> int:
    """Add prompts and answers to a store, for comparison; their order in the examples is ignored.

    Args:
        store: store to add to.
        rows: examples of preferences or rankings (`operant.language.data.read_rows`).
        file: source of the examples, for the provenance.
        held_out: held-out prompts (`encode`), which are for evaluations.
        completions: number of completions per item.
        seed: random seed of the order.

    Returns:
        Number of new items.

    Raises:
        ValueError: an example has fewer than two answers, or `completions` is below 2.
        StoreError: the items could not be stored.
    """
    if completions < 2:
        raise ValueError(f"completions must be at least 2, got {completions}")
    found = kind(rows, accept=("preference", "ranking"))
    known = {(encode(item.prompt), encode(c.text)) for item in store.items() for c in item.completions}
    new = 0
    with store.transaction():
        for row in rows:
            prompt, *texts = compare(row) if found == "preference" else (row["prompt"], *row["completions"])
            different = {encode(text): Completion(json.loads(encode(text)), {"file": file}) for text in texts}
            fresh = [completion for text, completion in different.items() if (encode(prompt), text) not in known]
            mark = template_inputs(row) | ({"held_out": True} if encode(prompt) in held_out else {})
            new += store.add_items(groups(json.loads(encode(prompt)), fresh, completions, seed, provenance=mark))
    return new


def _completion(record: dict[str, Any], run: str) -> Completion:
    columns = {name: value for name, value in record.items() if name not in ("prompt", "completion")}
    return Completion(record["completion"], {"run": run, **columns})


def groups(
    prompt: Text,
    completions: Sequence[Completion],
    size: int,
    seed: int,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> list[Item]:
    """Return completions of a prompt as items of `size` each, in a random order; a single remaining one is dropped.

    Args:
        prompt: prompt of all completions.
        completions: distinct completions.
        size: number of completions per item.
        seed: random seed of the order.
        provenance: provenance of the prompt.
    """
    generator = np.random.Generator(np.random.PCG64(seed_sequence(seed, f"groups {encode(prompt)}")))
    order: list[int] = generator.permutation(len(completions)).tolist()
    mixed = [completions[i] for i in order]
    parts = [mixed[i : i + size] for i in range(0, len(mixed), size)]
    return [Item.of(prompt, part, provenance=provenance) for part in parts if len(part) > 1]
