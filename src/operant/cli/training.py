"""`operant train` and `operant resume`."""

import contextlib
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import tyro

from operant import catalog
from operant.cli.answers import answer_table
from operant.cli.arguments import Opening, Training, parse, parse_training
from operant.cli.measures import PredictionErrors, Regrets, measured, predicts
from operant.cli.output import Updates, faulty, number, print_json, processes_on_stderr, say, score_fields, seed_table
from operant.cli.processes import in_processes
from operant.cli.showing import keep_plot
from operant.cli.tables import score_notes
from operant.runtime.run_paths import location
from operant.runtime.signals import Interruption

if TYPE_CHECKING:
    from operant.api import Trained
    from operant.envs.tensor.board_games import BoardGame
    from operant.runtime.course import Course
    from operant.runtime.evaluation import Evaluation
    from operant.runtime.run import Run


def train(arguments: list[str]) -> int:
    """Train an algorithm on a task."""
    with Interruption() as interrupted:
        options, config = parse_training(arguments)
        from operant import api

        if options.ray or options.ray_address:
            _require_workers(options, config, package=catalog.find(options.algorithm).package)
        work = partial(
            api.train,
            **options.settings(),
            run=options.run,
            init=options.init,
            config=config,
            bonus=options.bonus,
            progress=options.progress,
            interrupted=interrupted,
            command=["operant", "train", *arguments],
        )
        finished = partial(finish, work, as_json=options.json)
        return in_processes(["train", *arguments], options, finished, shards=options.shards)


@dataclass(frozen=True)
class ResumeOptions(Training, Opening):
    """Continue an interrupted run exactly from its latest checkpoint, to the end of its budget."""

    run: tyro.conf.Positional[Path]
    """Folder of the run."""

    budget: int | None = None
    """New budget per seed, saved with the run; schedules are rescaled to it. Not for language models. Default: the
    run's."""

    track: tuple[Literal["tensorboard", "wandb", "trackio"], ...] | None = None
    """Trackers of this session. Default: the run's."""

    new_episodes: tyro.conf.FlagCreatePairsOff[bool] = False
    """Start new episodes instead of continuing the saved ones, which is not exact. For environments that are not
    deterministic given their seed."""


def _require_workers(settings: Any, config: Any, *, package: str, added: bool = True) -> None:
    """Check that a run uses worker processes, which can run on Ray.

    Args:
        settings: options of the command, or settings of the run.
        config: configuration of the algorithm.
        package: package of the algorithm.
        added: whether options that make workers can be added.

    Raises:
        ValueError: its environments are in this process, or it has no custom reward functions.
    """
    from operant.runtime.rollout_workers import RolloutWorkersConfig

    if package == "language":
        missing, flag = not getattr(config, "rewards", ()), ""
        what = f"the reward functions of --rewards, but this run of {settings.algorithm} has none"
    else:
        what = "workers of environments, but all environments are in this process"
        if isinstance(config, RolloutWorkersConfig):
            missing, flag = config.workers == 0, f"--workers {config.num_actors}"
        else:
            missing, flag = settings.vectorization == "sync", "--vectorization async"
    if missing:
        add = f"add {flag}, or " if flag and added else ""
        raise ValueError(f"Ray runs {what}: {add}leave out --ray and --ray-address")


def resume(arguments: list[str]) -> int:
    """Continue an interrupted run."""
    with Interruption() as interrupted:
        options = parse(ResumeOptions, arguments, "resume")
        from operant import api
        from operant.runtime.run import Run

        if options.ray or options.ray_address:
            run = Run.open(options.run)
            config = run.config(run.entry.config_class)
            _require_workers(run.settings, config, package=run.entry.package, added=False)
        work = partial(
            api.resume,
            options.run,
            budget=options.budget,
            track=options.track,
            progress=options.progress,
            interrupted=interrupted,
            command=["operant", "resume", *arguments],
            remote_code=options.remote_code,
            accept_changes=options.accept_changes,
            new_episodes=options.new_episodes,
        )
        return in_processes(["resume", *arguments], options, partial(finish, work, as_json=options.json))


