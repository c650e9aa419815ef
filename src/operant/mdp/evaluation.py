"""Policy evaluation: by solving the linear system, or by sweeps."""

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.analysis import policy_chain
from operant.mdp.certificates import bounds_of_chain
from operant.mdp.linear import DIRECT_UP_TO, LIMIT, factorize, is_narrow, solve_chain
from operant.mdp.model import MDP
from operant.mdp.policies import check_policy, exits_of
from operant.mdp.problem import Problem, check_tolerance, warn_of_limit
from operant.mdp.rows import examine, rows_of
from operant.mdp.solution import action_values
from operant.mdp.undiscounted import check_chain_ends

__all__ = ["Evaluation", "bounds_of_values", "chain_of", "policy_evaluation"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The values of a policy.

    Attributes:
        values: `[S]`, V, the middle of the bounds, if any; 0 in terminal states.
        q: `[S, A]`, Q; minus infinity for infeasible actions.
        advantage: `[S, A]`, Q minus its mean under the policy, with mean 0 under the policy.
        lower: `[S]`, certified lower bounds, or None.
        upper: `[S]`, certified upper bounds, or None.
        residual: maximum change in a last sweep.
        iterations: sweeps, or steps of the Krylov method; 0 for a factorization.
        converged: whether all values are within the tolerance.
        gamma: the discount factor.
        seconds: wall-clock time in seconds.
    """

    values: Floats
    q: Floats
    advantage: Floats
    lower: Floats | None
    upper: Floats | None
    residual: float
    iterations: int
    converged: bool
    gamma: float
    seconds: float


def policy_evaluation(
    mdp: MDP,
    policy: ArrayLike,
    *,
    gamma: float,
    method: Literal["auto", "direct", "krylov", "iterative"] = "auto",
    tolerance: float = 1e-8,
    max_iterations: int = 1_000_000,
    initial: ArrayLike | None = None,
    threads: int | None = None,
) -> Evaluation:
    """Return the values, the action values and the advantages of a policy.

    Args:
        mdp: the model.
        policy: `[S]` actions, or `[S, A]` probabilities.
        gamma: the discount factor; at 1 the policy must end every episode.
        method: `"direct"` factorizes `I - gamma P`; `"krylov"` solves it by BiCGStab to rounding errors; `"iterative"`
            backs up all states in place, in alternating order, until convergence; `"auto"` is `"direct"` for small
            models and `"krylov"` for others, or `"direct"` again where that fails and all transitions are short.
        tolerance: accuracy of every value, in units of reward.
        max_iterations: maximum sweeps or Krylov steps; then `converged` is false.
        initial: `[S]`, initial values; None: the lowest possible value, 0 at gamma = 1.
        threads: maximum number of threads per sweep; None: automatic.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and the policy never ends an episode.
    """
    check_tolerance(tolerance, max_iterations)
    if method not in ("auto", "direct", "krylov", "iterative"):
        raise ValueError(f"method is {method!r}, expected 'auto', 'direct', 'krylov' or 'iterative'")
    start_time = time.perf_counter()
    probabilities = check_policy(mdp, policy)
    chain = chain_of(mdp, probabilities, gamma, threads)
    if not chain.discounted:
        check_chain_ends(chain, exits_of(mdp, probabilities), mdp.state_names)
    values, iterations = chain.start(initial), 0
    if method == "direct" or (method == "auto" and mdp.states <= DIRECT_UP_TO):
        values = factorize(chain)
    elif method == "iterative":
        values, iterations = _sweep(chain, values, tolerance, max_iterations)
    else:
        values, iterations = _solve(chain, values, max_iterations, may_factorize=method == "auto")
    out = np.empty_like(values)
    change = chain.improve(values, out, np.zeros(mdp.states, np.int64))
    lower, upper = bounds_of_values(chain, values, out, change)
    width = _width(lower, upper)
    if width > 2 * tolerance and iterations >= max_iterations:
        warn_of_limit(max_iterations, tolerance)
    if chain.discounted:
        values = chain.restore(out, sum(chain.shifts(change, chain.rounding(values))) / 2)
    else:
        values = out if lower is None or upper is None else (lower + upper) / 2
    q = action_values(mdp, values, gamma=gamma)
    mean = (probabilities * np.where(mdp.feasible, q, 0.0)).sum(axis=1)
    return Evaluation(
        values=values,
        q=q,
        advantage=q - mean[:, None],
        lower=lower,
        upper=upper,
        residual=max(-change[0], change[1]),
        iterations=iterations,
        converged=width <= 2 * tolerance,
        gamma=gamma,
        seconds=time.perf_counter() - start_time,
    )


def chain_of(
    mdp: MDP, probabilities: Floats, gamma: float, threads: int | None = None, *, centered: bool = True
) -> Problem:
    """Return the chain of a policy `[S, A]`: one row per state, with an offset if `centered`."""
    transitions, rewards = policy_chain(mdp, probabilities)
    rows = rows_of((transitions.indptr, transitions.indices, transitions.data), rewards, 1, gamma)
    facts, model = examine(rows, exits_of(mdp, probabilities)), mdp.facts
    facts = facts._replace(longest=max(facts.longest, model.longest), largest=model.largest)
    roundings = 0 if np.isin(probabilities, (0.0, 1.0)).all() else mdp.actions + 2
    return Problem.of_rows(rows, mdp.terminal, facts=facts, threads=threads, centered=centered, roundings=roundings)


def _solve(chain: Problem, values: Floats, limit: int, *, may_factorize: bool) -> tuple[Floats, int]:
    """Solve by a Krylov method, or by a factorization if it fails and that is cheap; return values and iterations."""
    target = 2 * chain.rounding(values)
    used = solve_chain(chain, values, target, limit=min(limit, LIMIT) if may_factorize else limit)
    if may_factorize and used >= LIMIT:
        if is_narrow(chain):
            return factorize(chain), 0
        used += solve_chain(chain, values, target, limit=limit - used)
    return values, used


def _sweep(chain: Problem, values: Floats, tolerance: float, max_iterations: int) -> tuple[Floats, int]:
    """Sweep until all values are within the tolerance; return them, and the number of sweeps."""
    actions, out = np.zeros(chain.states, np.int64), np.empty_like(values)
    for iteration in range(1, max_iterations + 1):
        change = chain.sweep(values, actions, backward=iteration % 2 == 0)
        if max(-change[0], change[1]) * min(chain.stretch, 1e3) <= tolerance or iteration.bit_count() == 1:
            change = chain.improve(values, out, actions)
            width = _width(*bounds_of_values(chain, values, out, change))
            if width <= 2 * tolerance or max(-change[0], change[1]) <= chain.rounding(values):
                return out, iteration
    return values, max_iterations


def _width(lower: Floats | None, upper: Floats | None) -> float:
    return np.inf if lower is None or upper is None else float((upper - lower).max())


def bounds_of_values(
    chain: Problem, values: Floats, out: Floats, change: tuple[float, float]
) -> tuple[Floats | None, Floats | None]:
    """Return certified bounds on the values of a chain.

    Args:
        chain: chain of a policy.
        values: `[S]`.
        out: their backup.
        change: minimum and maximum change in it.
    """
    if chain.discounted:
        down, up = chain.shifts(change, chain.rounding(values))
        return chain.restore(out, down), chain.restore(out, up)
    return bounds_of_chain(chain, values) or (None, None)
