"""Trials from earlier runs, such as the cells of a sweep: those that a study would have trained itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from operant.envs import resolve_backend
from operant.runtime.inputs import changes, records_of
from operant.runtime.metrics import read_records
from operant.runtime.run import Run
from operant.runtime.run_paths import RunError, absolute
from operant.runtime.sessions import FINISHED
from operant.runtime.settings import Settings, seeds_in_words
from operant.runtime.tables import to_table
from operant.tuning.proposals import Trial, evaluation_point
from operant.tuning.search_spaces import Space

_IDLE = {
    *("vectorization", "num_workers", "lost_workers", "worker_seconds", "device", "threads", "compile"),
    *("evaluate_every", "checkpoint_seconds", "keep_checkpoints", "track"),
}
"""Settings that may differ: where and how fast a run trains, and what it stores. Intervals of evaluations are checked
separately."""


def earlier_trials(
    runs: Sequence[str | Path],
    settings: Settings,
    config: Any,
    space: Space,
    *,
    report: Callable[[Path, str], object] = lambda _, __: None,
) -> list[Trial]:
    """Return the trials of finished runs that differ from a study's trials only in values within its space.

    Args:
        runs: folders of runs.
        settings: settings of the study's trials.
        config: the initial configuration.
        space: the search space.
        report: function called with the folder of each other run, and the reason.

    Raises:
        ValueError: if there are runs, but none fits.
    """
    trials: list[Trial] = []
    reasons: list[str] = []
    for path in dict.fromkeys(absolute(run).resolve() for run in runs):
        try:
            trial = _trial(path, len(trials), settings, config, space)
            if same := [known.source for known in trials if known.values == trial.values]:
                raise ValueError(f"its values are those of {same[0]}")
            trials.append(trial)
        except (RunError, ValueError) as error:
            reasons.append(str(error))
            report(path, reasons[-1])
    if reasons and not trials:
        raise ValueError(
            f"none of {len(reasons)} earlier runs fits the study, the first one because {reasons[0]}; give the study "
            "the task, seeds, budget and fixed hyperparameters of the runs, or leave the runs out"
        )
    return trials


def _trial(path: Path, number: int, settings: Settings, config: Any, space: Space) -> Trial:
    """Return the trial of a run.

    Raises:
        RunError: if the run cannot be read.
        ValueError: if it does not fit.
    """
    run = Run.open(path)
    _require_same_settings(run.settings, settings)
    _require_as_begun(run)
    values = _values(run, config, space)
    outcome, reason = run.outcome()
    if outcome != FINISHED:
        raise ValueError(f"it is not finished: {outcome}{f', {reason}' if reason else ''}")
    records = _evaluations(run, settings.evaluation_interval)
    consumed = int(records[-1]["consumed"]) if records else 0
    if consumed < settings.budget:
        raise ValueError(f"it stopped early: its last evaluation is at {consumed} of {settings.budget}")
    curve = dict(evaluation_point(record, settings.evaluation_interval, settings.budget) for record in records)
    trial = Trial(number, values, curve=curve, source=str(path)).ended(consumed, settings.budget)
    if trial.state == "failed":
        raise ValueError(trial.reason)
    return trial


def _require_same_settings(got: Settings, wanted: Settings) -> None:
    for name in (field.name for field in fields(Settings) if field.name not in _IDLE):
        ours, theirs = getattr(wanted, name), getattr(got, name)
        if name == "env_backend" and got.task == wanted.task:
            ours, theirs = (resolve_backend(one.task, one.env_backend, one.env_kwargs) for one in (wanted, got))
        if name == "seeds" and ours != theirs:
            raise ValueError(f"it has {seeds_in_words(got.seeds)}, and a trial {seeds_in_words(wanted.seeds)}")
        if ours != theirs:
            raise ValueError(f"its {name} is {theirs!r}, and that of a trial {ours!r}")
    if wanted.evaluation_interval % got.evaluation_interval:
        raise ValueError(
            f"it was evaluated every {got.evaluation_interval}, which does not divide the interval of a trial, "
            f"{wanted.evaluation_interval}"
        )


def _require_as_begun(run: Run) -> None:
    """Check that the run has its first budget, has new networks, and that its inputs are unchanged."""
    records = records_of(run.path)
    if any(record["name"] == "init" for record in records):
        raise ValueError("its networks were initialized from another run")
    if changed := changes(records, run.path):
        raise ValueError(changed[0])
    budgets = {session.get("budget", run.settings.budget) for session in run.facts()["sessions"]}
    if budgets != {run.settings.budget}:
        raise ValueError(f"its budget was changed: {', '.join(map(str, sorted(budgets)))}")


def _values(run: Run, config: Any, space: Space) -> dict[str, Any]:
    """Return the values of the tuned fields.

    Raises:
        ValueError: if one is outside the space, or another field differs from the initial configuration.
    """
    wanted, got = to_table(config), to_table(run.config(cast(type[Any], type(config))))
    for name, value in got.items():
        if name not in space and value != wanted[name]:
            raise ValueError(f"its {name} is {value!r}, but the study does not tune it and has {wanted[name]!r}")
        if name in space and not space[name].contains(value):
            raise ValueError(f"its {name} is {value!r}, outside the search space")
    return {name: got[name] for name in space}


def _evaluations(run: Run, interval: int) -> list[Mapping[str, Any]]:
    """Return the evaluations that a trial would have had: the first after each multiple of the interval, and the last.

    Raises:
        ValueError: if a record is not an evaluation.
    """
    records = read_records(run.evaluations_path)
    if not all({"consumed", "scores"} <= record.keys() for record in records):
        raise ValueError(f"{run.evaluations_path} contains a record that is not an evaluation")
    before = [0, *(int(record["consumed"]) for record in records)]
    due = [
        record
        for record, last in zip(records, before, strict=False)
        if last // interval < int(record["consumed"]) // interval
    ]
    return [*due, *(record for record in records[-1:] if record not in due)]
