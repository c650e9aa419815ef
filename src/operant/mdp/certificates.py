"""Certified error bounds without a discount.

At gamma = 1 the Bellman equation may have several solutions, so a small residual gives no bound. Two inequalities give
bounds for any vector: `L <= T_pi L` for a proper policy pi implies `L <= V_pi <= V*`, and `TU <= U` implies `V* <= U`,
because backups preserve both. Such vectors are constructed as `V - e h` and `V + e h`, where `h` counts steps, and are
returned only if a final backup, including rounding errors, confirms them.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from operant.mdp import sparse
from operant.mdp.graphs import ending
from operant.mdp.linear import solve
from operant.mdp.model import MDP
from operant.mdp.problem import Problem
from operant.mdp.rows import rows_of
from operant.mdp.undiscounted import chain_steps, ends
from operant.mdp.zero_cost_components import Groups, free_groups

__all__ = ["bounds_of_chain", "bounds_without_discount"]

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
Bounds = tuple[Floats, Floats]

IMPROVEMENTS = 100
"""Maximum improvements of the step-counting policy in the search for an upper bound."""


def bounds_of_chain(chain: Problem, values: Floats) -> Bounds | None:
    """Return certified bounds on the values of a chain that ends with probability 1, or None if none are found."""
    noise = 4 * chain.rounding(values)
    rise, steps = _rise(chain, values), chain_steps(chain)
    lower = values - 2 * (noise - rise.min(initial=0.0)) * steps
    upper = values + 2 * (noise + rise.max(initial=0.0)) * steps
    sound = _grows(chain, lower) and _rise(chain, upper).max(initial=-np.inf) < -chain.rounding(upper)
    return (lower, upper) if sound else None


def bounds_without_discount(mdp: MDP, problem: Problem, values: Floats, policy: Actions) -> Bounds | None:
    """Return certified lower and upper bounds on the optimal values, each `[S]`, or None.

    States connected by moves with reward 0 have the same optimal value. They are merged, and such moves are ignored,
    because along a cycle no `h` could decrease at every step.

    Args:
        mdp: the model.
        problem: the same model at gamma = 1, prepared for the kernels.
        values: `[S]`, nearly optimal.
        policy: `[S]`, nearly optimal and proper.
    """
    if not ends(mdp, policy).all():
        return None
    chain, noise = problem.chain(policy), 4 * problem.rounding(values)
    steps = chain_steps(chain)
    lower = values - 2 * (noise - _rise(chain, values).min(initial=0.0)) * steps
    groups = free_groups(mdp)
    tops = groups.maximum(values)[groups.labels]
    slack = 2 * (noise + _outer_rise(problem, groups, tops).max(initial=0.0))
    nearest = groups.nearest(steps)
    clock = _Clock(mdp, problem, groups, 1 + (problem.action_values(tops) - tops[:, None]).ravel() / slack)
    longest = clock.longest(nearest * mdp.actions + np.maximum(policy[nearest], 0))
    if longest is None or not _grows(chain, lower):
        return None
    upper = tops + slack * longest
    falls = _outer_rise(problem, groups, upper).max(initial=-np.inf) < -problem.rounding(upper)
    return (lower, upper) if falls else None


def _rise(problem: Problem, values: Floats) -> Floats:
    """Return the increase of non-terminal values in a backup."""
    out = np.empty_like(values)
    problem.improve(values, out, np.zeros(problem.states, np.int64))
    return (out - values)[~problem.terminal]


def _grows(chain: Problem, values: Floats) -> bool:
    """Return whether a backup certainly raises all values."""
    return bool(_rise(chain, values).min(initial=np.inf) > chain.rounding(values))


def _outer_rise(problem: Problem, groups: Groups, values: Floats) -> Floats:
    """Return the advantage of each feasible row that leaves its group."""
    table = problem.action_values(values) - values[:, None]
    return table.ravel()[np.isfinite(problem.rows.rewards) & ~groups.inner]


class _Clock:
    """Solver of `h = max_a (t_a + P_a h)` over the rows that leave their group, by policy iteration on groups.

    Args:
        mdp: the model.
        problem: the same model at gamma = 1, prepared for the kernels.
        groups: groups of its states.
        times: `[S * A]`, `t = 1 + A / e`: a row whose advantage `A` is far below 0 takes no time.
    """

    def __init__(self, mdp: MDP, problem: Problem, groups: Groups, times: Floats) -> None:
        rows = problem.rows
        self.groups, self.times = groups, np.where(groups.inner, -np.inf, times)
        self.exits = mdp.exits.ravel() | np.repeat(mdp.terminal, mdp.actions)
        self.owners = groups.labels[np.arange(times.size) // mdp.actions]
        transitions = (rows.probabilities, rows.successors.astype(np.int64), rows.indptr.astype(np.int64))
        self.graph = sparse.csr_array(transitions, shape=(times.size, mdp.states))
        self.counting = replace(problem, rows=rows._replace(rewards=self.times))

    def longest(self, chosen: Actions) -> Floats | None:
        """Return `h`, `[S]`, equal within a group, or None if it is infinite or not found.

        Args:
            chosen: `[G]`, the initial exit row of each group.
        """
        steps = np.zeros(self.groups.count)
        for _ in range(IMPROVEMENTS):
            chain = self._chain(chosen)
            if chain is None:
                return None
            steps = solve(chain, steps, 1e-6)
            following = self.counting.action_values(steps[self.groups.labels]).ravel()
            best = np.lexsort((following, self.owners))[np.cumsum(np.bincount(self.owners)) - 1]
            better = following[best] > following[chosen] + 1e-3
            if not better.any():
                return steps[self.groups.labels]
            chosen = np.where(better, best, chosen)
        return None

    def _chain(self, chosen: Actions) -> Problem | None:
        """Return the chain of groups under the chosen exit rows, or None if it does not end."""
        matrix, count = self.graph[chosen], self.groups.count
        successors = self.groups.labels[matrix.indices]
        if not ending(matrix.indptr, successors, self.exits[chosen]).all():
            return None
        times = np.where(np.isfinite(self.times[chosen]), self.times[chosen], 0.0)
        rows = rows_of((matrix.indptr, successors, matrix.data), times, 1, 1.0)
        return replace(self.counting, rows=rows, terminal=np.zeros(count, np.bool_))
