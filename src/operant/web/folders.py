"""Folders of runs and saved models by name.

Names are paths relative to the folder of runs. They are looked up part by part; paths that lead outside, such as
through symbolic links, do not exist.
"""

import os
import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

from operant.web.workers import NotFoundError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
"""Pattern of names of folders with a run or with runs."""
DEPTH = 3
"""Maximum number of parent folders of a run, including the folder of runs."""
MOST_RUNS = 20_000
RUN = ("config.toml",)
"""Files that identify the folder of a run."""


def names_of(runs: Path, files: Sequence[str] = RUN) -> Iterator[str]:
    """Yield names of folders that contain one of `files`; folders below a found one are skipped.

    They lead to folders inside of `runs`, which may be deleted at any time.
    """
    return islice(chain.from_iterable(found for _, found in _levels(runs, files)), MOST_RUNS)


def searched(runs: Path) -> Iterator[str]:
    """Yield the names of the folders in which `names_of` searches runs, the first of which is empty: `runs` itself.

    Adding or deleting the folder of a run changes the modification time of one of them.
    """
    return (parent for parent, _ in _levels(runs, RUN))


def _levels(runs: Path, files: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield folders without a run, level by level, with the names of the folders in each that have one of `files`."""
    level = [""]
    for _ in range(DEPTH):
        below: list[str] = []
        for parent in level:
            found: list[str] = []
            for name in _folders_in(runs, parent):
                if any((runs / name / file).is_file() for file in files):
                    found.append(name)
                elif not (runs / name / RUN[0]).is_file():
                    below.append(name)
            yield parent, found
        level = below


def _folders_in(runs: Path, parent: str) -> list[str]:
    """Return the sorted names of folders in a folder, relative to that of the runs."""
    try:
        entries = sorted(os.scandir(runs / parent), key=lambda entry: entry.name)
    except OSError:
        return []
    names = [entry.name for entry in entries if NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
    return [f"{parent}/{name}" if parent else name for name in names]


def hidden_in(runs: Path) -> dict[str, str]:
    """Return the runs directly in the folder of runs that `names_of` leaves out, and why."""
    try:
        entries = sorted(os.scandir(runs), key=lambda entry: entry.name)
    except OSError:
        return {}
    return {
        entry.name: "it is a symbolic link" if NAME.fullmatch(entry.name) else "its name has other characters"
        for entry in entries
        if not (NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False))
        and not entry.name.startswith(".")
        and (Path(entry.path) / RUN[0]).is_file()
    }


def folder_of(runs: Path, name: object, files: Sequence[str] = RUN) -> Path:
    """Return the folder of a run, or another folder that contains one of `files`.

    Raises:
        NotFoundError: the name does not exist in the folder of runs.
    """
    parts = name.split("/") if isinstance(name, str) else []
    missing = NotFoundError(f"there is no run {name!r}")
    if not 1 <= len(parts) <= DEPTH or not all(NAME.fullmatch(part) for part in parts):
        raise missing
    path = runs.joinpath(*parts)
    inside = path.resolve().is_relative_to(runs.resolve()) and not path.is_symlink()
    if not inside or not any((path / file).is_file() for file in files):
        raise missing
    return path
