"""Runs side by side: their final scores and their learning curves, read from `eval/evaluations.jsonl`."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant import catalog
from operant.envs import resolve_backend
from operant.runtime.evaluation import Evaluation
from operant.runtime.metrics import read_records
from operant.runtime.run import Run, RunError
from operant.runtime.window import EPISODES, LENGTH, RETURN


@dataclass(frozen=True)
class Curve:
    """Scores in the course of training, one of the n evaluations after the other.

    Attributes:
        consumed: `[n]`, budget used so far by each seed.
        scores: `[n, S]`, mean score of each seed.
        iqm: `[n]`, over the seeds.
        low: `[n]`, lower end of the 95 % interval of `iqm`.
        high: `[n]`, upper end.
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
    """What a run has reached.

    Attributes:
        run: the run.
        final: its last evaluation.
        curve: all its evaluations.
        improvement: probability that a seed of this run scores higher than one of the first run of the comparison
            (`improvement_probability`); one half for the first run itself.
        metric: what is compared; None for the scores of evaluations.
    """

    run: Run
    final: Evaluation
    curve: Curve
    improvement: float
    metric: str | None = None


def evaluations(run: Run) -> list[tuple[int, Evaluation]]:
    """Return every evaluation that was made while the run was trained, after the budget consumed until then.

    Raises:
        RunError: a record is not one of an evaluation.
    """
    try:
        return [
            (int(record["consumed"]), Evaluation.of_record(record)) for record in read_records(run.evaluations_path)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{run.evaluations_path} holds a record that is no evaluation: {error!r}") from error


def learning_curve(run: Run) -> Curve:
    """Return the scores of the run in the course of its training.

    Raises:
        RunError: there is no evaluation yet.
    """
    found = evaluations(run)
    if not found:
        raise RunError(f"{run.path} has no evaluation yet; train it with `operant resume {run.path}`")
    return Curve(
        consumed=np.array([consumed for consumed, _ in found]),
        scores=np.array([evaluation.scores for _, evaluation in found]),
        iqm=np.array([evaluation.iqm for _, evaluation in found]),
        low=np.array([evaluation.interval[0] for _, evaluation in found]),
        high=np.array([evaluation.interval[1] for _, evaluation in found]),
    )


def metric_curve(run: Run, metric: str) -> Curve:
    """Return a metric of training, such as the returns of the episodes that were learned from.

    A point is the mean over one interval between two evaluations: of returns and lengths, over its episodes.

    Args:
        run: the run.
        metric: its name in `metrics.jsonl`, such as `"rollout/episode_return"`.

    Raises:
        RunError: the run has no such metric, or at the end no number for some seed.
    """
    records = read_records(run.metrics_path)
    found = [record for record in records if metric in record]
    if not found:
        names = sorted({name for record in records for name in record} - {"consumed"})
        near = get_close_matches(metric, names, n=1)
        hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}" if names else "it has none yet"
        raise RunError(f"{run.path} has no metric {metric!r}; {hint}")
    values = np.array([np.atleast_1d(record[metric]) for record in found], np.float64)
    weights = np.where(np.isnan(values), 0.0, _episode_counts(found, metric))
    consumed = np.array([int(record["consumed"]) for record in found])
    parts = [np.flatnonzero(part) for part in _intervals(consumed, run.settings.evaluation_interval)]
    with np.errstate(invalid="ignore", divide="ignore"):
        means = [np.nansum(values[part] * weights[part], 0) / weights[part].sum(0) for part in parts]
    if not np.isfinite(means[-1]).all():
        raise RunError(
            f"{metric} of {run.path} has no number at the end for seed "
            f"{run.settings.seeds[int(np.flatnonzero(~np.isfinite(means[-1]))[0])]}: no episode has ended there"
        )
    ends = [Evaluation.of(mean[:, None]) for mean in means]
    return Curve(
        consumed=np.array([consumed[part[-1]] for part in parts]),
        scores=np.array(means),
        iqm=np.array([end.iqm for end in ends]),
        low=np.array([end.interval[0] for end in ends]),
        high=np.array([end.interval[1] for end in ends]),
    )


