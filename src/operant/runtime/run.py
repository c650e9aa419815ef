"""A run is a folder.

    runs/<name>/
      config.toml     [settings] and [config], with all defaults
      run.json        id, seeds, resolved settings, and one entry per session: command, versions, outcome
      metrics.jsonl   one record per line
      checkpoints/    see operant.runtime.checkpoints
      history/        checkpoints along the training, and hashes.jsonl (operant.runtime.history)
      eval/           evaluations.jsonl, and samples.jsonl where something answers
      media/          images and videos
      lock            held by the process that trains, which lock.holder names

Everything in it can be read while another process trains.
"""

import contextlib
import errno
import json
import logging
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import tomli_w

from operant import catalog, doors
from operant.catalog import old_names
from operant.catalog.outside import recorded
from operant.runtime import edits, missing_checkpoints, sessions
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.files import make_folder, read_regular, remove_leftovers, replace_durably
from operant.runtime.inputs import (
    TRAINING_ONLY,
    Input,
    as_written,
    changes,
    located,
    moved,
    outside_of,
    records_of,
    refreshed,
)
from operant.runtime.locks import HeldError, held
from operant.runtime.run_paths import RunError, absolute, check_name, no_run, taken
from operant.runtime.settings import Settings
from operant.runtime.tables import from_table, to_table
from operant.texts import decoded, parse_toml

logger = logging.getLogger(__name__)

C = TypeVar("C")

SCHEMA = 2
"""Version of `config.toml` and `run.json`; older versions are upgraded by `catalog.old_names.upgraded`."""

RUN_NOTE = "in the run "
"""Prefix of the note with the run's folder that is added to errors."""

TRAINING_NOTE = "while it was trained"
"""Note that is added to errors after training has begun."""

_FOLDERS = ("checkpoints", "eval", "media")

PATIENCE = 1.0
"""Seconds to wait for the lock of a run, which other processes hold for an instant to list it."""


