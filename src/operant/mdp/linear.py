"""The value of a policy as the solution of a linear system: `(I - gamma P) v = r`."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from operant.mdp import bellman_kernels, sparse
from operant.mdp.bellman_kernels import Rows, backup, compiled, expect
from operant.mdp.problem import Problem

__all__ = ["DIRECT_UP_TO", "LIMIT", "factorize", "is_narrow", "solve", "solve_chain", "solve_iteratively"]

Floats = NDArray[np.float64]

DIRECT_UP_TO = 2_000
"""States up to which a factorization is cheap for any structure: random graphs have much fill-in."""
BAND = 10_000_000
"""Entries of a band around the diagonal up to which a factorization is cheap."""
LIMIT = 10_000
"""Iterations after which a Krylov method has failed."""


class _Krylov(NamedTuple):
    """The vectors of BiCGStab, each `[S]`: van der Vorst (1992) calls them x, r, r̂, p, v and t."""

    x: Floats
    residual: Floats
    shadow: Floats
    direction: Floats
    product: Floats
    second: Floats


@compiled
def _residual(begin: int, end: int, chain: Rows, x: Floats, out: Floats) -> tuple[float, float]:
    """Write `r - (I - gamma P) x` to `out`; return its maximum absolute value and its square."""
    size, square = 0.0, 0.0
    for s in range(np.uint64(begin), np.uint64(end)):
        out[s] = backup(chain, s, x) - x[s]
        size, square = max(size, abs(out[s])), square + out[s] * out[s]
    return size, square


@compiled
def _turn(begin: int, end: int, krylov: _Krylov, beta: float, omega: float) -> None:
    """Compute the next direction."""
    direction = krylov.direction
    for s in range(np.uint64(begin), np.uint64(end)):
        direction[s] = krylov.residual[s] + beta * (direction[s] - omega * krylov.product[s])


@compiled
def _multiply_direction(begin: int, end: int, chain: Rows, krylov: _Krylov) -> float:
    """Multiply the direction by the matrix; return the result times the shadow."""
    total = 0.0
    for s in range(np.uint64(begin), np.uint64(end)):
        krylov.product[s] = krylov.direction[s] - chain.gamma * expect(chain, s, krylov.direction)
        total += krylov.product[s] * krylov.shadow[s]
    return total


@compiled
def _shorten(begin: int, end: int, krylov: _Krylov, alpha: float) -> None:
    """Subtract the first half of a step from the residual."""
    for s in range(np.uint64(begin), np.uint64(end)):
        krylov.residual[s] -= alpha * krylov.product[s]


@compiled
def _multiply_residual(begin: int, end: int, chain: Rows, krylov: _Krylov) -> tuple[float, float]:
    """Multiply the residual by the matrix; return the result times the residual, and its square."""
    total, square = 0.0, 0.0
    for s in range(np.uint64(begin), np.uint64(end)):
        krylov.second[s] = krylov.residual[s] - chain.gamma * expect(chain, s, krylov.residual)
        total += krylov.second[s] * krylov.residual[s]
        square += krylov.second[s] * krylov.second[s]
    return total, square


@compiled
def _advance(begin: int, end: int, krylov: _Krylov, alpha: float, omega: float) -> tuple[float, float]:
    """Take the step; return the maximum absolute residual, and the residual times the shadow."""
    size, total, residual = 0.0, 0.0, krylov.residual
    for s in range(np.uint64(begin), np.uint64(end)):
        krylov.x[s] += alpha * krylov.direction[s] + omega * residual[s]
        residual[s] -= omega * krylov.second[s]
        size, total = max(size, abs(residual[s])), total + residual[s] * krylov.shadow[s]
    return size, total


def _folded(parts: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the maximum of the first numbers and the sum of the second ones."""
    return max(part[0] for part in parts), sum(part[1] for part in parts)


def _step(chain: Problem, krylov: _Krylov, alpha: float, omega: float) -> tuple[float, float]:
    """Take a step; return the maximum absolute residual, and the residual times the shadow."""
    return _folded(chain.workers.run(_advance, chain.states, krylov, alpha, omega))


