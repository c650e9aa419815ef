"""Read-only views of runs for the pages: lists, details and comparisons."""

import json
import os
import shlex
import socket
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from operant import catalog, doors
from operant.runtime.files import read_regular
from operant.runtime.locks import is_held
from operant.runtime.metrics import last_record, used_budget
from operant.runtime.run_paths import location
from operant.runtime.sessions import UNFINISHED, described
from operant.texts import decoded, parse_json, parse_toml
from operant.web.curves import Columns, decimated
from operant.web.documentation import page_of
from operant.web.folders import MOST_RUNS, NAME, folder_of, hidden_in, names_of
from operant.web.workers import NotFoundError

MEDIA = (".png", ".jpg", ".gif", ".svg", ".mp4", ".webm")
"""Suffixes of shown images and videos."""

_COLUMNS = Columns()


def index(runs: Path) -> dict[str, Any]:
    """Return settings, progress, score and outcome of all runs, the newest first, and why some are `hidden`."""
    found = [_entry(runs, name) for name in names_of(runs)]
    found.sort(key=lambda entry: str(entry.get("started", "")), reverse=True)
    return {"folder": str(runs), "found": runs.is_dir(), "runs": found, "hidden": hidden_in(runs)}


def show(runs: Path, run: str) -> dict[str, Any]:
    """Return all facts of a run: settings, sessions, metrics, evaluations, images and videos, and commands."""
    path = folder_of(runs, run)
    tables = tables_of(path)
    facts = _facts(path)
    shown = location(path)
    commands = {"show": f"operant show {shown}", "evaluate": f"operant evaluate {shown}"}
    if _entry(runs, run)["outcome"] != "finished":
        commands["resume"] = f"operant resume {shown}"
    language = tables["settings"].get("algorithm") in {entry.name for entry in catalog.LANGUAGE}
    commands |= {"chat": f"operant chat {shown}"} if language else {"watch": f"operant watch {shown}"}
    return {
        **_entry(runs, run),
        "settings": tables["settings"],
        "config": tables["config"],
        "resolved": facts.get("resolved", {}),
        "sessions": facts.get("sessions", []),
        "metrics": _metrics(path),
        "media": _media(path),
        "has_answers": language and ((path / "eval" / "samples.jsonl").is_file() or (path / "ledger").is_dir()),
        "page": page_of(str(tables["settings"].get("algorithm", ""))),
        "commands": commands,
    }


def curves(runs: Path, names: list[str], metric: str | None = None, known: str = "") -> dict[str, Any]:
    """Return a metric of some runs over the used budget, by seed and aggregated.

    Args:
        runs: the folder of runs.
        names: names of the runs.
        metric: metric in `metrics.jsonl`. Default: scores of evaluations, with the recorded IQM and its 95 % interval.
        known: `version` of an earlier response; without changes since then, only the version is returned.

    Raises:
        NotFoundError: a run does not exist.
    """
    paths = {name: folder_of(runs, name) for name in names}
    files = {name: path / ("metrics.jsonl" if metric else "eval/evaluations.jsonl") for name, path in paths.items()}
    version = json.dumps([[name, *stamp(file)] for name, file in files.items()])
    if version == known:
        return {"version": version, "unchanged": True}
    found = {name: decimated(_COLUMNS.read(file, metric or None)) for name, file in files.items()}
    return {"version": version, "curves": found}


def compare(runs: Path, names: list[str], metric: str | None = None) -> dict[str, Any]:
    """Return the differences and scores of runs; the first is the baseline.

    If evaluations differ, or a run is unfinished, `problem` replaces `standings`.
    """
    from operant.runtime.comparison import compare as standings_of  # noqa: PLC0415 - torch takes seconds
    from operant.runtime.comparison import different_settings  # noqa: PLC0415
    from operant.runtime.run import Run, RunError  # noqa: PLC0415

    opened = [Run.open(folder_of(runs, name)) for name in names]
    differ = {name: [_plain(value) for value in values] for name, values in different_settings(opened).items()}
    command = " ".join(["operant compare", *(location(run.path) for run in opened)])
    answer: dict[str, Any] = {"differ": differ, "problem": "", "standings": [], "command": command}
    if metric:
        answer["command"] += f" --metric {shlex.quote(metric)}"
    foreign = [run.settings.algorithm for run in opened if doors.is_name(run.settings.algorithm)]
    if foreign:  # the library would import code specified in the folder of a run
        return answer | {
            "problem": f"{foreign[0]} is custom code, which the web app does not run; use {answer['command']}"
        }
    try:
        standings = standings_of(opened, metric=metric)
    except (RunError, ValueError) as error:
        return answer | {"problem": str(error)}
    answer["standings"] = [
        {
            "name": name,
            "iqm": standing.center,
            "mean": standing.final.mean,
            "interval": list(standing.interval),
            "scores": list(standing.final.scores),
            "difference": standing.difference,
            "difference_interval": list(standing.difference_interval),
            "improvement": standing.improvement,
            "improvement_interval": list(standing.improvement_interval),
        }
        for name, standing in zip(names, standings, strict=True)
    ]
    return answer | {"budget": standings[0].budget}


