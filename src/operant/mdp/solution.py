"""Solutions of solvers."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp import bellman_kernels
from operant.mdp.model import MDP
from operant.mdp.problem import check_gamma
from operant.mdp.validation import check_length, floats, raise_if_any

__all__ = ["Solution", "action_values"]

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Solution:
    """Optimal values, a policy, and certified bounds.

    With bounds, the error of every value is at most half of their distance, and the loss of the policy at most their
    distance.

    Attributes:
        values: `[S]`, 0 in terminal states.
        policy: `[S]`, an action in every state, -1 in terminal ones.
        iterations: number of sweeps over the model, or improvements of the policy, depending on the function.
        residual: maximum change in the last Bellman backup of all states.
        converged: whether the requested tolerance is certified; false without bounds.
        lower: `[S]`, certified lower bounds on the optimal values, or None.
        upper: `[S]`, certified upper bounds on the optimal values, or None.
        gamma: the discount factor.
        method: name of the solver.
        seconds: wall-clock time in seconds, including preparation and certification.
        mdp: the model.
    """

    values: Floats
    policy: Actions
    iterations: int
    residual: float
    converged: bool
    lower: Floats | None
    upper: Floats | None
    gamma: float
    method: str
    seconds: float
    mdp: MDP = field(repr=False)

    @cached_property
    def q(self) -> Floats:
        """The action values, `[S, A]`; minus infinity if infeasible."""
        return action_values(self.mdp, self.values, gamma=self.gamma)


def action_values(mdp: MDP, values: ArrayLike, *, gamma: float) -> Floats:
    """Return the expected reward of every action plus the discounted next values.

    Args:
        mdp: the model.
        values: `[S]`, finite.
        gamma: the discount factor.

    Returns:
        `[S, A]`; minus infinity if infeasible.

    Raises:
        ValueError: if `values` is not `[S]` finite numbers, or `gamma` is not between 0 and 1.
    """
    table = floats(values, "values")
    check_length(table, mdp.states, "values")
    raise_if_any(~np.isfinite(table), lambda s: f"values number {s} is {table[s]}, expected a finite number")
    rows = mdp.rows._replace(gamma=check_gamma(gamma))
    out = np.empty(rows.rewards.size)
    bellman_kernels.action_values(0, out.size, rows, np.ascontiguousarray(table), out)
    return out.reshape(mdp.states, mdp.actions)
