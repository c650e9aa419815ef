"""`operant tune`."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import tyro

from operant.catalog import old_names
from operant.cli.arguments import Answering, TrainOptions, parse, parse_training
from operant.cli.flags import read_path
from operant.cli.output import missing, number, print_json, require_extra, say, score_fields, summary, table
from operant.doors import is_name
from operant.runtime.run_paths import location
from operant.runtime.sessions import FINISHED, INTERRUPTED
from operant.runtime.settings import Settings
from operant.runtime.signals import EXIT_REQUEUE, Interruption

if TYPE_CHECKING:
    from operant.tuning import Result, Study, Trial

_NOT_A_FLAG = (tyro.conf.Fixed, tyro.conf.Suppress)
_OF_TRAIN = ("init", "bonus", "randomize", "processes", "fsdp", "ray", "ray_address", "ray_unauthenticated")
"""Options of `operant train` that trials do not have."""

_SEEDS = tuple(range(1000, 1004))
_EVALUATIONS = 10
"""Default evaluation interval of a trial."""


@dataclass(frozen=True)
class TuneOptions(TrainOptions):
    """Options of all algorithms."""

    seeds: Annotated[tuple[int, ...], *_NOT_A_FLAG] = _SEEDS
    init: Annotated[Path | None, *_NOT_A_FLAG] = None
    bonus: Annotated[tuple[str, ...], *_NOT_A_FLAG] = ()
    randomize: Annotated[Path | None, *_NOT_A_FLAG] = None
    processes: Annotated[int, *_NOT_A_FLAG] = 1
    fsdp: Annotated[bool, *_NOT_A_FLAG] = False
    ray: Annotated[bool, *_NOT_A_FLAG] = False
    ray_address: Annotated[str, *_NOT_A_FLAG] = ""
    ray_unauthenticated: Annotated[bool, *_NOT_A_FLAG] = False

    count: Annotated[int, tyro.conf.arg(name="seeds")] = len(_SEEDS)
    """Number of seeds of each trial, trained in parallel."""

    first: Annotated[int, tyro.conf.arg(name="seed")] = _SEEDS[0]
    """First seed of the trials, which must not overlap with the new seeds."""

    run: Path | None = None
    """Folder of the study, new or empty. Default: runs/tune-<algorithm>-<task>-<n>, with the first free number."""

    earlier: Annotated[tuple[Path, ...], tyro.conf.arg(name="from", metavar="SWEEP|RUN ...")] = ()
    """Folders of sweeps and runs, whose results are the first trials of the study. They need the seeds, budget and
    evaluations of its trials, and may differ only in tuned hyperparameters; others are listed with the reason."""

    trials: int = 40
    """Number of trials, in addition to those of --from. The first one uses the initial values."""

    hours: float = 0.0
    """Time limit of the search in hours, over all sessions, excluding the final runs on new seeds. 0: no limit."""

    fresh_seeds: int = 10
    """Number of new seeds, from seed 0, on which to train the best trial and the initial values. 0: none."""

    prune: bool = True
    """After a quarter of the budget, prune trials whose best score is below the median of the earlier trials, complete
    or pruned, at the same evaluation, if at least five have a score there."""

    search_seed: int = 0
    """Random seed of the search."""

    space: Path | None = None
    """TOML file of the search space: for each field a table with low, high and optionally log = true, or with choices.
    Default: the algorithm's fields with a predefined space. Fields set by a flag keep their value."""


@dataclass(frozen=True)
class ContinueOptions(Answering):
    """Continue a stopped study, or extend it with more trials or hours."""

    study: tyro.conf.Positional[Path]
    """Folder of the study."""

    trials: int | None = None
    """Total number of trials, in addition to those of --from. Default: the study's."""

    hours: float | None = None
    """Total time limit in hours. Default: the study's."""