def medium(runs: Path, run: str, name: str) -> dict[str, str]:
    """Return the path of an image or video, for the server."""
    path = folder_of(runs, run)
    if name not in {entry["name"] for entry in _media(path)}:
        raise NotFoundError(f"{run} has no {name}")
    return {"path": str(path / "media" / name)}


def _entry(runs: Path, name: str) -> dict[str, Any]:
    """Return an entry of the list; `problem` contains the error if the run is unreadable."""
    path = runs / name
    try:
        return {"name": name, **_listed(path)}
    except (OSError, ValueError, RecursionError) as error:
        return {"name": name, "outcome": "damaged", "problem": str(error)}
    except Exception as error:
        return {"name": name, "outcome": "damaged", "problem": f"{path} has damaged files: {error!r}"}


def _listed(path: Path) -> dict[str, Any]:
    """Return the entry of a readable run, without its name.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file is damaged.
    """
    settings, facts = settings_of(path), _facts(path)
    sessions: list[dict[str, Any]] = facts.get("sessions") or [{}]
    outcome, reason = described(sessions)
    if outcome == UNFINISHED and _alive(sessions[-1]) and _held(path):
        outcome = "running"
    evaluation = last_record(path / "eval" / "evaluations.jsonl") or {}
    latest = last_record(path / "metrics.jsonl") if outcome in ("running", UNFINISHED) else None
    consumed = max(used_budget(record) for record in (sessions[-1], evaluation, latest or {}))
    return {
        "algorithm": settings.get("algorithm", ""),
        "task": settings.get("task", ""),
        "seeds": len(settings.get("seeds", ())),
        "budget": settings.get("budget", 0),
        "consumed": consumed,
        "outcome": outcome,
        "reason": reason,
        "started": sessions[0].get("started", ""),
        "iqm": _number(evaluation.get("iqm")),
        "interval": evaluation.get("interval"),
    }


def _alive(session: dict[str, Any]) -> bool:
    """Return whether the process of a session is running on this machine, as far as it is known."""
    if session.get("host") != socket.gethostname() or not isinstance(session.get("process"), int):
        return False
    if os.name != "posix":  # on Windows, signal 0 interrupts the process
        return True
    try:
        os.kill(session["process"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _held(path: Path) -> bool:
    """Return whether a process trains a run: another program may have the id of a process that has ended."""
    try:
        return is_held(path)
    except OSError:
        return True  # unknown: this process cannot read the lock


def stamp(path: Path) -> tuple[int, int, int]:
    """Return a fingerprint that changes with a file; zeros without a file."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def settings_of(path: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged.
    """
    return _settings(path / "config.toml", stamp(path / "config.toml"))


@lru_cache(maxsize=MOST_RUNS)
def _settings(path: Path, _stamp: tuple[int, int, int]) -> dict[str, Any]:
    """Return the table of settings, reading only the start of the file, where it is."""
    text = decoded(read_regular(path), path)
    try:
        settings = parse_toml(text.partition("\n[config")[0], path).get("settings")
    except ValueError:  # a string in the settings may contain the header
        settings = parse_toml(text, path).get("settings")
    if not isinstance(settings, dict):
        raise ValueError(f"{path} has no table [settings]")
    return cast(dict[str, Any], settings)


def tables_of(path: Path) -> dict[str, Any]:
    """Return the tables `settings` and `config` of the run in a folder.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is damaged.
    """
    return _tables(path / "config.toml", stamp(path / "config.toml"))


@lru_cache(maxsize=64)
def _tables(path: Path, _: tuple[int, int, int]) -> dict[str, Any]:
    tables = parse_toml(decoded(read_regular(path), path), path)
    return {name: _plain(tables.get(name, {})) for name in ("settings", "config")}


def _facts(path: Path) -> dict[str, Any]:
    return _json(path / "run.json", stamp(path / "run.json"))


@lru_cache(maxsize=MOST_RUNS)
def _json(path: Path, _: tuple[int, int, int]) -> dict[str, Any]:
    facts = parse_json(read_regular(path), path)
    if not isinstance(facts, dict):
        raise ValueError(f"{path} must contain an object")
    return cast(dict[str, Any], facts)


def _metrics(path: Path) -> list[str]:
    """Return the names of all metrics: some are only in records with ended episodes, so the last one may lack them."""
    return sorted(_COLUMNS.names(path / "metrics.jsonl") - {"consumed"})


def _media(path: Path) -> list[dict[str, Any]]:
    """Return the images and videos of a run, the newest first; symbolic links do not lead outside of its folder."""
    folder = path / "media"
    if not folder.resolve().is_relative_to(path.resolve()):
        return []
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    except OSError:
        return []
    kept = [entry for entry in entries if Path(entry.name).suffix in MEDIA and NAME.fullmatch(entry.name)]
    kept.sort(key=lambda entry: entry.stat().st_mtime, reverse=True)
    return [{"name": entry.name, "bytes": entry.stat().st_size} for entry in kept]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _plain(value: Any) -> Any:
    """Return a TOML value as JSON."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in cast(Sequence[Any], value)]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)
