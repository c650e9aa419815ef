"""Certified bounds from one Bellman backup of any values."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.evaluation import bounds_of_values, chain_of
from operant.mdp.model import MDP
from operant.mdp.policies import check_policy
from operant.mdp.problem import Problem

__all__ = ["certified_bounds"]

Floats = NDArray[np.float64]


def certified_bounds(
    mdp: MDP, values: ArrayLike, *, gamma: float, policy: ArrayLike | None = None
) -> tuple[Floats, Floats] | None:
    """Return lower and upper bounds on the optimal values, or on those of a policy.

    With a discount a backup is a contraction, so its change bounds the error of the values (MacQueen 1966). This holds
    for any values, also for tables learned from samples.

    Args:
        mdp: the model.
        values: `[S]`, any values.
        gamma: the discount factor.
        policy: `[S]` actions or `[S, A]` probabilities whose values are bounded. Default: the optimal policy.

    Returns:
        Two arrays `[S]`; None if there is no bound, as at gamma = 1.

    Raises:
        ValueError: if the shape is wrong, there is NaN or Inf, or `gamma` is not between 0 and 1.
    """
    if policy is None:
        problem = Problem.of(mdp, gamma, threads=1)
    else:
        problem = chain_of(mdp, check_policy(mdp, policy), gamma, 1)
    if not problem.discounted:
        return None
    start = problem.start(values, "values")
    out = np.empty_like(start)
    change = problem.improve(start, out, np.full(mdp.states, -1))
    lower, upper = bounds_of_values(problem, start, out, change)
    return None if lower is None or upper is None else (lower, upper)
