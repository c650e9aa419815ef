"""Sweeps over algorithms, tasks and values of hyperparameters, on the cores of a machine or a cluster: `Sweep`.

A sweep is a folder: `sweep.toml` contains the grid, `cells` a configuration file per cell, and `runs` their runs. A
cell is the command `operant train ... --config cells/NAME.toml --run runs/NAME`, so its results have the same bytes as
those of that command, however many cells run in parallel. Cells are idempotent: existing runs are resumed, finished
ones are skipped, and a cell that ends with exit status 75, "stopped and saved", is repeated.
"""

import itertools
import logging
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import tomli_w

from operant import hosts
from operant.envs import EnvError
from operant.runtime import locks
from operant.runtime.files import meant, replace_durably
from operant.runtime.run import Run, RunError
from operant.runtime.run_paths import as_name, location
from operant.runtime.sessions import FINISHED
from operant.runtime.settings import counted_seeds
from operant.runtime.signals import EXIT_REQUEUE
from operant.scale.cell import PARENT, RemoteCell
from operant.texts import read_toml

logger = logging.getLogger(__name__)

WAIT = 0.1
"""Seconds between two checks of the processes."""

Execute = Callable[[Sequence[str]], int]
"""Function that runs a command, given the arguments after `operant`, and returns its exit status."""


class Process(Protocol):
    """Protocol of the running process of a cell, a subset of `subprocess.Popen`."""

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        ...

    def wait(self) -> int:
        """Wait for the process and return its exit status."""
        ...

    def terminate(self) -> None:
        """Request the process to save its state and end."""
        ...


@dataclass(frozen=True)
class Grid:
    """Grid of a sweep.

    Attributes:
        algorithms: names of the algorithms.
        tasks: names of the tasks.
        seeds: seeds of every cell.
        values: values of each varied field of the algorithm's configuration.
        settings: fields of the settings that all cells share, such as the budget.
        config: fields of the configuration that all cells share.
        preset: preset of all cells; None: that of the task.
    """

    algorithms: tuple[str, ...]
    tasks: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Mapping[str, Sequence[Any]]
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    preset: str | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Grid":
        """Create a grid from the tables of a TOML file.

        Raises:
            ValueError: a key is missing or unknown, has a value of the wrong type, or names a value twice.
        """
        known = {"algorithm", "task", "seeds", "budget", "preset", "grid", "settings", "config"}
        if unknown := sorted(given.keys() - known):
            raise ValueError(f"a sweep has no key {unknown[0]!r}; valid keys: {', '.join(sorted(known))}")
        if missing := sorted({"algorithm", "task"} - given.keys()):
            raise ValueError(f"a sweep needs {missing[0]}, such as {_EXAMPLES[missing[0]]}")
        for name, (kind, expected) in _KINDS.items():
            if name in given and not isinstance(given[name], kind):
                raise ValueError(f"{name} must be {expected}, got {given[name]!r}")
        values: Mapping[str, Any] = given.get("grid", {})
        if wrong := [name for name, options in values.items() if not isinstance(options, list) or not options]:
            raise ValueError(f"[grid] {wrong[0]} must be a list of values, got {values[wrong[0]]!r}")
        for name, options in values.items():
            _require_distinct(f"[grid] {name}", options)
        if both := [name for name in values if name in given.get("config", {})]:
            raise ValueError(f"{both[0]} is in [grid] and in [config]: keep it in one of them")
        settings = dict(given.get("settings", {}))
        if "budget" in given:
            settings["budget"] = given["budget"]
        return cls(
            algorithms=_several("algorithm", given["algorithm"]),
            tasks=_several("task", given["task"]),
            seeds=_seeds(given.get("seeds", 8)),
            values=values,
            settings=settings,
            config=given.get("config", {}),
            preset=given.get("preset"),
        )

    def cells(self) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
        """Yield the unique name, algorithm, task and values of each cell."""
        taken: set[str] = set()
        for algorithm, task, *chosen in itertools.product(self.algorithms, self.tasks, *self.values.values()):
            own = dict(zip(self.values, chosen, strict=True))
            parts = [Path(algorithm.partition(":")[0]).stem, task, *(f"{name}-{value}" for name, value in own.items())]
            stem = name = as_name("-".join(parts))[:120]
            for number in itertools.count(2):
                if name not in taken:
                    break
                name = f"{stem}-{number}"
            taken.add(name)
            yield name, algorithm, task, own


def _require_distinct(key: str, options: Sequence[Any]) -> None:
    if equal := [value for place, value in enumerate(options) if _among(value, options[:place])]:
        raise ValueError(f"{key} has the value {equal[0]!r} twice, which would train the same cell twice")


