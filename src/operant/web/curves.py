"""Columns of growing JSON Lines files, and curves with a limited number of points.

Only complete lines are read. Earlier lines are cached, so that updates of a long run read only new lines.
"""

import json
import math
import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from operant.runtime.files import require_regular
from operant.runtime.metrics import used_budget

MOST_POINTS = 500
"""Maximum number of points of a curve."""
MOST_FILES = 64
"""Maximum number of files in the cache."""

Floats = NDArray[np.float64]


@dataclass
class Column:
    """Cached columns of a file.

    Attributes:
        inode: inode of the file.
        offset: number of bytes read so far.
        consumed: budget used at each record.
        values: lists or numbers by name, one per record.
    """

    inode: int
    offset: int = 0
    consumed: list[int] = field(default_factory=list[int])
    values: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])


class Columns:
    """Cache of columns."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Path, tuple[str, ...]], Column] = OrderedDict()

    def read(self, path: Path, names: Sequence[str]) -> Column:
        """Return columns of the records with the first field; empty without a file.

        Args:
            path: JSON Lines file with one object per line; other than regular files count as missing.
            names: names of the fields.
        """
        key = path, tuple(names)
        try:
            require_regular(path)
            file = path.open("rb")
        except OSError:
            self._kept.pop(key, None)
            return Column(0)
        with file:
            found = os.fstat(file.fileno())
            column = self._kept.get(key)
            if column is None or column.inode != found.st_ino or found.st_size < column.offset:
                column = Column(found.st_ino, values={name: [] for name in names})
            file.seek(column.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                column.offset += len(line)
                _take(column, line, names)
        self._kept[key] = column
        self._kept.move_to_end(key)
        if len(self._kept) > MOST_FILES:
            self._kept.popitem(last=False)
        return column


def _take(column: Column, line: bytes, names: Sequence[str]) -> None:
    if json.dumps(names[0]).encode() not in line:  # as it is written, so that few lines are parsed
        return
    record = _record(line)
    if record is None or names[0] not in record:
        return
    try:
        column.consumed.append(used_budget(record))
    except ValueError:  # a damaged record
        return
    for name in names:
        column.values[name].append(record.get(name))


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast(dict[str, Any], record) if isinstance(record, dict) else None


def decimated(column: Column, metric: str | None) -> dict[str, Any]:
    """Return a curve with at most `MOST_POINTS` points: lists `x`, `center`, `low`, `high`, and `seeds`.

    For evaluations, `center` is the recorded IQM, and `low` and `high` are its interval; for training metrics they are
    mean, minimum and maximum over seeds. Neighboring points are merged if there are too many: `center` is the mean of
    their centers, `low` and `high` are minimum and maximum.
    """
    if not column.consumed:
        return {"x": [], "center": [], "low": [], "high": [], "seeds": []}
    x = np.array(column.consumed)
    if metric is None:
        seeds = table(column.values["scores"])
        center = table(column.values["iqm"])[:, 0]
        low, high = table(column.values["interval"]).T[:2]
    else:
        seeds = table(column.values[metric])
        with np.errstate(all="ignore"):
            present = np.isfinite(seeds)
            center = np.where(present, seeds, 0.0).sum(axis=1) / present.sum(axis=1)
            low = np.where(present, seeds, np.inf).min(axis=1)
            high = np.where(present, seeds, -np.inf).max(axis=1)
    groups = np.array_split(np.arange(x.size), min(x.size, MOST_POINTS))
    return {
        "x": [int(x[group[-1]]) for group in groups],
        "center": [_mean(center[group]) for group in groups],
        "low": [_least(low[group]) for group in groups],
        "high": [_most(high[group]) for group in groups],
        "seeds": [[_mean(seeds[group, i]) for group in groups] for i in range(seeds.shape[1])],
    }


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
    except (TypeError, ValueError):
        return math.nan


def _finite(values: Floats) -> Floats:
    return values[np.isfinite(values)]


def _mean(values: Floats) -> float | None:
    kept = _finite(values)
    return float(kept.mean()) if kept.size else None


def _least(values: Floats) -> float | None:
    kept = _finite(values)
    return float(kept.min()) if kept.size else None


def _most(values: Floats) -> float | None:
    kept = _finite(values)
    return float(kept.max()) if kept.size else None
