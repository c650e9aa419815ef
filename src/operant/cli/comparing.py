"""`operant compare`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from operant.cli.arguments import Answering, parse
from operant.cli.charts import WIDTH, bar_chart, budget_axis, scale
from operant.cli.output import MOST_ROWS, number, print_json, require_extra, require_writable, say, score_fields, table
from operant.runtime.run_paths import location

if TYPE_CHECKING:
    from operant.runtime.comparison import Curve, Standing
    from operant.runtime.group_sequential import Decision
    from operant.runtime.run import Run


@dataclass(frozen=True)
class CompareOptions(Answering):
    """Compare runs of the same task: final scores, confidence intervals, differing settings, learning curves."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN ...")]
    """Folders of the runs."""

    out: Annotated[Path | None, tyro.conf.arg(metavar="PATH")] = None
    """File of a plot, such as compare.png (extra: plots)."""

    metric: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None
    """Compare a training metric, such as rollout/episode_return (returns of the exploring policy), instead of the
    scores of greedy evaluations; those of bandits, such as bandit/regret, by their mean over the seeds.
    """

    enough: bool = False
    """Test whether the seeds of two runs suffice to decide which run scores higher, and otherwise estimate how many are
    needed. The test may be repeated as seeds are added: the probability of any error over all tests is at most 5 %.
    """

    looks: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N ...")] = ()
    """Numbers of seeds per run at which --enough tests, chosen before the first run. After the last number, they
    double. Default: 5, 10, 20 and so on.
    """

    allow_different: bool = False
    """Compare runs even if their tasks, environments, evaluations or budget units differ; a warning lists the
    differences."""

    def __post_init__(self) -> None:
        if not self.runs:
            raise ValueError("give the folders of one or more runs")
        if self.enough and len(self.runs) != 2:
            raise ValueError(f"--enough is for two runs, got {len(self.runs)}")
        if self.looks and not self.enough:
            raise ValueError("--looks sets when --enough tests: add --enough")
        if self.out is not None and self.out.suffix not in (".png", ".svg", ".pdf"):
            raise ValueError(f"out must end in .png, .svg or .pdf, got {self.out}")


def compare(arguments: list[str]) -> int:
    """Compare runs."""
    options = parse(CompareOptions, arguments, "compare")
    if options.out is not None:
        require_extra("plots", "a plot", ["matplotlib"])
    from operant.runtime.comparison import compare as standings_of
    from operant.runtime.comparison import different_settings
    from operant.runtime.run import Run

    opened = [Run.open(path) for path in options.runs]
    standings = standings_of(opened, metric=options.metric, allow_different=options.allow_different)
    _warn_about_ends(opened)
    _warn_about_data([run.path for run in opened])
    if options.allow_different:
        _warn_about_protocols(opened, options.metric)
    names = names_of([run.path for run in opened])
    if options.out is not None:
        require_writable(options.out)
    decision = _decide(standings, options.looks) if options.enough else None
    if options.json:
        runs = [_answer(name, standing) for name, standing in zip(names, standings, strict=True)]
        settings = standings[0].run.settings
        compared = {} if options.metric is None else {"metric": options.metric}
        common = {"task": settings.task, "budget": standings[0].budget, **compared}
        enough = {} if decision is None else {"enough": _decision_answer(names, decision)}
        print_json({**common, "settings": different_settings(opened), "runs": runs, **enough})
    else:
        _print_report(names, standings)
        if decision is not None:
            _print_decision(names, decision)
    if options.out is not None:
        from operant.cli.plotting import draw

        draw(names, standings, options.out)
        say(f"drawn: {location(options.out)}")
    return 0


def _warn_about_ends(runs: Sequence["Run"]) -> None:
    """Warn if the last session of a run did not finish."""
    from operant.runtime.sessions import FINISHED, UNFINISHED

    for run in runs:
        outcome, reason = run.outcome()
        state = "is still running or was killed" if outcome == UNFINISHED else outcome
        if outcome != FINISHED:
            say(f"operant: warning: {location(run.path)} {state}{f': {reason}' if reason else ''}")


