"""States under names, written completely or not at all: `write_state`, `read_state`."""

import re
import shutil
from pathlib import Path

from operant.runtime.checkpoints import Checkpoints, NonFiniteError, load, non_finite
from operant.runtime.encoding import flatten
from operant.state import State

_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,127}")


def checked_name(name: str) -> str:
    """Return the name of a state if it is a valid folder name.

    Args:
        name: name.

    Raises:
        ValueError: the name is not valid.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no valid name; use letters, digits, '.', '_' and '-', such as 'step-10'")
    return name


def folder_of(target: Path) -> Path:
    """Return the folder with the state: `target`, or the earlier one if a crash interrupted its replacement.

    Args:
        target: folder that `write_state` wrote.
    """
    old = target.parent / f".{target.name}.old"
    return old if old.exists() and not target.exists() else target


def write_state(target: Path, state: State, steps: int = 0, *, overwrite: bool = False) -> None:
    """Write a state to a folder. An earlier state is replaced only after the new one is complete.

    Args:
        target: folder of the state.
        state: state.
        steps: number of optimizer steps so far.
        overwrite: whether to replace an earlier state.

    Raises:
        NonFiniteError: a tensor has NaN or Inf; nothing was written.
        ValueError: the name is not a valid folder name, or the folder exists and `overwrite` is false.
    """
    checked_name(target.name)
    new, old = (target.parent / f".{target.name}.{kind}" for kind in ("new", "old"))
    if folder_of(target) == old:
        old.rename(target)
    if target.exists() and not overwrite:
        raise ValueError(f"{target} already exists; save the state under another name, or pass overwrite=True")
    if fault := non_finite(flatten(state)[1]):
        raise NonFiniteError(
            f"{fault}: nothing was saved, and an earlier state {target.name!r}, if any, is unchanged; load an earlier "
            "state, and lower the learning rate"
        )
    for leftover in (new, old):
        shutil.rmtree(leftover, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        Checkpoints(new).save(state, steps)
        if target.exists():
            target.rename(old)
        new.rename(target)
    except BaseException:
        if folder_of(target) == old:
            old.rename(target)
        shutil.rmtree(new, ignore_errors=True)
        raise
    shutil.rmtree(old, ignore_errors=True)


def read_state(path: Path) -> State:
    """Return the state in a folder.

    Args:
        path: folder that `write_state` wrote.

    Raises:
        ValueError: there is no such state.
    """
    folder = folder_of(path)
    found = Checkpoints(folder).latest() if folder.is_dir() else None
    if found is None:
        raise ValueError(f"{path} has no saved state; pass a path from save_state")
    return load(found[0])