class Run:
    """A run on disk, created by `create` or opened by `open`.

    Attributes:
        path: folder of the run.
        settings: settings common to all algorithms; `config` returns the algorithm's configuration.
        checkpoints: checkpoints to resume from.
        history: checkpoints saved in regular intervals.
        hashes_path: file with SHA-256 hashes of states.
        metrics_path: file of training metrics.
        evaluations_path: file of evaluations.
        samples_path: file of answers sampled in evaluations.
        media_path: folder of images and videos.
    """

    def __init__(self, path: Path, settings: Settings, config: Mapping[str, Any], written: Mapping[str, Any] = {}):
        self.path = path
        self.settings = settings
        self.checkpoints = Checkpoints(path / "checkpoints", spare=path / "history")
        self.history = Checkpoints(path / "history", keep=None, durable=False)
        self.hashes_path = path / "history" / "hashes.jsonl"
        self.metrics_path = path / "metrics.jsonl"
        self.evaluations_path = path / "eval" / "evaluations.jsonl"
        self.samples_path = path / "eval" / "samples.jsonl"
        self.media_path = path / "media"
        self._config, self._written = config, written
        self._holds = 0

    def __repr__(self) -> str:
        """Return a summary in one line."""
        settings, count = self.settings, len(self.settings.seeds)
        return (
            f"Run({str(self.path)!r}: {settings.algorithm} on {settings.task}, {count} seed{'s' * (count > 1)} from "
            f"{settings.seeds[0]}, budget {settings.budget:,})"
        )

    @classmethod
    def create(
        cls,
        path: str | Path,
        settings: Settings,
        config: Any,
        *,
        command: Sequence[str] = (),
        resolved: Mapping[str, str | int | float | bool] | None = None,
        inputs: Sequence[Input] = (),
        outside: catalog.Algorithm | None = None,
    ) -> "Run":
        """Create the folder of a new run, atomically.

        Args:
            path: path of the folder, whose last component is the name of the run.
            settings: settings common to all algorithms.
            config: configuration of the algorithm, a dataclass instance.
            command: command line to record.
            resolved: settings resolved by operant (threads, device, precision, ...), for `resolved`.
            inputs: input files and folders (`operant.runtime.inputs`).
            outside: description of an external algorithm, which can be read without its code.

        Raises:
            RunError: the name is invalid, the folder is not empty (`TakenError`), or it cannot be created.
            TypeError: a value has a type that cannot be stored.
            ValueError: a value cannot be stored uniquely.
        """
        path = absolute(path)
        check_name(path)
        own = to_table(config)
        entry = outside or recorded(settings.algorithm, None)
        tables = {"schema_version": SCHEMA, "settings": settings.table(entry and entry.package), "config": own}
        contents = tomli_w.dumps(tables).encode()
        facts = {
            "schema_version": SCHEMA,
            **sessions.identity(path),
            "seeds": list(settings.seeds),
            "resolved": dict(resolved or {}),
            "inputs": [given.record(path) for given in inputs],
            "sessions": [sessions.started(command) | {"budget": settings.budget} | edits.hash_of(contents)],
        } | ({} if outside is None else {"algorithm": outside.facts()})
        try:
            make_folder(path, _FOLDERS, {"config.toml": contents, "run.json": _json(facts)})
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and path.is_dir():
                raise taken(path) from error
            raise RunError(
                f"cannot create the run folder {path}: {error.strerror}: choose another folder with --run"
            ) from error
        doors.own(str(path))
        return cls(path, settings, own)

    @classmethod
    def open(cls, path: str | Path, objects: Mapping[str, Any] | None = None) -> "Run":
        """Open the run in the folder `path`.

        Args:
            path: path of the folder.
            objects: Python objects of the run by name, to train or evaluate it (`operant.load`). Default: it is only
                read.

        Raises:
            DoorError: an object is missing, or the run needs none of that name.
            RunError: the folder contains no run, or one that this version cannot read.
        """
        path = absolute(path)
        file = path / "config.toml"
        try:
            tables = parse_toml(decoded(read_regular(file), file), file)
        except OSError as error:
            raise RunError(f"{path} is not the folder of a run: {no_run(path, error)}") from error
        except ValueError as error:
            raise RunError(str(error)) from error
        version = tables.pop("schema_version", None)
        if type(version) is not int or version > SCHEMA:
            given = "no schema_version" if version is None else f"schema_version {version}"
            raise RunError(f"{file} has {given}; this operant reads versions up to {SCHEMA}")
        unknown = sorted(tables.keys() - {"settings", "config"})
        if unknown or not all(isinstance(tables.get(name), dict) for name in ("settings", "config")):
            raise RunError(f"{file} must contain only the tables [settings] and [config], got {sorted(tables)}")
        if objects is not None:
            needed = doors.names_in([*tables["settings"].values(), *tables["config"].values()])
            doors.bind(str(path), needed, objects)
            tables = {name: doors.bound(table, str(path)) for name, table in tables.items()}
        try:
            table = moved(tables["settings"], records_of(path), path)
            settings = from_table(Settings, table, where="settings")
        except ValueError as error:
            raise RunError(f"{file}: {error}") from error
        return cls(path, settings, old_names.upgraded(tables["config"], version), tables["settings"])

    def config(self, kind: type[C]) -> C:
        """Return the algorithm's configuration, with the current paths of its inputs.

        Args:
            kind: dataclass of the configuration.

        Raises:
            RunError: the file does not match `kind`.
        """
        try:
            return from_table(kind, located(self._config, records_of(self.path), self.path))
        except ValueError as error:
            raise RunError(f"{self.path / 'config.toml'}: {error}") from error

    @cached_property
    def entry(self) -> catalog.Algorithm:
        """Catalog entry of the algorithm; for external algorithms as saved with the run.

        Raises:
            ValueError: the algorithm is unknown.
        """
        return self._known_entry() or catalog.find(self.settings.algorithm)

    def _known_entry(self) -> catalog.Algorithm | None:
        """Return the catalog entry of the built-in algorithm, or of the external one as saved; None if unknown."""
        return recorded(self.settings.algorithm, outside_of(self.path))

    def asked(self) -> dict[str, Any]:
        """Return all settings and configuration fields by name."""
        return doors.unbound({**to_table(self.settings), **self._config})

    def facts(self) -> dict[str, Any]:
        """Return the contents of `run.json`.

        Raises:
            RunError: the file cannot be read, or lacks an entry.
        """
        file = self.path / "run.json"
        try:
            facts: Any = json.loads(read_regular(file))
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise RunError(f"{file} cannot be read: {error}") from error
        if not isinstance(facts, dict):
            raise RunError(f"{file} is damaged: it must contain an object, got {facts!r}")
        known = cast(dict[str, Any], facts)
        for name, kind, word in (("resolved", dict, "object"), ("sessions", list, "list")):
            if not isinstance(known.get(name), kind):
                raise RunError(f"{file} is damaged: {name!r} must be a JSON {word}, got {known.get(name)!r}")
        if odd := [session for session in known["sessions"] if not isinstance(session, dict)]:
            raise RunError(f"{file} is damaged: 'sessions' must be a list of JSON objects, got {odd[0]!r} in it")
        return known

    def resolved(self) -> dict[str, Any]:
        """Return the settings resolved by operant when the run was created, which are used again on resume.

        Raises:
            RunError: as for `facts`.
        """
        return self.facts()["resolved"]

    def require_inputs(self, names: Container[str] | None = None, *, accept: bool = False) -> None:
        """Check that the inputs of the run are unchanged; warn about each change.

        Args:
            names: names of the inputs to check. Default: all that are needed after the start.
            accept: whether to accept changed inputs.

        Raises:
            RunError: inputs have changed, and `accept` is false.
        """
        needed = [record for record in records_of(self.path) if not record.get("at_start")]
        if names is None:
            wanted = [record for record in needed if record["name"] not in TRAINING_ONLY]
        else:
            wanted = [record for record in needed if record["name"] in names]
        found = changes(wanted, self.path)
        for line in found:
            logger.warning("%s: %s", self.path, line)
        if found and not accept:
            raise RunError(
                f"{self.path} is not reproducible, since {len(found)} of its inputs changed ({'; '.join(found)}): "
                "restore them, or continue with the changed inputs by --accept-changes (in Python "
                "accept_changes=True)"
            )

    def keep_inputs(self) -> None:
        """Record the current inputs, after a change was accepted.

        Raises:
            RunError: the folder is not writable.
        """
        self._update(lambda facts: facts.update(inputs=refreshed(records_of(self.path), self.path)))

    def _update(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change `run.json` atomically."""
        facts = self.facts()
        change(facts)
        self._replace("run.json", _json(facts))

    def _replace(self, name: str, contents: bytes) -> None:
        try:
            replace_durably(self.path / name, contents)
        except OSError as error:
            raise RunError(f"cannot write in {self.path}: {error.strerror}") from error

    def note_callbacks(self, names: Sequence[str]) -> None:
        """Record the callbacks of the session that are Python objects, which a later session cannot restore.

        Args:
            names: names of their classes.
        """
        if names:
            with self._only_warned("the list of callbacks"):
                self._update(lambda facts: facts["sessions"][-1].update(callbacks=list(names)))

    def end_session(self, outcome: str, consumed: int, reason: str = "") -> None:
        """Record the outcome of the last session; a failed write causes a warning.

        Args:
            outcome: outcome (`operant.runtime.sessions`).
            consumed: budget used per seed.
            reason: reason, if known.
        """
        entry = sessions.ended(outcome, consumed, reason)
        with self._only_warned("the outcome of the session"):
            self._update(lambda facts: facts["sessions"].append(facts["sessions"].pop() | entry))

    def outcome(self) -> tuple[str, str]:
        """Return the outcome of the last session (`operant.runtime.sessions`), and the reason if known.

        Raises:
            RunError: as for `facts`.
        """
        return sessions.described(self.facts()["sessions"])

    def note_checkpoint(self) -> None:
        """Record that there is a checkpoint, so that its loss can be detected."""
        with self._only_warned("the existence of a checkpoint"):
            if not self.facts().get("saved"):
                self._update(lambda facts: facts.update(saved=True))

    def require_checkpoints(self) -> None:
        """Raise a `RunError` if the run has lost its checkpoints, or is merged and never had any."""
        missing_checkpoints.require(self)

    def latest_checkpoint(self) -> Path:
        """Return the newest undamaged checkpoint.

        Raises:
            RunError: there is none yet, or they were lost.
            CheckpointError: no checkpoint can be used.
        """
        if found := self.checkpoints.latest():
            return found[0]
        self.require_checkpoints()
        raise RunError(missing_checkpoints.none_yet(self))

    @contextlib.contextmanager
    def _only_warned(self, what: str) -> Generator[None]:
        try:
            yield
        except RunError as error:
            logger.warning("%s: %s was not saved (%s)", self.path, what, error)

    def set_budget(self, budget: int) -> None:
        """Change the budget of the run; `keep_settings` saves it.

        Raises:
            RunError: the run has already used more.
            ValueError: the budget is not a positive integer.
        """
        found = self.checkpoints.latest()
        consumed = 0 if found is None else found[1]
        settings = replace(self.settings, budget=budget)
        if budget < consumed:
            raise RunError(f"budget must be at least {consumed}, which {self.path} has already used, got {budget}")
        self.settings = settings

    def keep_settings(self) -> None:
        """Write `settings` to `config.toml`; `run.json` has its hash before, so that no crash makes it look edited."""
        entry = self._known_entry()
        table = as_written(
            self.settings.table(entry and entry.package), self._written, records_of(self.path), self.path
        )
        tables = {"schema_version": SCHEMA, "settings": doors.unbound(table), "config": doors.unbound(self._config)}
        contents = tomli_w.dumps(tables).encode()
        self._update(lambda facts: edits.announce(facts, contents))
        self._replace("config.toml", contents)

    def add_session(self, command: Sequence[str], consumed: int, **noted: Any) -> None:
        """Record a new session with its command, budget, versions, host, hash of `config.toml`, and what is noted."""
        session = sessions.started(command) | {"budget": self.settings.budget, "from": consumed} | noted
        session |= edits.hash_of(read_regular(self.path / "config.toml"))
        self._update(lambda facts: edits.settled(facts)["sessions"].append(session))

    def clean(self) -> None:
        """Remove temporary files of killed processes. The caller must hold the lock."""
        self.checkpoints.clean()
        self.history.clean()
        for folder in (self.path / "best", *self.path.glob("best/seed_*")):
            if folder.is_dir():
                Checkpoints(folder).clean()
        for folder in (self.path, self.path / "eval", self.path / "ledger"):
            remove_leftovers(folder)

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Return a context manager that locks the run for this process. May be nested.

        Raises:
            RunError: another running process holds the lock, or the folder is not writable.
        """
        if self._holds:
            self._holds += 1
            try:
                yield
            finally:
                self._holds -= 1
            return
        with self._held():
            self._holds = 1
            try:
                yield
            except Exception as error:
                error.add_note(f"{RUN_NOTE}{self.path}")
                raise
            finally:
                self._holds = 0

    @contextlib.contextmanager
    def _held(self) -> Generator[None]:
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(held(self.path, patience=PATIENCE))
            except HeldError as error:
                raise RunError(f"{self.path} is being trained by {error}: wait for it to end, or stop it") from error
            except OSError as error:
                raise RunError(f"cannot write in {self.path}: {error.strerror}") from error
            yield


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