def tune(arguments: list[str]) -> int:
    """Search for the hyperparameters with the best final evaluation, averaged over the seeds."""
    if not {"-h", "--help"} & set(arguments):
        require_extra("tune", "operant tune", ["optuna"])
    with Interruption() as interrupted:
        if arguments and (read_path(arguments[0]) / "study.toml").is_file():
            from operant.tuning import Study

            options = parse(ContinueOptions, arguments, "tune")
            study = Study.open(options.study)
            study.extend(trials=options.trials, hours=options.hours)
        else:
            _require_no_folder(arguments)
            _require_own_flags(arguments)
            options, config = parse_training(arguments, "tune", TuneOptions)
            study = _new(options, config, arguments)
        place = location(study.path)
        say(f"operant: tuning {', '.join(study.space)} in {place}")
        if count := len(_sources(study.trials())):
            say(f"operant: {count} of the trials from earlier runs, before the {study.plan.trials} of the study")
        result = study.run(interrupted=interrupted, report=lambda trial: say(_describe(study, trial)))
        if result is None:
            say(f"operant: interrupted and saved; continue with `operant tune {place}`")
            if options.json:
                print_json(_facts(study, INTERRUPTED, study.trials()))
            return EXIT_REQUEUE
    plot = None
    if not missing(["matplotlib"]):
        from operant.cli.plotting import draw_study

        plot = study.path / "study.png"
        draw_study(result, plot)
    if options.json:
        print_json(_answer(study, result))
        return 0
    print(_report(study, result))
    if plot is not None:
        print(f"\nA plot of the search: {location(plot)}")
    return 0


def _require_no_folder(arguments: Sequence[str]) -> None:
    """Check that the first argument is not the folder of a study that does not exist."""
    first = arguments[0] if arguments else ""
    if "/" in first and not is_name(first):
        raise ValueError(
            f"there is no study in {location(Path(first))}: name the folder of one, which has a study.toml, or an "
            "algorithm and a task"
        )


def _require_own_flags(arguments: Sequence[str]) -> None:
    """Check that no flag is one of `operant train` alone."""
    flags = {f"--{name.replace('_', '-')}" for name in _OF_TRAIN}
    words = [word.partition("=")[0] for word in arguments]
    if wrong := next((word for word in words if word.startswith("--") and word.replace("_", "-") in flags), None):
        raise ValueError(
            f"{wrong} is not for operant tune, whose trials have no {', '.join(sorted(flags))}: leave it out"
        )


