"""Operations on many runs: listing, renaming, deleting, merging and pruning.

No function here changes a run that another process trains.
"""

import contextlib
import os
import shutil
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from operant import catalog
from operant.runtime import locks, sessions
from operant.runtime.checkpoints import consumed_of
from operant.runtime.comparison import different_settings, evaluations
from operant.runtime.evaluation import Evaluation
from operant.runtime.inputs import records_of
from operant.runtime.metrics import RecordWriter
from operant.runtime.run import Run, RunError
from operant.runtime.run_paths import TakenError, absolute, check_name, is_run, location
from operant.runtime.settings import Settings

RUNNING = "running"
"""State of a run that another process is training; otherwise the state is the outcome of the last session."""

_PARTS = ("config.toml", "run.json", "checkpoints", "history", "eval", "media")
"""Files and folders of which at least one is in the rest of a deleted run."""


class Entry(NamedTuple):
    """Entry in a list of runs.

    Attributes:
        path: folder of the run.
        algorithm: name of the algorithm in the catalog.
        task: name of the task.
        seeds: seeds of the run.
        state: running, merged, or the outcome of the last session.
        score: mean score of the last evaluation; None without one.
        consumed: budget used by each seed, according to checkpoints and evaluations.
        budget: budget of each seed.
        unit: unit of the budget.
        bytes: size of all files.
        changed: time when training last started or ended.
    """

    path: Path
    algorithm: str
    task: str
    seeds: tuple[int, ...]
    state: str
    score: float | None
    consumed: int
    budget: int
    unit: str
    bytes: int
    changed: datetime


@contextlib.contextmanager
def _listed(path: Path, faults: list[str]) -> Generator[None]:
    """Return a context manager that adds errors of a run to `faults`: one damaged run must not hide the others."""
    try:
        yield
    except RunError as error:
        faults.append(str(error))
    except Exception as error:
        faults.append(f"{path} cannot be listed: {error if isinstance(error, ValueError | OSError) else repr(error)}")


def entries(root: Path) -> tuple[list[Entry], list[str]]:
    """Return the list entries of the runs in a folder, ordered by name, and the errors of those that cannot be read."""
    found: list[Entry] = []
    faults: list[str] = []
    for path in _folders(root):
        with _listed(path, faults):
            found.append(entry_of(Run.open(path))._replace(path=path))  # a link has another name than its run
    return found, faults


def _folders(root: Path) -> list[Path]:
    """Return the folders in a folder, or links to folders, that contain a run."""
    return [path for path in sorted(root.resolve().iterdir()) if not path.name.startswith(".") and is_run(path)]


def entry_of(run: Run) -> Entry:
    """Return the list entry of a run.

    Raises:
        RunError: its `run.json` or its evaluations are damaged.
        OSError: a file cannot be read.
        ValueError: the algorithm is unknown.
    """
    facts, settings, scored = run.facts(), run.settings, evaluations(run)
    steps = [consumed_of(path) for path in run.checkpoints.paths()]
    last: dict[str, Any] = facts["sessions"][-1] if facts["sessions"] else {}
    state = sessions.MERGED if sessions.MERGED in facts["resolved"] else sessions.described(facts["sessions"])[0]
    if state == sessions.UNFINISHED and is_held(run):
        state = RUNNING
    return Entry(
        path=run.path,
        algorithm=settings.algorithm,
        task=settings.task,
        seeds=settings.seeds,
        state=state,
        score=scored[-1][1].mean if scored else None,
        consumed=max([0, *steps, *(consumed for consumed, _ in scored)]),
        budget=settings.budget,
        unit=run.entry.unit,
        bytes=size(run),
        changed=_time(str(last.get("ended") or last.get("started") or "")),
    )


def size(run: Run) -> int:
    """Return the size of all files of a run in bytes, without those that training removes meanwhile."""
    return _bytes(run.path)


def _bytes(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):  # in contrast to `Path.rglob`, it skips folders that have disappeared
        for name in names:
            with contextlib.suppress(OSError):
                total += Path(folder, name).lstat().st_size
    return total