def _warn_about_data(runs: Sequence[Path]) -> None:
    """Warn if runs of one task were scored on different data sets."""
    from operant.runtime.inputs import records_of

    data = {record["sha256"] for run in runs for record in records_of(run) if record["name"] in ("dataset", "task")}
    if len(data) > 1:
        say(f"operant: warning: these runs were trained and scored on {len(data)} different data sets of one name")


def _warn_about_protocols(runs: Sequence["Run"], metric: str | None) -> None:
    """Warn if the evaluation protocols of the compared runs differ."""
    from operant.runtime.comparison import different_protocols

    if differing := different_protocols(runs, metric):
        say(f"operant: warning: the protocols differ: {'; '.join(differing)}")


def _decide(standings: Sequence["Standing"], looks: Sequence[int]) -> "Decision":
    """Test whether the seeds of two runs are enough."""
    from operant.runtime.group_sequential import enough_seeds

    first, second = (standing.final.scores for standing in standings)
    return enough_seeds(first, second, looks=looks or None)


def _print_decision(names: Sequence[str], decision: "Decision") -> None:
    """Print the result of each test of a sequential comparison."""
    rows = [["seeds per run", f"P of {names[0]}", "decides beyond", "p-value", "error spent"]]
    for look in decision.looks:
        beyond = "never" if look.boundary > 0.5 else f"{0.5 - look.boundary:.2f}, {0.5 + look.boundary:.2f}"
        rows.append([str(look.seeds), f"{look.improvement:.2f}", beyond, f"{look.p_value:.4f}", f"{look.spent:.4f}"])
    print("\nEnough seeds?")
    if decision.looks:
        print(table(rows, ">" * len(rows[0])))
    if decision.better is not None:
        better, worse = names if decision.better == "first" else reversed(names)
        print(f"Decided: {better} scores higher than {worse}, with an error probability of at most 5 % over all looks.")
        return
    print(f"Undecided. The next look is at {decision.next_look} seeds per run.")
    if decision.needed is not None:
        print(f"Deciding a difference of this size takes about {decision.needed} seeds per run (power 80 %).")


def _decision_answer(names: Sequence[str], decision: "Decision") -> dict[str, Any]:
    looks = [{**asdict(look), "boundary": look.boundary if look.boundary <= 0.5 else None} for look in decision.looks]
    better = None if decision.better is None else names[0 if decision.better == "first" else 1]
    decided = {"decided": decision.better is not None, "better": better}
    return {**decided, "looks": looks, "next_look": decision.next_look, "needed": decision.needed}


def names_of(paths: Sequence[Path]) -> list[str]:
    """Return the names of runs: the names of their folders if they differ, otherwise the paths."""
    short = [path.name for path in paths]
    return short if len(set(short)) == len(short) else [location(path) for path in paths]


def curve_chart(curve: "Curve", budget: int, *, low: float, high: float, height: int) -> str:
    """Return a text chart of the IQM over the seeds as a function of the budget."""
    points = [budget * (column + 1) / WIDTH for column in range(WIDTH)]
    return bar_chart(curve.at(points).tolist(), low=low, high=high, height=height)


def _print_report(names: Sequence[str], standings: Sequence["Standing"]) -> None:
    from operant.runtime.comparison import uses_mean

    settings = standings[0].run.settings
    entries = [standing.run.entry for standing in standings]
    unit = " or ".join(dict.fromkeys(entry.unit for entry in entries))
    protocol = f"{settings.evaluate_episodes} greedy episodes per seed"
    if all(standing.final.exact for standing in standings):
        protocol = "exact scores"
    elif entries[0].package == "language":
        protocol = f"{standings[0].final.episodes} held-out examples"
    if standings[0].metric is not None:
        protocol = f"{standings[0].metric} of the last {settings.evaluation_interval} {unit}"
    budget = max(standing.run.settings.budget for standing in standings)
    print(f"{settings.task}, {standings[0].budget} {unit} per seed, {protocol}\n")
    if budget > standings[0].budget:
        print(f"Budgets differ: scores are the last ones up to {standings[0].budget}, curves extend to {budget}.\n")
    print(_score_table(names, standings))
    center = "mean" if uses_mean(standings[0].metric) else "IQM"
    explained = "mean: arithmetic mean" if center == "mean" else "IQM: interquartile mean"
    print(f"\n{explained} over the seeds, with its 95 % bootstrap interval.")
    if len(standings) > 1:
        print(f"P: probability that a seed scores higher than a seed of {names[0]}.")
        print(f"difference: {center} difference from {names[0]}.")
        print("Both have 95 % bootstrap intervals, which resample the seeds of both runs.")
        print(_settings_table(names, standings))
    print()
    for name, standing in zip(names, standings, strict=True):
        print(f"{name}: {_sorted_scores(standing.final.scores)}")
    low, high = scale(value for standing in standings for value in standing.curve.iqm.tolist())
    for name, standing in zip(names, standings, strict=True):
        chart = curve_chart(standing.curve, budget, low=low, high=high, height=8 if len(names) == 1 else 4)
        print(f"\n{name}\n{chart}")
    print(budget_axis(budget, unit, low=low, high=high))


