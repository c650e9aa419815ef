"""Checkpoints that are safe against crashes, full disks and damaged files.

A checkpoint is a folder `step_<consumed>` with `state.safetensors` (the tensors), `state.json` (everything else)
and `manifest.json` (size and SHA-256 of both). It is written under a temporary name in the same folder, flushed to disk
and renamed, so it is complete or absent; a checkpoint that it replaces is restored if the process is killed between two
renames. Equal states give equal bytes: no time or host is stored. Tensors that share memory are stored separately.
Nothing is pickled, so loading runs no code. Replay buffers, which change little between checkpoints, are stored in
shared segments (`operant.runtime.segments`).

A state with NaN or Inf in a tensor is moved to `quarantine/` and never replaces a valid checkpoint. Values that may be
NaN or Inf (a best score so far, a mean over no episodes) must be under a key named `statistics`, which is not checked;
neither are plain floats, and `obs` directly under `env`, which belong to the environment.
"""

import errno
import hashlib
import json
import logging
import re
import shutil
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file  # pyright: ignore[reportUnknownVariableType]
from torch import Tensor

from operant.errors import ExplainedError
from operant.runtime.encoding import flatten, unflatten
from operant.runtime.files import read_regular, sha256, sync_file, sync_folder, write_durably
from operant.runtime.segments import KEY as SEGMENTS
from operant.runtime.segments import Record, SegmentStore, marks, split
from operant.state import State

logger = logging.getLogger(__name__)

SCHEMA = 1
"""Version of the format. Later versions keep the manifest's `schema_version` and `digest`."""

_NAME = re.compile(r"step_\d{12,}")
_UNEXAMINED = re.compile(r"/(statistics|env/obs)(/|$)")
_FILES = ("state.safetensors", "state.json")
_MARGIN = 1 << 20
_REPLACED = ".replaced"
"""Suffix of a checkpoint that another one of the same budget is about to replace."""


def folder_name(consumed: int) -> str:
    """Return the name of the folder of a checkpoint after a consumed budget."""
    return f"step_{consumed:012d}"


def consumed_of(path: Path) -> int:
    """Return the consumed budget in the name of a checkpoint's folder (see `Checkpoints.paths`)."""
    return int(path.name.removeprefix("step_"))


class CheckpointError(ExplainedError):
    """Raised if a checkpoint is damaged, missing, or from a later version of operant."""


class NonFiniteError(Exception):
    """Raised if training has produced NaN or Inf and cannot recover."""


