"""Metrics on disk: append-only JSON Lines that survive crashes, full disks and torn writes.

A record is one line with the learner's `consumed` budget and named numbers, a list with one per seed. JSON has no NaN
or infinity, so these are the strings `"NaN"`, `"Infinity"` and `"-Infinity"` (which both Python's `float` and
JavaScript's `Number` understand): they are written, not hidden.
"""

import json
import logging
import math
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from operant.runtime.files import read_regular, replace_durably, require_regular

logger = logging.getLogger(__name__)

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class RecordWriter:
    """Appends records to a JSON Lines file, one write per line.

    A write that fails (disk full, quota, file system gone) does not raise: the first failure is logged, the rest are
    only counted, because losing a record must not stop training.

    Attributes:
        lost: records that could not be written.
    """

    def __init__(self, path: Path):
        """Open `path` for appending; create it if needed.

        Raises:
            OSError: the file cannot be opened, or is not a regular one.
        """
        require_regular(path)
        self.path = path
        self.lost = 0
        self._file = path.open("a+b", buffering=0)
        size = self._file.seek(0, os.SEEK_END)
        self._torn = False
        if size:
            self._file.seek(size - 1)
            self._torn = self._file.read(1) != b"\n"

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record; tensors and arrays become lists."""
        line = json.dumps(_plain(record), allow_nan=False).encode() + b"\n"
        if self._torn:
            line = b"\n" + line
        try:
            written = os.write(self._file.fileno(), line)
        except OSError as error:
            self._lose(str(error))
            return
        self._torn = written < len(line)
        if self._torn:
            self._lose(f"{written} of {len(line)} bytes written")

    def sync(self) -> None:
        """Make the records written so far durable."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            logger.warning("%s could not be made durable: %s", self.path, error.strerror)

    def close(self) -> None:
        """Close the file. Can be called twice."""
        self._file.close()

    def _lose(self, reason: str) -> None:
        if not self.lost:
            logger.warning(
                "a record for %s is lost (%s); training continues and counts lost records", self.path, reason
            )
        self.lost += 1


def read_records(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSON Lines file in order, with non-finite numbers as floats again.

    Invalid lines, such as one torn by a crash, are skipped. A missing file has no records.

    Raises:
        OSError: it cannot be read, or is not a regular file.
    """
    return [record for _, record in _lines(path) if record is not None]


def rewind(path: Path, consumed: int) -> int:
    """Move the records later than `consumed` to `rewound.jsonl` next to `path`; a resumed run writes them again.

    A crash at any moment loses no record.

    Returns:
        Number of moved records.
    """
    kept: list[bytes] = []
    moved: list[bytes] = []
    torn = False
    for line, record in _lines(path):
        if record is None:
            torn = True
        elif record.get("consumed", 0) > consumed:
            moved.append(line)
        else:
            kept.append(line)
    if moved:
        aside = path.with_name("rewound.jsonl")
        before = read_regular(aside) if aside.exists() else b""
        replace_durably(aside, before + _joined(moved))
    if moved or torn:
        replace_durably(path, _joined(kept))
    return len(moved)


def _joined(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def _lines(path: Path) -> Iterable[tuple[bytes, dict[str, Any] | None]]:
    """Yield every line with its record, or None."""
    if not path.exists():
        return
    require_regular(path)
    with path.open("rb") as file:
        for line in map(bytes.strip, file):
            try:
                record = json.loads(line) if line else None
            except (ValueError, RecursionError):
                record = None
            yield line, _restored(record) if isinstance(record, dict) else None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic) or _is_tensor(value):
        return _plain(cast(Any, value).tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in cast(list[Any], value)]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor; torch is not imported for that, as it takes 200 MB and readers do without."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_restored(item) for item in cast(list[Any], value)]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value
