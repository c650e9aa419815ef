"""Studies: hyperparameter searches on disk.

A study is a folder:

    runs/tune-<algorithm>-<task>-<n>/
      study.toml      the specification: [plan], [settings] and [config] of the trials, [space]
      trials.jsonl    a record of each earlier run; then one when a trial begins, one when it ends
                      or the search stops
      trials/         the run of each trial
      fresh/          the runs of the winner and of the initial values on new seeds
      best.toml       the configuration of the winner: operant train ALGORITHM TASK --config best.toml

The best of many noisy scores is higher than the true score of its values (the winner's curse). So trials use their own
seeds, and the winner is trained again on new ones, next to the initial values; both scores are reported.
"""

import math
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import tomli_w

from operant import api, catalog
from operant.build import pin
from operant.runtime.callbacks import Callback
from operant.runtime.comparison import Standing, compare
from operant.runtime.files import make_folder, read_regular, replace_durably
from operant.runtime.locks import HeldError, held
from operant.runtime.metrics import RecordWriter, line_of, read_records
from operant.runtime.run import Run
from operant.runtime.run_paths import RunError, absolute, check_name, is_run, location
from operant.runtime.settings import Settings
from operant.runtime.tables import from_table, to_table
from operant.tuning.earlier_runs import earlier_trials
from operant.tuning.failures import Failures, concerns_folder
from operant.tuning.limits import EXCESS, Plan, conflict, fits, planned_steps
from operant.tuning.proposals import Trial, evaluation_point, is_hopeless, propose
from operant.tuning.search_spaces import Space, dimension_of, inside, table_of

SCHEMA = 1
"""Version of `study.toml`."""


@dataclass(frozen=True)
class Result:
    """Result of a study.

    Attributes:
        best: trial with the highest value (ties: the highest mean over its evaluations), which is biased upwards by the
            selection.
        trials: all ended trials.
        initial: trial with the initial values; without a value if there was no time for it.
        default: run of the initial values on new seeds; None without new seeds.
        tuned: result of the winner; None without new seeds, or if the winner has the initial values.
        config: file with the winner's configuration.
    """

    best: Trial
    trials: Sequence[Trial]
    initial: Trial
    default: Standing | None
    tuned: Standing | None
    config: Path