def _where_it_ended(trained: "Trained", consumed: int) -> str:
    """Return at which part of the budget a callback ended training, and whether the run can continue."""
    run = trained.run
    immediately = run.facts()["sessions"][-1].get("from", 0) == consumed
    further = "the run cannot continue with it" if immediately else f"`operant resume {location(run.path)}` continues"
    return f"at {consumed:,} of {run.settings.budget:,}; {further}"


def finish(work: Callable[[], "Trained"], *, as_json: bool) -> int:
    """Train, print the result and return the exit status."""
    begin = time.perf_counter()
    with processes_on_stderr() if as_json else contextlib.nullcontext():
        trained = work()
    seconds = time.perf_counter() - begin
    outcome, place = trained.outcome, location(trained.run.path)
    assert outcome is not None  # noqa: S101 - train and resume always set it
    if outcome.lost_records or outcome.missed_checkpoints:
        say(f"not written: {outcome.lost_records} records, {outcome.missed_checkpoints} checkpoints; see the warnings")
    for error in outcome.callback_errors:
        say(f"operant: disabled after an error: {error}")
    if outcome.interrupted:
        say(f"operant: interrupted and saved; continue with `operant resume {place}`")
        if as_json:
            print_json(_facts(trained, outcome.consumed))
        return outcome.exit_code
    if outcome.stopped_by:
        say(f"operant: {outcome.stopped_by} ended training {_where_it_ended(trained, outcome.consumed)}")
    evaluation = final_evaluation(trained)
    course = course_of(trained)
    start = course.start.evaluation if course.start else None
    settings, entry = trained.run.settings, trained.run.entry
    is_language_model = entry.package == "language"
    updates, measure = updates_of(trained.run), measured(trained, evaluation)
    status = int(faulty(settings.seeds, evaluation, trained.run.config(entry.config_class)))
    if as_json:
        rate = outcome.steps_per_second
        speed = {"unit": entry.unit, "units_per_second": rate} if is_language_model else {"env_steps_per_second": rate}
        print_json(
            {
                **_facts(trained, outcome.consumed),
                **score_fields(evaluation),
                **course_fields(course),
                **({"metrics": evaluation.metrics} if evaluation.metrics else {}),
                **(measure.fields() if measure else {}),
                **speed,
                "skipped_updates": [seed.skipped for seed in updates],
                "skipped_share": [seed.share for seed in updates],
                "wall_seconds": seconds,
            }
        )
        return status
    if is_language_model:
        print(_held_out(trained, evaluation, start, updates))
    else:
        print(_acted(trained, evaluation, start, updates, measure))
    if start is not None:
        print(development(course, entry.unit, place))
    if counts := health(trained):
        print(counts)
    print(_speed(outcome.steps_per_second, seconds, entry.unit))
    process = trained.run.asked().get("supervision") == "process"
    shown, game = _can_be_shown(trained), _game(trained)
    print(f"\n{next_commands(place, entry, process=process, shown=shown, game=game)}")
    return status


def _acted(
    trained: "Trained",
    evaluation: "Evaluation",
    start: "Evaluation | None",
    updates: Sequence[Updates],
    measure: PredictionErrors | Regrets | None,
) -> str:
    """Return the last evaluation of policies in environments, as text, and draw the table of a tabular run."""
    how = "of the given policy, which does not learn" if predicts(trained) else "with greedy actions"
    scores = seed_table(trained.run.settings.seeds, evaluation, updates=updates, start=start)
    lines = [f"\nThe last evaluation, {how}:\n\n{scores}"]
    lines += [f"\n{measure.text()}\n"] if measure else []
    lines += [notes] if (notes := score_notes(trained, evaluation)) else []
    if drawn := keep_plot(trained):
        lines.append(f"A plot of the table of the first seed: {location(drawn)}")
    return "\n".join(lines)


def _game(trained: "Trained") -> "BoardGame | None":
    """Return the board game that a run has learned by playing against itself, if any."""
    module = sys.modules.get("operant.worlds.board_game_player")  # imported by such learners; it compiles kernels
    learner = trained.experiment.learner
    return learner.game if module and isinstance(learner, module.BoardGamePlayer) else None


