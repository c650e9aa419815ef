"""The inner loops of the solvers, compiled: Bellman backups over sparse rows.

A kernel that treats states independently takes a range `[begin, end)` of them and releases the interpreter's lock, so
that threads can share one sweep. Indices are unsigned: numba then leaves out the test for negative ones, which costs
a third of a sweep. Kernels allocate nothing, so that numba need not count references (`_nrt=False`), and what they
call is merged into them (`forceinline`), for a named tuple travels as one argument for each of its arrays.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "Rows",
    "Vectors",
    "action_values",
    "backup",
    "best_action",
    "compiled",
    "expect",
    "gauss_seidel",
    "jacobi",
    "mass_range",
    "select",
    "sweep_chain",
]

compiled: Any = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"}, _nrt=False, forceinline=True)  # pyright: ignore[reportCallIssue]
"""Decorator of every kernel of this chapter and of every function that one calls."""

TINY = 1e-280
"""Values closer to 0 are set to 0: arithmetic on subnormal numbers is a hundred times slower."""


class Rows(NamedTuple):
    """Sparse rows, `actions` for each state; one for each in the chain of a policy.

    Attributes:
        indptr: `[rows + 1]`, where each row begins.
        successors: `[n]`.
        probabilities: `[n]`.
        rewards: `[rows]`, the expected reward; minus infinity where the action is not feasible.
        actions: rows of a state.
        gamma: the discount factor.
    """

    indptr: NDArray[np.uint64]
    successors: NDArray[np.uint32]
    probabilities: NDArray[np.float64]
    rewards: NDArray[np.float64]
    actions: int
    gamma: float


class Vectors(NamedTuple):
    """What sweeps read and write.

    Attributes:
        values: `[S]`.
        out: `[S]`, where sweeps put values that do not work in place.
        policy: `[S]`, an action in every state, or -1.
        margin: an action of the policy stays unless another is better by more than this; if negative, none stays.
    """

    values: NDArray[np.float64]
    out: NDArray[np.float64]
    policy: NDArray[np.int64]
    margin: float


@compiled
def expect(rows, k, values):  # pragma: no cover
    """Return the expected value of what follows row `k`."""
    total = 0.0
    for j in range(rows.indptr[k], rows.indptr[k + 1]):
        total += rows.probabilities[j] * values[rows.successors[j]]
    return total


@compiled
def backup(rows, k, values):  # pragma: no cover
    """Return the value of row `k`: its reward and the discounted values of what follows."""
    return rows.rewards[k] + rows.gamma * expect(rows, k, values)


@compiled
def best_action(rows, s, values, held, margin):  # pragma: no cover
    """Return the best value of state `s` and its action.

    The action that is held stays unless another is better by more than `margin`; if that is negative, none stays.
    """
    best, action = -np.inf, -1
    for a in range(rows.actions):
        value = backup(rows, s * rows.actions + a, values)
        if value > best:
            best, action = value, a
    if margin >= 0 and 0 <= held != action and backup(rows, s * rows.actions + held, values) >= best - margin:
        action = held
    return best, action


@compiled
def action_values(begin, end, rows, values, out):  # pragma: no cover
    """Write the values of rows to `out`."""
    for k in range(begin, end):
        out[k] = backup(rows, k, values)


@compiled
def jacobi(begin, end, rows, vectors):  # pragma: no cover
    """Back up states from `values` to `out`; return the least and the greatest change."""
    values, out, policy, margin = vectors
    low, high = np.inf, -np.inf
    for s in range(begin, end):
        best, action = best_action(rows, s, values, policy[s], margin)
        policy[s] = action
        out[s] = 0.0
        if action >= 0:
            out[s] = best
            low, high = min(low, best - values[s]), max(high, best - values[s])
    return low, high


@compiled
def gauss_seidel(rows, vectors, backward):  # pragma: no cover
    """Back up all states in place, forward or backward; return the least and the greatest change."""
    values, _, policy, margin = vectors
    low, high = np.inf, -np.inf
    for i in range(values.size):
        s = values.size - 1 - i if backward else i
        best, policy[s] = best_action(rows, s, values, policy[s], margin)
        if policy[s] >= 0:
            if abs(best) < TINY:
                best = 0.0
            low, high = min(low, best - values[s]), max(high, best - values[s])
            values[s] = best
    return low, high


@compiled
def select(begin, end, rows, policy, chain):  # pragma: no cover
    """Copy the rows of a policy from `rows` to `chain`, whose `indptr` is filled."""
    for s in range(begin, end):
        chain.rewards[s] = 0.0
        if policy[s] >= 0:
            k = s * rows.actions + policy[s]
            chain.rewards[s] = rows.rewards[k]
            first = rows.indptr[k]
            for i in range(rows.indptr[k + 1] - first):
                chain.successors[chain.indptr[s] + i] = rows.successors[first + i]
                chain.probabilities[chain.indptr[s] + i] = rows.probabilities[first + i]


@compiled
def sweep_chain(chain, values, backward):  # pragma: no cover
    """Back up the states of a chain in place, forward or backward."""
    for i in range(values.size):
        s = values.size - 1 - i if backward else i
        values[s] = backup(chain, s, values)


@compiled
def mass_range(begin, end, rows, masses):  # pragma: no cover
    """Fill in with what probability each feasible row goes on; return the least, the greatest and the longest row."""
    low, high, longest = np.inf, -np.inf, 0
    for k in range(begin, end):
        if rows.rewards[k] == -np.inf:
            continue
        mass = 0.0
        for j in range(rows.indptr[k], rows.indptr[k + 1]):
            mass += rows.probabilities[j]
        masses[k] = mass
        low, high = min(low, mass), max(high, mass)
        longest = max(longest, np.int64(rows.indptr[k + 1] - rows.indptr[k]))
    return low, high, longest