class Study:
    """A hyperparameter search on disk; created by `create` or `open`, continued by `run`.

    Attributes:
        path: the folder.
        plan: extent of the search.
        settings: settings of the trials.
        config: the initial configuration.
        space: the search space.
    """

    def __init__(self, path: Path, plan: Plan, settings: Settings, config: Any, space: Space):
        self.path, self.plan, self.settings, self.config, self.space = path, plan, settings, config, space
        self._records = path / "trials.jsonl"

    @classmethod
    def create(
        cls,
        path: str | Path,
        plan: Plan,
        settings: Settings,
        config: Any,
        space: Space,
        *,
        runs: Sequence[str | Path] = (),
        report: Callable[[Path, str], object] = lambda _, __: None,
    ) -> "Study":
        """Create the folder of a new study.

        Args:
            path: a new or empty folder.
            plan: extent of the search.
            settings: settings of the trials, with their seeds.
            config: the initial configuration; values outside their range begin at its nearest bound.
            space: the search space (`operant.tuning.space_of`).
            runs: folders of earlier runs, whose results are the first trials of the study. They must have the
                algorithm, seeds, budget and evaluations of the trials, and differ only in values within the space.
            report: function called with the folder of each run that does not fit, and the reason.

        Raises:
            ValueError: if a seed of the trials is also a new seed, none of the runs fits, the budget excludes the
                initial values, or the algorithm is for language models or learns no policy.
            RunError: if the folder cannot be created.
        """
        entry = catalog.find(settings.algorithm)
        if entry.package == "language":
            raise ValueError(f"{entry.name} trains language models, which tune does not support: compare your own runs")
        if entry.family in ("none", "prediction"):
            raise ValueError(
                f"{entry.name} learns no policy, so all hyperparameters have the same score: tune an algorithm that "
                "learns one, such as q-learning"
            )
        if both := sorted(set(settings.seeds) & set(range(plan.fresh_seeds))):
            raise ValueError(
                f"seeds {both} are both trial seeds and new seeds: start the trial seeds at {plan.fresh_seeds} or "
                "later (--seed)"
            )
        settings, config, _ = pin(entry, settings, inside(config, space), None)
        _require_possible(config, settings.budget)
        earlier = earlier_trials(runs, settings, config, space, report=report)
        path = absolute(path)
        check_name(path)
        table = {
            "schema_version": SCHEMA,
            "plan": to_table(plan),
            "settings": settings.table(entry.package),
            "config": to_table(config),
            "space": {name: table_of(dimension) for name, dimension in space.items()},
        }
        try:
            records = b"".join(line_of(asdict(trial)) for trial in earlier)
            files = {"study.toml": tomli_w.dumps(table).encode(), "trials.jsonl": records}
            make_folder(path, ("trials", "fresh"), files)
        except OSError as error:
            raise RunError(f"cannot create the folder {path} of a study: {error.strerror}; choose another") from error
        return cls(path, plan, settings, config, space)

    @classmethod
    def open(cls, path: str | Path) -> "Study":
        """Open the study in a folder.

        Raises:
            RunError: if there is none, or it is unreadable.
        """
        path = absolute(path)
        file = path / "study.toml"
        try:
            table = tomllib.loads(read_regular(file).decode())
            if table.get("schema_version") != SCHEMA:
                raise ValueError(
                    f"schema_version is {table.get('schema_version')}, this version of operant reads {SCHEMA}"
                )
            settings = from_table(Settings, table["settings"], where="settings")
            config = from_table(catalog.find(settings.algorithm).config_class, table["config"])
            space = {name: dimension_of(own, f"space.{name}") for name, own in table["space"].items()}
            return cls(path, from_table(Plan, table["plan"], where="plan"), settings, config, space)
        except OSError as error:
            raise RunError(f"{path} is not the folder of a study: study.toml: {error.strerror}") from error
        except (KeyError, ValueError) as error:
            raise RunError(f"{file} cannot be read: {error}") from error

    def extend(self, *, trials: int | None = None, hours: float | None = None) -> None:
        """Change the extent of the search, and save it; a `RunError` if another process runs the study."""
        changes = {name: value for name, value in (("trials", trials), ("hours", hours)) if value is not None}
        with self._lock():
            self.plan = replace(self.plan, **changes)
            file = self.path / "study.toml"
            table = tomllib.loads(read_regular(file).decode()) | {"plan": to_table(self.plan)}
            replace_durably(file, tomli_w.dumps(table).encode())

    def trials(self) -> list[Trial]:
        """Return all trials; the last may be running or interrupted."""
        found: dict[int, dict[str, Any]] = {}
        for record in read_records(self._records):
            found.setdefault(record["number"], {}).update(record)
        for table in found.values():
            table["curve"] = {int(n): score for n, score in table["curve"].items()}
        return [Trial(**table) for _, table in sorted(found.items())]

    def run(
        self,
        *,
        interrupted: Callable[[], bool] = lambda: False,
        report: Callable[[Trial], object] = lambda _: None,
    ) -> Result | None:
        """Run or continue the search to the end of the plan, and train the winner on new seeds.

        Args:
            interrupted: function polled after every training iteration; if it returns True, the state is saved and the
                search stops.
            report: function called with every ended trial.

        Returns:
            The result; None after an interruption.

        Raises:
            RunError: if another process runs the study, unexpected errors end several trials in a row, or no trial has
                a value.
            ValueError: if the initial values cannot be trained, or not within 1.1 times the budget; other errors of
                their training are raised too.
        """
        with self._lock():
            if not self._search(interrupted, report):
                return None
            ended = [trial for trial in self.trials() if trial.state != "running"]
            complete = [trial for trial in ended if trial.value is not None]
            if not complete:
                reasons = Counter(trial.reason for trial in ended if trial.reason)
                listed = "; ".join(f"{count} of {len(ended)}: {reason}" for reason, count in reasons.most_common(3))
                raise RunError(
                    f"no trial of {self.path} completed ({listed or 'there was no time for one'}), see trials.jsonl; "
                    f"{'correct the cause' if listed else 'give it more --hours'}"
                )
            best = max(complete, key=lambda trial: (trial.value, np.mean(list(trial.curve.values())), -trial.number))
            file = self._write_best(best)
            runs: list[Run] = []
            first = self._first()
            initial = next((trial for trial in ended if trial.values == first), Trial(len(ended), first))
            for trial in {one.number: one for one in (initial, best)}.values() if self.plan.fresh_seeds else ():
                run = self._train_fresh(trial, interrupted)
                if run is None:
                    return None
                runs.append(run)
            standings = [*(compare(runs) if runs else ()), None, None]
            return Result(best, ended, initial, default=standings[0], tuned=standings[1], config=file)

    @contextmanager
    def _lock(self) -> Generator[None]:
        try:
            with held(self.path):
                yield
        except HeldError as error:
            raise RunError(f"{self.path} is being searched by {error}") from error

    def _search(self, interrupted: Callable[[], bool], report: Callable[[Trial], object]) -> bool:
        """Run the remaining trials; return False after an interruption."""
        begin, used = time.perf_counter(), sum(trial.seconds for trial in self.trials())
        limit, failures = 3600.0 * self.plan.hours or math.inf, Failures()

        def is_over() -> bool:
            return used + time.perf_counter() - begin >= limit

        writer = RecordWriter(self._records)
        try:
            while not is_over():
                ended = self.trials()
                trial = ended.pop() if ended and ended[-1].state == "running" else None
                if trial is None and sum(not trial.source for trial in ended) >= self.plan.trials:
                    return True
                if trial is None:
                    values = propose(self.space, ended, self._first(), self.plan.search_seed, is_valid=self._is_valid)
                    trial = Trial(len(ended), values)
                    self._write(writer, trial)
                same = next((known for known in ended if known.source and known.values == trial.values), None)
                if same is not None:  # training it again would give the same result
                    reason = f"the values of trial {same.number + 1}, not trained again"
                    trial = replace(same, number=trial.number, source="", reason=reason)
                else:
                    trial = self._train(trial, ended, failures, interrupted, is_over)
                self._write(writer, trial)  # also a running one, for the seconds used so far
                if trial.state == "running":
                    return not interrupted()
                report(trial)
                failures.require_few(self.path)
        finally:
            writer.close()
        return True

    def _write(self, writer: RecordWriter, trial: Trial) -> None:
        writer.write(asdict(trial))
        writer.sync()
        if writer.lost:
            raise RunError(
                f"{self._records} cannot be written; free space and run `operant tune {location(self.path)}`"
            )

    def _first(self) -> dict[str, Any]:
        table = to_table(self.config)
        return {name: table[name] for name in self.space}

    def _is_valid(self, values: Mapping[str, Any]) -> bool:
        return fits(self.config, values, self.settings.budget)

    def configuration(self, trial: Trial) -> Any:
        """Return the configuration of a trial.

        Raises:
            ValueError: if its values are incompatible.
        """
        return from_table(cast(type[Any], type(self.config)), trial.values, base=self.config)

    def _train(
        self,
        trial: Trial,
        ended: Sequence[Trial],
        failures: Failures,
        interrupted: Callable[[], bool],
        is_over: Callable[[], bool],
    ) -> Trial:
        """Train or continue a trial; after an interruption its state is still running."""
        folder, begin = self.path / "trials" / f"{trial.number:04d}", time.perf_counter()
        watcher, budget, is_first = _Watcher(self, trial, ended), self.settings.budget, trial.values == self._first()
        consumed = 0
        try:
            config = self.configuration(trial)
            consumed = planned_steps(config, budget)
            if consumed <= EXCESS * budget:
                run = self._train_in(folder, self.settings, config, lambda: interrupted() or is_over(), [watcher])
                trial = replace(trial, seconds=trial.seconds + time.perf_counter() - begin)
                if run is None:
                    return trial
                trial, consumed = replace(trial, curve=watcher.curve), watcher.consumed
        except Exception as error:
            # If the initial values cannot be trained, the study is invalid; a stop may break the environment.
            if is_first or interrupted() or concerns_folder(error):
                raise
            seconds = trial.seconds + time.perf_counter() - begin
            return replace(trial, state="failed", reason=failures.add(error, folder), seconds=seconds)
        failures.clear()
        if watcher.stopped:
            return replace(trial, state="pruned")
        result = trial.ended(consumed, budget)
        if result.state == "failed" and consumed > budget and is_first:
            raise ValueError(
                f"the initial values {result.reason}, since training ends with a complete iteration: raise --budget, "
                "or shorten the iterations, e.g. with a lower --num-envs or --num-steps"
            )
        return result

    def _train_fresh(self, trial: Trial, interrupted: Callable[[], bool]) -> Run | None:
        settings = replace(self.settings, seeds=tuple(range(self.plan.fresh_seeds)))
        folder = self.path / "fresh" / f"trial-{trial.number:04d}"
        return self._train_in(folder, settings, self.configuration(trial), interrupted, [])

    def _train_in(
        self,
        folder: Path,
        settings: Settings,
        config: Any,
        interrupted: Callable[[], bool],
        callbacks: Sequence[Callback],
    ) -> Run | None:
        """Train or continue a run in a folder; return None after an interruption."""
        command = ["operant", "tune", str(self.path)]
        if is_run(folder):
            trained = api.resume(
                folder, progress="silent", interrupted=interrupted, callbacks=callbacks, command=command
            )
        else:
            given: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(Settings)}
            given["callbacks"] = [*settings.callbacks, *callbacks]
            trained = api.train(
                config=config,
                run=folder,
                progress="silent",
                interrupted=interrupted,
                command=command,
                **given,
            )
        assert trained.outcome is not None  # noqa: S101 - train and resume always say how it ended
        return None if trained.outcome.interrupted else trained.run

    def _write_best(self, best: Trial) -> Path:
        settings = replace(self.settings, seeds=tuple(range(self.plan.fresh_seeds or len(self.settings.seeds))))
        entry = catalog.find(settings.algorithm)
        table = {"settings": settings.table(entry.package), "config": to_table(self.configuration(best))}
        file = self.path / "best.toml"
        replace_durably(file, tomli_w.dumps(table).encode())
        return file