def _new(options: TuneOptions, config: Any, arguments: Sequence[str]) -> "Study":
    from operant.explore.shaping import is_shaping
    from operant.runtime.run_paths import default_run_path
    from operant.tuning import Plan, Study, space_of
    from operant.tuning.search_spaces import inside

    settings = Settings(**{field.name: options.settings()[field.name] for field in fields(Settings)})
    if not settings.evaluate_every:
        settings = replace(settings, evaluate_every=max(1, settings.budget // _EVALUATIONS))
    plan = Plan(**{field.name: getattr(options, field.name) for field in fields(Plan)})
    names = {field.name for field in fields(config)}
    fixed = _set_by_flags(arguments, config)
    own = None if options.space is None else _read(options.space)
    shaping = [name for name in settings.wrappers if is_shaping(name)]
    if shaping and "gamma" in (names if own is None else own.keys()) - fixed:
        if own is not None:
            raise ValueError(f"leave space.gamma out, since the wrapper {shaping[0]} has its own gamma")
        say("operant: gamma is not tuned, since a wrapper shapes the rewards with its own")
        fixed.add("gamma")
    space = space_of(config, fixed=fixed, own=own, budget=settings.budget)
    begin = inside(config, space)
    for name in space:
        if (value := getattr(config, name)) != getattr(begin, name):
            say(f"operant: {name} begins at {getattr(begin, name)}, since {value} is outside its range")
    path = options.run or default_run_path(f"tune-{settings.algorithm}", settings.task)
    return Study.create(
        path,
        plan,
        settings,
        config,
        space,
        runs=[run for folder in options.earlier for run in _runs_of(folder)],
        report=lambda run, reason: say(f"operant: {location(run)} does not fit: {reason}"),
    )


def _set_by_flags(arguments: Sequence[str], config: Any) -> set[str]:
    """Return which fields of a configuration flags set, under current or old names."""
    flags = {word.partition("=")[0].lstrip("-").replace("-", "_") for word in arguments if word.startswith("--")}
    flags |= {flag.removeprefix("no_") for flag in flags}
    names = {field.name for field in fields(config)}
    renamed = old_names.names(cast(type[Any], type(config)))
    return names & (flags | {new for old, new in renamed.items() if old in flags - names})


def _runs_of(folder: Path) -> list[Path]:
    """Return the folders of the runs of a sweep, also of those that have not begun, or `folder` itself."""
    if not (folder / "sweep.toml").exists():
        return [folder]
    from operant.scale.sweep import Sweep

    return [cell.path for cell in Sweep(folder).cells]


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path} cannot be read: {error}") from error


def _describe(study: "Study", trial: "Trial") -> str:
    """Return a one-line description of a completed trial."""
    names = " ".join(f"{name}={value}" for name, value in trial.values.items())
    score = "" if trial.value is None else f" {number(trial.value)}"
    reason = f" ({trial.reason})" if trial.reason else ""
    which = f"trial {trial.number + 1} of {study.plan.trials + len(_sources(study.trials()))}"
    return f"{which}: {trial.state}{score}{reason} in {trial.seconds:.0f} s: {names}"


def _facts(study: "Study", outcome: str, trials: "Sequence[Trial]") -> dict[str, Any]:
    """Return the settings and progress of a study for `--json`."""
    named = {"algorithm": study.settings.algorithm, "task": study.settings.task, "study": str(study.path)}
    return {**named, "outcome": outcome, "trials": _counts(trials), "from": _sources(trials)}


def _counts(trials: "Sequence[Trial]") -> dict[str, int]:
    states = [trial.state for trial in trials]
    return {state: states.count(state) for state in ("complete", "pruned", "failed")}


def _sources(trials: Sequence["Trial"]) -> list[str]:
    """Return the folders of the earlier runs among the trials."""
    return [trial.source for trial in trials if trial.source]


def _command(study: "Study", result: "Result") -> str:
    settings = study.settings
    return f"operant train {settings.algorithm} {settings.task} --config {location(result.config)}"


def _report(study: "Study", result: "Result") -> str:
    best, first = result.best, result.initial
    ended = ", ".join(f"{count} {state}" for state, count in _counts(result.trials).items() if count)
    rows = [["field", "before", "tuned"]]
    rows += [[name, str(first.values[name]), str(value)] for name, value in best.values.items()]
    seeds = study.settings.seeds
    earlier = len(_sources(result.trials))
    ended += f"; {earlier} of them earlier run{'s' * (earlier > 1)}" if earlier else ""
    which = f"trial {best.number + 1}{f', {location(Path(best.source))}' if best.source else ''}"
    lines = [f"\n{len(result.trials)} trials: {ended}. The best is {which}.\n", table(rows, "<>>")]
    before = "-" if first.value is None else number(first.value)
    lines.append(
        f"\nOn the {len(seeds)} seeds of the search, {seeds[0]} to {seeds[-1]}: {before} before, "
        f"{number(best.value or 0.0)} tuned."
    )
    if result.default is None:
        lines.append("The best of many scores is biased upward: evaluate its values on new seeds.")
    else:
        lines.append(f"On {study.plan.fresh_seeds} new seeds:")
        lines.append(f"  before  {summary(result.default.final)}")
        if result.tuned is None:
            lines.append("No trial was better than the initial values.")
        else:
            low, high = result.tuned.difference_interval
            lines.append(f"  tuned   {summary(result.tuned.final)}")
            lines.append(
                f"  difference of the IQMs {number(result.tuned.difference)} [{number(low)}, {number(high)}], "
                f"probability of improvement {result.tuned.improvement:.2f}"
            )
            lines.append("The best of many scores is biased upward: report the scores on new seeds.")
    return "\n".join([*lines, f"\nTrain the winner:\n  {_command(study, result)}"])


def _answer(study: "Study", result: "Result") -> dict[str, Any]:
    tuned, default = result.tuned, result.default
    return {
        **_facts(study, FINISHED, result.trials),
        "best_trial": result.best.number,
        "values": result.best.values,
        "values_before": result.initial.values,
        "search": {
            "seeds": study.settings.seeds,
            "score": result.best.value,
            "score_before": result.initial.value,
        },
        "fresh": None
        if default is None
        else {
            "seeds": default.run.settings.seeds,
            "before": score_fields(default.final),
            "tuned": score_fields((tuned or default).final),
            "difference": tuned.difference if tuned else 0.0,
            "difference_interval": tuned.difference_interval if tuned else (0.0, 0.0),
            "probability_of_improvement": tuned.improvement if tuned else 0.5,
        },
        "command": _command(study, result),
    }