class Checkpoints:
    """The checkpoints of one run.

    Attributes:
        folder: folder of the checkpoints.
        keep: number of valid checkpoints to keep; None: all.
        durable: whether a checkpoint is flushed to disk before earlier ones are removed.
        spare: folder of other states of the run, named if no checkpoint can be used.
    """

    def __init__(self, folder: Path, *, keep: int | None = 2, durable: bool = True, spare: Path | None = None):
        self.folder, self.keep, self.durable, self.spare = folder, keep, durable, spare
        self.quarantine = folder / "quarantine"
        self._verified: set[Path] = set()
        self._segments = SegmentStore(folder)

    def save(self, state: State, consumed: int, *, replace: bool = False) -> Path:
        """Write a checkpoint, verify it by reading it back, and remove old ones.

        Args:
            state: the state.
            consumed: budget used by then.
            replace: whether to replace a valid checkpoint with the same `consumed`. Default: then nothing is written.

        Returns:
            The folder of the checkpoint.

        Raises:
            OSError: writing failed; earlier checkpoints are unchanged.
            CheckpointError: the disk returned other bytes than were written; earlier checkpoints are unchanged.
            NonFiniteError: a tensor has NaN or Inf; the state is in `quarantine/`, earlier checkpoints are unchanged.
            TypeError: the state contains a type that a checkpoint cannot store.
        """
        structure, tensors = flatten(state)
        marked = marks(state)
        contents = _Contents.of(structure, tensors, self._segments.unchanged(marked))
        fault = non_finite(contents.tensors())
        parent = self.folder if fault is None else self.quarantine
        target = parent / folder_name(consumed)
        if fault is None and not replace and self._is_good(target):
            return target
        for folder in (self.folder, parent):  # never the folder of a run, which was moved or removed if it is missing
            folder.mkdir(exist_ok=True)
        records = self._write(target, contents, consumed)
        verify(target, trusted=contents.unchanged)
        if fault is not None:
            for path in _steps(self.quarantine)[: -(self.keep or 2)]:
                _remove(path)
            raise NonFiniteError(f"{fault}; the state was moved to {target}, earlier checkpoints are unchanged")
        self._verified.add(target)
        self._segments.remember(marked, records)
        self._retire(target)
        return target

    def latest(self) -> tuple[Path, int] | None:
        """Return the newest undamaged checkpoint and its consumed budget; None if there are no checkpoints.

        Damaged checkpoints are skipped with a warning.

        Raises:
            CheckpointError: no checkpoint can be used, or one is from a later version of operant.
        """
        faults: list[str] = []
        for path in reversed(self.paths()):
            try:
                consumed = verify(path)
            except DamagedError as error:
                faults.append(str(error))
                logger.warning("%s; the checkpoint is skipped", error)
                continue
            self._verified.add(path)
            return path, consumed
        faults += [f"{path} is in quarantine" for path in _steps(self.quarantine)]
        if faults:
            raise CheckpointError(
                f"no checkpoint in {self.folder} can be used ({'; '.join(faults)}); "
                f"restore one from a backup, {self.other_state('move the damaged ones away')}or start a new run"
            )
        return None

    def other_state(self, before: str = "") -> str:
        """Return how to continue from the newest undamaged other state of the run; empty without one.

        Args:
            before: what to do before that state is moved.
        """
        for path in reversed([] if self.spare is None else _steps(self.spare)):
            with suppress(CheckpointError):
                verify(path)
                if not _read_manifest(path / "manifest.json").get(SEGMENTS):  # these are stored separately
                    return f"continue from {path} ({before}{before and ', and '}move it to {self.folder}), "
        return ""

    def paths(self) -> list[Path]:
        """Return the folders of all checkpoints, oldest first, including damaged ones but not quarantined ones."""
        return _steps(self.folder)

    def clean(self) -> None:
        """Remove temporary files of an interrupted write or removal. The caller must hold the run's lock."""
        for path in [*self.folder.glob(".step_*"), *self.quarantine.glob(".step_*")]:
            replaced = path.with_name(path.stem.removeprefix("."))
            if path.suffix == _REPLACED and not replaced.exists():
                path.rename(replaced)
            else:
                shutil.rmtree(path, ignore_errors=True)
        self._retire_segments()

    def drop(self, after: int = -1) -> None:
        """Remove the checkpoints after a consumed budget. The caller must hold the run's lock."""
        for path in self.paths():
            if consumed_of(path) > after:
                _remove(path)
        self._retire_segments()

    def prune(self) -> None:
        """Remove the quarantine and all but the newest valid checkpoint. The caller must hold the run's lock.

        Raises:
            CheckpointError: no checkpoint can be used; all are unchanged.
        """
        found = self.latest()
        if found is None:
            return
        for path in [*self.paths(), *_steps(self.quarantine)]:
            if path != found[0]:
                _remove(path)
        self._verified &= {found[0]}
        self.clean()

    def _write(self, target: Path, contents: "_Contents", consumed: int) -> dict[str, Record]:
        """Write a checkpoint, and return the records of its segments."""
        partial = target.with_name(f".{target.name}.partial")
        text = json.dumps(contents.structure, allow_nan=False).encode()
        shutil.rmtree(partial, ignore_errors=True)
        try:
            _require_space(target.parent, len(text) + sum(tensor.nbytes for tensor in contents.tensors().values()))
            partial.mkdir()
            write = write_durably if self.durable else Path.write_bytes
            _save_tensors(contents.rest, partial / "state.safetensors", durable=self.durable)
            write(partial / "state.json", text)
            records = dict(sorted((contents.unchanged | self._segments.write(contents.changed)).items()))
            write(partial / "manifest.json", _manifest(partial, consumed, records))
            if self.durable:
                sync_folder(partial)
            _replace(target, partial)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        if self.durable:
            sync_folder(target.parent)
        return records

    def _is_good(self, path: Path) -> bool:
        try:
            verify(path)
        except CheckpointError:
            return False
        self._verified.add(path)
        return True

    def _was_good(self, path: Path) -> bool:
        return path in self._verified or self._is_good(path)

    def _retire(self, newest: Path) -> None:
        """Remove old checkpoints, and quarantine those later than `newest`, unless all are kept."""
        if self.keep is None:  # listing them at each save would take quadratic time
            return
        kept = [newest]
        for path in reversed(self.paths()):
            if path.name > newest.name:
                self.quarantine.mkdir(exist_ok=True)
                aside = self.quarantine / path.name
                if aside.exists():
                    _remove(aside)
                path.rename(aside)
            elif path.name < newest.name and len(kept) < self.keep and self._was_good(path):
                kept.append(path)
        for path in self.paths():
            if path not in kept:
                _remove(path)
        self._verified &= set(kept)
        self._retire_segments()

    def _retire_segments(self) -> None:
        """Delete segments that no checkpoint uses; none if a manifest cannot be read, since it may name any of them."""
        every = [*self.paths(), *_steps(self.quarantine)]
        try:
            self._segments.retire(_read_manifest(path / "manifest.json").get(SEGMENTS, {}) for path in every)
        except DamagedError as error:
            logger.warning("%s; all files in %s are kept, since it may need them", error, self._segments.folder)


