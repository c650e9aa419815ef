"""Policy iteration: evaluate a policy, make it greedy, and repeat (Howard 1960)."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from operant.mdp.elimination import Improver
from operant.mdp.iteration import Iteration
from operant.mdp.linear import LIMIT, factorize, is_narrow, solve_chain
from operant.mdp.model import MDP
from operant.mdp.policies import check_deterministic
from operant.mdp.solution import Solution
from operant.mdp.undiscounted import check_bounded, check_ends, shortest_way
from operant.mdp.validation import check_count

__all__ = ["inexact_policy_iteration", "modified_policy_iteration", "policy_iteration"]

FORCING = 0.05
"""Factor by which an inexact evaluation reduces the change of the last improvement."""
BRIEF = 0.3
"""The same factor for sweeps over the rows of a changing policy, so that improvements do not dominate the cost."""
PATIENCE = 8
"""Sweeps within which a third of the reduction, on a logarithmic scale, must be reached."""
STUCK = 0.9
"""Factor by which an improvement reduces the residual at least; otherwise the next evaluation may take longer."""
SHORT = 200
"""Initial limit of the iterations of a Krylov method per evaluation."""
MANY = 1_000
"""Sweeps per improvement after which changes within rounding errors are left as they are."""


def policy_iteration(
    mdp: MDP,
    *,
    gamma: float,
    tolerance: float = 1e-6,
    max_iterations: int = 1_000,
    evaluation: Literal["auto", "direct", "krylov"] = "auto",
    initial: ArrayLike | None = None,
    threads: int | None = None,
) -> Solution:
    """Solve a model by policy iteration with exact evaluations.

    An action is replaced only by one that is better by more than rounding errors, so ties cannot cause cycles. It ends
    when no state changes its action.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        tolerance: accuracy of every value for convergence, in units of reward.
        max_iterations: maximum improvements; then `converged` is false.
        evaluation: `"direct"` factorizes the linear system, best for small models and too slow for large random graphs;
            `"krylov"` solves it iteratively to rounding errors; `"auto"` is the former for small models.
        initial: `[S]`, the initial policy, proper if gamma is 1; None: shortest paths to an end, and in other states
            greedy for the lowest values.
        threads: maximum number of threads per sweep; None: automatic.

    Returns:
        The solution; `iterations` counts improvements.

    Raises:
        ValueError: if an argument is out of range; or `gamma` is 1 and from some state no policy ends the episode, or
            values are infinite.
    """
    if evaluation not in ("auto", "direct", "krylov"):
        raise ValueError(f"evaluation is {evaluation!r}, expected 'auto', 'direct' or 'krylov'")
    solver = Iteration.begin(mdp, gamma=gamma, tolerance=tolerance, limit=max_iterations, threads=threads)
    _first_policy(solver, initial)
    solver.settle(direct=None if evaluation == "auto" else evaluation == "direct")
    return solver.conclude("policy-iteration")


def _first_policy(solver: Iteration, initial: ArrayLike | None) -> None:
    if initial is not None:
        solver.policy = check_deterministic(solver.mdp, initial)
        if not solver.problem.discounted:
            check_ends(solver.mdp, solver.policy)
    elif solver.problem.discounted:
        solver.problem.improve(solver.values, solver.out, solver.policy)
        way = shortest_way(solver.mdp)
        solver.policy = np.where(way >= 0, way, solver.policy)


def modified_policy_iteration(
    mdp: MDP,
    *,
    gamma: float,
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
    evaluations: int | None = None,
    initial: ArrayLike | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> Solution:
    """Solve a model by modified policy iteration: a few evaluation sweeps per improvement (Puterman and Shin 1978).

    A sweep over the rows of one policy costs a fraction of a sweep over all actions. If all rows sum to 1, the values
    are shifted to the middle of their bounds after each improvement.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        tolerance: accuracy of every value, in units of reward.
        max_iterations: maximum improvements; then `converged` is false.
        evaluations: sweeps after each improvement; None: until the change is reduced to a third, at most 100 (on a
            device: 20).
        initial: `[S]`, initial values; None: as in `value_iteration`.
        threads: maximum number of threads per sweep; None: automatic.
        device: a PyTorch device such as `"cuda"`; None: compiled code on the CPU.

    Returns:
        The solution; `iterations` counts improvements.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and from some state no policy ends the episode.
        TypeError: if `evaluations` is not a whole number.
    """
    if evaluations is not None:
        check_count(evaluations, "evaluations", least=0)
    solver = Iteration.begin(
        mdp, gamma=gamma, tolerance=tolerance, limit=max_iterations, initial=initial, threads=threads
    )
    if device is None:
        _modified(solver, evaluations, krylov=False)
    else:
        from operant.mdp.device import iterate_on_device  # noqa: PLC0415 (torch only on request)

        iterate_on_device(solver, device, evaluations=20 if evaluations is None else evaluations)
    return solver.conclude("modified-policy-iteration")


def _modified(solver: Iteration, evaluations: int | None, *, krylov: bool) -> None:
    """Alternate improvements and evaluations."""
    problem, improver = solver.problem, Improver(solver)
    minimum = 1.5 * solver.tolerance / problem.stretch
    for _ in solver.rounds():
        improver.improve()
        if solver.finished:
            break
        improver.prepare()
        target = problem.spread(solver.change) * (BRIEF if improver.changed else BRIEF**4)
        _evaluate(improver, max(target, minimum), evaluations, krylov=krylov)


def _evaluate(improver: Improver, target: float, evaluations: int | None, *, krylov: bool) -> None:
    """Back up the values by the policy, `evaluations` times or until they change by no more than `target`.

    With `krylov`, a Krylov method takes over if many more sweeps would be needed.
    """
    first = np.inf
    for sweep in range(100 if evaluations is None else evaluations):
        change = improver.sweep()
        if evaluations is None and change <= target:
            break
        first = change if sweep == 0 else first
        if krylov and sweep == PATIENCE and change > target * (first / target) ** (2 / 3):
            solve_chain(improver.chain, improver.solver.values, target / 8, limit=200)
            improver.forget()
            break


def inexact_policy_iteration(
    mdp: MDP,
    *,
    gamma: float,
    tolerance: float = 1e-6,
    max_iterations: int = 10_000,
    sweeps: int = 4,
    initial: ArrayLike | None = None,
    threads: int | None = None,
) -> Solution:
    """Solve a large model by alternating Gauss-Seidel sweeps and Krylov evaluations.

    It follows inexact policy iteration (Gargiani et al. 2023, arXiv 2211.04299). Sweeps in alternating order propagate
    values and improve the policy; BiCGStab then solves for its values until the residual is reduced twentyfold, if
    sweeps are slow. If the residual hardly decreases between improvements, the policy is evaluated by a factorization
    if that is cheap, else BiCGStab may take twice as many iterations; if it does not decrease, the number of sweeps is
    doubled, so it converges like value iteration. At gamma = 1 only exact evaluations are used.

    If no episode ends, it is modified policy iteration, and BiCGStab is called only for a policy that mixes slowly.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        tolerance: accuracy of every value, in units of reward.
        max_iterations: maximum improvements; then `converged` is false.
        sweeps: initial number of Gauss-Seidel sweeps per improvement.
        initial: `[S]`, initial values; None: as in `value_iteration`.
        threads: maximum number of threads per matrix product; None: automatic.

    Returns:
        The solution; `iterations` counts improvements.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and from some state no policy ends the episode.
        TypeError: if `sweeps` is not a whole number.
    """
    check_count(sweeps, "sweeps")
    solver = Iteration.begin(
        mdp, gamma=gamma, tolerance=tolerance, limit=max_iterations, initial=initial, threads=threads
    )
    if solver.problem.even:
        _modified(solver, None, krylov=True)
    else:
        _inexact(solver, sweeps)
    return solver.conclude("inexact-policy-iteration")


def _inexact(solver: Iteration, sweeps: int) -> None:
    """Alternate sweeps in place and evaluations by a Krylov method."""
    problem, minimum, best, limit = solver.problem, solver.tolerance / (8 * solver.problem.stretch), np.inf, SHORT
    for count in solver.rounds():
        low, high = 0.0, 0.0
        for i in range(sweeps):
            low, high = problem.sweep(solver.values, solver.policy, backward=i % 2 == 1)
        residual = max(-low, high)
        if residual <= 16 * max(minimum, problem.rounding(solver.values)) or count == solver.limit:
            solver.back_up()
            if solver.finished or sweeps > MANY:
                break
        slow, sweeps = residual >= STUCK * best, sweeps if residual < best else 2 * sweeps
        best = min(best, residual)
        limit = _evaluate_all(solver, residual, minimum, limit=limit, slow=slow)


def _evaluate_all(solver: Iteration, residual: float, minimum: float, *, limit: int, slow: bool) -> int:
    """Evaluate the policy by a Krylov method of at most `limit` iterations; return the limit of the next evaluation."""
    problem, swept = solver.problem, solver.values.copy()
    target = max(FORCING * residual, minimum) if problem.discounted else 2 * problem.rounding(swept)
    chain = problem.chain(solver.policy)
    used = solve_chain(chain, solver.values, target, limit=limit)
    if used < limit or (problem.discounted and not slow):
        return limit
    if not problem.discounted:
        check_bounded(solver.mdp, solver.policy)
    if is_narrow(chain):
        solver.values[:] = factorize(chain)
    elif not problem.discounted:  # values above the optimum may lead to a policy that never ends
        solver.values[:] = swept
    return min(2 * limit, LIMIT)
