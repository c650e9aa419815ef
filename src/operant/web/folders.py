"""Folders of runs and saved models by name.

Names are paths relative to the folder of runs. They are looked up part by part; paths that lead outside, such as
through symbolic links, do not exist.
"""

import os
import re
from collections.abc import Iterator, Sequence
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
    """Yield names of folders that contain one of `files`; folders below a found one are skipped."""
    count, level = 0, [""]
    for _ in range(DEPTH):
        below: list[str] = []
        for parent in level:
            try:
                entries = sorted(os.scandir(runs / parent), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                if not NAME.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                    continue
                name = f"{parent}/{entry.name}" if parent else entry.name
                if not any((runs / name / file).is_file() for file in files):
                    if not (runs / name / RUN[0]).is_file():
                        below.append(name)
                    continue
                yield name
                count += 1
                if count >= MOST_RUNS:
                    return
        level = below


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
