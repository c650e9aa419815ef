"""`operant sweep`."""

import contextlib
import sys
import tomllib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operant.cli.flags import Parser
from operant.cli.output import number, print_json, processes_on_stderr, say, table
from operant.runtime.run_paths import is_run, location
from operant.runtime.sessions import FAILED, UNFINISHED
from operant.runtime.signals import EXIT_REQUEUE, Interruption

if TYPE_CHECKING:
    from operant.scale.sweep import Cell, Sweep


def _parsed(arguments: list[str]) -> Any:
    about = "Train every algorithm on every task with every combination of values, several runs in parallel."
    parser = Parser("operant sweep", description=about)
    parser.add_argument("grid", metavar="GRID.toml|SWEEP", type=Path, help="file of the grid, or folder of a sweep")
    parser.add_argument(
        "--out", metavar="SWEEP", type=Path, help="output folder; default: runs/sweep-<name of the file>"
    )
    executors = ("processes", "inline", "ray")
    parser.add_argument("--executor", choices=executors, default="processes", help="where cells run")
    parser.add_argument(
        "--workers", type=int, help="number of parallel cells; default: one per core, with Ray per core of all nodes"
    )
    parser.add_argument(
        "--ray-address", default="", help="an existing Ray cluster, HOST:PORT or auto; default: a new one"
    )
    parser.add_argument("--ray-unauthenticated", action="store_true", help="allow a Ray cluster without a token")
    parser.add_argument(
        "--attempts", type=int, default=3, help="attempts per cell that stops with status 75 (default: 3)"
    )
    parser.add_argument("--cell", type=int, help="run only the cell with this index, from 0, and return its status")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    options = parser.parse_args(arguments)
    for name in ("workers", "attempts"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if options.executor != "ray" and (options.ray_address or options.ray_unauthenticated):
        raise ValueError(f"--ray-address and --ray-unauthenticated need --executor ray, got {options.executor}")
    return options


def sweep(arguments: list[str]) -> int:
    """Train every cell of a grid, several in parallel."""
    options = _parsed(arguments)
    from operant.cli.arguments import parse_training
    from operant.runtime.machine import cores

    with Interruption() as interrupted, contextlib.ExitStack() as stack:
        found = _opened(options.grid, options.out)
        if found.has_begun or options.cell is not None:
            found.check(parse_training)
        else:
            with contextlib.redirect_stdout(sys.stderr), processes_on_stderr():
                found.check(partial(_require_trainable, here=options.executor != "ray"))
        if options.cell is not None:
            return _one(found, options.cell, as_json=options.json)
        most, statuses = cores(), dict[str, int]()
        if options.executor == "ray" and not all(cell.is_finished for cell in found.cells):
            from operant.scale.ray_cluster import cluster

            most = stack.enter_context(cluster(options.ray_address, unauthenticated=options.ray_unauthenticated)).cpus

        def ended(cell: "Cell", status: int) -> None:
            statuses[cell.name] = status
            say(f"{cell.name}: {'finished' if not status else f'status {status}, {_output(cell, options.executor)}'}")

        whole = found.run(
            workers=options.workers or most,
            attempts=options.attempts,
            report=ended,
            interrupted=interrupted,
            execute=_quietly if options.executor == "inline" else None,
        )
    answer = [_answer(cell, statuses.get(cell.name, 0)) for cell in found.cells]
    if options.json:
        print_json({"sweep": str(found.path.resolve()), "cells": answer})
    else:
        rows = [["cell", "outcome", "mean", "IQM"]]
        rows += [
            [a["cell"], a["outcome"], *(number(a[k]) if a[k] is not None else "-" for k in ("mean", "iqm"))]
            for a in answer
        ]
        print(table(rows, "<<>>"))
        print(f"\nNext:\n  operant compare {location(found.path / 'runs')}/*  compare runs of one task")
    if not whole:
        say(f"operant: interrupted; continue with `operant sweep {location(found.path)}`")
        return EXIT_REQUEUE
    return int(any(a["outcome"] != "finished" for a in answer))


def _opened(given: Path, out: Path | None) -> "Sweep":
    from operant.scale.sweep import Sweep

    if given.is_dir():
        if out is not None:
            raise ValueError(f"{given} is a sweep, which stays where it is: leave out --out {out}")
        return Sweep(given)
    try:
        grid = tomllib.loads(given.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise ValueError(f"the grid {given} cannot be read: {problem}") from error
    return Sweep(out or Path("runs") / f"sweep-{given.stem}", grid, given)


def _require_trainable(words: Sequence[str], *, here: bool) -> None:
    """Check all that `operant train` checks before it writes a run, except models that are not built in.

    Args:
        words: arguments of `operant train`.
        here: whether the cell is trained on this machine, which then needs its device.
    """
    from operant import build
    from operant.cli.arguments import parse_training
    from operant.envs.registry import drawn
    from operant.runtime.callback_files import callbacks_of
    from operant.runtime.settings import Settings
    from operant.runtime.trackers import trackers_of

    options, config = parse_training(words)
    chosen = options.settings() | ({} if here else {"device": "auto"})
    callbacks_of(chosen["callbacks"])
    trackers_of(chosen["track"])
    entry = build.find(chosen["algorithm"])
    speaks = entry.package == "language"
    if not speaks:
        chosen["task"], chosen["env_kwargs"] = drawn(chosen["task"], chosen["env_kwargs"])
    settings, config, _ = build.pin(entry, Settings(**chosen), config, None)
    resolved = build.resolve(entry, settings, config)
    if not speaks or build.package(entry).built_in(config):
        build.assemble(entry, settings, config, resolved).close()


def _one(found: "Sweep", index: int, *, as_json: bool) -> int:
    """Run one cell in this process, as a job of an array does."""
    if not 0 <= index < len(found.cells):
        raise ValueError(f"cell must be from 0 to {len(found.cells) - 1}, got {index}")
    cell = found.cells[index]
    run = _quietly if as_json else _inline
    status = 0 if cell.is_finished else run(cell.command)
    if as_json:
        print_json({"sweep": str(found.path.resolve()), "cells": [_answer(cell, status)]})
    return status


def _inline(words: Any) -> int:
    from operant.cli import main

    return main(words)


def _quietly(words: Any) -> int:
    """Run a command with its output on standard error: standard output is for the sweep."""
    with contextlib.redirect_stdout(sys.stderr), processes_on_stderr():
        return _inline(words)


def _output(cell: "Cell", executor: str) -> str:
    """Return where the output of a cell is."""
    if executor == "inline":
        return "see its error above"
    return f"see {location(cell.path.parents[1] / 'cells' / f'{cell.name}.log')}"


def _answer(cell: "Cell", status: int) -> dict[str, Any]:
    """Return the outcome and scores of a cell.

    Args:
        cell: the cell.
        status: its exit status in this session; 0 if it was not run.
    """
    from operant.runtime.comparison import evaluations
    from operant.runtime.run import Run, RunError
    from operant.runtime.run_folders import RUNNING

    mean = iqm = None
    try:
        run = Run.open(cell.path)
        outcome, last = run.outcome()[0], [evaluation for _, evaluation in evaluations(run)][-1:]
        outcome = RUNNING if outcome == UNFINISHED and cell.is_held else outcome
        mean, iqm = (last[0].mean, last[0].iqm) if last else (None, None)
    except RunError as error:
        damaged = is_run(cell.path)
        if damaged:
            say(f"{cell.name}: {error}")
        outcome = FAILED if damaged or status not in (0, EXIT_REQUEUE) else "not begun"
    return {"cell": cell.name, "outcome": outcome, "mean": mean, "iqm": iqm, "values": cell.values}