def is_held(run: Run) -> bool:
    """Return whether another process is training a run."""
    try:
        return locks.is_held(run.path)
    except OSError:
        return False  # a folder without write access is not trained either


Inputs = Sequence[tuple[Path, Sequence[Mapping[str, Any]]]]
"""Runs with the records of their inputs."""


def inputs_in(root: Path) -> Inputs:
    """Return the inputs of all runs in a folder."""
    return [(path, records_of(path)) for path in sorted(root.iterdir()) if path.is_dir()]


def users_of(run: Run, inputs: Inputs | None = None) -> list[Path]:
    """Return the runs in the same folder that use a run as initial model or reward model.

    Args:
        run: the run.
        inputs: `inputs_in` the folder, if already read.
    """
    others = inputs_in(run.path.parent) if inputs is None else inputs
    return [
        path for path, records in others if path != run.path and any(_needs(path, one, run.path) for one in records)
    ]


def rename(run: Run, name: str) -> Path:
    """Rename a run, and return its new folder.

    Raises:
        RunError: another process is training the run, the name is invalid or taken, or the folder cannot be renamed.
    """
    target = run.path.parent / name
    check_name(target)
    if Path(name).name != name:
        raise RunError(
            f"{name} is a path: a renamed run stays in its folder; give {run.path.name} a name without a slash"
        )
    if target.exists():
        raise RunError(f"{target} already exists: choose another name for {run.path.name}")
    try:
        return _moved(run, target)
    except OSError as error:
        raise RunError(f"{run.path} cannot be renamed: {error.strerror}") from error


def opened(path: Path) -> Run:
    """Open a run to delete it. One whose `config.toml` is damaged has no settings.

    Raises:
        RunError: the folder contains no run.
    """
    try:
        return Run.open(path)
    except RunError:
        if not is_run(path):
            raise
        return Run(absolute(path), Settings(algorithm="unknown", task="unknown", seeds=(0,)), {})


@contextlib.contextmanager
def locked(runs: Sequence[Run]) -> Generator[None]:
    """Lock several runs, before any of them is changed.

    On Windows, which cannot rename a locked folder, all locks are acquired and released again.

    Raises:
        RunError: another process is training one of them.
    """
    with contextlib.ExitStack() as stack:
        for run in runs:
            stack.enter_context(run.lock())
        if os.name == "nt":
            stack.close()
        yield


def delete(run: Run) -> None:
    """Delete a run with all its files; a partially deleted run is never used.

    Raises:
        RunError: another process is training the run, or it cannot be deleted.
    """
    doomed = run.path.with_name(f".{run.path.name}.removed")
    try:
        shutil.rmtree(doomed, ignore_errors=True)
        shutil.rmtree(_moved(run, doomed))
    except OSError as error:
        raise RunError(f"{run.path} cannot be deleted: {error.strerror}") from error


def remove_deleted(root: Path) -> dict[Path, int]:
    """Remove runs in a folder whose deletion was interrupted, and return the bytes freed by path."""
    freed: dict[Path, int] = {}
    for path in sorted(root.glob(".*.removed")):
        if not path.is_symlink() and any((path / part).exists() for part in _PARTS):
            before = _bytes(path)
            shutil.rmtree(path, ignore_errors=True)
            freed[path] = before - _bytes(path)
    return freed


def prune(run: Run) -> int:
    """Delete all checkpoints of a run except the latest valid one, its history, and quarantined and temporary files.

    The history of a run without checkpoints is kept, as the only copy of its state.

    Returns:
        The bytes freed.

    Raises:
        RunError: another process is training the run.
        CheckpointError: the run has checkpoints, and all are damaged.
    """
    before = size(run)
    with run.lock():
        run.clean()
        if run.checkpoints.latest() is not None:
            run.checkpoints.prune()
            run.history.drop()
    return before - size(run)


