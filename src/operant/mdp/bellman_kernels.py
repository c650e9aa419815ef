"""The inner loops of the solvers, compiled: Bellman backups over sparse rows.

A kernel that treats states independently takes a range `[begin, end)` of them and releases the GIL, so threads can
share a sweep. Indices are unsigned, so numba omits the test for negative ones, which takes a third of a sweep. Kernels
allocate no memory, so numba needs no reference counts (`_nrt=False`). Called functions are inlined (`forceinline`),
because numba passes a named tuple as one argument per array.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from operant.runtime.kernel_cache import keyed_by_sources, njit

__all__ = [
    "Index",
    "Leads",
    "Rows",
    "Vectors",
    "action_values",
    "backup",
    "best_action",
    "compiled",
    "endings",
    "expect",
    "follow",
    "gauss_seidel",
    "jacobi",
    "jacobi_where_due",
    "lay_out",
    "select",
    "sweep_chain",
]

_compile = njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract"}, _nrt=False, forceinline=True)
compiled = keyed_by_sources(_compile, Path(__file__).parent)
"""Decorator of every kernel of this package and every called function."""

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
Change = tuple[float, float]
"""Minimum and maximum change of a sweep."""
Index = int | np.int64 | np.uint64
"""The number of a state, of an action or of a row; unsigned where it is an index of an array."""

TINY = 1e-280
"""Values closer to 0 are set to 0: arithmetic on subnormal numbers is a hundred times slower."""


class Rows(NamedTuple):
    """Sparse rows, `actions` for each state; one for each in the chain of a policy.

    Attributes:
        indptr: `[rows + 1]`, start of each row.
        successors: `[n]`.
        probabilities: `[n]`.
        rewards: `[rows]`, the expected reward; minus infinity for infeasible actions.
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
    """Arrays read and written by sweeps.

    Attributes:
        values: `[S]`.
        out: `[S]`, output of sweeps that are not in place.
        policy: `[S]`, an action in every state, or -1.
        margin: the policy keeps its action unless another is better by more than this; negative: never.
    """

    values: NDArray[np.float64]
    out: NDArray[np.float64]
    policy: NDArray[np.int64]
    margin: float


class Leads(NamedTuple):
    """State of action elimination.

    Attributes:
        chain: the rows of the policy.
        safe: `[S]`, the drift up to which a state keeps its action: the drift at its last full backup plus the lead of
            the best action, minus a margin for rounding errors.
        drift: bound on the total change of the difference of two action values of a state.
    """

    chain: Rows
    safe: NDArray[np.float64]
    drift: float


@compiled
def expect(rows: Rows, k: Index, values: Floats) -> float:
    """Return the expected next value of row `k`."""
    row, total = np.uint64(k), 0.0
    for j in range(rows.indptr[row], rows.indptr[row + np.uint64(1)]):
        total += rows.probabilities[j] * values[rows.successors[j]]
    return total


@compiled
def backup(rows: Rows, k: Index, values: Floats) -> float:
    """Return the value of row `k`: its reward plus the discounted next values."""
    return rows.rewards[np.uint64(k)] + rows.gamma * expect(rows, k, values)


@compiled
def best_action(rows: Rows, s: Index, values: Floats, current: Index, margin: float) -> tuple[float, Index]:
    """Return the best value of state `s` and its action.

    The current action is kept unless another is better by more than `margin`; with a negative margin it never is.
    """
    best, action, first = -np.inf, -1, np.uint64(s) * np.uint64(rows.actions)
    for a in range(np.uint64(rows.actions)):
        value = backup(rows, first + a, values)
        if value > best:
            best, action = value, np.int64(a)
    if margin >= 0 and 0 <= current != action and backup(rows, s * rows.actions + current, values) >= best - margin:
        action = current
    return best, action


@compiled
def action_values(begin: int, end: int, rows: Rows, values: Floats, out: Floats) -> None:
    """Write the values of rows to `out`."""
    for k in range(begin, end):
        out[k] = backup(rows, k, values)


@compiled
def jacobi(begin: int, end: int, rows: Rows, vectors: Vectors) -> Change:
    """Back up states from `values` to `out`; return the minimum and maximum change."""
    values, out, policy, margin = vectors
    low, high = np.inf, -np.inf
    for s in range(np.uint64(begin), np.uint64(end)):
        best, action = best_action(rows, s, values, policy[s], margin)
        policy[s] = action
        out[s] = 0.0
        if action >= 0:
            out[s] = best
            low, high = min(low, best - values[s]), max(high, best - values[s])
    return low, high


