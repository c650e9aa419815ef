"""Improvements with action elimination.

If all values change by between `low` and `high`, the difference between the values of two actions of a state changes by
at most `f(high) - f(low)`, where `f(x)` is `x` times gamma and the continuation probability. An action whose lead
exceeds the sum of these changes since is still the best, and only this action is backed up, with the same result. This
is action elimination (Puterman 1994, §6.7), relative to the last full backup of a state instead of bounds on its
optimum.
"""

import numpy as np
from numpy.typing import NDArray

from operant.mdp import bellman_kernels
from operant.mdp.bellman_kernels import Leads, Vectors
from operant.mdp.iteration import Iteration
from operant.mdp.problem import Change, Problem

__all__ = ["Improver"]

SLACK = 1 + 1e-9
"""Margin for rounding errors in summed drifts."""


class Improver:
    """Policy improvement with action elimination; stores the chain of the policy.

    Args:
        solver: a new solver.

    Attributes:
        chain: rows of the policy after an improvement, for `sweep`.
        changed: number of actions changed in the last improvement.
    """

    def __init__(self, solver: Iteration) -> None:
        self.solver, self.changed = solver, 0
        self.chain = solver.problem
        self._leads = Leads(solver.problem.rows, np.full(solver.policy.size, -np.inf), 0.0)
        self._held: NDArray[np.int64] | None = None

    def improve(self) -> None:
        """Back up all states, like `Iteration.back_up`; call `prepare` to update the chain."""
        solver, problem, previous = self.solver, self.solver.problem, self.solver.policy.copy()
        if problem.discounted:
            self._improve_where_due()
            self._move(solver.change)
        else:
            solver.back_up()
            self.changed = int(np.count_nonzero(solver.policy != previous))
        self._held = previous if solver.count > 1 else None

    def _improve_where_due(self) -> None:
        solver, problem = self.solver, self.solver.problem
        rows, noise = problem.rows, problem.rounding(solver.values)
        if not solver.values.any():  # no successor has a value yet
            rows = rows._replace(indptr=np.zeros_like(rows.indptr))
        vectors = Vectors(solver.values, solver.out, solver.policy, 4 * noise)
        arguments = rows, vectors, self._leads._replace(chain=self.chain.rows)
        parts = problem.workers.run(bellman_kernels.jacobi_where_due, problem.states, *arguments)
        solver.change = min(part[0] for part in parts), max(part[1] for part in parts)
        solver.values, solver.out = solver.out, solver.values
        self.changed = sum(part[2] for part in parts)

    def prepare(self) -> Problem:
        """Move the values to the middle of their bounds if possible, and return the policy's chain."""
        solver, problem = self.solver, self.solver.problem
        if problem.even:
            constant = problem.center(solver.values, solver.change)
            self._move((constant, constant))
        if self.changed or self._held is None:
            self.chain = problem.chain(solver.policy, None if self._held is None else (self._held, self.chain))
        return self.chain

    def sweep(self) -> float:
        """Back up the values by the chain; return the relevant part of the change, `Problem.spread`."""
        solver, change = self.solver, self.chain.follow(self.solver.values, self.solver.out)
        solver.values, solver.out = solver.out, solver.values
        self._move(change)
        return self.chain.spread(change)

    def forget(self) -> None:
        """Force full backups, after values have changed by an unknown amount."""
        self._leads.safe[:] = -np.inf

    def _move(self, change: Change) -> None:
        """Account for a change of the values; in an uneven problem some values may not have changed."""
        problem, (low, high) = self.solver.problem, change
        if not problem.even:
            low, high = min(low, 0.0), max(high, 0.0)
        ahead = high * (problem.max_discount if high > 0 else problem.min_discount)
        behind = low * (problem.max_discount if low < 0 else problem.min_discount)
        self._leads = self._leads._replace(drift=self._leads.drift + (ahead - behind) * SLACK)
