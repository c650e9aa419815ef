"""Metrics as append-only JSON Lines, safe against crashes, full disks and partial writes.

A record is one line with the learner's `consumed` budget and numbers by name, or lists with one number per seed. JSON
has no NaN and Inf, so they are written as the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, which both Python's
`float` and JavaScript's `Number` accept.
"""

import json
import logging
import math
import os
import sys
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from operant.runtime.files import read_regular, replace_durably, require_regular

logger = logging.getLogger(__name__)

TAIL_BYTES = 1 << 16
"""Number of bytes at the end of a file that are searched first for the last record."""

_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def line_of(record: Mapping[str, Any]) -> bytes:
    """Return a record as a line of a JSON Lines file; tensors and arrays are converted to lists."""
    return json.dumps(_plain(record), allow_nan=False).encode() + b"\n"


class RecordWriter:
    """Appends records to a JSON Lines file, with one write per line.

    A failed write (full disk, quota, lost file system) does not raise an error, since it must not stop training: the
    first failure is logged, and further ones are counted.

    Attributes:
        lost: number of records that could not be written.
    """

    def __init__(self, path: Path):
        """Open `path` for appending; create it if needed.

        Raises:
            OSError: the file cannot be opened, or is not regular.
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
        """Append a record; tensors and arrays are converted to lists."""
        line = line_of(record)
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
        """Flush the records to disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            logger.warning("%s could not be flushed to disk: %s", self.path, error.strerror)

    def close(self) -> None:
        """Close the file. Can be called twice."""
        self._file.close()

    def _lose(self, reason: str) -> None:
        if not self.lost:
            logger.warning(
                "a record for %s is lost (%s); this does not stop the program, which counts lost records",
                self.path,
                reason,
            )
        self.lost += 1


def read_records(path: Path, *, texts: Container[str] = ()) -> list[dict[str, Any]]:
    """Return the records of a JSON Lines file in order, with NaN and Inf as floats.

    Invalid lines, such as an incomplete one after a crash, are skipped. A missing file has no records.

    Args:
        path: the file.
        texts: names of entries that are texts, in which the word NaN is no number.

    Raises:
        OSError: the file cannot be read, or is not regular.
    """
    return [record for _, record in _lines(path, texts) if record is not None]


def last_record(path: Path) -> dict[str, Any] | None:
    """Return the last complete record of a JSON Lines file, read from its end; None without one."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            for span in (TAIL_BYTES, size):
                file.seek(max(0, size - span))
                lines = file.read().split(b"\n")
                whole = lines[:-1] if span >= size else lines[1:-1]  # the first one may be incomplete
                found = next((record for record in map(_record, reversed(whole)) if record is not None), None)
                if found is not None or span >= size:
                    return found
    except OSError:
        pass
    return None


def used_budget(record: Mapping[str, Any], missing: int | None = 0) -> int:
    """Return the budget `consumed` of a record, or of a session in `run.json`.

    Args:
        record: the record.
        missing: the budget of a record without one; None: it must have one.

    Raises:
        ValueError: it is not a non-negative integer.
    """
    value: Any = record.get("consumed", missing)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or value < 0 or value != int(value):
        raise ValueError(f"the 'consumed' budget of a record must be a non-negative integer, got {value!r}")
    return int(value)


def rewind(path: Path, consumed: int) -> int:
    """Move the records after `consumed` to `rewound.jsonl` next to `path`; a resumed run writes them again.

    Damaged lines are moved, too, with a warning; an incomplete last line, as after a crash, is removed. No record is
    lost if the process crashes.

    Returns:
        Number of moved records.
    """
    kept: list[bytes] = []
    moved: list[bytes] = []
    damaged: list[bytes] = []
    torn = False
    for line, record in _lines(path):
        if record is None:
            torn = True
            damaged += [line] if line.endswith(b"\n") and line.strip() else []
        elif record.get("consumed", 0) > consumed:
            moved.append(line)
        else:
            kept.append(line)
    if damaged:
        count = f"{len(damaged)} line{'s' * (len(damaged) > 1)}"
        logger.warning("%s has %s without a record, moved to rewound.jsonl next to it", path, count)
    if moved or damaged:
        aside = path.with_name("rewound.jsonl")
        before = read_regular(aside) if aside.exists() else b""
        replace_durably(aside, before + _joined([*damaged, *moved]))
    if moved or torn:
        replace_durably(path, _joined(kept))
    return len(moved)


def _joined(lines: Iterable[bytes]) -> bytes:
    return b"".join(line.strip() + b"\n" for line in lines)


def _lines(path: Path, texts: Container[str] = ()) -> Iterable[tuple[bytes, dict[str, Any] | None]]:
    """Yield every line with its record, or None."""
    if not path.exists():
        return
    require_regular(path)
    with path.open("rb") as file:
        for line in file:
            yield line, _record(line, texts)


def _record(line: bytes, texts: Container[str] = ()) -> dict[str, Any] | None:
    """Return the record in a line, or None."""
    try:
        record = json.loads(line) if line.strip() else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    entries = cast(dict[str, Any], record)
    return {name: value if name in texts else _restored(value) for name, value in entries.items()}


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
    """Return whether a value is a tensor, without importing torch, which takes 200 MB."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in cast(dict[str, Any], value).items()}
    if isinstance(value, list):
        return [_restored(item) for item in cast(list[Any], value)]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value