def _can_be_shown(trained: "Trained") -> bool:
    """Return whether the task can be rendered; for language models, whether sampled answers have rewards."""
    from operant.envs.registry import render_modes, specified
    from operant.runtime.experiment import Answering

    settings = trained.run.settings
    if isinstance(trained.experiment, Answering):
        return trained.experiment.can_sample
    modes = render_modes(specified(settings.task, settings.env_kwargs))
    return modes is None or "rgb_array" in modes


def _facts(trained: "Trained", consumed: int) -> dict[str, Any]:
    """Return the settings and progress of a run for `--json`."""
    settings = trained.run.settings
    named = {name: getattr(settings, name) for name in ("algorithm", "task", "seeds", "budget")}
    return {**named, "run": str(trained.run.path), "outcome": trained.run.outcome()[0], "consumed": consumed}


def updates_of(run: "Run") -> list[Updates]:
    """Return the number of updates of each seed over the whole run."""
    from operant.runtime.metrics import read_records
    from operant.runtime.metrics_window import SKIPPED, UPDATES

    seeds = len(run.settings.seeds)
    total = [Updates(0.0, 0.0)] * seeds
    for record in read_records(run.metrics_path):
        if SKIPPED in record:
            due, skipped = _by_seed(record.get(UPDATES, math.nan), seeds), _by_seed(record[SKIPPED], seeds)
            added = zip(total, due, skipped, strict=True)
            total = [Updates(seed.due + more, seed.skipped + missed) for seed, more, missed in added]
    return total


def _by_seed(value: Any, seeds: int) -> list[float]:
    """Return the values of a metric as a list, with one entry per seed."""
    return cast(list[float], value) if isinstance(value, list) else [value] * seeds


def _held_out(
    trained: "Trained", evaluation: "Evaluation", start: "Evaluation | None", updates: Sequence[Updates]
) -> str:
    """Return the last evaluation of a language model and its answers, as text."""
    from operant.runtime.generations import latest_samples

    scores = seed_table(trained.run.settings.seeds, evaluation, counted="examples", start=start, updates=updates)
    answers = latest_samples(trained.run)
    shown = f"\n\n{answer_table(answers)}\n" if answers else ""
    return f"\nThe last evaluation, on held-out examples:\n\n{scores}{shown}"


def final_evaluation(trained: "Trained") -> "Evaluation":
    """Return the last evaluation of a finished run."""
    from operant.runtime.comparison import evaluations

    if trained.outcome and trained.outcome.evaluation:
        return trained.outcome.evaluation
    return evaluations(trained.run)[-1][1]


def course_of(trained: "Trained") -> "Course":
    """Return the evaluations of a run."""
    from operant.runtime.course import Course
    from operant.runtime.metrics import read_records

    return Course.of_records(read_records(trained.run.evaluations_path))


def course_fields(course: "Course") -> dict[str, Any]:
    """Return a run's first and best evaluation for `--json`; empty if the start was not evaluated."""
    if course.start is None or course.best is None:
        return {}
    change = course.from_start()
    return {
        "start": score_fields(course.start.evaluation),
        "best": {"consumed": course.best.consumed, "mean": course.best.evaluation.mean},
        "change_from_start": None if change is None else {"mean": change.mean, "interval": change[1:3]},
    }


