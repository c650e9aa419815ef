"""Columns of growing JSON Lines files, and curves with a limited number of points.

Only complete lines are read. What earlier lines contain is cached, so that updates of a long run read only new lines.
"""

import json
import math
import os
import re
from abc import ABC, abstractmethod
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from operant.runtime.files import require_regular
from operant.runtime.metrics import used_budget

MOST_POINTS = 500
"""Maximum number of points of a curve."""
MOST_BYTES = 1 << 29
"""Maximum size of the cache in bytes; the file that was read last is kept in any case."""
EVALUATIONS = ("scores", "iqm", "interval")
"""Fields of a record of an evaluation."""

_LINES = 4096
"""Number of lines that are converted together."""
_OVERHEAD = 4096
"""Size of a cached object in bytes, without its numbers."""
_KEY = re.compile(rb'"(?:[^"\\]|\\.)*"(?=\s*:)')
"""Key of a JSON object; a string may contain text that looks like one."""

Floats = NDArray[np.float64]


class Rows:
    """Table of floats `[n, width]` that grows; rows are filled with NaN up to the width of the longest one."""

    def __init__(self) -> None:
        self._held, self._count = np.empty((0, 0)), 0

    @property
    def table(self) -> Floats:
        """All rows."""
        return self._held[: self._count]

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self._held.nbytes

    def extend(self, rows: Floats) -> None:
        """Append rows."""
        before, (count, width) = self.table, self._held.shape
        total = self._count + len(rows)
        if total > count or rows.shape[1] > width:
            room = max(total, count + count // 4) if total > count else count
            self._held = np.full((room, max(width, rows.shape[1])), np.nan)
            self._held[: self._count, :width] = before
        self._held[self._count : total, : rows.shape[1]] = rows
        self._count = total


class Cached(ABC):
    """What the first lines of a file contain.

    Attributes:
        inode: inode of the file.
        offset: number of bytes read so far.
    """

    def __init__(self) -> None:
        self.inode = self.offset = 0

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Size in memory, in bytes."""

    @abstractmethod
    def take(self, lines: Sequence[bytes]) -> None:
        """Add the next lines of the file."""


class Column(Cached):
    """Columns of a metric, or of the scores of evaluations.

    Args:
        metric: name of the metric; None for evaluations.

    Attributes:
        consumed: budget used at each record.
        seeds: value of each seed, `[n, S]`; missing or non-numeric values are NaN.
        curve: center, low and high, `[n, 3]`. For evaluations, the recorded IQM and its interval; for metrics, mean,
            minimum and maximum over the seeds with a finite value.
    """

    def __init__(self, metric: str | None = None) -> None:
        super().__init__()
        self._names = EVALUATIONS if metric is None else (metric,)
        self._sought = json.dumps(self._names[0]).encode()  # as it is written, so that few lines are parsed
        self.consumed = array("q")
        self.seeds, self.curve = Rows(), Rows()

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return self.seeds.nbytes + self.curve.nbytes + self.consumed.itemsize * len(self.consumed)

    def take(self, lines: Sequence[bytes]) -> None:
        """Add the records with the first field."""
        found: list[list[Any]] = []
        for line in lines:
            record = _record(line) if self._sought in line else None
            if record is None or self._names[0] not in record:
                continue
            try:
                self.consumed.append(used_budget(record))
            except (ValueError, OverflowError):  # a damaged record
                continue
            found.append([record.get(name) for name in self._names])
        if not found:
            return
        seeds, *rest = (table(values) for values in zip(*found, strict=True))
        width = self.seeds.table.shape[1]
        self.seeds.extend(seeds)
        if rest:
            center, interval = rest
            self.curve.extend(np.column_stack([center[:, :1], _padded(interval, 2)[:, :2]]))
        elif 0 < width < seeds.shape[1]:  # sums of wider rows are rounded in another order
            self.curve = Rows()
            self.curve.extend(_over_seeds(self.seeds.table))
        else:
            self.curve.extend(_over_seeds(_padded(seeds, width)))


class Names(Cached):
    """Names of the fields of all records.

    Attributes:
        found: the names.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found, self._seen = set[str](), set[bytes]()

    @property
    def nbytes(self) -> int:
        """Size in memory, in bytes."""
        return sum(map(len, self._seen)) + sum(map(len, self.found))

    def take(self, lines: Sequence[bytes]) -> None:
        """Add names of records; lines with known keys only are not parsed."""
        for line in lines:
            keys = _KEY.findall(line)
            if not self._seen.issuperset(keys) and (record := _record(line)) is not None:
                self._seen.update(keys)
                self.found.update(record)


Kind = TypeVar("Kind", bound=Cached)


class Columns:
    """Cache of the contents of files."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes, self._bytes = most_bytes, 0
        self._kept: OrderedDict[tuple[Path, str | None, type[Cached]], tuple[Cached, int]] = OrderedDict()

    def read(self, path: Path, metric: str | None = None) -> Column:
        """Return a metric, or scores of evaluations, in the records of a file; empty without a file.

        Args:
            path: JSON Lines file with one object per line; other than regular files count as missing.
            metric: name of the metric. Default: scores of evaluations.
        """
        return self._updated(path, metric, Column(metric))

    def names(self, path: Path) -> set[str]:
        """Return the names of all fields in the records of a file."""
        return self._updated(path, None, Names()).found

    def _updated(self, path: Path, metric: str | None, empty: Kind) -> Kind:
        """Return the contents of a file, which begin as `empty`."""
        key = path, metric, type(empty)
        cached, size = self._kept.pop(key, (empty, 0))
        self._bytes -= size
        try:
            require_regular(path)
            file = path.open("rb")
        except OSError:
            return empty
        with file:
            status = os.fstat(file.fileno())
            if cached.inode != status.st_ino or status.st_size < cached.offset:
                cached = empty
            cached.inode = status.st_ino
            file.seek(cached.offset)
            complete = takewhile(_is_complete, file)
            while lines := list(islice(complete, _LINES)):
                cached.take(lines)
                cached.offset += sum(map(len, lines))
        size = cached.nbytes + _OVERHEAD
        self._kept[key] = cached, size
        self._bytes += size
        while self._bytes > self._most_bytes and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1][1]
        return cast(Kind, cached)


def _is_complete(line: bytes) -> bool:
    return line.endswith(b"\n")


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], record) if isinstance(record, dict) else None


def _over_seeds(seeds: Floats) -> Floats:
    """Return mean, minimum and maximum of the finite values in each row."""
    present = np.isfinite(seeds)
    with np.errstate(all="ignore"):
        center = np.where(present, seeds, 0.0).sum(axis=1) / present.sum(axis=1)
    low = np.where(present, seeds, np.inf).min(axis=1, initial=np.inf)
    high = np.where(present, seeds, -np.inf).max(axis=1, initial=-np.inf)
    return np.column_stack([center, low, high])


def _padded(rows: Floats, width: int) -> Floats:
    """Return rows filled with NaN up to a width."""
    missing = max(0, width - rows.shape[1])
    return np.pad(rows, ((0, 0), (0, missing)), constant_values=np.nan) if missing else rows


def decimated(column: Column) -> dict[str, Any]:
    """Return a curve with at most `MOST_POINTS` points: lists `x`, `center`, `low`, `high`, and `seeds`.

    Neighboring points are merged if there are too many: `center` and `seeds` are means, `low` and `high` are minimum
    and maximum.
    """
    if not column.consumed:
        return {"x": [], "center": [], "low": [], "high": [], "seeds": []}
    count = len(column.consumed)
    points = min(count, MOST_POINTS)
    size, longer = divmod(count, points)
    center, low, high = (column.curve.table[:, i] for i in range(3))
    return {
        "x": [column.consumed[(i + 1) * size + min(i + 1, longer) - 1] for i in range(points)],
        "center": _merged(center, points, np.mean)[0],
        "low": _merged(low, points, np.min)[0],
        "high": _merged(high, points, np.max)[0],
        "seeds": _merged(column.seeds.table, points, np.mean),
    }


def _merged(values: Floats, points: int, merge: Callable[..., Any]) -> list[list[float | None]]:
    """Return columns with neighboring rows merged, of finite values only; None without one.

    Args:
        values: `[n]` or `[n, columns]`.
        points: number of groups of rows, each of the same size or one smaller than the earlier ones.
        merge: function of values and an axis.
    """
    columns = np.ascontiguousarray(np.atleast_2d(values.T))
    size, longer = divmod(columns.shape[1], points)
    cut = longer * (size + 1)
    found: list[list[float | None]] = [[] for _ in columns]
    for part, count in ((columns[:, :cut], longer), (columns[:, cut:], points - longer)):
        groups = part.reshape(len(columns), count, -1) if count else np.empty((len(columns), 0, 1))
        finite = np.isfinite(groups)
        with np.errstate(all="ignore"):
            merged: list[list[float | None]] = merge(groups, axis=-1).tolist()
        for i, j in np.argwhere(~finite.all(axis=-1)):
            kept = groups[i, j][finite[i, j]]
            merged[i][j] = float(merge(kept)) if kept.size else None
        for known, more in zip(found, merged, strict=True):
            known.extend(more)
    return found


def table(rows: Sequence[Any]) -> Floats:
    """Return records of numbers or lists as `[n, S]`; missing or non-numeric values are NaN."""
    lists = [cast(list[Any], row) if isinstance(row, list) else [row] for row in rows]
    found = np.full((len(lists), max(map(len, lists))), np.nan)
    for i, row in enumerate(lists):
        found[i, : len(row)] = [_float(value) for value in row]
    return found


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan
