"""Saved states of a run for time travel, listed without loading the run or importing torch."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from operant import doors
from operant.catalog import ALGORITHMS
from operant.runtime.metrics import read_records
from operant.runtime.run_paths import location
from operant.web.folders import folder_of
from operant.web.runs import tables_of

_TASK = re.compile(r"^\s*[\w.]+:\S+-v\d+\s*$")
"""Task that is registered by a module, which environments that create others would import."""


def states(runs: Path, run: str) -> dict[str, Any]:
    """Return the used budgets of stored and hashed states; `problem` is the reason if time travel is not possible."""
    path = folder_of(runs, run)
    tables = tables_of(path)
    kept = {
        int(found.name.removeprefix("step_"))
        for part in ("history", "checkpoints")
        for found in step_folders(path / part)
    }
    recorded = {int(record["consumed"]) for record in read_records(path / "history" / "hashes.jsonl")}
    return {
        "seeds": tables["settings"].get("seeds", []),
        "problem": foreign(path, tables["settings"], tables["config"]),
        "kept": sorted(kept),
        "recorded": sorted(recorded),
    }


def foreign(path: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    """Return why the web app does not recompute updates of a run; empty if it does.

    The app runs code of operant and of registered environments, but no code specified in the folder of a run.
    """
    advice = f"on the command line, `operant evaluate {location(path)} --at STEP`"
    algorithm, task = settings.get("algorithm"), str(settings.get("task", ""))
    entry = next((entry for entry in ALGORITHMS if entry.name == algorithm), None)
    if entry is None:
        return f"{algorithm} is custom code, which the web app does not run; {advice}"
    if entry.package == "language":
        return f"completions of language models are on the page Completions; {advice}"
    for text in [task, *_texts([settings, config])]:
        if any(map(_is_foreign, _names(text))) or (text == task and ":" in text):
            return f"{text:.80} is custom code, which the web app does not run; {advice}"
    return ""


def _is_foreign(name: str) -> bool:
    """Return whether a name leads to code that is not a class of operant: functions could import what is passed."""
    place = doors.place_of(name)
    if place is None:
        return doors.is_file(name) or _TASK.search(name) is not None
    own = place.path is None and place.where.startswith("operant.")
    return not (own and place.name[0].isupper() and "." not in place.name)


def _names(text: str) -> Iterator[str]:
    """Yield a string, and the names in it if it is a name with parameters, which may contain further names."""
    yield text
    yield text.partition("(")[0].strip()
    with suppress(doors.DoorError):
        call = doors.Call.of(text)
        yield call.name
        for parameter in _texts(call.parameters):
            yield from _names(parameter)


def _texts(value: Any) -> Iterator[str]:
    """Yield every string in a value, also keys, which some code iterates over."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*cast(Mapping[str, Any], value).items()])
    elif isinstance(value, list | tuple | set):
        for item in cast(list[Any], value):
            yield from _texts(item)


def step_folders(folder: Path) -> Iterator[Path]:
    """Yield the folders of saved states in a folder."""
    return (found for found in folder.glob("step_*") if found.name.removeprefix("step_").isdecimal())
