"""Comparison of runs: final scores and learning curves, read from `eval/evaluations.jsonl`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.envs import resolve_backend
from operant.runtime.evaluation import Evaluation
from operant.runtime.metrics import read_records, used_budget
from operant.runtime.metrics_window import EPISODES, LENGTH, RETURN
from operant.runtime.run import Run, RunError
from operant.runtime.run_paths import location
from operant.runtime.sessions import MERGED, was_stopped
from operant.runtime.statistics import Profile, iqm, performance_profile, stratified_bootstrap
from operant.streams import seed_sequence

THRESHOLDS = 101
"""Number of points of a performance profile."""

_BANDITS = "bandit/"
_SUMS = ("bandit/regret", "bandit/lai_robbins")
"""Metrics that are sums over the whole run."""


@dataclass(frozen=True)
class Curve:
    """Learning curve from n evaluations.

    Attributes:
        consumed: budget used per seed, `[n]`.
        scores: mean score of each seed, `[n, S]`.
        iqm: interquartile mean over the seeds, `[n]`; for metrics of bandits the mean.
        low: lower end of the 95 % interval of `iqm`, `[n]`.
        high: upper end, `[n]`.
    """

    consumed: NDArray[np.int64]
    scores: NDArray[np.float64]
    iqm: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def at(self, consumed: ArrayLike) -> NDArray[np.float64]:
        """Return the IQM at other points, interpolated; NaN before the first evaluation and after the last."""
        return np.interp(np.asarray(consumed, np.float64), self.consumed, self.iqm, left=np.nan, right=np.nan)


@dataclass(frozen=True)
class Standing:
    """Result of a run in a comparison.

    Attributes:
        run: the run.
        final: last evaluation within the budget of the comparison.
        curve: learning curve of all evaluations.
        improvement: probability that a seed of this run scores higher than one of the first run
            (`improvement_probability`); 0.5 for the first run itself.
        improvement_interval: 95 % bootstrap interval of `improvement`, over the seeds of both runs.
        difference: IQM of this run minus that of the first one; for metrics of bandits their means.
        difference_interval: 95 % bootstrap interval of `difference`.
        budget: budget of the comparison: the minimum over the runs.
        metric: name of the compared metric; None for scores of evaluations.
        center: the IQM over the seeds, or for metrics of bandits the mean, `mean`: regret is an expectation.
        interval: 95 % bootstrap interval of `center`.
        profile: performance profile: fraction of seeds above thresholds between the minimum and maximum score of all
            runs.
    """

    run: Run
    final: Evaluation
    curve: Curve
    improvement: float
    improvement_interval: tuple[float, float]
    difference: float
    difference_interval: tuple[float, float]
    budget: int
    metric: str | None
    center: float
    interval: tuple[float, float]
    profile: Profile


Evaluations = Sequence[tuple[int, Evaluation]]
"""Evaluations of a run as pairs with the consumed budget."""


def evaluations(run: Run) -> list[tuple[int, Evaluation]]:
    """Return the evaluations during training, by consumed budget.

    Raises:
        RunError: a record is not an evaluation.
    """
    try:
        return [
            (used_budget(record, missing=None), Evaluation.of_record(record))
            for record in read_records(run.evaluations_path)
        ]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{run.evaluations_path} contains a record that is not an evaluation: {error!r}") from error


def learning_curve(run: Run, found: Evaluations | None = None) -> Curve:
    """Return the learning curve of a run.

    Args:
        run: the run.
        found: evaluations of the run, if already read. Default: read them.

    Raises:
        RunError: there is no evaluation.
    """
    found = evaluations(run) if found is None else found
    if not found:
        raise RunError(f"{run.path} has no evaluation yet; train it with `operant resume {location(run.path)}`")
    return Curve(
        consumed=np.array([consumed for consumed, _ in found]),
        scores=np.array([evaluation.scores for _, evaluation in found]),
        iqm=np.array([evaluation.iqm for _, evaluation in found]),
        low=np.array([evaluation.interval[0] for _, evaluation in found]),
        high=np.array([evaluation.interval[1] for _, evaluation in found]),
    )


def uses_mean(metric: str | None) -> bool:
    """Return whether a metric is compared by its mean over the seeds: those of bandits, such as the regret."""
    return metric is not None and metric.startswith(_BANDITS)


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values.mean(axis=-1)


def metric_curve(run: Run, metric: str) -> Curve:
    """Return the curve of a training metric, such as the episode return.

    A point is the mean over the interval between two evaluations; for returns and lengths, the mean over its episodes;
    for the regret, which is a sum, its last value.

    Args:
        run: the run.
        metric: name of the metric in `metrics.jsonl`, such as `"rollout/episode_return"`.

    Raises:
        RunError: the run has no such metric, or no final value for a seed.
    """
    records = read_records(run.metrics_path)
    found = [record for record in records if metric in record]
    if not found:
        names = sorted({name for record in records for name in record} - {"consumed"})
        near = get_close_matches(metric, names, n=1)
        none = "merged runs contain evaluations only" if run.resolved().get(MERGED) else "it has none yet"
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}" if names else none
        raise RunError(f"{run.path} has no metric {metric!r}; {hint}")
    values = np.array([np.atleast_1d(record[metric]) for record in found], np.float64)
    weights = np.where(np.isnan(values), 0.0, _episode_counts(found, metric))
    consumed = np.array([int(record["consumed"]) for record in found])
    parts = _intervals(records, metric, run.settings.evaluation_interval)
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [np.nansum(values[part] * weights[part], 0) / weights[part].sum(0) for part in parts]
    if metric in _SUMS:
        means = [values[part[-1]] for part in parts]
    if not np.isfinite(means[-1]).all():
        raise RunError(
            f"{metric} of {run.path} has no final value for seed "
            f"{run.settings.seeds[int(np.flatnonzero(~np.isfinite(means[-1]))[0])]}: no episode ended there"
        )
    statistic = _mean if uses_mean(metric) else iqm
    ends = [stratified_bootstrap(mean, statistic) for mean in means]
    return Curve(
        consumed=np.array([consumed[part[-1]] for part in parts]),
        scores=np.array(means),
        iqm=np.array([float(statistic(mean)) for mean in means]),
        low=np.array([low for low, _ in ends]),
        high=np.array([high for _, high in ends]),
    )


def _episode_counts(records: Sequence[dict[str, Any]], metric: str) -> Any:
    """Return the weights of the records, `[K, S]`, or 1."""
    if metric not in (RETURN, LENGTH) or any(EPISODES not in record for record in records):
        return 1.0
    return np.array([np.atleast_1d(record[EPISODES]) for record in records], np.float64)


def _intervals(records: Sequence[dict[str, Any]], metric: str, every: int) -> list[NDArray[np.int64]]:
    """Return the indices of the records with a metric in each interval between evaluations that has any, in order.

    An evaluation, and a record before it, follow the first iteration that reaches a multiple of `every`. The budget
    used at the start of a record, that of the record before, therefore decides to which interval it belongs.
    """
    starts = [0, *(int(record["consumed"]) for record in records[:-1])]
    numbers = np.array([start // every for start, record in zip(starts, records, strict=True) if metric in record])
    return [np.flatnonzero(numbers == number) for number in np.unique(numbers)]


def compare(runs: Sequence[Run], *, metric: str | None = None, allow_different: bool = False) -> list[Standing]:
    """Compare runs under the same protocol.

    Runs may differ in algorithm, configuration, seeds and budget, but not in task, environments, evaluation and unit of
    the budget. Runs with different budgets are compared by their last evaluations within the smallest one.

    Args:
        runs: one or more runs.
        metric: training metric (`metric_curve`) to compare instead of evaluation scores.
        allow_different: whether to compare runs with different protocols (see `different_protocols`).

    Raises:
        ValueError: no run is given, or a run is given twice.
        RunError: the protocols differ (the message lists the differences), or a run has not used its budget.
    """
    if not runs or len({run.path for run in runs}) < len(runs):
        raise ValueError(f"one or more different runs are needed, got {[str(run.path) for run in runs]}")
    read = [evaluations(run) for run in runs]
    for run, found in zip(runs[1:], read[1:], strict=True):
        if not allow_different:
            _require_same_protocol((runs[0], read[0]), (run, found), metric)
    curves = [
        learning_curve(run, found) if metric is None else metric_curve(run, metric)
        for run, found in zip(runs, read, strict=True)
    ]
    budget = min(_budget_used(run, curve) for run, curve in zip(runs, curves, strict=True))
    finals = [
        _last_within(run, found, budget) if metric is None else _last_point(run, curve, budget)
        for run, found, curve in zip(runs, read, curves, strict=True)
    ]
    scores = [score for final in finals for score in final.scores]
    known = [score for score in scores if np.isfinite(score)] or [0.0]
    thresholds = np.linspace(min(known), max(known), THRESHOLDS)
    return [
        _standing(run, final, finals[0], curve, budget=budget, metric=metric, thresholds=thresholds)
        for run, final, curve in zip(runs, finals, curves, strict=True)
    ]


def _budget_used(run: Run, curve: Curve) -> int:
    """Return the budget of a run, or what it used of it if a callback stopped it.

    Raises:
        RunError: the run has not used its budget.
    """
    last = int(curve.consumed[-1])
    if last >= run.settings.budget or was_stopped(run.facts().get("sessions", ())):
        return min(last, run.settings.budget)
    raise RunError(
        f"{run.path} was last scored at {last} of {run.settings.budget}; "
        f"continue it with `operant resume {location(run.path)}` before comparing it"
    )


def _last_within(run: Run, found: Evaluations, budget: int) -> Evaluation:
    """Return the last evaluation within `budget`; the final one counts as at the run's budget."""
    if budget == run.settings.budget:
        return found[-1][1]
    within = [evaluation for consumed, evaluation in found if consumed <= budget]
    if not within:
        raise RunError(
            f"{run.path} has no evaluation within a budget of {budget}, that of the shortest run: leave it out"
        )
    return within[-1]


