"""Loss of a policy against the optimum, V* - V^π, computed exactly in every state of a known model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.evaluation import policy_evaluation
from operant.mdp.model import MDP
from operant.mdp.solution import Solution
from operant.mdp.solving import solve

__all__ = ["ValueLost", "value_lost"]

TOLERANCE = 1e-6
"""Losses up to this value count as rounding errors."""


@dataclass(frozen=True, eq=False)
class ValueLost:
    """Loss of a policy against the optimum.

    Attributes:
        start: expectation of V* - V^π over the first state.
        largest: maximum of V* - V^π over the states.
        state: the state with the largest loss.
        suboptimal: number of states with a loss.
        states: number of non-terminal states.
        optimal: expectation of V* over the first state.
        gamma: the discount factor.
        by_state: `[S]`, V* - V^π.
    """

    start: float
    largest: float
    state: int
    suboptimal: int
    states: int
    optimal: float
    gamma: float
    by_state: NDArray[np.float64]


def value_lost(mdp: MDP, policy: ArrayLike, *, gamma: float, solution: Solution | None = None) -> ValueLost:
    """Return the loss of a policy against the optimum.

    Args:
        mdp: the model.
        policy: `[S]` actions, or `[S, A]` probabilities.
        gamma: the discount factor; at 1 the policy must end every episode.
        solution: solution of this model with this discount, if known.

    Raises:
        ValueError: if the policy does not fit the model, the solution has another discount, or `gamma` is 1 and a
            policy never ends an episode.
    """
    if solution is None:
        solution = solve(mdp, gamma=gamma, tolerance=1e-9)
    if solution.gamma != gamma:
        raise ValueError(f"solution is for gamma {solution.gamma}, expected one for {gamma}: solve the model with it")
    values = policy_evaluation(mdp, policy, gamma=gamma).values
    lost = np.maximum(solution.values - values, 0.0)  # negative differences are rounding errors
    state = int(lost.argmax())
    return ValueLost(
        start=float(mdp.start @ lost),
        largest=float(lost[state]),
        state=state,
        suboptimal=int((lost > TOLERANCE * np.maximum(1.0, np.abs(solution.values))).sum()),
        states=int((~mdp.terminal).sum()),
        optimal=float(mdp.start @ solution.values),
        gamma=gamma,
        by_state=lost,
    )
