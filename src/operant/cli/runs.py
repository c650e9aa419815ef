"""`operant runs`: list and manage runs."""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import tyro

from operant.cli.answers import visible
from operant.cli.arguments import Answering, parse
from operant.cli.output import number, print_json, say, table, width
from operant.runtime.run_paths import RunError, is_run, location
from operant.runtime.sizes import readable

if TYPE_CHECKING:
    from operant.runtime.run import Run
    from operant.runtime.run_folders import Entry

T = TypeVar("T")

_ORDERS = ("name", "score", "size", "age")
_LEAST_CELL = 10
"""Minimum number of characters of a name on a narrow terminal."""


@dataclass(frozen=True)
class ListOptions(Answering):
    """List the runs in a folder: task, progress, score, size and age."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Folder of the runs."""

    sort: str = "name"
    """Order: name, score (best first), size (largest first) or age (newest first)."""

    def __post_init__(self) -> None:
        if self.sort not in _ORDERS:
            raise ValueError(f"--sort must be one of {', '.join(_ORDERS)}, got {self.sort!r}")


@dataclass(frozen=True)
class RenameOptions(Answering):
    """Rename a run within its folder."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    name: tyro.conf.Positional[str]
    """New name."""


@dataclass(frozen=True)
class DeleteOptions(Answering):
    """Delete runs with all their files, after confirmation."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of the runs."""

    yes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Delete without confirmation."""


@dataclass(frozen=True)
class MergeOptions(Answering):
    """Merge runs with the same configuration and different seeds into one, for comparisons and plots."""

    folder: tyro.conf.Positional[Path]
    """Folder of the merged run."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of the runs."""


@dataclass(frozen=True)
class CleanOptions(Answering):
    """Delete all but the newest valid checkpoint of runs, quarantined files, and temporary files of killed processes.

    Checkpoints of the training history (history/) are deleted, too, and what interrupted deletions of runs left in the
    same folder.
    """

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of the runs."""


def runs(arguments: list[str]) -> int:
    """List runs, or manage some of them."""
    word, rest = (arguments[0], arguments[1:]) if arguments and arguments[0] in _COMMANDS else ("list", arguments)
    return _COMMANDS[word](rest)


def _list(arguments: list[str]) -> int:
    note = (
        f"{ListOptions.__doc__}\n\nOther commands manage runs: operant runs show RUN, rename RUN NAME, "
        "delete RUN..., merge FOLDER RUN RUN..., clean RUN...; each has its own --help."
    )
    options = parse(ListOptions, arguments, "runs", description=note)
    from operant.runtime.run_folders import entries as entries_in

    if not options.folder.is_dir():
        raise ValueError(f"there is no folder {options.folder}; pass the folder of your runs")
    _require_folder_of_runs(options.folder)
    found, faults = entries_in(options.folder)
    for fault in faults:
        say(f"operant: warning: {fault}")
    entries = sorted(found, key=_order(options.sort))
    if options.json:
        print_json({"folder": str(options.folder.resolve()), "runs": [_record(entry) for entry in entries]})
    elif not entries:
        print(f"There is no run in {location(options.folder)} yet{_elsewhere(options.folder)}.")
    else:
        piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
        print(listing(entries, datetime.now(UTC), columns=None if piped else width()))
    return 0


def _elsewhere(folder: Path) -> str:
    """Return which folders of sweeps and studies in a folder of runs contain runs."""
    inside = [f"`operant runs {location(path)}`" for part in ("runs", "trials") for path in folder.glob(f"*/{part}")]
    return f"; sweeps and studies list theirs: {', '.join(sorted(inside))}" if inside else ""


def _require_folder_of_runs(folder: Path) -> None:
    """Check that a folder is not itself a run, a sweep or a study.

    Raises:
        ValueError: it is one; the message says what to list instead.
    """
    place = location(folder)
    if is_run(folder):
        raise ValueError(f"{place} is a run, not a folder of runs: use `operant runs show {place}`")
    if (folder / "sweep.toml").is_file():
        raise ValueError(f"{place} is a sweep: use `operant runs {location(folder / 'runs')}`")
    if (folder / "study.toml").is_file():
        raise ValueError(f"{place} is a study: use `operant runs {location(folder / 'trials')}`")


def listing(entries: "Sequence[Entry]", now: datetime, *, columns: int | None) -> str:
    """Return a table of runs that fits the terminal: long tasks, algorithms and names are shortened in the middle.

    Args:
        entries: runs to list.
        now: current time, from which ages are computed.
        columns: width of the terminal; None: unlimited.
    """
    heading = ["run", "algorithm", "task", "state", "score", "used", "size", "age"]
    rows = [
        [
            entry.path.name,
            entry.algorithm,
            entry.task,
            entry.state,
            "" if entry.score is None else number(entry.score),
            f"{100 * min(1, entry.consumed / entry.budget):.0f} %",
            readable(entry.bytes),
            age((now - entry.changed).total_seconds()),
        ]
        for entry in entries
    ]
    rows = [[visible(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    for column in (2, 1, 0):  # shorten names last, since they are typed
        over = 0 if columns is None else sum(widths) + 2 * (len(widths) - 1) - columns
        widths[column] = max(min(widths[column], _LEAST_CELL), widths[column] - max(0, over))
        for row in rows:
            row[column] = _cut(row[column], widths[column])
    return table([heading, *rows], "<<<<>>>>")


def age(seconds: float) -> str:
    """Return a duration in its largest suitable unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{max(0, seconds):.0f} s"


