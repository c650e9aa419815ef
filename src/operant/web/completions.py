"""Completions of language models at every recorded step of a run: training batches and evaluations."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant import catalog
from operant.runtime.generations import read_samples
from operant.runtime.ledger import Ledger, ledgers_of, read_ledger
from operant.runtime.run_paths import location
from operant.web.folders import folder_of, names_of
from operant.web.runs import settings_of
from operant.web.workers import NotFoundError

KINDS: dict[str, str] = {"piece": "i4", "clipped": "u1"}
"""Data types of columns; others are `f4`."""
WITHOUT_BATCHES: dict[str, str] = {
    "sft": "Supervised fine-tuning does not sample completions during training: all tokens of the answers in the data "
    "have the same weight. So there are no training batches, and no ledger.",
    "dpo": "DPO does not sample completions during training: it learns from pairs of complete answers in the data. So "
    "there are no training batches, and no ledger.",
}
"""Reason why an algorithm has no training batches."""
NO_BATCHES = (
    "No training batch was saved: one is saved at every evaluation (--evaluate-every), except while the critic warms "
    "up and after natural-gradient steps, which have no loss per token."
)
"""Reason for other algorithms."""


def index(runs: Path) -> dict[str, Any]:
    """Return the runs with completions."""
    language = {entry.name for entry in catalog.LANGUAGE}
    return {"runs": [name for name in names_of(runs) if _answers(runs / name, language)]}


def _answers(path: Path, language: set[str]) -> bool:
    try:
        known = settings_of(path).get("algorithm") in language
    except (OSError, ValueError):
        return False
    return bool(known and ((path / "eval" / "samples.jsonl").is_file() or ledgers_of(path)))


def steps(runs: Path, run: str) -> dict[str, Any]:
    """Return the steps of a run with completions: `consumed` and `seed` of training batches and evaluations.

    `note` is the reason if there are no training batches, otherwise empty.
    """
    path = folder_of(runs, run)
    samples = dict.fromkeys((int(record["consumed"]), int(record["seed"])) for record in _samples(path))
    found = {"training": ledgers_of(path), "held-out": sorted(samples)}
    steps = {
        source: [{"consumed": consumed, "seed": seed} for consumed, seed in pairs] for source, pairs in found.items()
    }
    settings = settings_of(path)
    algorithm = str(settings.get("algorithm", ""))
    note = "" if found["training"] else WITHOUT_BATCHES.get(algorithm, NO_BATCHES)
    about = {"algorithm": algorithm, "task": settings.get("task", ""), "note": note}
    return {"steps": steps, **about, "command": f"operant show {location(path)}"}


def batch(runs: Path, run: str, source: str, consumed: int, seed: int) -> dict[str, Any]:
    """Return prompts, completions and rewards of a step.

    Args:
        runs: folder of runs.
        run: name of the run.
        source: `training`, with values per token, or `held-out`, without.
        consumed: budget used at the step.
        seed: seed of the learner.

    Returns:
        `prompts`; `answers`, each `{"prompt": index, "text", "reward", ...}`; and for training the contents of
        `operant.runtime.ledger.Ledger`, with columns in base64.
    """
    path = folder_of(runs, run)
    if source == "training":
        if (consumed, seed) not in ledgers_of(path):
            raise NotFoundError(f"{run} has no ledger of seed {seed!r} at {consumed!r}")
        return _of_ledger(read_ledger(path, consumed, seed))
    found = [record for record in _samples(path) if (record["consumed"], record["seed"]) == (consumed, seed)]
    if source != "held-out" or not found:
        raise NotFoundError(f"{run} has no answers of seed {seed!r} at {consumed!r}")
    return _of_samples(found)


def _of_ledger(ledger: Ledger) -> dict[str, Any]:
    fields = {name: value for name, value in vars(ledger).items() if name != "columns"}
    columns = {name: _packed(column, KINDS.get(name, "f4")) for name, column in ledger.columns.items()}
    sums = {
        name: float(ledger.columns[name].astype(np.float64).sum()) + ledger.rest[name]
        for name in ("policy", "reference")
        if name in ledger.columns
    }
    return {**fields, "columns": columns, "kinds": KINDS, "sums": sums}


def _of_samples(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    prompts: list[Any] = []
    answers: list[dict[str, Any]] = []
    for record in records:
        if not prompts or prompts[-1] != record["prompt"]:
            prompts.append(record["prompt"])
        known = {name: record.get(name) for name in ("reward", "truncated", "temperature", "version")}
        answers.append({"prompt": len(prompts) - 1, "text": record["completion"], **known})
    return {"prompts": prompts, "answers": answers}


def _samples(path: Path) -> list[dict[str, Any]]:
    needed = ("consumed", "seed", "prompt", "completion")
    return [record for record in read_samples(path / "eval" / "samples.jsonl") if all(n in record for n in needed)]


def _packed(column: NDArray[Any], kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(column, f"<{kind}").tobytes()).decode()
