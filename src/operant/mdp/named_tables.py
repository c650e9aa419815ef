"""Tables of transitions with named columns: CSV files, data frames, structured arrays and dictionaries."""

import csv
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from operant.mdp.entries import COLUMNS
from operant.mdp.validation import raise_if_any

__all__ = ["Table", "index_of", "naming", "of_columns", "of_labels", "read_csv", "with_names"]

_HEADERS = (COLUMNS, COLUMNS[:5])
_SEPARATORS = ";\t,"
_TRUTH = {"true": "1", "false": "0"}
_LISTED = 20
"""Names that an error lists."""


@dataclass(frozen=True)
class Table:
    """A table of transitions.

    Attributes:
        columns: `[n]` each, by their names; states and actions as indices.
        states: their names in the order of their indices; empty if the table numbers them.
        actions: as `states`.
    """

    columns: dict[str, NDArray[Any]]
    states: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


def read_csv(path: Path, separator: str | None = None) -> Table:
    """Read a CSV file with the columns `s,a,s',p,r` or `s,a,s',p,r,terminates`, in any order.

    States and actions are numbers, or names, which are indexed in the order of their first occurrence in `s` and `s'`.

    Args:
        path: the file.
        separator: column separator. Default: the comma, semicolon or tab of the header.

    Raises:
        ValueError: if it is not such a table; the message has the reason.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            first = file.readline()
            mark = separator or next((mark for mark in _SEPARATORS if mark in first), ",")
            names = tuple(name.strip() for name in next(csv.reader([first], delimiter=mark), ()))
            if not _is_header(names):
                raise ValueError(f"it begins with {first.strip()[:80]!r}, expected the header {','.join(COLUMNS)!r}")
            start = file.tell()
            try:
                with warnings.catch_warnings(action="ignore", category=UserWarning):
                    values = np.loadtxt(file, delimiter=mark, comments=None, ndmin=2)
                if values.size and values.shape[1] != len(names):
                    raise ValueError(f"{values.shape[1]} columns, expected {len(names)}")
            except ValueError:
                file.seek(start)
                reader = csv.reader(file, delimiter=mark)
                return _of_lines(names, {number: line for number, line in enumerate(reader, 2) if line})
        if not values.size:
            raise ValueError("it has no line below its header, expected transitions")
        return Table(dict(zip(names, values.T, strict=True)))
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a table: {error}") from error


def of_columns(given: Any) -> Table | None:
    """Return the table of a mapping, a data frame or a structured array, or None for anything else.

    States and actions that are strings are names, as in `read_csv`.

    Raises:
        ValueError: if a column is missing, not expected or given twice, or has an invalid entry.
    """
    names = _column_names(given)
    if names is None:
        return None
    names = [str(name) for name in names]
    if not _is_header(names):
        raise ValueError(f"table has the columns {', '.join(names)}, expected {', '.join(COLUMNS)}")
    columns = {name: np.asarray(given[name]) for name in COLUMNS if name in names}
    if all(column.dtype.kind in "biuf" for column in columns.values()):
        return Table(columns)
    sizes = {column.shape for column in columns.values()}
    if len(sizes) > 1 or any(len(size) != 1 for size in sizes):
        raise ValueError(f"table has columns of the shapes {sorted(sizes)}, expected one length")
    return _of_cells({name: _cells(column, name) for name, column in columns.items()}, "row {}".format)


def of_labels(columns: Mapping[str, Sequence[Any]], states: Iterable[Any]) -> Table:
    """Return the table of lists in which states and actions are whole numbers, or any other objects as their names.

    Args:
        columns: `[n]` each, named as in `COLUMNS`.
        states: states in the order of their indices, if they are not numbers; others follow as they occur.

    Raises:
        ValueError: if states or actions are both numbers and names, or two names are equal as texts.
    """
    found = dict(columns)
    names: dict[str, tuple[str, ...]] = {}
    kinds = (("states", [*states, *columns["s'"]], ("s", "s'")), ("actions", columns["a"], ("a",)))
    for kind, labels, keys in kinds:
        numbers = [label for label in labels if isinstance(label, Integral)]
        others = [label for label in labels if not isinstance(label, Integral)]
        if numbers and others:
            raise ValueError(f"the {kind} {numbers[0]!r} and {others[0]!r} are a number and a name, expected one kind")
        if others:
            indices = {label: i for i, label in enumerate(dict.fromkeys(others))}
            names[kind] = tuple(map(str, indices))
            found |= {key: [indices[label] for label in columns[key]] for key in keys}
    return Table({name: np.asarray(column) for name, column in found.items()}, **names)


def index_of(name: str, names: Sequence[str]) -> int:
    """Return the index of the name of a state.

    Raises:
        ValueError: if no state has this name.
    """
    if name not in names:
        expected = ", ".join(names[:_LISTED]) if names else "an index, since the states have no names"
        raise ValueError(f"start is {name!r}, expected {expected}")
    return names.index(name)


def with_names(message: object, table: Table) -> str:
    """Return the message of an error about indices, with the names that they are those of."""
    lists = [
        f"{what}: {', '.join(f'{i} {name}' for i, name in enumerate(names[:_LISTED]))}"
        for what, names in (("states", table.states), ("actions", table.actions))
        if names
    ]
    return "; ".join([str(message), *lists])


@contextmanager
def naming(table: Table) -> Generator[None]:
    """Add the names of a table, if any, to the message of a ValueError about its indices."""
    try:
        yield
    except ValueError as error:
        if not (table.states or table.actions):
            raise
        raise ValueError(with_names(error, table)) from error


def _column_names(given: Any) -> Iterable[Any] | None:
    """Return the names of the columns of a mapping, a data frame or a structured array; None for anything else."""
    if isinstance(given, Mapping):
        return cast(Mapping[Any, Any], given).keys()
    dtype = getattr(given, "dtype", None)
    return getattr(given, "columns", None) if dtype is None else getattr(dtype, "names", None)


def _is_header(names: Iterable[str]) -> bool:
    return sorted(names) in [sorted(header) for header in _HEADERS]


def _of_lines(names: Sequence[str], lines: Mapping[int, Sequence[str]]) -> Table:
    """Return the table of lines by their number in the file."""
    for number, line in lines.items():
        if len(line) != len(names):
            raise ValueError(f"line {number} has {len(line)} columns, expected {len(names)}")
    numbers = list(lines)
    cells = {name: [line[i].strip() for line in lines.values()] for i, name in enumerate(names)}
    return _of_cells(cells, lambda i: f"line {numbers[i]}")


def _cells(column: NDArray[Any], name: str) -> list[str]:
    """Return numbers, bools and texts as texts."""
    kinds = (str, bool, int, float, np.bool_, np.integer, np.floating)
    objects = column.tolist() if column.dtype.kind in "biufUO" else list(column)
    raise_if_any(
        np.array([not isinstance(cell, kinds) or cell != cell for cell in objects], np.bool_),  # noqa: PLR0124 - NaN
        lambda i: f"row {i}: column {name} is {objects[i]!r}, expected a number{' or a name' * (name in COLUMNS[:3])}",
    )
    return [cell.strip() if isinstance(cell, str) else repr(cell) for cell in objects]


def _of_cells(cells: Mapping[str, Sequence[str]], place: Callable[[int], str]) -> Table:
    """Return the table of texts with numbered or named states and actions; `place` names a row by its position."""
    columns: dict[str, NDArray[Any]] = {}
    for name in COLUMNS[3:]:
        if name in cells:
            texts = cells[name]
            if name == COLUMNS[5]:
                texts = [_TRUTH.get(cell.lower(), cell) for cell in texts]
            for i, cell in enumerate(texts):
                if not _is_number(cell):
                    raise ValueError(f"{place(i)}: column {name} is {cell!r}, expected a number")
            columns[name] = np.array(texts, np.float64)
    for name in COLUMNS[:3]:
        for i, cell in enumerate(cells[name]):
            if not cell:
                raise ValueError(f"{place(i)}: column {name} is empty, expected a number or a name")
    _require_alike([*zip(cells["s"], cells["s'"], strict=True)], "states", place)
    _require_alike([(cell,) for cell in cells["a"]], "actions", place)
    pairs = [cell for both in zip(cells["s"], cells["s'"], strict=True) for cell in both]
    states, actions = (
        [] if all(map(_is_number, values)) else list(dict.fromkeys(values)) for values in (pairs, cells["a"])
    )
    for name, known in (("s", states), ("s'", states), ("a", actions)):
        indices = {word: i for i, word in enumerate(known)}
        columns[name] = np.array([indices[cell] if known else float(cell) for cell in cells[name]])
    return Table({name: columns[name] for name in cells}, tuple(states), tuple(actions))


def _require_alike(rows: Sequence[tuple[str, ...]], what: str, place: Callable[[int], str]) -> None:
    """Check that all states or all actions are numbers, or none: a typing error would rename all of them."""
    first = _is_number(rows[0][0])
    for i, row in enumerate(rows):
        for cell in row:
            if _is_number(cell) is not first:
                kinds = ("numbers", "names") if first else ("names", "numbers")
                raise ValueError(f"{place(i)} has {cell!r}, but the {what} before are {kinds[0]}, not {kinds[1]}")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
