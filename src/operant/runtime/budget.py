"""How long a learner has to learn, and what falls as its budget is used up."""

from typing import Literal

LEAST_LEFT = 1e-6
"""Share of the budget that counts as left in the iteration that ends it, and in those after it."""


def require_budget(budget: int, *, learning_starts: int = 0, unit: str = "environment step") -> None:
    """Check that a budget of each seed is long enough for something to be learned.

    Args:
        budget: in units of `unit`.
        learning_starts: how much of it is used before anything is learned.
        unit: what it counts, in the singular.

    Raises:
        ValueError: the budget is less than 1, or used up before anything is learned.
    """
    if budget < 1:
        raise ValueError(f"budget must be at least 1 {unit}, got {budget}")
    if learning_starts >= budget:
        raise ValueError(
            f"learning_starts must be less than the budget of {budget} {unit}s, got {learning_starts}: nothing would "
            "be learned; lower learning_starts, or raise the budget"
        )


def remaining(consumed: int, budget: int) -> float:
    """Return the share of the budget that is left, at least `LEAST_LEFT`."""
    return max(1.0 - consumed / budget, LEAST_LEFT)


def scheduled(value: float, schedule: Literal["constant", "linear"], left: float, *, least: float = 0.0) -> float:
    """Return a hyperparameter when a share of the budget is left.

    Args:
        value: what it is in the beginning.
        schedule: whether it stays, or falls linearly with what is left.
        left: share of the budget, from `remaining`.
        least: share of the value below which it does not fall.
    """
    return value * (1.0 if schedule == "constant" else max(left, least))


def iterations(budget: int, steps: int) -> int:
    """Return how many iterations of `steps` steps a budget takes; the last one may exceed it."""
    return -(-budget // steps)
