"""What a run was made from, outside its folder: data, files with rewards or environments, models, other runs.

A run keeps the absolute path and the SHA-256 of each of its inputs in `run.json`, so that it means the same from any
working folder, and says what has changed when it is used again. Names of the Hugging Face hub are no inputs.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, cast

from operant.runtime.files import read_regular, sha256

C = TypeVar("C")

TRAINING_ONLY = ("callbacks",)
"""Inputs without which a run can be loaded: what it has learned does not need them."""

_FUNCTION = re.compile(r"(?P<file>.*?\.py)(?P<function>:\w+.*)", re.DOTALL)


@dataclass(frozen=True)
class Input:
    """A file or folder that a run is made from.

    Attributes:
        name: what it is for, as the options call it: `dataset`, `rewards`, `model`, `init`, `reward_model`,
            `task`, `environment`.
        path: absolute.
        sha256: of what is there (`digest`).
        stamp: by which a change is noticed without reading all of it (`stamp`).
        fills: field of the configuration that is empty in `config.toml` and stands for it; empty: none.
        at_start: whether it was needed only to begin with, as all of it is in the run.
    """

    name: str
    path: Path
    sha256: str
    stamp: str
    fills: str = ""
    at_start: bool = False

    @classmethod
    def of(cls, name: str, path: Path, *, fills: str = "", at_start: bool = False) -> "Input":
        """Look at what is there now.

        Raises:
            OSError: it cannot be read.
        """
        whole = Path(os.path.abspath(path.expanduser()))  # noqa: PTH100 - links stay: what they lead to may change
        return cls(name, whole, digest(whole), stamp(whole), fills, at_start)

    def record(self, folder: Path) -> dict[str, Any]:
        """Return what `run.json` says of it, for a run in `folder`."""
        flags = ({"fills": self.fills} if self.fills else {}) | ({"at_start": True} if self.at_start else {})
        facts = {"name": self.name, "path": str(self.path), "relative": _relative(self.path, folder)}
        return facts | {"sha256": self.sha256, "stamp": self.stamp} | flags


_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def records_of(folder: Path) -> list[dict[str, Any]]:
    """Return the inputs that the `run.json` in a folder names; none if it names none, as that of an older run."""
    try:
        facts: Any = json.loads(read_regular(folder / "run.json"))
        listed: list[Any] = facts["inputs"]
        return [record for record in listed if {"name", "path", "sha256"} <= record.keys()]
    except _UNREADABLE:
        return []


def outside_of(folder: Path) -> dict[str, Any] | None:
    """Return what the `run.json` in a folder says of an algorithm from outside, with its file where it lies now.

    None where it says nothing, as its algorithm is one of the catalog.
    """
    try:
        facts: Any = json.loads(read_regular(folder / "run.json"))
        return moved(facts["algorithm"], records_of(folder), folder)
    except _UNREADABLE:
        return None


def pinned(config: C, names: Iterable[str] = ()) -> tuple[C, list[Input]]:
    """Return a configuration with absolute paths in place of those that exist, and what these are.

    Every text that is written `file.py:Name`, alone or in a tuple, names something in a file, whatever its field.

    Args:
        config: a dataclass.
        names: its fields that may hold the path of a file or folder.

    Raises:
        OSError: one of them cannot be read.
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
    """Return a configuration's table with the paths where inputs lie now.

    What is no longer where it was, and stands at the same place as seen from the run, has moved with it.

    Args:
        table: the configuration, as `config.toml` has it.
        records: the inputs, as `run.json` has them.
        folder: of the run.
    """
    filled = {record["fills"]: str(record["path"]) for record in records if record.get("fills")}
    return moved({**table, **{name: path for name, path in filled.items() if not table.get(name)}}, records, folder)


