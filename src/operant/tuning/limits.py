"""Which configurations a budget permits, before anything is trained."""

from collections.abc import Mapping
from typing import Any, cast

from operant.runtime.budget import iterations
from operant.runtime.tables import from_table

EXCESS = 1.1
"""Maximum share of its budget that a valid trial may use, because training ends with a complete rollout."""


_OWN_ROLLOUTS = ("model_train_freq", "collect_steps", "steps_per_iteration")
"""Fields of configurations whose iterations are not determined by `num_steps`, or by `train_freq` and rounds."""


def planned_steps(config: Any, budget: int) -> int:
    """Return how much of a budget training uses at least, with complete rollouts.

    It is the budget itself where the fields of the configuration do not determine the size of an iteration, as for the
    algorithms with fields in `_OWN_ROLLOUTS`.

    Args:
        config: hyperparameters.
        budget: budget of a trial.
    """

    def field(name: str) -> int:
        value = getattr(config, name, 0)
        return value if isinstance(value, int) else 0

    if any(map(field, _OWN_ROLLOUTS)) or getattr(config, "sampling", "") == "vine":
        return budget
    num_envs, first = field("num_envs"), 0
    rollout = field("num_steps") * num_envs * (field("rollouts_per_batch") or 1)
    if not rollout:  # learners with a replay buffer
        rounds = field("rounds_per_iteration")
        rollout = field("train_freq") * num_envs * (rounds or 1)
        if rounds and num_envs:  # random steps before the first iteration
            first = iterations(field("learning_starts"), num_envs) * num_envs
    if not rollout:
        return budget
    return first + max(iterations(budget - first, rollout), 1) * rollout


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