def _rename(arguments: list[str]) -> int:
    options = parse(RenameOptions, arguments, "runs rename")
    from operant.runtime.run_folders import rename, users_of

    run = _open(options.run)
    needed = users_of(run)
    target = rename(run, options.name)
    for user in needed:
        say(f"operant: warning: {location(user)} was initialized from {run.path.name} and refers to its old name")
    if options.json:
        print_json({"run": str(target)})
    else:
        print(location(target))
    return 0


def _delete(arguments: list[str]) -> int:
    options = parse(DeleteOptions, arguments, "runs delete")
    from operant.runtime.run_folders import delete, inputs_in, opened, size, users_of

    doomed = _all(options.runs, opened)
    sizes = {run.path: size(run) for run in doomed}
    inputs = {folder: inputs_in(folder) for folder in {run.path.parent for run in doomed}}
    for run in doomed:
        for user in users_of(run, inputs[run.path.parent]):
            say(f"operant: warning: {location(user)} was initialized from {run.path.name} and needs it")
    names, total = ", ".join(path.name for path in sizes), readable(sum(sizes.values()))
    if not options.yes and not _confirmed(f"Delete {names} ({total})?"):
        say("operant: nothing was deleted")
        return 1
    deleted, failed = _changed(doomed, delete)
    if options.json:
        print_json({"deleted": [str(path) for path in deleted], "failed": failed})
    elif deleted:
        print(f"deleted: {', '.join(path.name for path in deleted)} ({readable(sum(map(sizes.__getitem__, deleted)))})")
    return int(bool(failed))


def _merge(arguments: list[str]) -> int:
    options = parse(MergeOptions, arguments, "runs merge")
    from operant.runtime.run_folders import merge

    merged = merge([_open(path) for path in options.runs], options.folder, ["operant", "runs", "merge", *arguments])
    if options.json:
        print_json({"run": str(merged.path), "seeds": merged.settings.seeds})
    else:
        print(f"{location(merged.path)} has the evaluations of {len(merged.settings.seeds)} seeds")
    return 0


def _clean(arguments: list[str]) -> int:
    options = parse(CleanOptions, arguments, "runs clean")
    from operant.runtime.run_folders import prune, remove_deleted

    found = _all(options.runs)
    freed, failed = _changed(found, prune)
    for folder in {run.path.parent: None for run in found}:
        freed |= remove_deleted(folder)
    if options.json:
        print_json({"freed": {str(path): count for path, count in freed.items()}, "failed": failed})
    elif freed:
        print("\n".join(f"{location(path)}: {readable(count)} freed" for path, count in freed.items()))
    return int(bool(failed))


def _show(arguments: list[str]) -> int:
    from operant.cli.showing import show

    return show(arguments)


_COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "list": _list,
    "show": _show,
    "rename": _rename,
    "delete": _delete,
    "merge": _merge,
    "clean": _clean,
}


def _open(path: Path, opened: "Callable[[Path], Run] | None" = None) -> "Run":
    from operant.runtime.run import Run

    if path.is_symlink():
        raise ValueError(f"{path} is a link to {path.resolve()}: use that folder")
    return (opened or Run.open)(path)


def _all(paths: Sequence[Path], opened: "Callable[[Path], Run] | None" = None) -> "list[Run]":
    """Open one or more runs, each once."""
    if not paths:
        raise ValueError("pass one or more runs, such as runs/ppo-CartPole-v1-1")
    return list({run.path: run for run in (_open(path, opened) for path in paths)}.values())


def _changed(found: "Sequence[Run]", change: "Callable[[Run], T]") -> tuple[dict[Path, T], dict[str, str]]:
    """Change runs, after all of them are locked; the failure of one is reported, and does not stop the others.

    Returns:
        The results by run, and the errors of the runs that could not be changed.
    """
    from operant.runtime.checkpoints import CheckpointError
    from operant.runtime.run_folders import locked

    results: dict[Path, T] = {}
    failed: dict[str, str] = {}
    with locked(found):
        for run in found:
            try:
                results[run.path] = change(run)
            except (CheckpointError, OSError, RunError) as error:
                failed[str(run.path)] = str(error)
                say(f"operant: error: {error}")
    return results, failed


def _confirmed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise ValueError(f"{question} There is no terminal for confirmation: pass --yes")
    say(f"{question} [y/N]")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _order(by: str) -> Callable[["Entry"], Any]:
    orders: dict[str, Callable[[Entry], Any]] = {
        "name": lambda entry: entry.path.name,
        "score": lambda entry: (entry.score is None or entry.score != entry.score, -(entry.score or 0.0)),
        "size": lambda entry: -entry.bytes,
        "age": lambda entry: -entry.changed.timestamp(),
    }
    return orders[by]


def _record(entry: "Entry") -> dict[str, Any]:
    return entry._asdict() | {"path": str(entry.path), "changed": entry.changed.isoformat()}


def _cut(text: str, length: int) -> str:
    """Shorten a long text in the middle, since names of runs end with a number."""
    if len(text) <= length:
        return text
    left = (length - 1) // 2
    return f"{text[:left]}…{text[len(text) - (length - 1 - left) :]}"