def moved(table: Mapping[str, Any], records: Iterable[Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """Return a table with the paths where inputs lie now, as `located`, which fills in nothing."""
    result = dict(table)
    for record in records:
        before, now = str(record["path"]), str(locate(record, folder))
        if now != before:
            result = {name: _moved(value, before, now) for name, value in result.items()}
    return result


def locate(record: Mapping[str, Any], folder: Path) -> Path:
    """Return where an input of a run in `folder` lies now; where it was if it is nowhere."""
    path = Path(record["path"])
    if not path.exists() and record.get("relative"):
        near = Path(os.path.normpath(folder / record["relative"]))
        return near if near.exists() else path
    return path


def changes(records: Iterable[Mapping[str, Any]], folder: Path) -> list[str]:
    """Describe, in a line each, the inputs that are missing or no longer what they were.

    Args:
        records: as `run.json` has them.
        folder: of the run.
    """
    return [line for record in records if (line := _change(record, folder))]


def refreshed(records: Iterable[Mapping[str, Any]], folder: Path) -> list[dict[str, Any]]:
    """Return the records of inputs as these are now; of one that is missing as it was."""
    result: list[dict[str, Any]] = []
    for record in records:
        path = locate(record, folder)
        result.append(dict(record))
        if path.exists():
            now = Input.of(record["name"], path, fills=record.get("fills", ""), at_start=bool(record.get("at_start")))
            result[-1] = now.record(folder)
    return result


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, or of the names and bytes of all files in a folder.

    Of a run only what was trained counts: its configuration, its newest checkpoint and its own inputs.

    Raises:
        OSError: something cannot be read.
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
    """Return what changes when a file, or one in a folder, is written to: a digest of names, sizes and times.

    As long as it is the same, nothing needs to be read.
    """
    hashed = hashlib.sha256()
    for file in _files(path) if path.is_dir() else [path]:
        status = file.stat()
        hashed.update(f"{file.name}\n{status.st_size} {status.st_mtime_ns}\n".encode())
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
    return f"{name} {path} is no longer what it was"


def _files(folder: Path) -> list[Path]:
    """Return the files in a folder that tell what it is, in order; of a run those of its newest checkpoint."""
    if (folder / "config.toml").is_file() and (folder / "checkpoints").is_dir():
        manifests = sorted((folder / "checkpoints").glob("step_*/manifest.json"))
        return [folder / "config.toml", *manifests[-1:]]
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    plain = [path for path in paths if not any(part[:1] == "." or part == "__pycache__" for part in path.parts)]
    return [path for path in map(folder.joinpath, sorted(plain)) if path.is_file()]


def _inputs_of(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the inputs that a run needs whenever it is used; of anything else nothing."""
    if (path / "config.toml").is_file():
        listed = (record for record in records_of(path) if record["name"] not in TRAINING_ONLY)
        yield from (record for record in listed if not record.get("at_start"))


def _absolute(text: str) -> tuple[str, Path | None]:
    """Return a text with an absolute path in place of a relative one, and the path; None where nothing is there."""
    path = Path(text).expanduser()
    try:
        exists = path.exists()
    except (OSError, ValueError):  # of what cannot be a name
        exists = False
    if not exists:
        return text, None
    whole = os.path.abspath(path)  # noqa: PTH100 - links stay: what they lead to may change
    return whole, Path(whole)


def _of_function(text: str) -> tuple[str, Path | None]:
    """Return what `_absolute` does, of the file in `file.py:function`."""
    match = _FUNCTION.fullmatch(text)
    if match is None:
        return text, None
    file, path = _absolute(match["file"])
    return file + match["function"], path


def _moved(value: Any, before: str, now: str) -> Any:
    if isinstance(value, list):
        return [_moved(item, before, now) for item in cast(list[Any], value)]
    if isinstance(value, str) and (value == before or value.startswith(f"{before}:")):
        return now + value[len(before) :]
    return value


def _relative(path: Path, folder: Path) -> str:
    """Return a path as seen from a folder; empty where there is no way."""
    try:
        return Path(os.path.relpath(path, folder)).as_posix()
    except ValueError:  # of another drive
        return ""