def development(course: "Course", unit: str, place: str) -> str:
    """Return the first, last and best evaluation of a run as text, and other metrics of its last answers.

    Args:
        course: evaluations of the run, from the start on.
        unit: unit of the budget.
        place: path of the run.
    """
    start, best = course.start, course.best
    if start is None or best is None:
        return ""
    last = course.points[-1]
    change, change_text = course.from_start(), ""
    if change is not None:
        kind = "worse" if change.high < 0 else "better" if change.low > 0 else "within noise"
        change_text = f" ({change.mean:+.2g}, 99 % interval {change.low:+.2g} to {change.high:+.2g}: {kind})"
    lines = [
        f"From {number(start.evaluation.mean)} at the start to {number(last.evaluation.mean)}{change_text}; the best "
        f"was {number(best.evaluation.mean)} at {best.consumed:,} {unit}."
    ]
    if change is not None and change.high < 0:
        lines.append(f"It ends below its start: use the best weights, such as `operant evaluate {place} --best`.")
    before, now = ({n: sum(v) / len(v) for n, v in p.evaluation.metrics.items()} for p in (start, last))
    for name in [name for name in now if name.startswith("eval/rewards/")]:
        lines.append(
            f"The training reward {name.split('/')[2]} of the same answers is {number(now[name])}; that of the first "
            f"evaluation's answers was {number(before.get(name, math.nan))}. Its scale differs from the score's."
        )
    if "objective/kl_start" in now:
        away, token = number(now["objective/kl_start"]), number(now["kl_start"])
        lines.append(f"KL(policy‖start) is {away} nats per answer, {token} per token.")
    return "\n" + "\n".join(lines)


def health(trained: "Trained") -> str:
    """Return the nonzero health counts of a run in one line; empty if there are none. Updates are not included."""
    from operant.runtime.metrics import read_records
    from operant.runtime.metrics_window import SKIPPED, UPDATES

    counts: dict[str, float] = {}
    for record in read_records(trained.run.metrics_path):
        for name, value in record.items():
            if name.startswith("health/") and name not in (SKIPPED, UPDATES):
                values = _by_seed(value, 1)
                counts[name] = counts.get(name, 0) + sum(v for v in values if not math.isnan(v))
    found = [f"{count:g} {name.removeprefix('health/').replace('_', ' ')}" for name, count in counts.items() if count]
    return f"Health, all seeds together: {', '.join(found)}." if found else ""


def next_commands(
    place: str,
    entry: catalog.Algorithm | None = None,
    *,
    process: bool = False,
    shown: bool = True,
    game: "BoardGame | None" = None,
) -> str:
    """Return suggested commands for the run at `place`.

    Args:
        place: path of the run.
        entry: algorithm of the run. Default: one that acts in environments.
        process: whether a reward model scores the steps of an answer.
        shown: whether the task can be rendered; for language models, whether sampled answers have rewards.
        game: board game that the run has learned by playing against itself.
    """
    from operant.envs.tensor.solved_games import is_small

    if entry is not None and entry.package == "tabular":
        calls = {
            f"evaluate {place}": "evaluate it, exactly if the model of the task is known",
            f"show {place}": "show its values and policy",
            f"watch {place}": "record a video",
        }
    elif game is not None:
        counted = {f"evaluate {place} --exact": "count its mistakes in all positions"}
        calls = {**(counted if is_small(game) else {}), f"play {place}": "play against it"}
    elif entry is None or entry.package != "language":
        calls = {
            f"evaluate {place}": "evaluate 100 more episodes in Gymnasium's environment",
            f"watch {place}": "record a video",
        }
    elif entry.family == "reward" and process:
        options = f"--init RUN --supervision process --reward-model {place}"
        calls = {f"train grpo TASK {options}": "train a policy with it"}
    elif entry.family == "reward":
        calls = {f"train rlhf TASK --init RUN --reward-model {place}": "train a policy with it"}
    else:
        calls = {
            f"chat {place}": "chat with it",
            f"evaluate {place} --samples 8": "avg@8 and pass@8 of its answers",
            f"train grpo TASK --init {place}": "continue with GRPO",
        }
    if not shown:
        failing = f"watch {place}", f"evaluate {place} --samples 8"
        calls = {call: what for call, what in calls.items() if call not in failing}
    calls |= {f"compare {place} ANOTHER-RUN": "compare with other runs"}
    width = max(map(len, calls))
    return "\n".join(["Next:", *(f"  operant {call:{width}}  {what}" for call, what in calls.items())])


def _speed(steps_per_second: float, seconds: float, unit: str) -> str:
    from operant.runtime.progress import si

    if math.isnan(steps_per_second):
        return "The budget was already used: nothing was trained."
    return f"{si(steps_per_second)} {unit} per second in training, all seeds together; {seconds:.1f} s with evaluations"
