"""How the folders of runs are named, and the errors that name them."""

import re
from pathlib import Path

from operant import doors

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class RunError(Exception):
    """A run cannot be made, opened or trained; the message says why and what to do."""


class TakenError(RunError):
    """There is something in the folder that a new run was to have."""


def default_run_path(algorithm: str, task: str, root: str | Path = "runs") -> Path:
    """Return `<root>/<algorithm>-<task>-<n>` with the first `n` from 1 that is free."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{doors.label(algorithm)}-{doors.label(task)}").strip("-.")[:100]
    n = 1
    while (path := Path(root) / f"{stem}-{n}").exists():
        n += 1
    return path


def absolute(path: str | Path) -> Path:
    """Return a path without links and shortcuts, from the root on.

    Raises:
        RunError: it can be none.
    """
    try:
        return Path(path).expanduser().resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise RunError(f"{str(path)!r} is not a path: {error}") from error


def check_name(path: Path) -> None:
    """Make sure that the last part of a path can be the name of a run.

    Raises:
        RunError: it cannot.
    """
    if not _NAME.fullmatch(path.name):
        raise RunError(
            f"{path.name!r} is not a name for a run: use 1 to 128 letters, digits, '.', '_' and '-', "
            "and begin with a letter, a digit or '_'"
        )