def _bicgstab(chain: Problem, x: Floats, target: float, limit: int) -> int:
    """Reduce the residual of `x` to `target`, in place, or until the method breaks down; return the iterations."""
    run, size, rows = chain.workers.run, chain.states, chain.rows
    krylov = _Krylov(x, *np.zeros((5, size)))
    largest, rho = _folded(run(_residual, size, rows, x, krylov.residual))
    krylov.shadow[:] = krylov.residual
    alpha = omega = previous = 1.0
    for iteration in range(limit):
        if largest <= target or rho == 0 or omega == 0 or not np.isfinite(rho):
            return iteration
        run(_turn, size, krylov, rho / previous * alpha / omega, omega)
        along = sum(run(_multiply_direction, size, rows, krylov))
        if along == 0:
            return iteration
        alpha, previous = rho / along, rho
        run(_shorten, size, krylov, alpha)
        products = run(_multiply_residual, size, rows, krylov)
        square = sum(part[1] for part in products)
        omega = sum(part[0] for part in products) / square if square > 0 else 0.0
        largest, rho = _step(chain, krylov, alpha, omega)
    return limit


def solve_chain(chain: Problem, values: Floats, target: float, *, limit: int = LIMIT) -> int:
    """Solve for the values of a chain, in place, by a Krylov method that never increases the residual.

    BiCGStab may break down or diverge. So its result is used only if the residual has decreased, and each failure is
    followed by two Gauss-Seidel sweeps, which contract.

    Args:
        chain: the rows of a policy, as `Problem.chain` returns them.
        values: `[S]`, the initial guess, minus the offset; overwritten.
        target: maximum absolute residual to reach.
        limit: approximate maximum number of iterations.

    Returns:
        Number of iterations.
    """
    used, residual = 0, _largest_residual(chain, values)
    while residual > target and used < limit:
        trial = values.copy()
        used += _bicgstab(chain, trial, target, limit - used) + 2
        after = _largest_residual(chain, trial)
        if after < residual:
            values[:] = trial
        if after > target:
            for backward in (False, True):
                bellman_kernels.sweep_chain(chain.rows, values, backward)
            after = _largest_residual(chain, values)
        if after >= residual and residual <= 4 * chain.rounding(values):
            break
        residual = after
    return used


def _largest_residual(chain: Problem, values: Floats) -> float:
    largest, square = _folded(chain.workers.run(_residual, chain.states, chain.rows, values, np.empty_like(values)))
    return largest if np.isfinite(square) else np.inf


def factorize(chain: Problem) -> Floats:
    """Solve for the values of a chain by a sparse LU factorization.

    Raises:
        ValueError: if the system is singular: from some state the chain never ends, without a discount.
    """
    rows = chain.rows
    data = (rows.probabilities * -rows.gamma, rows.successors.astype(np.int32), rows.indptr.astype(np.int32))
    matrix = sparse.csr_array(data, shape=(chain.states, chain.states)) + sparse.eye_array(chain.states)
    try:
        return sparse.splu(sparse.csc_matrix(matrix)).solve(rows.rewards)
    except RuntimeError as error:
        raise ValueError("the chain never ends and gamma is 1, so its values are not defined") from error


def is_narrow(chain: Problem) -> bool:
    """Return whether a factorization is cheap, since the states have an order in which all transitions are short.

    Krylov methods fail for chains that mix slowly, such as random walks in long corridors, which often have one.
    """
    rows, states = chain.rows, chain.states
    successors = rows.successors.astype(np.int32)
    graph = sparse.csr_matrix(
        (np.ones(successors.size), successors, rows.indptr.astype(np.int32)), shape=(states, states)
    )
    place = np.empty(states, np.int64)
    place[sparse.reverse_cuthill_mckee(graph, symmetric_mode=False)] = np.arange(states)
    origins = np.repeat(np.arange(states), np.diff(rows.indptr.view(np.int64)))
    return states * (1 + int(np.abs(place[origins] - place[successors]).max(initial=0))) <= BAND


def solve_iteratively(chain: Problem, values: Floats, target: float) -> Floats:
    """Return the values of a chain by a Krylov method from an initial guess.

    If it fails, they are those of a factorization if the chain is narrow, and otherwise inexact.
    """
    found = values.copy()
    failed = solve_chain(chain, found, target) >= LIMIT
    return factorize(chain) if failed and is_narrow(chain) else found


def solve(chain: Problem, values: Floats, target: float) -> Floats:
    """Return the values of a chain: by a factorization if small, else as `solve_iteratively`."""
    return factorize(chain) if chain.states <= DIRECT_UP_TO else solve_iteratively(chain, values, target)
