"""Proposals and pruning of trials. Proposals are Optuna's, which is rebuilt from the records for each trial.

The records of trials are the only state of the search: each trial has a new sampler, seeded by its number and given all
earlier trials. So a resumed study proposes the same values as an uninterrupted one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import TrialState, create_trial

from operant import streams
from operant.tuning.limits import EXCESS
from operant.tuning.search_spaces import Dimension, Range, Space

optuna.logging.set_verbosity(optuna.logging.WARNING)

State = Literal["running", "complete", "pruned", "failed"]
_DRAWS = 20
"""Maximum number of proposals for one trial, of which the first is taken that is valid and not known already."""

_COMPARED = 5
"""Minimum number of earlier trials with a score at an evaluation, for pruning."""

_STATES = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.PRUNED}
"""States for the estimator. It ignores trials that fail, and would propose values at which training diverges again and
again; pruned trials without a score are worse to it than all others."""


@dataclass(frozen=True)
class Trial:
    """One set of values, and its result.

    Attributes:
        number: number of the trial; those of earlier runs come first, then that of the initial values.
        values: values of the tuned fields, by name, as in TOML.
        state: running (or interrupted), complete, pruned, or failed.
        value: the objective; None unless complete.
        curve: the mean score of its seeds at each evaluation, by evaluation intervals of the used budget.
        seconds: duration.
        reason: reason of a failure, or the trial that has the same values.
        source: the earlier run whose result this is; empty for the study's own trials.
    """

    number: int
    values: Mapping[str, Any]
    state: State = "running"
    value: float | None = None
    curve: Mapping[int, float] = field(default_factory=dict[int, float])
    seconds: float = 0.0
    reason: str = ""
    source: str = ""

    def ended(self, consumed: int, budget: int) -> "Trial":
        """Return the trial after its last evaluation, complete or failed.

        Args:
            consumed: budget used at the last evaluation; without a curve, the budget that training would use.
            budget: budget of a trial.
        """
        if consumed > EXCESS * budget:  # its score is not comparable with the others'
            verb = "used" if self.curve else "would use"
            return replace(self, state="failed", reason=f"{verb} {consumed} of a budget of {budget}")
        value = list(self.curve.values())[-1]
        if math.isnan(value):
            return replace(self, state="failed", reason="the score of a seed is NaN")
        return replace(self, state="complete", value=value)


def evaluation_point(record: Mapping[str, Any], interval: int, budget: int) -> tuple[int, float]:
    """Return the point of a trial's curve: the number of evaluation intervals, and the mean score of the seeds.

    The last evaluation has the number of intervals that the budget has begun, which no other one has.

    Args:
        record: record of the evaluation.
        interval: evaluation interval of the trials.
        budget: budget of a trial.
    """
    scores: list[float] = record["scores"]
    consumed = int(record["consumed"])
    number = consumed // interval if consumed < budget else -(-budget // interval)
    return max(1, number), float(np.mean(scores))


def propose(
    space: Space,
    trials: Sequence[Trial],
    first: Mapping[str, Any],
    seed: int,
    *,
    is_valid: Callable[[Mapping[str, Any]], bool] = lambda _: True,
) -> dict[str, Any]:
    """Return the next values: `first` unless a trial has them, then those of the tree-structured Parzen estimator.

    Invalid values and those of earlier runs and failed trials are proposed only if `_DRAWS` proposals in a row are.

    Args:
        space: the search space.
        trials: all ended trials.
        first: initial values.
        seed: seed of the search.
        is_valid: function that returns whether values can be trained, as far as is known before training.
    """
    if all(trial.values != first for trial in trials):
        return dict(first)
    study = _study(space, trials, seed)
    known = [trial.values for trial in trials if trial.source or trial.state == "failed"]
    values: dict[str, Any] = {}
    for _ in range(_DRAWS):
        asked = study.ask({name: _distribution(dimension) for name, dimension in space.items()})
        values = {name: _value(dimension, asked.params[name]) for name, dimension in space.items()}
        if values not in known and is_valid(values):
            break
    return values


def is_hopeless(trials: Sequence[Trial], trial: Trial, *, patience: int) -> bool:
    """Return whether the best score of a trial so far is below the median of the earlier trials at its last evaluation.

    Earlier trials are those with a score at that evaluation, at least `_COMPARED`, whether complete or pruned later;
    failed ones are excluded. The rule of Golovin et al. 2017 ("Google Vizier") compares with running averages of the
    completed trials instead. If only these counted, the median would rise with each survivor.

    Args:
        trials: all ended trials.
        trial: the trial, with its `curve` so far.
        patience: number of the first evaluation that may be pruned.
    """
    if not trial.curve or (number := max(trial.curve)) < patience:
        return False
    curves = [other.curve for other in trials if other.state in ("complete", "pruned")]
    scores = [curve[number] for curve in curves if not math.isnan(curve.get(number, math.nan))]
    if len(scores) < _COMPARED:
        return False
    best = max((score for score in trial.curve.values() if not math.isnan(score)), default=-math.inf)
    return best < float(np.median(scores))


def _study(space: Space, trials: Sequence[Trial], seed: int) -> optuna.Study:
    number = len(trials)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=streams.integer(seed, "tuning", number)),
    )
    distributions = {name: _distribution(dimension) for name, dimension in space.items()}
    for trial in trials:
        ended = create_trial(
            state=_STATES[trial.state],
            value=trial.value,
            params=_parameters(space, trial.values),
            distributions=distributions,
            intermediate_values={} if trial.state == "failed" else dict(trial.curve),
        )
        study.add_trial(ended)
    return study


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Range):
        if dimension.whole:
            return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.log)
        return FloatDistribution(dimension.low, dimension.high, log=dimension.log)
    places = len(dimension.choices)
    return IntDistribution(0, places - 1) if dimension.ordered else CategoricalDistribution(range(places))


def _value(dimension: Dimension, parameter: Any) -> Any:
    """Return a field's value from an Optuna parameter: a number, or the index of a choice."""
    return dimension.rounded(parameter) if isinstance(dimension, Range) else dimension.choices[int(parameter)]


def _parameters(space: Space, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inverse of `_value` for all fields."""
    return {
        name: values[name] if isinstance(dimension, Range) else dimension.choices.index(values[name])
        for name, dimension in space.items()
    }