def _sorted_scores(scores: Sequence[float]) -> str:
    """Return the scores in order; of many their extremes and quartiles."""
    if len(scores) <= MOST_ROWS:
        return " ".join(map(number, sorted(scores)))
    import numpy as np

    low, *quartiles, high = map(number, np.percentile(scores, [0, 25, 50, 75, 100]).tolist())
    return f"{len(scores)} seeds from {low} to {high}, quartiles {', '.join(quartiles)}; --json lists all"


def _settings_table(names: Sequence[str], standings: Sequence["Standing"]) -> str:
    """Return a table of the settings that differ, one row each."""
    from operant.runtime.comparison import different_settings

    differ = different_settings([standing.run for standing in standings])
    if not differ:
        return "\nThe runs differ only in their seeds."
    rows = [[name, *("-" if value is None else str(value) for value in values)] for name, values in differ.items()]
    return f"\n{table([['setting', *names], *rows], '<' * (len(names) + 1))}"


def _score_table(names: Sequence[str], standings: Sequence["Standing"]) -> str:
    from operant.runtime.comparison import uses_mean

    mean = uses_mean(standings[0].metric)
    heading = ["run", "algorithm", "seeds", *(["mean", "interval"] if mean else ["IQM", "interval", "mean"])]
    rows = [heading + (["P", "interval", "difference", "interval"] if len(names) > 1 else [])]
    for name, standing in zip(names, standings, strict=True):
        final, settings = standing.final, standing.run.settings
        interval = _interval(standing.interval) if len(settings.seeds) > 1 else "unknown"
        row = [name, standing.run.entry.label, str(len(settings.seeds))]
        row += [number(standing.center), interval, *([] if mean else [number(final.mean)])]
        if len(names) > 1:
            low, high = standing.improvement_interval
            known = standing is not standings[0] and min(len(settings.seeds), len(standings[0].final.scores)) > 1
            row += [f"{standing.improvement:.2f}", f"[{low:.2f}, {high:.2f}]" if known else "-"]
            row += [number(standing.difference), _interval(standing.difference_interval) if known else "-"]
        rows.append(row)
    return table(rows, "<<>>>>>>>>"[: len(rows[0])])


def _interval(ends: tuple[float, float]) -> str:
    return f"[{number(ends[0])}, {number(ends[1])}]"


def _answer(name: str, standing: "Standing") -> dict[str, Any]:
    from operant.runtime.comparison import uses_mean

    settings, curve = standing.run.settings, standing.curve
    return {
        "run": str(standing.run.path),
        "name": name,
        "algorithm": settings.algorithm,
        "seeds": settings.seeds,
        **score_fields(standing.final),
        **({"interval_of_mean": standing.interval} if uses_mean(standing.metric) else {}),
        "probability_of_improvement": standing.improvement,
        "probability_of_improvement_interval": standing.improvement_interval,
        "difference": standing.difference,
        "difference_interval": standing.difference_interval,
        "curve": {name: getattr(curve, name).tolist() for name in ("consumed", "iqm", "low", "high", "scores")},
        "profile": {name: values.tolist() for name, values in asdict(standing.profile).items()},
    }
