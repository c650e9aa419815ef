"""Solvers as iterators over sweeps."""

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.linear import solve
from operant.mdp.model import MDP
from operant.mdp.problem import Problem
from operant.mdp.undiscounted import proper_start
from operant.mdp.validation import check_count

__all__ = ["Sweep", "SweepMethod", "sweeps"]

SweepMethod = Literal["jacobi", "gauss-seidel", "policy-iteration", "modified-policy-iteration"]
"""Methods of `sweeps`."""


class Sweep(NamedTuple):
    """The result of one sweep.

    Attributes:
        values: `[S]`.
        policy: `[S]`, the best actions of the sweep; -1 in terminal states.
        residual: maximum absolute change of a value.
    """

    values: NDArray[np.float64]
    policy: NDArray[np.int64]
    residual: float


def sweeps(
    mdp: MDP,
    *,
    gamma: float,
    method: SweepMethod = "jacobi",
    initial: ArrayLike | None = None,
    evaluations: int = 5,
) -> Iterator[Sweep]:
    """Return an iterator that solves a model, one sweep over all actions of all states at a time.

    It is infinite, except for policy iteration, which ends after a sweep without changes; stop it, e.g. by the
    residual. Each item has its own arrays.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        method: `"jacobi"` and `"gauss-seidel"` (always in the order of the states) are value iteration; policy
            iteration evaluates each policy exactly, modified policy iteration by more sweeps over its actions only.
        initial: `[S]`, initial values; None: 0. At gamma = 1 it must be None: the values of a policy that ends every
            episode are used, since other values may lead to a wrong solution.
        evaluations: number of these sweeps.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and from some state no policy ends the episode.
        TypeError: if `evaluations` is not a whole number.
    """
    if method not in get_args(SweepMethod):
        raise ValueError(f"method is {method!r}, expected one of {', '.join(get_args(SweepMethod))}")
    check_count(evaluations, "evaluations", least=0)
    problem = Problem.of(mdp, gamma, centered=False)
    if problem.discounted:
        values = problem.start(np.zeros(mdp.states) if initial is None else initial)
        policy = np.full(mdp.states, -1)
    else:
        values, policy, _ = proper_start(mdp, problem, initial)
    if method == "gauss-seidel":
        return _gauss_seidel(problem, values, policy)
    if method == "policy-iteration":
        return _policy_iteration(problem, values, policy)
    return _modified_policy_iteration(problem, values, policy, 0 if method == "jacobi" else evaluations)


def _gauss_seidel(problem: Problem, values: NDArray[np.float64], policy: NDArray[np.int64]) -> Iterator[Sweep]:
    while True:
        low, high = problem.sweep(values, policy, backward=False)
        yield Sweep(values.copy(), policy.copy(), max(-low, high, 0.0))


def _policy_iteration(problem: Problem, values: NDArray[np.float64], policy: NDArray[np.int64]) -> Iterator[Sweep]:
    out = np.empty_like(values)
    if problem.discounted:
        problem.improve(values, out, policy)
    changed = True
    while changed:
        before, previous = values, policy.copy()
        values = solve(problem.chain(policy), values, problem.rounding(values))
        problem.improve(values, out, policy, margin=problem.keep_margin(values))
        changed = bool((policy != previous).any())
        yield Sweep(values.copy(), policy.copy(), float(np.abs(values - before).max(initial=0.0)))


def _modified_policy_iteration(
    problem: Problem, values: NDArray[np.float64], policy: NDArray[np.int64], evaluations: int
) -> Iterator[Sweep]:
    while True:
        out = np.empty_like(values)
        low, high = problem.improve(values, out, policy)
        yield Sweep(out.copy(), policy.copy(), max(-low, high, 0.0))
        chain = problem.chain(policy) if evaluations else problem
        for _ in range(evaluations):
            values, out = out, values
            chain.follow(values, out)
        values = out
