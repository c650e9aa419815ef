"""`operant show`: runs and their learned tables."""

from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tyro

from operant.cli.arguments import Answering, parse
from operant.cli.output import missing, number, print_json, require_extra, require_writable, say, summary, table
from operant.runtime.run_paths import location

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.runtime.run import Run
    from operant.tabular.view import View

MOST_STATES = 64
"""Maximum states in the list of a table without a map."""


@dataclass(frozen=True)
class ShowOptions(Answering):
    """Show a run: settings, last evaluation, files, and the learned table of a seed."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    seed: int | None = None
    """Seed of the table. Default: the first one of the run."""

    out: Path | None = None
    """File for a plot of the table, such as table.png (extra: plots)."""

    def __post_init__(self) -> None:
        if self.out is not None and self.out.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"out must end in .png, .svg or .pdf, got {self.out}")


def show(arguments: list[str]) -> int:
    """Show a run and its learned tables."""
    options = parse(ShowOptions, arguments, "show")
    from operant.runtime.run import Run

    run = Run.open(options.run)
    facts = _facts(run)
    if run.entry.package != "tabular":
        if options.out is not None or options.seed is not None:
            raise ValueError(
                f"{run.settings.algorithm} has no table to show; leave out --seed and --out, or "
                f"try `operant watch {location(run.path)}`"
            )
        _answer(options, facts, _summary(run, facts))
        return 0
    if options.out is not None:
        require_extra("plots", "a plot", ["matplotlib"])
        require_writable(options.out)
    from operant import api
    from operant.runtime.exporting import first_members
    from operant.tabular.view import view_of

    trained = api.load(options.run, accept_changes=True)  # warnings suffice, since nothing is written
    with closing(trained.experiment):
        index = _index(run, options.seed)
        view = view_of(trained.experiment, index)
        seed = run.settings.seeds[index]
        starts = first_members(run.settings) if view.shape is None else (0, 0)
        _answer(
            options,
            facts | _record(view, seed),
            f"{_summary(run, facts)}\n\nThe table of seed {seed}:\n\n{text_of(view, starts)}",
        )
        if options.out is not None:
            plot_table(trained, index, options.out)
            say(f"drawn: {location(options.out)}")
    return 0


def plot_table(trained: "Trained", index: int, path: Path) -> None:
    """Plot the table of the seed at the given index of a run (extra: `plots`)."""
    from operant.cli.picturing import draw_tables
    from operant.tabular.view import view_of

    settings = trained.run.settings
    title = f"{settings.algorithm}, {settings.task}, seed {settings.seeds[index]}"
    draw_tables(view_of(trained.experiment, index), title, path)


def keep_plot(trained: "Trained") -> Path | None:
    """Plot the table of the first seed into the run's folder, if matplotlib is installed, and return the path.

    A folder that is not writable causes a warning.
    """
    settings = trained.run.settings
    if trained.run.entry.package != "tabular" or missing(["matplotlib"]):
        return None
    path = trained.run.media_path / f"table-seed{settings.seeds[0]}.png"
    try:
        plot_table(trained, 0, path)
    except OSError as error:
        say(f"operant: warning: the plot of the table is not saved in {trained.run.path}: {error.strerror}")
        return None
    return path


def text_of(view: "View", starts: tuple[int, int] = (0, 0)) -> str:
    """Return a learned table as text: on the map of the task if it has one, else state by state.

    Args:
        view: the table.
        starts: first state and first action of the task.
    """
    return _map(view) if view.shape is not None else _list(view, *starts)


def _map(view: "View") -> str:
    rows, columns = view.shape or (0, 0)
    symbols = [[view.symbol(row * columns + column) for column in range(columns)] for row in range(rows)]
    arrows = ["".join(row) for row in symbols]
    cells = _value_cells(view)
    if not cells:
        lines = arrows
    else:
        width = max(map(len, cells)) + 1
        numbers = ["".join(cell.rjust(width) for cell in cells[r * columns : (r + 1) * columns]) for r in range(rows)]
        lines = [f"{left}  {right}" for left, right in zip(arrows, numbers, strict=True)]
    legend = "policy" + (" and values" if cells else "") + "; + equally good actions, · never entered, ★ end"
    return "\n".join([*lines, legend])


def _value_cells(view: "View") -> list[str]:
    if view.values is None:
        return []
    blank = view.ends | view.unreached
    return ["·" if blank[s] else f"{value:.4g}" for s, value in enumerate(view.values)]


def _list(view: "View", first_state: int, first_action: int) -> str:
    actions = range(first_action, first_action + view.policy.shape[1])
    heading = ["state", "action"] + ([] if view.values is None else ["value"])
    heading += [] if view.q is None else [f"Q {action}" for action in actions]
    heading += [] if view.visits is None else ["visits"]
    visited = np.ones(len(view.policy), np.bool_) if view.visits is None else view.visits.any(axis=1)
    listed = np.flatnonzero(visited & ~view.unreached & ~view.ends).tolist()
    rows = [_row(view, state, first_state, first_action) for state in listed[:MOST_STATES]]
    more = len(listed) - len(rows)
    rest = f"\n... and {more} more visited states; --json gives them all" if more > 0 else ""
    return table([heading, *rows], ">" * len(heading)) + rest


def _row(view: "View", state: int, first_state: int, first_action: int) -> list[str]:
    choice = view.choice(state)
    row = [str(first_state + state), "any" if choice is None else str(first_action + choice)]
    row += [] if view.values is None else [f"{view.values[state]:.4g}"]
    row += [] if view.q is None else [f"{value:.4g}" for value in view.q[state]]
    return row + ([] if view.visits is None else [str(int(view.visits[state].sum()))])


def _index(run: "Run", seed: int | None) -> int:
    seeds = run.settings.seeds
    if seed is None:
        return 0
    if seed not in seeds:
        raise ValueError(f"--seed is {seed}, but the seeds of {location(run.path)} are {', '.join(map(str, seeds))}")
    return seeds.index(seed)


def _facts(run: "Run") -> dict[str, Any]:
    """Return information about a run without loading its networks or tables."""
    from operant.runtime.comparison import evaluations

    settings, found, latest = run.settings, evaluations(run), run.checkpoints.latest()
    last = found[-1] if found else None
    media = sorted(str(path) for path in run.media_path.iterdir()) if run.media_path.is_dir() else []
    return {
        "run": str(run.path),
        "algorithm": settings.algorithm,
        "task": settings.task,
        "seeds": settings.seeds,
        "budget": settings.budget,
        "consumed": 0 if latest is None else latest[1],
        "evaluation": None if last is None else {"consumed": last[0], **last[1].record()},
        "media": media,
    }


def _summary(run: "Run", facts: dict[str, Any]) -> str:
    from operant.runtime.comparison import evaluations

    settings, unit = run.settings, run.entry.unit
    every = list(settings.seeds)
    found = evaluations(run)
    scored = "none yet"
    if found:
        scored = f"{summary(found[-1][1])}, after {found[-1][0]:,} {unit}; best seed {number(max(found[-1][1].scores))}"
    files = {
        "settings": run.path / "config.toml",
        "metrics": run.metrics_path,
        "evaluations": run.evaluations_path,
        **({"checkpoints": run.path / "checkpoints"} if run.checkpoints.paths() else {}),
    }
    seeds = f"{len(every)}, from {every[0]}" if len(every) > 1 else str(every[0])
    rows = [
        ("algorithm", settings.algorithm),
        ("task", settings.task),
        ("seeds", seeds),
        _trained(run, facts, unit),
        ("last evaluation", scored),
        *((name, location(path)) for name, path in files.items() if path.exists()),
        *(("plot or video", location(Path(path))) for path in facts["media"]),
    ]
    return "\n".join(f"{name:16} {value}" for name, value in rows)


def _trained(run: "Run", facts: dict[str, Any], unit: str) -> tuple[str, str]:
    from operant.runtime.sessions import MERGED

    if sources := run.resolved().get(MERGED):
        return "merged from", str(sources)
    return "trained", f"{facts['consumed']:,} of {run.settings.budget:,} {unit} per seed"


def _record(view: "View", seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "shape": view.shape,
        "q": None if view.q is None else view.q.tolist(),
        "values": None if view.values is None else view.values.tolist(),
        "policy": view.policy.tolist(),
        "visits": None if view.visits is None else view.visits.tolist(),
        "ends": _chosen(view.ends),
        "unreached": _chosen(view.unreached),
    }


def _chosen(flags: Any) -> list[int]:
    """Return the indices of the states for which a mask is true."""
    return flags.nonzero()[0].tolist()


def _answer(options: ShowOptions, record: dict[str, Any], text: str) -> None:
    if options.json:
        print_json(record)
    else:
        print(text)
