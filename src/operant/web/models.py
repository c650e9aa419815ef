"""Lists of language models and reward models, without loading them or importing torch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operant import catalog
from operant.runtime.metrics import last_record
from operant.runtime.run_paths import shown_path
from operant.web.folders import names_of
from operant.web.runs import settings_of
from operant.web.states import step_folders

FILES = ("config.json", "adapter_config.json")
"""Files that identify a folder with a saved model or adapter."""
LANGUAGE = {entry.name: entry for entry in catalog.LANGUAGE}


def models(runs: Path) -> dict[str, Any]:
    """Return the language models in the folder: `policies` (of runs or saved), and `rewards`."""
    policies: list[dict[str, Any]] = []
    rewards: list[dict[str, Any]] = []
    for name in names_of(runs):
        path = runs / name
        settings = _settings(path)
        entry = LANGUAGE.get(str(settings.get("algorithm", "")))
        if entry is not None and any(step_folders(path / "checkpoints")):
            (rewards if entry.family == "reward" else policies).append(_of_run(path, name, settings))
    for name in names_of(runs, FILES):
        path = runs / name
        policies.append({"name": name, "path": shown_path(path), "seeds": 1, "about": "a saved model", "example": ""})
    return {"policies": policies, "rewards": rewards}


def algorithm_of(path: Path) -> str:
    """Return the algorithm of the run in a folder; empty if it is unreadable."""
    return str(_settings(path).get("algorithm", ""))


def _settings(path: Path) -> Mapping[str, Any]:
    """Return the settings of the run in a folder; empty if they are unreadable."""
    try:
        return settings_of(path)
    except (OSError, ValueError):
        return {}


def _of_run(path: Path, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    prompt = (last_record(path / "eval" / "samples.jsonl") or {}).get("prompt")
    return {
        "name": name,
        "path": shown_path(path),
        "seeds": max(1, len(settings.get("seeds", ()))),
        "about": f"{settings.get('algorithm')} on {settings.get('task')}",
        "example": prompt if isinstance(prompt, str) else "",
    }
