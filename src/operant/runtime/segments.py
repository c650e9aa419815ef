"""Segments: parts of a state shared by several checkpoints, such as replay buffers, which change little between them.

Each part of a list under the key `segments` is stored in a file named by the SHA-256 of its contents, in a folder
next to the checkpoints. Unchanged parts are not written again, and parts that report no change
(`operant.state.Part`) are not read either. Parts that no checkpoint uses are deleted.
"""

import hashlib
import shutil
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file, save  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from operant.runtime.encoding import pointer
from operant.runtime.files import replace_durably, sha256
from operant.state import Part

KEY = "segments"

Record = dict[str, str | int]
"""Entry of a file in a manifest: `sha256` and `size`."""


def split(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Split tensors by path into those outside segments, and those of each segment by the segment's path."""
    rest: dict[str, Tensor] = {}
    segments: dict[str, dict[str, Tensor]] = {}
    for path, tensor in tensors.items():
        parts = path.split("/")
        at = parts.index(KEY) + 2 if KEY in parts else 0
        if not 0 < at < len(parts):
            rest[path] = tensor
        else:
            segments.setdefault("/".join(parts[:at]), {})["/".join(parts[at:])] = tensor
    return rest, segments


def marks(state: Any, path: str = "") -> dict[str, object]:
    """Return the change marks of the parts of a state, by path."""
    if isinstance(state, Part):
        return {path: state.mark}
    items: list[tuple[Any, Any]] = []
    if isinstance(state, Mapping):
        items = [(pointer(key), item) for key, item in cast(Mapping[Any, Any], state).items()]
    elif isinstance(state, list | tuple):
        items = list(enumerate(cast(list[Any], state)))
    return {place: mark for key, item in items for place, mark in marks(item, f"{path}/{key}").items()}


class SegmentStore:
    """The folder of segments that belongs to a folder of checkpoints."""

    def __init__(self, checkpoints: Path) -> None:
        self.folder = checkpoints / KEY
        self._known: dict[str, tuple[object, Record, tuple[int, ...]]] = {}

    @classmethod
    def of(cls, checkpoint: Path) -> "SegmentStore":
        """Return the store of a checkpoint, which may be in quarantine."""
        parent = checkpoint.parent
        return cls(parent.parent if parent.name == "quarantine" else parent)

    def unchanged(self, marked: Mapping[str, object]) -> dict[str, Record]:
        """Return the records of segments with unchanged mark and file."""
        return {
            path: record
            for path, (mark, record, signature) in self._known.items()
            if marked.get(path) is mark and self._signature(record) == signature
        }

    def remember(self, marked: Mapping[str, object], records: Mapping[str, Record]) -> None:
        """Remember the segments with a mark and their verified files, and forget all others."""
        self._known = {
            path: (marked[path], record, self._signature(record)) for path, record in records.items() if path in marked
        }

    def _signature(self, record: Record) -> tuple[int, ...]:
        """Return values that change when a file is written or replaced; empty if it does not exist."""
        try:
            status = self._file(str(record["sha256"])).stat()
        except OSError:
            return ()
        return status.st_ino, status.st_size, status.st_mtime_ns

    def write(self, segments: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Record]:
        """Store new segments durably, and return the record of each.

        Raises:
            OSError: a file could not be written.
        """
        records: dict[str, Record] = {}
        for path, tensors in segments.items():
            contents = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
            digest = hashlib.sha256(contents).hexdigest()
            file = self._file(digest)
            if not file.exists() or sha256(file) != digest:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_durably(file, contents)
            records[path] = {"sha256": digest, "size": len(contents)}
        return records

    def fault(self, records: Mapping[str, Record], trusted: Container[str] = ()) -> str | None:
        """Describe the first missing, unreadable or damaged segment, except at `trusted` paths; None without one."""
        for path, record in records.items():
            if path in trusted:
                continue
            file = self._file(str(record["sha256"]))
            try:
                if not file.is_file():
                    return f"{file} is missing"
                if file.stat().st_size != record["size"] or sha256(file) != record["sha256"]:
                    return f"{file} is damaged: its contents differ from what was written"
            except OSError as error:
                return f"{file} cannot be read: {error.strerror}"
        return None

    def load(self, records: Mapping[str, Record]) -> dict[str, Tensor]:
        """Return the tensors of segments by their full paths."""
        tensors: dict[str, Tensor] = {}
        for path, record in records.items():
            stored = load_file(self._file(str(record["sha256"])))
            tensors |= {f"{path}/{name}": tensor for name, tensor in stored.items()}
        return tensors

    def retire(self, used: Iterable[Mapping[str, Record]]) -> None:
        """Delete all segments except those in use.

        Args:
            used: the records of the segments of every checkpoint. If reading one raises an error, nothing is deleted.
        """
        if not self.folder.is_dir():
            return
        kept = {self._file(str(record["sha256"])) for records in used for record in records.values()}
        for file in self.folder.iterdir():
            if file not in kept:
                file.unlink()
        if not kept:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"
