"""Output of commands: tables, JSON, paths of files."""

import contextlib
import importlib.util
import json
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Generator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from operant.runtime.files import beside
from operant.runtime.json_values import finite

if TYPE_CHECKING:
    from operant.runtime.evaluation import Evaluation


class Updates(NamedTuple):
    """Numbers of optimizer updates of one seed of a run."""

    due: float
    """All attempted updates, including skipped ones; NaN if the metrics of an older version lack them."""
    skipped: float
    """Updates skipped because of NaN or Inf."""

    @property
    def share(self) -> float:
        """Fraction of skipped updates; NaN if unknown."""
        return self.skipped / self.due if self.skipped else 0.0

    def cell(self) -> str:
        """Return the number and percentage of skipped updates, for a table."""
        if not self.skipped or math.isnan(self.share):
            return f"{self.skipped:.0f}"
        return f"{self.skipped:.0f} ({'< 1' if self.share < 0.01 else f'{100 * self.share:.0f}'} %)"


MOST_ROWS = 30
"""Number of seeds up to which tables have a row for each."""

FIRST_ROWS = 10
"""Number of seeds with a row in tables of more."""

_answers: ContextVar[list[str] | None] = ContextVar("answers", default=None)
"""Lines of JSON to print at the end of `only_json`; None outside of it."""

_REWARDS = re.compile(r"eval/rewards/(.+)/mean")


def say(text: str) -> None:
    """Print a message on standard error; do nothing if the stream is closed."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        # Buffered output would fail again at exit, and change the exit status.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def print_json(value: Mapping[str, Any]) -> None:
    """Print one line of JSON, within `only_json` at the end of its block; NaN and Inf become null."""
    line, lines = json.dumps(finite(value), allow_nan=False), _answers.get()
    if lines is None:
        print(line)
    else:
        lines.append(line)


@contextlib.contextmanager
def only_json() -> Generator[None]:
    """Send what the block prints to standard error, except by `print_json`: environments and callbacks may print."""
    lines: list[str] = []
    token = _answers.set(lines)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _answers.reset(token)
        for line in lines:
            print(line)


@contextlib.contextmanager
def processes_on_stderr() -> Generator[None]:
    """Send what processes print that the block starts to standard error."""
    if sys.__stdout__ is None or sys.__stderr__ is None:  # closed
        yield
        return
    sys.__stdout__.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def table(rows: Sequence[Sequence[str]], align: str) -> str:
    """Return a table as text, with two spaces between columns.

    Args:
        rows: cells; the first row is the heading.
        align: alignment of each column, `<` or `>`.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[f"{cell:{side}{n}}" for cell, side, n in zip(row, align, widths, strict=True)] for row in rows]
    return "\n".join("  ".join(row).rstrip() for row in cells)


def by_seed(rows: Sequence[Sequence[str]]) -> str:
    """Return a table with one row per seed as text; of many seeds only the first ones.

    Args:
        rows: right-aligned cells; the first row is the heading.
    """
    seeds = len(rows) - 1
    if seeds <= MOST_ROWS:
        return table(rows, ">" * len(rows[0]))
    more = f"... and {seeds - FIRST_ROWS} more seeds; --json lists all"
    return f"{table(rows[: FIRST_ROWS + 1], '>' * len(rows[0]))}\n{more}"


def width() -> int:
    """Return the width of the terminal in columns: COLUMNS if set, 80 without a terminal."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def wrapped(text: str, *, indent: str = "", first: str | None = None, columns: int | None = None) -> str:
    """Return text wrapped between words.

    Args:
        text: paragraph to wrap.
        indent: prefix of every line.
        first: prefix of the first line. Default: `indent`.
        columns: width. Default: the terminal's.
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
    """Return names and their descriptions in two columns, or below each other on a narrow terminal."""
    names = max(len(name) for name, _ in rows)
    room = width() - len(indent) - names - 2
    if room < 24:
        return "\n".join(f"{indent}{name}\n{wrapped(text, indent=f'{indent}    ')}" for name, text in rows)
    later = " " * (len(indent) + names + 2)
    return "\n".join(wrapped(text, indent=later, first=f"{indent}{name:{names}}  ") for name, text in rows)


