"""Extent of a search, and which configurations a budget permits, before anything is trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from operant.runtime.bounds import NonNegativeFloat, NonNegativeInt, PositiveInt, require
from operant.runtime.budget import PlansSteps
from operant.runtime.tables import from_table

EXCESS = 1.1
"""Maximum share of its budget that a valid trial may use, because training ends with a complete rollout."""


@dataclass(frozen=True)
class Plan:
    """Extent of a search.

    Raises:
        ValueError: if a value is out of its range.
    """

    trials: PositiveInt = 40
    """Number of trials, in addition to earlier runs. The first has the initial values, unless an earlier run does."""

    hours: NonNegativeFloat = 0.0
    """Time limit of the search in hours, over all sessions; runs on new seeds follow afterwards. 0: no limit."""

    fresh_seeds: NonNegativeInt = 10
    """Number of seeds, starting at 0, on which the winner and the initial values are retrained; 0: none."""

    prune: bool = True
    """Whether to prune trials whose best score is below the median of the earlier ones at the same evaluation."""

    search_seed: NonNegativeInt = 0
    """Seed of the proposed values."""

    def __post_init__(self) -> None:
        require(self)


def planned_steps(config: Any, budget: int) -> int:
    """Return how much of a budget training uses at least, with complete rollouts.

    It is the budget itself where the configuration does not determine the size of an iteration
    (`operant.runtime.budget.PlansSteps`).

    Args:
        config: hyperparameters.
        budget: budget of a trial.
    """
    return config.planned_steps(budget) if isinstance(config, PlansSteps) else budget


def conflict(config: Any, budget: int) -> str:
    """Return why a trial with a configuration would fail or learn nothing, as far as its fields show it; else "".

    Args:
        config: hyperparameters.
        budget: budget of a trial.
    """
    if (steps := planned_steps(config, budget)) > EXCESS * budget:
        return f"it would use {steps} of a budget of {budget}"
    if (starts := getattr(config, "learning_starts", 0)) >= budget:
        return f"learning_starts is {starts}, not less than the budget of {budget}"
    return ""


def fits(config: Any, values: Mapping[str, Any], budget: int | None) -> bool:
    """Return whether a configuration accepts other values, and they fit into a budget.

    Args:
        config: the initial configuration.
        values: values of some fields, as in TOML.
        budget: budget of a trial; None: any.
    """
    try:
        changed = from_table(cast(type[Any], type(config)), values, base=config)
    except ValueError:
        return False
    return budget is None or not conflict(changed, budget)