def _episode_counts(records: Sequence[dict[str, Any]], metric: str) -> Any:
    """Return how much every record counts, `[K, S]`, or 1."""
    if metric not in (RETURN, LENGTH) or any(EPISODES not in record for record in records):
        return 1.0
    return np.array([np.atleast_1d(record[EPISODES]) for record in records], np.float64)


def _intervals(consumed: NDArray[np.int64], every: int) -> list[NDArray[np.bool_]]:
    """Return which records belong to each interval of the budget that has some, in order."""
    numbers = (consumed - 1) // every
    return [numbers == number for number in np.unique(numbers)]


def compare(runs: Sequence[Run], *, metric: str | None = None) -> list[Standing]:
    """Return what each of several runs has reached under the same protocol.

    Args:
        runs: one or more.
        metric: a metric of training that is compared (`metric_curve`) in the place of the scores of evaluations.

    They may differ in algorithm, configuration and seeds, but not in what their scores mean: task, budget, environments
    and evaluation.

    Raises:
        ValueError: no run is given, or one twice.
        RunError: the protocols differ (the message says in what), or a run has not used its budget.
    """
    if not runs or len({run.path for run in runs}) < len(runs):
        raise ValueError(f"one or more different runs are needed, got {[str(run.path) for run in runs]}")
    for run in runs[1:]:
        _require_same_protocol(runs[0], run)
    curves = [learning_curve(run) if metric is None else metric_curve(run, metric) for run in runs]
    finals = [
        evaluations(run)[-1][1] if metric is None else Evaluation.of(curve.scores[-1][:, None])
        for run, curve in zip(runs, curves, strict=True)
    ]
    for run, curve in zip(runs, curves, strict=True):
        if curve.consumed[-1] < run.settings.budget:
            raise RunError(
                f"{run.path} was last scored at {curve.consumed[-1]} of {run.settings.budget}; "
                f"go on with `operant resume {run.path}` before comparing it"
            )
    return [
        Standing(run, final, curve, improvement_probability(final.scores, finals[0].scores), metric)
        for run, final, curve in zip(runs, finals, curves, strict=True)
    ]


def improvement_probability(scores: ArrayLike, others: ArrayLike) -> float:
    """Return the probability that one of `scores [n]` is higher than one of `others [m]`; ties count one half.

    The Mann-Whitney statistic over `n m`, as in Agarwal et al. 2021 (arXiv:2108.13264), section 4.3.
    """
    difference = np.subtract.outer(np.asarray(scores, np.float64), np.asarray(others, np.float64))
    return float(np.mean(np.sign(difference) + 1.0) / 2.0)


def _protocol(run: Run) -> dict[str, Any]:
    """Return what the scores of a run depend on, beside what is compared, by the name of its option."""
    settings = run.settings
    common = {"task": settings.task, "--budget": settings.budget}
    every = {"--evaluate-every": settings.evaluation_interval}
    if catalog.find(settings.algorithm).chapter == "language":
        found = evaluations(run)
        return common | every | {"--held-out": found[-1][1].episodes if found else 0}
    backend = {"--env-backend": resolve_backend(settings.task, settings.env_backend, settings.env_kwargs)}
    own = {"--env-kwargs": dict(settings.env_kwargs), "--evaluate-max-steps": settings.evaluate_max_steps}
    return common | backend | every | own | {"--evaluate-episodes": settings.evaluate_episodes}


def _require_same_protocol(first: Run, other: Run) -> None:
    wanted, got = _protocol(first), _protocol(other)
    shared = [name for name in wanted if name in got]
    differing = [f"{name} is {wanted[name]} and {got[name]}" for name in shared if wanted[name] != got[name]]
    if differing:
        raise RunError(
            f"{first.path} and {other.path} cannot be compared: {'; '.join(differing)}; "
            "train one of them again under the protocol of the other"
        )