def _last_point(run: Run, curve: Curve, budget: int) -> Evaluation:
    """Return the last point of a metric's curve within a budget."""
    within = curve.scores if budget == run.settings.budget else curve.scores[curve.consumed <= budget]
    if not len(within):
        raise RunError(f"{run.path} has no record within a budget of {budget}, that of the shortest run: leave it out")
    return Evaluation.of(within[-1][:, None])


def _standing(
    run: Run,
    final: Evaluation,
    first: Evaluation,
    curve: Curve,
    *,
    budget: int,
    metric: str | None,
    thresholds: NDArray[np.float64],
) -> Standing:
    ours, others = np.asarray(final.scores), np.asarray(first.scores)
    same = final is first
    half, none = (0.5, 0.5), (0.0, 0.0)
    mean = uses_mean(metric)
    statistic = _mean if mean else iqm
    return Standing(
        run=run,
        final=final,
        curve=curve,
        improvement=improvement_probability(ours, others),
        improvement_interval=half if same else two_sample_bootstrap(ours, others, improvement_probability),
        difference=final.mean - first.mean if mean else final.iqm - first.iqm,
        difference_interval=none
        if same
        else two_sample_bootstrap(ours, others, lambda a, b: float(statistic(a) - statistic(b))),
        budget=budget,
        metric=metric,
        center=final.mean if mean else final.iqm,
        interval=stratified_bootstrap(ours, _mean) if mean else final.interval,
        profile=performance_profile(ours, thresholds),
    )