def _require_possible(config: Any, budget: int) -> None:
    """Check that a budget permits the initial values."""
    if reason := conflict(config, budget):
        raise ValueError(
            f"the initial values are not possible: {reason}; raise --budget, or shorten the iterations and the start "
            "of training, e.g. with a lower --num-envs, --num-steps or --learning-starts"
        )


class _Watcher(Callback):
    """Callback that records the evaluations of a trial, and prunes it.

    Attributes:
        curve: the mean score of the seeds at each evaluation, by evaluation intervals of the used budget.
        consumed: budget used at the last evaluation.
        stopped: whether it was pruned.
    """

    background = False

    def __init__(self, study: Study, trial: Trial, ended: Sequence[Trial]) -> None:
        self.curve: dict[int, float] = {}
        self.consumed = 0
        self.stopped = False
        self._study, self._trial, self._ended = study, trial, ended
        self._changed = False

    def on_start(self, run: Run | None) -> None:
        """Read the evaluations before an interruption."""
        for record in read_records(run.evaluations_path) if run is not None else ():
            self.on_evaluation(record)

    def on_evaluation(self, record: Mapping[str, Any]) -> None:
        """Record the mean score of the seeds; ignore a repeated evaluation when training stops."""
        if not self.stopped:
            self.consumed, settings = int(record["consumed"]), self._study.settings
            number, score = evaluation_point(record, settings.evaluation_interval, settings.budget)
            self.curve[number] = score
            self._changed = True

    def should_stop(self, consumed: int) -> bool:
        """Return whether to prune the trial; called once after each evaluation except the last."""
        settings = self._study.settings
        if not (self._changed and self._study.plan.prune) or consumed >= settings.budget:
            return False
        self._changed = False
        patience = max(2, -(-settings.budget // (4 * settings.evaluation_interval)))
        trial = replace(self._trial, curve=self.curve)
        self.stopped = is_hopeless(self._ended, trial, patience=patience)
        return self.stopped