@compiled
def jacobi_where_due(begin: int, end: int, rows: Rows, vectors: Vectors, leads: Leads) -> tuple[float, float, int]:
    """Back up states like `jacobi`, but only the policy's action in states where no other can be the best yet.

    Returns:
        The minimum and maximum change, and the number of changed actions.
    """
    values, out, policy, margin = vectors
    chain, safe, drift = leads
    low, high, changed = np.inf, -np.inf, 0
    for s in range(np.uint64(begin), np.uint64(end)):
        if drift < safe[s]:
            best = backup(chain, s, values)
        else:
            best, second, action, first = -np.inf, -np.inf, -1, s * np.uint64(rows.actions)
            for a in range(np.uint64(rows.actions)):
                value = backup(rows, first + a, values)
                second = max(second, min(best, value))
                if value > best:
                    best, action = value, np.int64(a)
            changed += policy[s] != action
            policy[s] = action
            safe[s] = drift + (best - second) - margin if action >= 0 else np.inf
        if policy[s] < 0:
            out[s] = 0.0
        else:
            out[s] = best
            low, high = min(low, best - values[s]), max(high, best - values[s])
    return low, high, changed


@compiled
def gauss_seidel(rows: Rows, vectors: Vectors, backward: bool) -> Change:
    """Back up all states in place, forward or backward; return the minimum and maximum change."""
    values, _, policy, margin = vectors
    low, high = np.inf, -np.inf
    for i in range(values.size):
        s = np.uint64(values.size - 1 - i if backward else i)
        best, policy[s] = best_action(rows, s, values, policy[s], margin)
        if policy[s] >= 0:
            if abs(best) < TINY:
                best = 0.0
            low, high = min(low, best - values[s]), max(high, best - values[s])
            values[s] = best
    return low, high


@compiled
def lay_out(rows: Rows, policy: Actions, begins: NDArray[np.uint64]) -> bool:
    """Fill in the starts of the concatenated rows of a policy; return whether anything changed."""
    changed, total = False, np.int64(0)
    for s in range(policy.size):
        if policy[s] >= 0:
            k = s * rows.actions + policy[s]
            total += np.int64(rows.indptr[k + 1] - rows.indptr[k])
        changed |= np.int64(begins[s + 1]) != total
        begins[s + 1] = total
    return changed


@compiled
def select(begin: int, end: int, rows: Rows, policies: tuple[Actions, Actions], chain: Rows) -> None:
    """Copy the rows of a policy to `chain`, whose `indptr` is filled; except where the previous policy is the same."""
    before, policy = policies
    for s in range(begin, end):
        if policy[s] < 0:
            chain.rewards[s] = 0.0
        elif policy[s] != before[s]:
            k = s * rows.actions + policy[s]
            chain.rewards[s] = rows.rewards[k]
            first = rows.indptr[k]
            for i in range(rows.indptr[k + 1] - first):
                chain.successors[chain.indptr[s] + i] = rows.successors[first + i]
                chain.probabilities[chain.indptr[s] + i] = rows.probabilities[first + i]


@compiled
def follow(  # noqa: PLR0917 - kernels have no keyword arguments
    begin: int, end: int, chain: Rows, terminal: NDArray[np.bool_], values: Floats, out: Floats
) -> Change:
    """Back up a chain from `values` to `out`; return the minimum and maximum change of non-terminal states.

    Whether a state is terminal is an argument: the row of an action that always ends the episode is empty, too.
    """
    low, high = np.inf, -np.inf
    for s in range(np.uint64(begin), np.uint64(end)):
        out[s] = backup(chain, s, values)
        if not terminal[s]:
            low, high = min(low, out[s] - values[s]), max(high, out[s] - values[s])
    return low, high


@compiled
def sweep_chain(chain: Rows, values: Floats, backward: bool) -> None:
    """Back up the states of a chain in place, forward or backward."""
    for i in range(values.size):
        s = np.uint64(values.size - 1 - i if backward else i)
        values[s] = backup(chain, s, values)


@compiled
def endings(begin: int, end: int, rows: Rows, ends: Floats) -> tuple[float, float, Index]:
    """Fill in the termination probability of each row; return its minimum and maximum and the longest row.

    Sums are compensated (Knuth's two-sum): the difference to 1 is accurate to nearly all digits.
    """
    lowest, highest, longest = np.inf, -np.inf, 0
    for k in range(np.uint64(begin), np.uint64(end)):
        ends[k] = 0.0
        if rows.rewards[k] > -np.inf:
            first, last, total, lost = rows.indptr[k], rows.indptr[k + np.uint64(1)], 1.0, 0.0
            for j in range(first, last):
                after = total - rows.probabilities[j]
                error = after - total
                lost += (total - (after - error)) - (rows.probabilities[j] + error)
                total = after
            ends[k] = total + lost
            lowest, highest = min(lowest, ends[k]), max(highest, ends[k])
            longest = max(longest, np.int64(last - first))
    return lowest, highest, longest