def two_sample_bootstrap(
    scores: ArrayLike,
    others: ArrayLike,
    statistic: Callable[[NDArray[np.float64], NDArray[np.float64]], float],
    *,
    repetitions: int = 2000,
) -> tuple[float, float]:
    """Return the 95 % bootstrap percentile interval of a statistic of two runs, resampling the seeds of each.

    The same as rliable's for the probability of improvement (Agarwal et al. 2021, arXiv:2108.13264).

    Args:
        scores: scores of the seeds of one run, `[n]`.
        others: scores of the seeds of the other run, `[m]`.
        statistic: function of both.
        repetitions: number of resamples.
    """
    ours, theirs = np.asarray(scores, np.float64), np.asarray(others, np.float64)
    generator = np.random.Generator(np.random.PCG64(seed_sequence(0, "bootstrap")))
    first = generator.integers(ours.size, size=(repetitions, ours.size))
    second = generator.integers(theirs.size, size=(repetitions, theirs.size))
    found = [statistic(ours[a], theirs[b]) for a, b in zip(first, second, strict=True)]
    low, high = np.percentile(found, [2.5, 97.5])
    return float(low), float(high)


def different_settings(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Return the settings and configuration fields in which runs differ, with one value per run.

    A value is None if the run's algorithm has no such field. Seeds and trackers are ignored.
    """
    tables = [run.asked() for run in runs]
    names = dict.fromkeys(name for table in tables for name in table)
    found = {name: [table.get(name) for table in tables] for name in names if name not in ("seeds", "track")}
    return {name: values for name, values in found.items() if any(value != values[0] for value in values)}


def improvement_probability(scores: ArrayLike, others: ArrayLike) -> float:
    """Return the probability that one of `scores [n]` is higher than one of `others [m]`; ties count half.

    The Mann-Whitney statistic over `n m`, as in Agarwal et al. 2021 (arXiv:2108.13264), section 4.3.
    """
    difference = np.subtract.outer(np.asarray(scores, np.float64), np.asarray(others, np.float64))
    return float(np.mean(np.sign(difference) + 1.0) / 2.0)


def _protocol(run: Run, found: Evaluations, metric: str | None) -> dict[str, Any]:
    """Return the options that must agree for scores to be comparable, by name."""
    settings = run.settings
    common = {"task": settings.task, "the unit of the budget": run.entry.unit}
    if run.entry.package == "language":
        every = {} if metric is None else {"--evaluate-every": settings.evaluation_interval}
        return common | every | {"--held-out": found[-1][1].episodes if found else 0}
    backend = {"--env-backend": resolve_backend(settings.task, settings.env_backend, settings.env_kwargs)}
    own = {"--env-kwargs": dict(settings.env_kwargs), "--evaluate-max-steps": settings.evaluate_max_steps}
    own |= {} if metric is None else {"--evaluate-every": settings.evaluation_interval}
    return common | backend | own | {"--evaluate-episodes": settings.evaluate_episodes}


def different_protocols(runs: Sequence[Run], metric: str | None = None) -> list[str]:
    """Return descriptions of the differences between the protocols of runs and that of the first run."""
    protocols = [_protocol(run, evaluations(run), metric) for run in runs]
    return list(dict.fromkeys(line for other in protocols[1:] for line in _differing(protocols[0], other)))


def _differing(wanted: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    shared = [name for name in wanted if name in got]
    return [f"{name} is {wanted[name]} and {got[name]}" for name in shared if wanted[name] != got[name]]


def _require_same_protocol(one: tuple[Run, Evaluations], another: tuple[Run, Evaluations], metric: str | None) -> None:
    (first, _), (other, _) = one, another
    if differing := _differing(_protocol(*one, metric), _protocol(*another, metric)):
        raise RunError(
            f"{first.path} and {other.path} cannot be compared: {'; '.join(differing)}; "
            "train one of them with the protocol of the other, or pass --allow-different to compare them anyway"
        )
