"""Names of run folders, for a shell too, and errors about them."""

import difflib
import re
import shlex
from pathlib import Path

from operant import doors
from operant.errors import ExplainedError

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class RunError(ExplainedError):
    """A run cannot be created, opened or trained; the message contains the reason and a solution."""


class TakenError(RunError):
    """The folder for a new run is not empty."""


def shown_path(path: Path) -> str:
    """Return a path for display: relative if it is in the working directory."""
    path = path.resolve()
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def location(path: Path) -> str:
    """Return a path for use in a shell: as `shown_path`, quoted if needed."""
    return shlex.quote(shown_path(path))


def nearest_run(path: Path, root: Path = Path("runs")) -> Path | None:
    """Return the run in `root` with the most similar name to a path that is not a run; None without a similar one."""
    names = [found.parent.name for found in root.glob("*/config.toml")]
    near = difflib.get_close_matches(path.name.lower(), [name.lower() for name in names], 1)
    return next((root / name for name in names if name.lower() == near[0]), None) if near else None


def is_run(path: Path) -> bool:
    """Return whether a folder contains a run; False if the folder cannot be read, such as `lost+found`."""
    try:
        return (path / "config.toml").is_file()
    except OSError:
        return False


def no_run(path: Path, error: OSError) -> str:
    """Describe why an absolute path is not the folder of a run, and which folder may have been meant.

    Args:
        path: the path.
        error: of reading its config.toml.
    """
    if isinstance(error, PermissionError):
        return f"config.toml: {error.strerror}"
    near = nearest_run(path)
    hint = "" if near is None or near.resolve() == path else f"; did you mean {near}?"
    if path.exists() and (around := next(filter(is_run, path.parents), None)):
        best = ", with --best, in Python best=True" if path.name == "best" else ""
        return f"it is a part of the run {around}, use that folder{best}"
    if not path.is_dir():
        return "it is a file" if path.exists() else f"there is no such folder{hint}"
    if inside := sorted(file.parent.name for file in path.glob("*/config.toml")):
        return f"it contains runs, use one of them: {', '.join(inside[:5])}{', ...' if len(inside) > 5 else ''}"
    if any((path / name).is_file() for name in ("config.json", "adapter_config.json")):
        return "it contains a model and no run: train from it with --model"
    return f"config.toml: {error.strerror}{hint}"


def default_run_path(algorithm: str, task: str, root: str | Path = "runs") -> Path:
    """Return `<root>/<algorithm>-<task>-<n>` with the first `n` from 1 that is free."""
    stem = as_name(f"{doors.label(algorithm)}-{doors.label(task)}")[:100]
    n = 1
    while (path := Path(root) / f"{stem}-{n}").exists():
        n += 1
    return path


def absolute(path: str | Path) -> Path:
    """Return an absolute path with links resolved.

    Raises:
        RunError: the argument is empty or not a valid path.
    """
    if path == "":
        raise RunError("'' is not a path: pass a folder, or omit it for the default; '.' is the working folder")
    try:
        return Path(path).expanduser().resolve()
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise RunError(f"{str(path)!r} is not a path: {error}") from error


def as_name(text: str) -> str:
    """Return a text with "-" for everything that a name of a run cannot have; it may still be empty or too long."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")


def check_name(path: Path) -> None:
    """Check that the last part of a path is a valid name of a run.

    Raises:
        RunError: the name is invalid.
    """
    if not _NAME.fullmatch(path.name):
        raise RunError(
            f"{path.name!r} is not a valid name for a run: use 1 to 128 letters, digits, '.', '_' and '-', "
            "and start with a letter, a digit or '_'"
        )


def require_new(path: str | Path) -> None:
    """Check that a path can be that of a new run, before anything is loaded for it; `Run.create` checks it again.

    Raises:
        RunError: the name is invalid, or there is a file or a folder that is not empty (`TakenError`).
    """
    path = absolute(path)
    check_name(path)
    try:
        if next(path.iterdir(), None) is not None:
            raise taken(path)
    except NotADirectoryError as error:
        raise RunError(f"{path} is a file: choose another folder with --run") from error
    except OSError:  # there is no such folder yet, or it cannot be read
        return


def taken(path: Path) -> TakenError:
    """Return the error about the folder of a new run that is not empty."""
    resume = f"continue it with `operant resume {shlex.quote(str(path))}`, or " if is_run(path) else ""
    return TakenError(f"{path} already exists and is not empty: {resume}choose another folder with --run")
