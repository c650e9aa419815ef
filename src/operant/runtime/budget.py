"""Training budget and schedules: `require_budget`, `remaining`, `scheduled`, `iterations`, `whole_rollouts`.

Configurations that determine how many steps training uses satisfy `PlansSteps`; `FixedRollouts` is their base if
iterations have `num_steps` steps.
"""

from typing import Literal, Protocol, runtime_checkable

LEAST_LEFT = 1e-6
"""Minimum remaining fraction of the budget, used in the last iteration and after it."""


def require_budget(budget: int, *, learning_starts: int = 0, unit: str = "environment step") -> None:
    """Check that a budget per seed is large enough for learning.

    Args:
        budget: budget in units of `unit`.
        learning_starts: part of the budget that is used before learning starts.
        unit: name of the unit, in the singular.

    Raises:
        ValueError: the budget is less than 1, or used up before learning starts.
    """
    if budget < 1:
        raise ValueError(f"budget must be at least 1 {unit}, got {budget}")
    if learning_starts >= budget:
        raise ValueError(
            f"learning_starts must be less than the budget of {budget} {unit}s, got {learning_starts}: "
            "lower learning_starts, or raise the budget"
        )


def remaining(consumed: int, budget: int) -> float:
    """Return the remaining fraction of the budget, at least `LEAST_LEFT`."""
    return max(1.0 - consumed / budget, LEAST_LEFT)


def scheduled(value: float, schedule: Literal["constant", "linear"], left: float, *, least: float = 0.0) -> float:
    """Return the scheduled value of a hyperparameter.

    Args:
        value: initial value.
        schedule: constant, or linear decay with the remaining budget.
        left: remaining fraction of the budget, from `remaining`.
        least: minimum fraction of the initial value.
    """
    return value * (1.0 if schedule == "constant" else max(left, least))


def iterations(budget: int, steps: int) -> int:
    """Return the number of iterations of `steps` steps in a budget; the last one may exceed it."""
    return -(-budget // steps)


def whole_rollouts(budget: int, steps: int) -> int:
    """Return the number of steps that training uses, with complete rollouts of `steps` steps, at least one."""
    return max(iterations(budget, steps), 1) * steps


@runtime_checkable
class PlansSteps(Protocol):
    """A configuration that determines how much of a budget training uses."""

    def planned_steps(self, budget: int) -> int:
        """Return the number of steps per seed that training with a budget uses; more than it, if it ends within one."""
        ...


class FixedRollouts:
    """Base of configurations whose iterations take `num_steps` steps in each of `num_envs` environments per seed."""

    num_envs: int
    num_steps: int

    @property
    def rollout_steps(self) -> int:
        """Environment steps per seed of an iteration."""
        return self.num_steps * self.num_envs

    def planned_steps(self, budget: int) -> int:
        """Return the number of steps per seed that training with a budget uses."""
        return whole_rollouts(budget, self.rollout_steps)
