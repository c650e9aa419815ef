"""Inputs of a run outside its folder: data, files with rewards or environments, models, other runs.

A run records the absolute path and the SHA-256 of each input in `run.json`, so that it does not depend on the working
directory, and changes are reported when it is used again. Names on the Hugging Face Hub are not inputs.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

from operant import doors
from operant.runtime.files import read_regular, sha256
from operant.runtime.run_paths import is_run

logger = logging.getLogger(__name__)

C = TypeVar("C")

TRAINING_ONLY = ("callbacks",)
"""Names of inputs that are not needed to load a run."""
FILLED = ("dataset",)
"""Configuration fields that an input may fill: data, since `run.json` must not name code."""

_FUNCTION = re.compile(r"(?P<file>.*?\.py)(?P<function>:\w+.*)", re.DOTALL)


@dataclass(frozen=True)
class Input:
    """An input file or folder of a run.

    Attributes:
        name: option with the input: `dataset`, `rewards`, `model`, `init`, `reward_model`, `task`, `environment`.
        path: absolute path.
        sha256: hash of the contents (`digest`).
        stamp: digest of sizes and times, to detect changes without reading the contents (`stamp`).
        fills: configuration field that the input fills, which is empty in `config.toml`; empty: none.
        at_start: whether the input is needed only at the start of the run.
    """

    name: str
    path: Path
    sha256: str
    stamp: str
    fills: str = ""
    at_start: bool = False

    @classmethod
    def of(cls, name: str, path: Path, *, fills: str = "", at_start: bool = False) -> "Input":
        """Create the record of an input from its current contents; of the running script, from those that run.

        Raises:
            OSError: the input cannot be read.
        """
        whole = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - keep links: their targets may change
        found, executed = digest(whole), doors.script_digest(whole)
        if executed not in ("", found):  # the stamp of the changed file would hide the change
            return cls(name, whole, executed, "", fills, at_start)
        return cls(name, whole, found, stamp(whole), fills, at_start)

    def record(self, folder: Path) -> dict[str, Any]:
        """Return the entry of `run.json`, for a run in `folder`."""
        flags = ({"fills": self.fills} if self.fills else {}) | ({"at_start": True} if self.at_start else {})
        facts = {"name": self.name, "path": str(self.path), "relative": _relative(self.path, folder)}
        return facts | {"sha256": self.sha256, "stamp": self.stamp} | flags


_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def records_of(folder: Path) -> list[dict[str, Any]]:
    """Return the inputs in the `run.json` of a folder, whose paths are absolute; empty for runs of older versions."""
    try:
        facts: Any = json.loads(read_regular(folder / "run.json"))
        listed: list[Any] = [record for record in facts["inputs"] if {"name", "path", "sha256"} <= record.keys()]
        return [record for record in listed if Path(record["path"]).is_absolute()]  # `moved` replaces no other value
    except _UNREADABLE:
        return []


def outside_of(folder: Path) -> dict[str, Any] | None:
    """Return the record of an external algorithm in the `run.json` of a folder, with the current path of its file.

    None if the algorithm is built in.
    """
    try:
        facts: Any = json.loads(read_regular(folder / "run.json"))
        return moved(facts["algorithm"], records_of(folder), folder)
    except _UNREADABLE:
        return None


def pinned(config: C, names: Iterable[str] = ()) -> tuple[C, list[Input]]:
    """Return a configuration with absolute paths of existing files, and the inputs.

    Strings `file.py:Name`, alone or in a tuple, are paths in any field.

    Args:
        config: configuration, a dataclass.
        names: fields that may contain a path.

    Raises:
        OSError: an input cannot be read.
    """
    found: list[Input] = []
    values: dict[str, Any] = {}
    for name in names:
        if text := getattr(config, name, ""):
            values[name], path = _absolute(text)
            found += [Input.of(name, path)] if path else []
    for field in fields(cast(Any, config)):
        value = getattr(config, field.name)
        texts: tuple[Any, ...] = cast(Any, value) if isinstance(value, tuple) else (value,)
        pairs = [_of_function(text) if isinstance(text, str) else (text, None) for text in texts]
        if paths := [path for _, path in pairs if path]:
            values[field.name] = tuple(text for text, _ in pairs) if isinstance(value, tuple) else pairs[0][0]
            found += [Input.of(field.name, path) for path in dict.fromkeys(paths)]
    return replace(cast(Any, config), **values) if values else config, found


def located(table: Mapping[str, Any], records: Sequence[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """Return a configuration table with the current paths of inputs.

    If an input is missing but exists at the same path relative to the run, it was moved together with the run.

    Args:
        table: configuration from `config.toml`.
        records: inputs from `run.json`.
        folder: folder of the run.
    """
    filled = {record["fills"]: str(record["path"]) for record in records if record.get("fills") in FILLED}
    return moved({**table, **{name: path for name, path in filled.items() if not table.get(name)}}, records, folder)


def moved(table: Mapping[str, Any], records: Iterable[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """Return a table with the current paths of inputs, like `located`, but without filling empty fields."""
    result = dict(table)
    for record in records:
        before, now = str(record["path"]), str(locate(record, folder))
        if now != before:
            result = {name: _moved(value, before, now) for name, value in result.items()}
    return result


def as_written(
    table: Mapping[str, Any], written: Mapping[str, Any], records: Sequence[Mapping[str, Any]], folder: Path
) -> dict[str, Any]:
    """Return a table with the recorded paths of inputs, where `moved` replaced those of the table `written`."""
    now = moved(written, records, folder)
    return {name: written[name] if name in now and now[name] == value else value for name, value in table.items()}


def locate(record: Mapping[str, Any], folder: Path) -> Path:
    """Return the current path of an input of a run in `folder`; the recorded path if it is missing.

    If there is a file both at the recorded path and next to the run, such as after a copy of both, the unchanged one is
    meant, and the one next to the run if both are.
    """
    path = Path(record["path"])
    if not record.get("relative"):
        return path
    near = Path(os.path.normpath(folder / record["relative"]))
    if near == path or not near.exists():
        return path
    if not path.exists():
        return near
    return path if path.samefile(near) else _unchanged(path, near, record["sha256"])


def _unchanged(path: Path, near: Path, sha256: str) -> Path:
    """Return which of two different files has the hash, `near` if both have it, and `path` if none has."""
    if _known_digest(near, stamp(near)) == sha256:
        return near
    chosen = f"{path} is used, whose contents are those of the record"
    if _known_digest(path, stamp(path)) != sha256:
        chosen = f"{path} is used, whose contents have changed, too"
    _warn_once(f"{near} is another file than the one that the run has recorded: {chosen}")
    return path


@lru_cache(maxsize=256)
def _known_digest(path: Path, stamp: str) -> str:
    """Return the digest of a file with a given stamp, computed once."""
    return digest(path)


@lru_cache(maxsize=256)
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def changes(records: Iterable[Mapping[str, Any]], folder: Path) -> list[str]:
    """Return descriptions of missing and changed inputs, one line each.

    Args:
        records: inputs from `run.json`.
        folder: folder of the run.
    """
    return [line for record in records if (line := _change(record, folder))]


def refreshed(records: Iterable[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return updated records of inputs with the paths of `config.toml`; those of missing inputs are unchanged."""
    result: list[dict[str, Any]] = []
    for record in records:
        path = locate(record, folder)
        result.append(dict(record))
        if path.exists():
            now = Input.of(record["name"], path, fills=record.get("fills", ""), at_start=bool(record.get("at_start")))
            result[-1] = now.record(folder) | {"path": record["path"]}
    return result


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and contents of all files in a folder.

    For a run, only its configuration, newest checkpoint and inputs are included.

    Raises:
        OSError: a file cannot be read.
    """
    if not path.is_dir():
        return sha256(path)
    hashed = hashlib.sha256()
    for file in _files(path):
        hashed.update(f"{file.relative_to(path).as_posix()}\n{sha256(file)}\n".encode())
    for record in _inputs_of(path):
        inner = locate(record, path)
        hashed.update(f"{record['name']}\n{digest(inner) if inner.exists() else 'missing'}\n".encode())
    return hashed.hexdigest()


def stamp(path: Path) -> str:
    """Return a digest of names, sizes and times of a file or the files in a folder.

    If it is unchanged, the contents need not be read.
    """
    hashed = hashlib.sha256()
    folder, files = (path, _files(path)) if path.is_dir() else (path.parent, [path])
    for file in files:
        status, name = file.stat(), file.relative_to(folder).as_posix()
        hashed.update(f"{name}\n{status.st_size} {status.st_mtime_ns}\n".encode())
    for record in _inputs_of(path):
        inner = locate(record, path)
        hashed.update((stamp(inner) if inner.exists() else "missing").encode())
    return hashed.hexdigest()


def _change(record: Mapping[str, Any], folder: Path) -> str:
    path, name = locate(record, folder), record["name"]
    try:
        if not path.exists():
            return f"{name} {path} is missing"
        if stamp(path) == record.get("stamp") or digest(path) == record["sha256"]:
            return ""
    except OSError as error:
        return f"{name} {path} cannot be read: {error.strerror}"
    return f"{name} {path} has changed"


def _files(folder: Path) -> list[Path]:
    """Return the files in the digest of a folder, in order; for a run, those of its newest checkpoint."""
    if is_run(folder) and (folder / "checkpoints").is_dir():
        manifests = sorted((folder / "checkpoints").glob("step_*/manifest.json"))
        return [folder / "config.toml", *manifests[-1:]]
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    plain = [path for path in paths if not any(part[:1] == "." or part == "__pycache__" for part in path.parts)]
    return [path for path in map(folder.joinpath, sorted(plain)) if path.is_file()]


def _inputs_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the inputs that a run always needs; empty for other folders."""
    if is_run(path):
        listed = (record for record in records_of(path) if record["name"] not in TRAINING_ONLY)
        yield from (record for record in listed if not record.get("at_start"))


def _absolute(text: str) -> tuple[str, Path | None]:
    """Return a string with an absolute path, and the path; None if it does not exist."""
    path = Path(text).expanduser()
    try:
        exists = path.exists()
    except (OSError, ValueError):  # not a valid path
        exists = False
    if not exists:
        return text, None
    whole = os.path.abspath(path)  # noqa: PTH100 - keep links: their targets may change
    return whole, Path(whole)


def _of_function(text: str) -> tuple[str, Path | None]:
    """Apply `_absolute` to the file in `file.py:function`."""
    match = _FUNCTION.fullmatch(text)
    if match is None:
        return text, None
    file, path = _absolute(match["file"])
    return file + match["function"], path


def _moved(value: Any, before: str, now: str) -> Any:
    if isinstance(value, list):
        return [_moved(item, before, now) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {name: _moved(item, before, now) for name, item in cast(dict[str, Any], value).items()}
    if isinstance(value, str) and (value == before or value.startswith(f"{before}:")):
        return now + value[len(before) :]
    return value


def _relative(path: Path, folder: Path) -> str:
    """Return a path relative to a folder; empty if that is impossible."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # on another drive
        return ""
