"""A run is a folder.

    runs/<name>/
      config.toml     [settings] and [config], with all defaults
      run.json        seeds, resolved settings, and one entry per session: command, versions, outcome
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
import shlex
import tomllib
from collections.abc import Callable, Container, Generator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import tomli_w

from operant import catalog
from operant.catalog import old_names
from operant.runtime import sessions
from operant.runtime.checkpoints import Checkpoints
from operant.runtime.files import (
    make_folder,
    read_regular,
    remove_leftovers,
    replace_durably,
)
from operant.runtime.inputs import (
    TRAINING_ONLY,
    Input,
    changes,
    located,
    moved,
    outside_of,
    records_of,
    refreshed,
)
from operant.runtime.locks import HeldError, held
from operant.runtime.metrics import read_records
from operant.runtime.run_paths import RunError, TakenError, absolute, check_name, no_run
from operant.runtime.settings import Settings
from operant.runtime.tables import from_table, to_table

logger = logging.getLogger(__name__)

C = TypeVar("C")

SCHEMA = 2
"""Version of `config.toml` and `run.json`; older ones are upgraded by `catalog.old_names.upgraded`."""

RUN_NOTE = "in the run "
"""Start of the note, followed by the folder, on an error that stops a process working on a run."""

_FOLDERS = ("checkpoints", "eval", "media")


class Run:
    """One run on disk; made by `create` or `open`.

    Attributes:
        path: the folder.
        settings: what was asked for, common to all algorithms; the algorithm's own part is read by `config`.
        checkpoints: its checkpoints, to resume from.
        history: those that are kept along the training.
        hashes_path: SHA-256 of states along the training.
        metrics_path: the records of training.
        evaluations_path: the records of evaluation.
        samples_path: the answers in evaluations.
        media_path: folder of images and videos.
    """

    def __init__(self, path: Path, settings: Settings, config: Mapping[str, Any]):
        self.path = path
        self.settings = settings
        self.checkpoints = Checkpoints(path / "checkpoints")
        self.history = Checkpoints(path / "history", keep=None, durable=False)
        self.hashes_path = path / "history" / "hashes.jsonl"
        self.metrics_path = path / "metrics.jsonl"
        self.evaluations_path = path / "eval" / "evaluations.jsonl"
        self.samples_path = path / "eval" / "samples.jsonl"
        self.media_path = path / "media"
        self._config = config
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
        """Make the folder of a new run, atomically.

        Args:
            path: of the folder; the last part is the name of the run.
            settings: common to all algorithms.
            config: the algorithm's configuration, a dataclass instance.
            command: the command line, to be saved.
            resolved: settings chosen by operant (threads, device, precision, ...), for `resolved`.
            inputs: its input files and folders (`operant.runtime.inputs`).
            outside: description of an algorithm outside the catalog, readable without its code.

        Raises:
            RunError: the name is not allowed, the folder exists and is not empty (`TakenError`), or it cannot be made.
            TypeError: a configuration holds a type that a file cannot.
            ValueError: a value that a file cannot represent uniquely.
        """
        path = absolute(path)
        check_name(path)
        own = to_table(config)
        entry = outside or _cataloged(settings.algorithm)
        tables = {"schema_version": SCHEMA, "settings": settings.table(entry and entry.package), "config": own}
        facts = {
            "schema_version": SCHEMA,
            "seeds": list(settings.seeds),
            "resolved": dict(resolved or {}),
            "inputs": [given.record(path) for given in inputs],
            "sessions": [sessions.started(command) | {"budget": settings.budget}],
        } | ({} if outside is None else {"algorithm": outside.facts()})
        try:
            make_folder(path, _FOLDERS, {"config.toml": tomli_w.dumps(tables).encode(), "run.json": _json(facts)})
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST) and path.is_dir():
                known = (path / "config.toml").is_file()
                resume = f"continue it with `operant resume {shlex.quote(str(path))}`, or " if known else ""
                raise TakenError(
                    f"{path} exists already and is not empty; {resume}name another folder with --run"
                ) from error
            raise RunError(
                f"cannot make the run folder {path}: {error.strerror}; name another folder with --run"
            ) from error
        return cls(path, settings, own)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Open the run in the folder `path`.

        Raises:
            RunError: it holds no run, or one that this version cannot read.
        """
        path = absolute(path)
        file = path / "config.toml"
        try:
            tables = tomllib.loads(read_regular(file).decode())
        except OSError as error:
            raise RunError(f"{path} is not the folder of a run: {no_run(path, error)}") from error
        except (ValueError, RecursionError) as error:
            raise RunError(f"{file} cannot be read: {error}") from error
        version = tables.pop("schema_version", None)
        if type(version) is not int or version > SCHEMA:
            raise RunError(f"{file} has schema_version {version}; this operant reads versions up to {SCHEMA}")
        unknown = sorted(tables.keys() - {"settings", "config"})
        if unknown or not all(isinstance(tables.get(name), dict) for name in ("settings", "config")):
            raise RunError(f"{file} must hold the tables [settings] and [config] and no others, got {sorted(tables)}")
        try:
            table = moved(tables["settings"], records_of(path), path)
            settings = from_table(Settings, table, where="settings")
        except ValueError as error:
            raise RunError(f"{file}: {error}") from error
        return cls(path, settings, old_names.upgraded(tables["config"], version))

    def config(self, kind: type[C]) -> C:
        """Return the algorithm's configuration, with the current paths of its inputs.

        Args:
            kind: its dataclass.

        Raises:
            RunError: the file does not fit `kind`.
        """
        try:
            return from_table(kind, located(self._config, records_of(self.path), self.path))
        except ValueError as error:
            raise RunError(f"{self.path / 'config.toml'}: {error}") from error

    @cached_property
    def entry(self) -> catalog.Algorithm:
        """The description of its algorithm; of a custom one, as saved with the run.

        Raises:
            ValueError: unknown algorithm.
        """
        return self._known_entry() or catalog.find(self.settings.algorithm)

    def _known_entry(self) -> catalog.Algorithm | None:
        """Return its custom algorithm, or the one of the catalog; None if unknown."""
        outside = outside_of(self.path)
        return _cataloged(self.settings.algorithm) if outside is None else catalog.Algorithm.of_facts(outside)

    def asked(self) -> dict[str, Any]:
        """Return all settings and configuration fields by name."""
        return {**to_table(self.settings), **self._config}

    def facts(self) -> dict[str, Any]:
        """Return the contents of `run.json`.

        Raises:
            RunError: it cannot be read, or lacks an entry.
        """
        file = self.path / "run.json"
        try:
            facts: Any = json.loads(read_regular(file))
        except OSError as error:
            raise RunError(f"{file} cannot be read: {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise RunError(f"{file} cannot be read: {error}") from error
        if not isinstance(facts, dict):
            raise RunError(f"{file} is damaged: it must hold an object, got {facts!r}")
        known = cast(dict[str, Any], facts)
        for name, kind, word in (("resolved", dict, "object"), ("sessions", list, "list")):
            if not isinstance(known.get(name), kind):
                raise RunError(f"{file} is damaged: {name!r} must be a JSON {word}, got {known.get(name)!r}")
        return known

    def resolved(self) -> dict[str, Any]:
        """Return the settings chosen by operant when the run was made, to be used again on resume.

        Raises:
            RunError: as for `facts`.
        """
        return self.facts()["resolved"]

    def require_inputs(self, names: Container[str] | None = None, *, accept: bool = False) -> None:
        """Check that the inputs of the run are unchanged; warn about each change.

        Args:
            names: of the inputs to check. Default: all that are needed after the start.
            accept: whether to continue with changed inputs.

        Raises:
            RunError: some have changed, without `accept`.
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
                f"{self.path} is not reproducible, as {len(found)} of its inputs changed ({'; '.join(found)}): "
                "restore them, or continue with the changed ones by --accept-changes (in Python "
                "accept_changes=True)"
            )

    def keep_inputs(self) -> None:
        """Save the current inputs, after a change was accepted.

        Raises:
            RunError: the folder cannot be written.
        """
        self._update(lambda facts: facts.update(inputs=refreshed(records_of(self.path), self.path)))

    def _update(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change `run.json` atomically."""
        facts = self.facts()
        change(facts)
        try:
            replace_durably(self.path / "run.json", _json(facts))
        except OSError as error:
            raise RunError(f"cannot write in {self.path}: {error.strerror}") from error

    def note_callbacks(self, names: Sequence[str]) -> None:
        """Save the callbacks of the session that a later one cannot restore: Python objects.

        Args:
            names: of their classes.
        """
        if names:
            with self._only_warned("the list of callbacks"):
                self._update(lambda facts: facts["sessions"][-1].update(callbacks=list(names)))

    def end_session(self, outcome: str, consumed: int, reason: str = "") -> None:
        """Save how the last session ended; a failure is warned about.

        Args:
            outcome: see `operant.runtime.sessions`.
            consumed: budget used, per seed.
            reason: why, if known.
        """
        entry = sessions.ended(outcome, consumed, reason)
        with self._only_warned("how the session ended"):
            self._update(lambda facts: facts["sessions"].append(facts["sessions"].pop() | entry))

    def outcome(self) -> tuple[str, str]:
        """Return how the last session ended (`operant.runtime.sessions`), and the reason if known.

        Raises:
            RunError: as for `facts`.
        """
        return sessions.described(self.facts()["sessions"])

    def note_checkpoint(self) -> None:
        """Save that there is a checkpoint, so that its loss is detected."""
        with self._only_warned("the existence of a checkpoint"):
            if not self.facts().get("saved"):
                self._update(lambda facts: facts.update(saved=True))

    def require_checkpoints(self) -> None:
        """Check that a run without checkpoints never had any.

        Raises:
            RunError: they are gone.
        """
        scored = max((record.get("consumed", 0) for record in read_records(self.evaluations_path)), default=0)
        trained = self.facts().get("saved") or scored >= self.settings.budget
        if trained or not self.checkpoints.folder.is_dir():
            raise RunError(
                f"the checkpoints of {self.path} are gone: {self.checkpoints.folder} "
                f"{'is empty' if self.checkpoints.folder.is_dir() else 'is missing'}, but it was trained before. "
                "Restore the folder from a backup, or train another run; training never starts over silently"
            )

    @contextlib.contextmanager
    def _only_warned(self, what: str) -> Generator[None]:
        try:
            yield
        except RunError as error:
            logger.warning("%s: %s was not saved (%s)", self.path, what, error)

    def set_budget(self, budget: int) -> None:
        """Change the budget of the run; `keep_settings` saves it.

        Raises:
            RunError: the run has consumed more.
            ValueError: it is not a positive integer.
        """
        found = self.checkpoints.latest()
        consumed = 0 if found is None else found[1]
        settings = replace(self.settings, budget=budget)
        if budget < consumed:
            raise RunError(f"{self.path} has consumed {consumed} already; give it a budget above that, got {budget}")
        self.settings = settings

    def keep_settings(self) -> None:
        """Write `settings` to `config.toml`."""
        entry = self._known_entry()
        table = self.settings.table(entry and entry.package)
        tables = {"schema_version": SCHEMA, "settings": table, "config": self._config}
        try:
            replace_durably(self.path / "config.toml", tomli_w.dumps(tables).encode())
        except OSError as error:
            raise RunError(f"cannot write in {self.path}: {error.strerror}") from error

    def add_session(self, command: Sequence[str], consumed: int) -> None:
        """Save the resume by `command`, with budget, versions and host."""
        session = sessions.started(command) | {"budget": self.settings.budget, "from": consumed}
        self._update(lambda facts: facts["sessions"].append(session))

    def clean(self) -> None:
        """Remove leftovers of killed processes. The caller must hold the lock."""
        self.checkpoints.clean()
        self.history.clean()
        if (self.path / "best").is_dir():
            Checkpoints(self.path / "best").clean()
        for folder in (self.path, self.path / "eval", self.path / "ledger"):
            remove_leftovers(folder)

    @contextlib.contextmanager
    def lock(self) -> Generator[None]:
        """Lock the run for this process; a lock of a dead process does not count. May be nested.

        Raises:
            RunError: another process holds it, or the folder cannot be written.
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
                stack.enter_context(held(self.path))
            except HeldError as error:
                raise RunError(
                    f"{self.path} is being trained by {error}; wait for it to end, stop it, "
                    "or name another folder with --run"
                ) from error
            except OSError as error:
                raise RunError(f"cannot write in {self.path}: {error.strerror}") from error
            yield


def _cataloged(name: str) -> catalog.Algorithm | None:
    return next((entry for entry in catalog.ALGORITHMS if entry.name == name), None)


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode() + b"\n"