class _Contents(NamedTuple):
    """Contents of a checkpoint: JSON, tensors, and segments, some of which may already exist."""

    structure: Any
    rest: dict[str, Tensor]
    changed: dict[str, dict[str, Tensor]]
    unchanged: dict[str, Record]

    @classmethod
    def of(cls, structure: Any, tensors: dict[str, Tensor], unchanged: dict[str, Record]) -> Self:
        rest, segments = split(tensors)
        changed = {path: segment for path, segment in segments.items() if path not in unchanged}
        return cls(structure, rest, changed, unchanged)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensor files that do not exist yet, by path."""
        parts = {f"{path}/{name}": part for path, parts in self.changed.items() for name, part in parts.items()}
        return self.rest | parts


class DamagedError(CheckpointError):
    """Raised if a file of a checkpoint is missing or damaged."""


def verify(path: Path, *, trusted: Container[str] = ()) -> int:
    """Verify every file of a checkpoint against its manifest, and return its consumed budget.

    Args:
        path: folder of the checkpoint.
        trusted: paths of segments that are not verified.

    Raises:
        DamagedError: a file is missing, or its size or hash differs; the message contains its path.
        CheckpointError: the checkpoint was written by a later version of operant.
    """
    manifest = _read_manifest(path / "manifest.json")
    if manifest["schema_version"] > SCHEMA:
        raise CheckpointError(
            f"{path} has format {manifest['schema_version']}, this operant reads formats up to {SCHEMA}; "
            "resume with the version of operant that wrote it, or a later one"
        )
    for name in _FILES:
        file, expected = path / name, manifest["files"][name]
        try:
            size = file.stat().st_size
            if size != expected["size"]:
                raise DamagedError(f"{file} is damaged: it has {size} bytes, expected {expected['size']}")
            if sha256(file) != expected["sha256"]:
                raise DamagedError(f"{file} is damaged: its contents differ from what was written")
        except OSError as error:
            raise DamagedError(f"{file} cannot be read: {error.strerror}") from error
    fault = SegmentStore.of(path).fault(manifest.get(SEGMENTS, {}), trusted)
    if fault is not None:
        raise DamagedError(fault)
    return manifest["consumed"]


def load(path: Path) -> State:
    """Load the state of a verified checkpoint, with tensors on the CPU.

    Raises:
        DamagedError: a file cannot be read.
    """
    try:
        structure = json.loads(read_regular(path / "state.json"))
        records = _read_manifest(path / "manifest.json").get(SEGMENTS, {})
        return unflatten(structure, load_file(path / "state.safetensors") | SegmentStore.of(path).load(records))
    except (OSError, ValueError, KeyError, RecursionError, SafetensorError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error


def _steps(folder: Path) -> list[Path]:
    """Return the checkpoint folders in `folder`, oldest first."""
    return sorted((path for path in folder.glob("step_*") if _NAME.fullmatch(path.name)), key=consumed_of)


def _replace(target: Path, new: Path) -> None:
    """Rename a new checkpoint; an older one of that name is moved aside first, where `Checkpoints.clean` finds it."""
    replaced = target.with_name(f".{target.name}{_REPLACED}")
    if target.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        target.rename(replaced)
    new.rename(target)
    shutil.rmtree(replaced, ignore_errors=True)


def _remove(path: Path) -> None:
    """Delete a checkpoint such that a partly deleted one is never used."""
    doomed = path.with_name(f".{path.name}.removed")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def non_finite(tensors: dict[str, Tensor]) -> str | None:
    """Return a description of the first checked tensor with NaN or Inf; None if there is none."""
    for path, tensor in tensors.items():
        if _UNEXAMINED.search(path) or not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        values = tensor.detach()
        finite = torch.isfinite(values if values.element_size() > 1 else values.float())
        if not bool(finite.all()):
            return f"{int((~finite).sum())} of {tensor.numel()} numbers of state entry {path} are NaN or Inf"
    return None


def _require_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size + _MARGIN:
        raise OSError(errno.ENOSPC, f"a checkpoint needs {size + _MARGIN} bytes, {free} are free", str(folder))


def _save_tensors(tensors: dict[str, Tensor], path: Path, *, durable: bool) -> None:
    dense: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors.items():
        copy = tensor.detach().cpu().contiguous()
        storage = copy.untyped_storage().data_ptr()
        dense[name] = copy.clone() if storage in storages else copy
        storages.add(storage)
    try:
        save_file(dense, path)
    except SafetensorError as error:
        raise OSError(errno.EIO, str(error), str(path)) from error
    with suppress(PermissionError):  # on file systems without permissions
        path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors creates files that only the user can read
    if durable:
        sync_file(path)


def _manifest(folder: Path, consumed: int, segments: dict[str, Record]) -> bytes:
    files = {name: {"size": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in _FILES}
    manifest: dict[str, Any] = {"schema_version": SCHEMA, "consumed": consumed, "files": files}
    if segments:
        manifest[SEGMENTS] = segments
    return json.dumps(manifest | {"digest": _digest(manifest)}, indent=1).encode()


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(read_regular(file))
        digest = manifest.pop("digest")
        if digest == _digest(manifest):
            return manifest
    except OSError as error:
        raise DamagedError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        pass
    raise DamagedError(f"{file} is damaged: its contents differ from what was written")