def number(value: float) -> str:
    """Return a number with five significant digits."""
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
    """Return a table of the scores, one row per seed (see `by_seed`), and their summary.

    Args:
        seeds: seeds of the run.
        evaluation: evaluation of all seeds.
        threshold: mean score of a solved task, for an additional column.
        counted: name of the scored items.
        updates: numbers of updates per seed; skipped updates are reported if there are any.
        start: evaluation before the first update, for an additional column; the training rewards of the same answers
            are then included.
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
    return f"{by_seed(rows)}\n\n{summary(evaluation)}"


def faulty(seeds: Sequence[int], evaluation: "Evaluation", config: object = None) -> bool:
    """Return whether the score of any seed is NaN or infinite, and warn if so.

    Args:
        seeds: seeds of the run.
        evaluation: their evaluation.
        config: configuration of the algorithm, whose reward functions are named if no answer has a reward.
    """
    wrong = [i for i, score in enumerate(evaluation.scores) if not math.isfinite(score)]
    if wrong:
        what = "NaN" if all(math.isnan(evaluation.scores[i]) for i in wrong) else "NaN or Inf"
        names = ", ".join(str(seeds[i]) for i in wrong)
        missing = evaluation.missing and all(evaluation.missing[i] == evaluation.episodes for i in wrong)
        why = "look for NaN or Inf in rewards or observations"
        why = _without_rewards(evaluation.episodes, config) if missing else why
        say(f"operant: the last score of seed {names} is {what}: {why}")
    return bool(wrong)


def _without_rewards(count: int, config: object) -> str:
    """Return why no answer has a reward."""
    functions = [*getattr(config, "rewards", ()), *filter(None, [getattr(config, "reward_model", "")])]
    names = ", ".join(functions) or "the reward function"
    return (
        f"none of the {count} answers has a reward, since {names} returned None, failed or timed out; see the "
        "warnings, and correct the function or the column it needs"
    )


def _append(rows: list[list[str]], heading: str, cells: Sequence[str]) -> None:
    """Add a column to a table."""
    for row, cell in zip(rows, [heading, *cells], strict=True):
        row.append(cell)


def summary(evaluation: "Evaluation") -> str:
    """Return mean, IQM and confidence interval as text."""
    if len(evaluation.scores) == 1:
        return f"{number(evaluation.mean)} with one seed, which is not a reliable result: use 5 or more"
    low, high = evaluation.interval
    return (
        f"mean {number(evaluation.mean)}, IQM {number(evaluation.iqm)}, "
        f"95 % interval of the IQM [{number(low)}, {number(high)}]"
    )


def score_fields(evaluation: "Evaluation") -> dict[str, Any]:
    """Return the fields of an evaluation for `--json`."""
    return {
        "per_seed_scores": evaluation.scores,
        "mean": evaluation.mean,
        "iqm": evaluation.iqm,
        "interval": evaluation.interval,
        **({"success_rate": evaluation.success_rate} if evaluation.success_rate else {}),
        **({"infos": evaluation.infos} if evaluation.infos else {}),
    }


def missing(modules: Sequence[str]) -> list[str]:
    """Return those of the modules that are not installed."""
    return [module for module in modules if importlib.util.find_spec(module) is None]


def require_extra(extra: str, what: str, modules: Sequence[str]) -> None:
    """Check that the modules of an extra are installed.

    Raises:
        ModuleNotFoundError: a module is missing; the message gives the command that installs it.
    """
    absent = missing(modules)
    if absent:
        raise ModuleNotFoundError(f'{what} needs {", ".join(absent)}: pip install "operant[{extra}]"')


def require_writable(path: Path, flag: str = "--out") -> None:
    """Check that a file can be written, and create its folder, before its contents are computed.

    Args:
        path: the file.
        flag: flag that names it.

    Raises:
        ValueError: the folder is not writable, or the path is one.
    """
    part = beside(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
        part.unlink()
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}; choose another file with {flag}") from error
    if path.is_dir():
        raise ValueError(f"{path} is a folder; choose a file with {flag}")