def merge(runs: Sequence[Run], path: Path, command: Sequence[str] = ()) -> Run:
    """Merge the evaluations of runs of one configuration and different seeds into one run.

    The merged run is for comparisons and plots: it has no checkpoints and no metrics, and lists the source runs.

    Raises:
        RunError: the runs differ in more than their seeds, share seeds, have not used their budget, or were evaluated
            at different budgets; or the folder cannot be created.
    """
    if len(runs) < 2:
        raise RunError(f"merging takes at least two runs, got {len(runs)}")
    differing = {name: values for name, values in different_settings(runs).items() if name != "callbacks"}
    if differing:
        name, values = next(iter(differing.items()))
        pairs = ", ".join(f"{value!r} in {run.path.name}" for run, value in zip(runs, values, strict=True))
        raise RunError(f"these runs have different configurations: {name} is {pairs}; use `operant compare` instead")
    seeds = tuple(seed for run in runs for seed in run.settings.seeds)
    if twice := sorted({seed for seed in seeds if seeds.count(seed) > 1}):
        raise RunError(f"seed {twice[0]} is in several of these runs: train runs with different seeds")
    tables = [dict(evaluations(run)) for run in runs]
    points = [sorted(table) for table in tables]
    budget = runs[0].settings.budget
    unfinished = [run for run, own in zip(runs, points, strict=True) if max(own, default=0) < budget]
    if unfinished:
        raise RunError(
            f"not yet evaluated at their budget of {budget}: {', '.join(run.path.name for run in unfinished)}; before "
            f"merging, run {' and '.join(f'`operant resume {location(run.path)}`' for run in unfinished)}"
        )
    if any(own != points[0] for own in points):
        raise RunError(
            "these runs were not evaluated at the same budgets: "
            + "; ".join(f"{run.path.name} {len(own)} times" for run, own in zip(runs, points, strict=True))
        )
    entry = runs[0].entry
    config = runs[0].config(entry.config_class)
    settings = replace(runs[0].settings, seeds=seeds)
    facts = {**runs[0].resolved(), sessions.MERGED: ", ".join(str(run.path) for run in runs)}
    outside = None if entry in catalog.ALGORITHMS else entry
    try:
        whole = Run.create(path, settings, config, command=command, resolved=facts, outside=outside)
    except TakenError as error:
        raise TakenError(f"{path} already exists and is not empty: merge the runs into another folder") from error
    writer = RecordWriter(whole.evaluations_path)
    try:
        for consumed in points[0]:
            writer.write({"consumed": consumed, **_together([table[consumed] for table in tables]).record()})
        writer.sync()
    finally:
        writer.close()
    whole.end_session(sessions.FINISHED, points[0][-1])
    return whole


def _together(parts: Sequence[Evaluation]) -> Evaluation:
    """Merge evaluations of different seeds."""
    metrics = [
        {name: values[place] for name, values in part.metrics.items()}
        for part in parts
        for place in range(len(part.scores))
    ]
    found = Evaluation.of(
        np.concatenate([part.episode_scores for part in parts]),
        _joined([part.lengths for part in parts]),
        cut=_joined([part.cut for part in parts]),
        exact=all(part.exact for part in parts),
        metrics=metrics,
        optional=all(part.missing for part in parts),
    )
    names = [name for name in parts[0].infos if all(name in part.infos for part in parts)]
    return replace(
        found,
        success_rate=_joined([part.success_rate for part in parts]),
        infos={name: _joined([part.infos[name] for part in parts]) for name in names},
    )


def _joined(parts: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    """Concatenate the values of all seeds; empty if some are missing."""
    return tuple(value for part in parts for value in part) if all(parts) else ()


def _needs(user: Path, record: Mapping[str, Any], path: Path) -> bool:
    """Return whether an input of the run `user` is in the folder `path`: as recorded, or moved together with both."""
    if record.get("at_start"):
        return False
    near = [user / record["relative"]] if record.get("relative") else []
    places = [Path(os.path.realpath(place)) for place in (record["path"], *near)]  # records keep links
    return any(place == path or path in place.parents for place in places)


def _moved(run: Run, target: Path) -> Path:
    """Rename the folder of a run while no other process can begin to train it."""
    with run.lock():
        if os.name != "nt":
            (run.path / locks.HOLDER).unlink(missing_ok=True)
            return run.path.rename(target)
    return run.path.rename(target)  # Windows cannot rename a folder with an open file, as the lock is


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)