def _among(value: Any, others: Sequence[Any]) -> bool:
    """Return whether a value of TOML is among others; numbers of different types may be equal, but not to booleans."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in others)


_EXAMPLES = {"algorithm": '"ppo"', "task": '["CartPole-v1", "Acrobot-v1"]'}


_KINDS: Mapping[str, tuple[type, str]] = {
    "preset": (str, 'a name, such as "paper"'),
    **{name: (Mapping, f"a table, [{name}]") for name in ("grid", "settings", "config")},
}
"""Type of the value of a key, and its description."""


def _several(key: str, given: Any) -> tuple[str, ...]:
    """Return the names of a key that has one name or a list of names."""
    names = tuple(cast(Sequence[Any], given)) if isinstance(given, list | tuple) else (given,)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{key} must be one or more names, such as {_EXAMPLES[key]}, got {given!r}")
    _require_distinct(key, names)
    return names


def _seeds(given: Any) -> tuple[int, ...]:
    """Return the seeds of a number of seeds, from 0, or of a list, whose values are checked with the settings."""
    if isinstance(given, list | tuple):
        return tuple(cast(Sequence[int], given))
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise ValueError(f"seeds must be their number, such as 5, or a list, such as [0, 3], got {given!r}")
    return counted_seeds(0, given)


def _keep(path: Path, tables: Mapping[str, Any]) -> None:
    """Write a TOML file atomically, unless it has these tables already."""
    data = tomli_w.dumps(tables).encode()
    if not path.is_file() or path.read_bytes() != data:
        replace_durably(path, data)


@dataclass(frozen=True)
class Cell:
    """One run of a sweep.

    Attributes:
        name: name of the run folder.
        path: run folder.
        words: arguments of the command that starts the cell, after `operant`.
        values: values of the varied fields.
    """

    name: str
    path: Path
    words: tuple[str, ...]
    values: Mapping[str, Any]

    @property
    def is_finished(self) -> bool:
        """Whether the run has used its budget; false if it is damaged."""
        try:
            return self._run is not None and self._run.outcome()[0] == FINISHED
        except RunError:
            return False

    @property
    def is_held(self) -> bool:
        """Whether another process trains the run, such as a cell of a killed sweep or of a job array."""
        try:
            return locks.is_held(self.path)
        except OSError:  # it has not begun, or cannot be trained
            return False

    @property
    def _run(self) -> Run | None:
        try:
            return Run.open(self.path)
        except RunError:
            return None

    @property
    def command(self) -> tuple[str, ...]:
        """Arguments of the command that starts or resumes the run."""
        if self._run is None:
            return self.words
        return ("resume", str(self.path), "--progress", "silent")


def _end(processes: Sequence[Process]) -> None:
    """Terminate processes and wait for them, also if an error of one occurs."""
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.wait)
        for process in processes:  # called first
            stack.callback(process.terminate)


class Sweep:
    """Cells of a grid, in a folder.

    Args:
        path: folder; new, empty, that of the same sweep, or of another one in which no cell has begun.
        grid: tables of the TOML file; None: those of the folder.
        source: file of the grid, for messages. Default: the one in the folder.

    Attributes:
        cells: all cells.
        has_begun: whether any cell has begun.

    Raises:
        ValueError: the folder contains another sweep or other files, or no sweep, and no grid is given.
    """

    def __init__(self, path: Path, grid: Mapping[str, Any] | None = None, source: Path | None = None) -> None:
        self.path, kept = path, path / "sweep.toml"
        self.source = kept if source is None else source
        self.has_begun = any((path / "runs").glob("*"))
        if kept.exists():
            there = read_toml(kept)
            grid = there if grid is None else grid
            if self.has_begun and dict(grid) != there:
                raise ValueError(
                    f"{path} has another sweep: continue with `operant sweep {location(path)}`, "
                    "or choose another folder"
                )
        elif path.is_dir() and any(meant(str(file)) != str(kept) for file in path.iterdir()):  # a torn write may stay
            raise ValueError(f"{path} is no sweep, and not empty: choose another folder")
        if grid is None:
            raise ValueError(f"{path} is no sweep: pass a TOML file with algorithm, task and [grid]")
        self.given, self.grid = dict(grid), Grid.of(grid)
        self.cells = [self._cell(*found) for found in self.grid.cells()]
        self._announced: set[str] = set()  # cells that wait for another process

    def _cell(self, name: str, algorithm: str, task: str, values: dict[str, Any]) -> Cell:
        words = ["train", algorithm, task, "--config", str(self.path / "cells" / f"{name}.toml")]
        words += ["--preset", self.grid.preset] if self.grid.preset else []
        run = self.path / "runs" / name
        return Cell(name, run, (*words, "--run", str(run), "--progress", "silent"), values)

    def write(self) -> None:
        """Create the folder, with a configuration file for each cell.

        Other processes may read the files at any time, such as the jobs of an array, which run one cell each.
        """
        folder, names = self.path / "cells", {f"{cell.name}.toml" for cell in self.cells}
        folder.mkdir(parents=True, exist_ok=True)
        _keep(self.path / "sweep.toml", self.given)
        stale = () if self.has_begun else [file for file in folder.glob("*.toml") if file.name not in names]
        for file in stale:  # of an earlier grid
            file.unlink(missing_ok=True)
        for cell in self.cells:
            named = dict(zip(("algorithm", "task"), cell.words[1:3], strict=True))
            tables = {
                "settings": {**named, **self.grid.settings, "seeds": list(self.grid.seeds)},
                "config": {**self.grid.config, **cell.values},
            }
            _keep(folder / f"{cell.name}.toml", tables)

    def check(self, check: Callable[[Sequence[str]], Any]) -> None:
        """Create the folder, and check that every cell can be trained, before any starts.

        A new folder is removed if one cannot.

        Args:
            check: function that checks the arguments of `operant train`.

        Raises:
            ValueError: a cell is invalid; the message names it.
        """
        new = not (self.path / "sweep.toml").exists()
        try:
            self.write()
            for cell in self.cells:
                try:
                    check(cell.words[1:])
                except (ValueError, OSError, EnvError) as error:
                    raise ValueError(f"{cell.name}: {self._sourced(str(error), cell)}") from error
        except BaseException:
            if new:
                shutil.rmtree(self.path, ignore_errors=True)
            raise

    def _sourced(self, message: str, cell: Cell) -> str:
        """Return a message that names the place in the grid instead of that in the file of a cell."""

        def place(match: re.Match[str]) -> str:
            table, key = match[1], match[2]
            if key is None:
                return str(self.source)
            table = "grid" if table == "config" and key in self.grid.values else table
            own = table == "settings" and key in self.given
            return f"{self.source}: {key if own else f'[{table}] {key}'}"

        file = self.path / "cells" / f"{cell.name}.toml"
        return re.sub(rf"{re.escape(str(file))}: (config|settings)(?:\.(\w+))?", place, message)

    def run(
        self,
        *,
        workers: int,
        attempts: int,
        report: Callable[[Cell, int], object],
        interrupted: Callable[[], bool],
        execute: Execute | None = None,
    ) -> bool:
        """Run all unfinished cells, on the current remote host if there is one.

        A cell whose run another process trains waits until that process ends.

        Args:
            workers: maximum number of parallel cells, each in a process.
            attempts: maximum number of attempts of a cell that ends with status 75.
            report: function called for each ended cell, with its exit status.
            interrupted: function polled continuously; after it returns true, the processes save and end.
            execute: function that runs a cell in this process; cells then run one by one, without processes.

        Returns:
            Whether the sweep was not interrupted.
        """
        waiting = [(cell, 1) for cell in self.cells if not cell.is_finished]

        def ended(cell: Cell, attempt: int, status: int) -> None:
            if status == EXIT_REQUEUE and attempt < attempts and not interrupted():
                waiting.append((cell, attempt + 1))
            else:
                report(cell, status)

        if execute is not None:
            while waiting and not interrupted():
                if found := self._ready(waiting, report):
                    ended(*found, execute(found[0].command))
                else:
                    time.sleep(WAIT)
            return not interrupted()
        running: list[tuple[Cell, int, Process]] = []
        try:
            while (waiting or running) and not interrupted():
                while len(running) < workers and (found := self._ready(waiting, report)):
                    running.append((*found, self._start(found[0])))
                time.sleep(WAIT)
                for over in [each for each in running if each[2].poll() is not None]:
                    running.remove(over)
                    ended(over[0], over[1], over[2].wait())
        finally:
            _end([process for _, _, process in running])
        is_complete = not waiting and not running
        for cell, attempt, process in running:
            ended(cell, attempt, process.wait())
        return is_complete

    def _ready(self, waiting: list[tuple[Cell, int]], report: Callable[[Cell, int], object]) -> tuple[Cell, int] | None:
        """Remove and return the first cell that no other process trains; report those that others have finished."""
        for found in tuple(waiting):
            cell, _ = found
            if cell.is_held:
                if cell.name not in self._announced:
                    self._announced.add(cell.name)
                    logger.warning("%s is being trained by another process: the sweep waits for it", cell.name)
                continue
            waiting.remove(found)
            if not cell.is_finished:
                return found
            report(cell, 0)
        return None

    def _start(self, cell: Cell) -> Process:
        """Start the process of a cell, with its output in a log file."""
        path, host = self.path / "cells" / f"{cell.name}.log", hosts.current()
        if host is not None:
            return RemoteCell(host, cell.command, path)
        with path.open("ab") as log:
            command = [sys.executable, "-m", "operant.scale.cell", PARENT, str(os.getpid()), *cell.command]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - our own
