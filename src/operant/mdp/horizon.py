"""Finite horizons, where the optimal policy depends on the remaining time (Bellman 1957)."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.model import MDP
from operant.mdp.problem import Problem
from operant.mdp.validation import check_count

__all__ = ["FiniteHorizonSolution", "backward_induction"]


@dataclass(frozen=True, eq=False)
class FiniteHorizonSolution:
    """Optimal values and actions at every time.

    Attributes:
        values: `[H + 1, S]`, optimal value at time t of each state; the last row is the final value.
        policy: `[H, S]`, an action at time t in every state, -1 in terminal ones.
        horizon: H, the number of actions.
        gamma: the discount factor.
        seconds: wall-clock time in seconds.
    """

    values: NDArray[np.float64]
    policy: NDArray[np.int64]
    horizon: int
    gamma: float
    seconds: float


def backward_induction(
    mdp: MDP, *, horizon: int, gamma: float = 1.0, final: ArrayLike | None = None, threads: int | None = None
) -> FiniteHorizonSolution:
    """Solve a model for a finite number of actions by backward induction. Exact up to rounding.

    Args:
        mdp: the model.
        horizon: H, the number of actions, at least 1.
        gamma: the discount factor.
        final: `[S]`, final value of each state; None: 0. Ignored in terminal states.
        threads: maximum number of threads per sweep; None: automatic.

    Raises:
        TypeError: if the horizon is not a whole number.
        ValueError: if an argument is out of range.
    """
    start_time = time.perf_counter()
    horizon = check_count(horizon, "horizon")
    problem = Problem.of(mdp, gamma, threads=threads, centered=False)
    values = np.empty((horizon + 1, mdp.states))
    policy = np.full((horizon, mdp.states), -1)
    values[horizon] = problem.start(np.zeros(mdp.states) if final is None else final, "final")
    for t in reversed(range(horizon)):
        problem.improve(values[t + 1], values[t], policy[t], margin=-np.inf)
    return FiniteHorizonSolution(values, policy, horizon, problem.rows.gamma, time.perf_counter() - start_time)
