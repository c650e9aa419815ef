"""Linear programming: the smallest vector that no backup raises (d'Epenoux 1963; Puterman 1994, §6.9)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray
from scipy import optimize  # pyright: ignore[reportMissingTypeStubs] - SciPy has none

from operant.mdp import sparse
from operant.mdp.iteration import Iteration
from operant.mdp.model import MDP
from operant.mdp.solution import Solution

__all__ = ["linear_programming"]


INFINITE = 1e20
"""Threshold above which HiGHS treats numbers as infinite."""


class _Result(Protocol):
    """Result of the solver; `x` is None if it failed."""

    x: NDArray[np.float64] | None
    nit: int
    message: str


_linprog = cast(Callable[..., _Result], optimize.linprog)  # pyright: ignore[reportUnknownMemberType]


def linear_programming(mdp: MDP, *, gamma: float, tolerance: float = 1e-6) -> Solution:
    """Solve a model as a linear program, by HiGHS (Huangfu and Hall 2018).

    The program is `min sum_s V(s)` subject to `V(s) >= R(s, a) + gamma sum_s' P(s' | s, a) V(s')`. One Bellman backup
    of its solution gives the bounds and the policy.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        tolerance: accuracy of every value for convergence, in units of reward.

    Returns:
        The solution; `iterations` counts those of HiGHS.

    Raises:
        ValueError: if an argument is out of range; rewards are too large for HiGHS; or `gamma` is 1 and from some state
            no policy ends the episode, or values are infinite.
        RuntimeError: if HiGHS failed for another reason, named in the message.
    """
    solver = Iteration.begin(mdp, gamma=gamma, tolerance=tolerance, limit=1_000)
    rows, live, feasible = solver.problem.rows, ~mdp.terminal, np.flatnonzero(mdp.feasible)
    transitions = (rows.probabilities, rows.successors.astype(np.int32), rows.indptr)
    following = sparse.csr_array(transitions, shape=(rows.rewards.size, mdp.states))
    owners = sparse.csr_array(
        (np.ones(feasible.size), (np.arange(feasible.size), feasible // mdp.actions)),
        shape=(feasible.size, mdp.states),
    )
    result = _linprog(
        np.ones(np.count_nonzero(live)),
        A_ub=(gamma * following[feasible] - owners).tocsc()[:, live],
        b_ub=-rows.rewards[feasible],
        bounds=(None, None),
        method="highs",
    )
    if result.x is None and np.abs(rows.rewards[feasible]).max(initial=0.0) >= INFINITE:
        raise ValueError(
            f"HiGHS treats numbers of {INFINITE:g} or more as infinite, and some rewards of this model are as large: "
            "divide the rewards by a constant, or use another method"
        )
    if result.x is None and gamma == 1:
        raise ValueError(
            "gamma is 1 and rewards can be collected forever, so values are infinite; "
            "use gamma below 1, a finite horizon or the average reward"
        )
    if result.x is None:
        raise RuntimeError(f"HiGHS: {result.message}")
    solver.values[live] = result.x
    solver.back_up()
    return replace(solver.conclude("linear-programming"), iterations=int(result.nit))
