"""What commands print: tables, JSON, places of files."""

import importlib.util
import json
import math
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from operant.runtime.evaluation import Evaluation


class Updates(NamedTuple):
    """Updates of one seed of a run."""

    due: float
    """Skipped ones included; NaN where the metrics of an older version do not count them."""
    skipped: float
    """Not made, as their numbers were not finite."""

    @property
    def share(self) -> float:
        """That was skipped; NaN where that is not known."""
        return self.skipped / self.due if self.skipped else 0.0

    def cell(self) -> str:
        """The skipped ones, for a table."""
        if not self.skipped or math.isnan(self.share):
            return f"{self.skipped:.0f}"
        return f"{self.skipped:.0f} ({'< 1' if self.share < 0.01 else f'{100 * self.share:.0f}'} %)"


_REWARDS = re.compile(r"eval/rewards/(.+)/mean")


def say(text: str) -> None:
    """Print for people, on standard error; after the terminal has gone, nobody is told and nothing fails."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        # What could not be written would fail again at exit, and change the exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_json(value: Mapping[str, Any]) -> None:
    """Print one line of JSON; a number that is not finite becomes null."""
    print(json.dumps(finite(value), allow_nan=False))


def table(rows: Sequence[Sequence[str]], align: str) -> str:
    """Return rows as text, in columns that are two spaces apart.

    Args:
        rows: the cells; the first row is the heading.
        align: `<` or `>` for each column.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[f"{cell:{side}{n}}" for cell, side, n in zip(row, align, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in cells)


def width() -> int:
    """Return the columns of the terminal: COLUMNS if it is set, and 80 where there is no terminal."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def wrapped(text: str, *, indent: str = "", first: str | None = None, columns: int | None = None) -> str:
    """Return text in lines that fit, broken between words.

    Args:
        text: a paragraph.
        indent: what every line begins with.
        first: what the first line begins with. Default: `indent`.
        columns: that there are. Default: those of the terminal.
    """
    start = indent if first is None else first
    return textwrap.fill(
        text,
        width() if columns is None else columns,
        initial_indent=start,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def two_columns(rows: Sequence[tuple[str, str]], *, indent: str = "") -> str:
    """Return names with a text for each, which is wrapped within its column where the terminal has room for that."""
    names = max(len(name) for name, _ in rows)
    room = width() - len(indent) - names - 2
    if room < 24:
        return "\n".join(f"{indent}{name}\n{wrapped(text, indent=f'{indent}    ')}" for name, text in rows)
    later = " " * (len(indent) + names + 2)
    return "\n".join(wrapped(text, indent=later, first=f"{indent}{name:{names}}  ") for name, text in rows)


def location(path: Path) -> str:
    """Return a path as one would type it here: relative if it lies below the working folder, quoted if need be."""
    path = path.resolve()
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def number(value: float) -> str:
    """Return a score with five digits."""
    return f"{value:.5g}"


def seed_table(
    seeds: Sequence[int],
    evaluation: "Evaluation",
    *,
    threshold: float | None = None,
    counted: str = "episodes",
    updates: Sequence[Updates] = (),
    start: "Evaluation | None" = None,
) -> str:
    """Return the scores of every seed and their summary.

    Args:
        seeds: of the run.
        evaluation: of all of them.
        threshold: the mean score from which on the task counts as solved, for a column that says so.
        counted: what was scored.
        updates: of each seed; how many were skipped, and which share of them, is shown where there are some.
        start: scores before the first update, for a column next to the score; what functions of training rewarded the
            same answers with stands there, too.
    """
    rows = [["seed", "score"]]
    rows += [[str(seed), number(score)] for seed, score in zip(seeds, evaluation.scores, strict=True)]
    if start is not None:
        _append(rows, "start", [number(score) for score in start.scores])
    for name, values in evaluation.metrics.items():
        if match := _REWARDS.fullmatch(name):
            _append(rows, f"by {match[1]}", [number(value) for value in values])
    left_out = any(evaluation.missing)
    known = [[x for x in row if not (left_out and math.isnan(x))] for row in evaluation.episode_scores]
    ends = [(min(row), max(row)) if row and not math.isnan(sum(row)) else (math.nan,) * 2 for row in known]
    _append(rows, "worst", [number(worst) for worst, _ in ends])
    _append(rows, "best", [number(best) for _, best in ends])
    _append(rows, counted, [str(len(row)) for row in known])
    if left_out:
        _append(rows, "without a reward", [str(count) for count in evaluation.missing])
    if evaluation.success_rate:
        _append(rows, "success", [f"{share:.1%}" for share in evaluation.success_rate])
    if threshold is not None:
        _append(rows, "solved", ["yes" if score >= threshold else "no" for score in evaluation.scores])
    if any(seed.skipped for seed in updates):
        _append(rows, "skipped updates", [seed.cell() for seed in updates])
    return f"{table(rows, '>' * len(rows[0]))}\n\n{summary(evaluation)}"


def faulty(seeds: Sequence[int], evaluation: "Evaluation") -> bool:
    """Tell whether the score of a seed is not a number, and say so if it is."""
    wrong = [str(seed) for seed, score in zip(seeds, evaluation.scores, strict=True) if math.isnan(score)]
    if wrong:
        say(
            f"operant: the last score of seed {', '.join(wrong)} is not a number: look for rewards or observations "
            "that are not finite"
        )
    return bool(wrong)


def _append(rows: list[list[str]], heading: str, cells: Sequence[str]) -> None:
    """Add a column to a table."""
    for row, cell in zip(rows, [heading, *cells], strict=True):
        row.append(cell)


def summary(evaluation: "Evaluation") -> str:
    """Return mean, IQM and interval in words."""
    if len(evaluation.scores) == 1:
        return f"{number(evaluation.mean)} by one seed, which says nothing about the next one: take 5 or more"
    low, high = evaluation.interval
    return (
        f"mean {number(evaluation.mean)}, IQM {number(evaluation.iqm)}, "
        f"95 % interval of the IQM [{number(low)}, {number(high)}]"
    )


def score_fields(evaluation: "Evaluation") -> dict[str, Any]:
    """Return what every JSON answer says about an evaluation."""
    return {
        "per_seed_scores": evaluation.scores,
        "mean": evaluation.mean,
        "iqm": evaluation.iqm,
        "interval": evaluation.interval,
        **({"success_rate": evaluation.success_rate} if evaluation.success_rate else {}),
        **({"infos": evaluation.infos} if evaluation.infos else {}),
    }


def missing(modules: Sequence[str]) -> list[str]:
    """Return those modules that are not installed."""
    return [module for module in modules if importlib.util.find_spec(module) is None]


def require_extra(extra: str, what: str, modules: Sequence[str]) -> None:
    """Refuse what needs an extra that is not installed.

    Raises:
        ModuleNotFoundError: one of the modules is missing; the message says how to install it.
    """
    absent = missing(modules)
    if absent:
        raise ModuleNotFoundError(f'{what} needs {", ".join(absent)}: pip install "operant[{extra}]"')


def finite(value: Any) -> Any:
    """Return a value with null, None, in the place of every number that is NaN or Inf."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
