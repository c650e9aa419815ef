"""Runs side by side: their final scores and their learning curves, read from `eval/evaluations.jsonl`."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant import catalog
from operant.envs import resolve_backend
from operant.runtime.evaluation import Evaluation
from operant.runtime.metrics import read_records
from operant.runtime.run import Run, RunError


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
    """

    run: Run
    final: Evaluation
    curve: Curve
    improvement: float


def evaluations(run: Run) -> list[tuple[int, Evaluation]]:
    """Return every evaluation that was made while the run was trained, after the budget consumed until then.

    Raises:
        RunError: a record is not one of an evaluation.
    """
    try:
        return [(int(record["consumed"]), _evaluation(record)) for record in read_records(run.evaluations_path)]
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


def compare(runs: Sequence[Run]) -> list[Standing]:
    """Return what each of several runs has reached under the same protocol.

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
    curves = [learning_curve(run) for run in runs]
    finals = [evaluations(run)[-1][1] for run in runs]
    for run, curve in zip(runs, curves, strict=True):
        if curve.consumed[-1] < run.settings.budget:
            raise RunError(
                f"{run.path} was last scored at {curve.consumed[-1]} of {run.settings.budget}; "
                f"go on with `operant resume {run.path}` before comparing it"
            )
    return [
        Standing(run, final, curve, improvement_probability(final.scores, finals[0].scores))
        for run, final, curve in zip(runs, finals, curves, strict=True)
    ]


def improvement_probability(scores: ArrayLike, others: ArrayLike) -> float:
    """Return the probability that one of `scores [n]` is higher than one of `others [m]`; ties count one half.

    The Mann-Whitney statistic over `n m`, as in Agarwal et al. 2021 (arXiv:2108.13264), section 4.3.
    """
    difference = np.subtract.outer(np.asarray(scores, np.float64), np.asarray(others, np.float64))
    return float(np.mean(np.sign(difference) + 1.0) / 2.0)


def _evaluation(record: dict[str, Any]) -> Evaluation:
    names = [field.name for field in fields(Evaluation)]
    newer = {"success_rate", "infos"} - record.keys()  # than a record of an earlier version
    return Evaluation(**{name: _tuples(record[name]) for name in names if name not in newer})


def _tuples(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
    return tuple(map(_tuples, value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]


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
