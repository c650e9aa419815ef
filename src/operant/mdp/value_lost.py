"""Loss of a policy against the optimum, V* - V^π, computed exactly in every state of a known model."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.evaluation import policy_evaluation
from operant.mdp.graphs import ending
from operant.mdp.model import MDP
from operant.mdp.policies import check_policy, exits_of, reachable_states, transitions_of
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
        largest: maximum of V* - V^π over the states that some policy can enter from the start.
        state: the state with the largest loss.
        suboptimal: number of these states with a loss.
        states: number of non-terminal states that some policy can enter from the start.
        left_out: number of these states without a loss, because `gamma` is 1, the policy does not reach them from the
            start, and it never ends an episode from some of them.
        optimal: expectation of V* over the first state.
        gamma: the discount factor.
        by_state: `[S]`, V* - V^π, also of states that no policy can enter; NaN in states that are left out.
    """

    start: float
    largest: float
    state: int
    suboptimal: int
    states: int
    optimal: float
    gamma: float
    by_state: NDArray[np.float64]
    left_out: int = 0


def value_lost(mdp: MDP, policy: ArrayLike, *, gamma: float, solution: Solution | None = None) -> ValueLost:
    """Return the loss of a policy against the optimum.

    Args:
        mdp: the model.
        policy: `[S]` actions, or `[S, A]` probabilities.
        gamma: the discount factor; at 1 the policy must end every episode from the start of the model. If it never ends
            one from other states, those that it does not reach are left out.
        solution: solution of this model with this discount, if known.

    Raises:
        ValueError: if the policy does not fit the model, the solution has another discount, or `gamma` is 1 and a
            policy never ends an episode from the start.
    """
    if solution is None:
        solution = solve(mdp, gamma=gamma, tolerance=1e-9)
    if solution.gamma != gamma:
        raise ValueError(f"solution is for gamma {solution.gamma}, expected one for {gamma}: solve the model with it")
    table = check_policy(mdp, policy)
    possible = reachable_states(mdp)
    left_out = _left_out(mdp, table, possible) if gamma == 1 else np.zeros(mdp.states, np.bool_)
    if left_out.any():  # their actions do not affect the other states
        best = solution.policy[:, None] == np.arange(mdp.actions)
        table = np.where(left_out[:, None], best, table)
    values = policy_evaluation(mdp, table, gamma=gamma).values
    lost = np.maximum(solution.values - values, 0.0)  # negative differences are rounding errors
    start = float(mdp.start @ lost)
    lost[left_out] = np.nan
    counted = np.where(possible, lost, np.nan)
    state = int(np.nanargmax(counted))
    return ValueLost(
        start=start,
        largest=float(counted[state]),
        state=state,
        suboptimal=int((counted > TOLERANCE * np.maximum(1.0, np.abs(solution.values))).sum()),
        states=int((possible & ~mdp.terminal).sum()),
        optimal=float(mdp.start @ solution.values),
        gamma=gamma,
        by_state=lost,
        left_out=int((left_out & possible).sum()),
    )


def _left_out(mdp: MDP, policy: NDArray[np.float64], possible: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the non-terminal states that a policy does not reach, if it never ends an episode from one of them.

    If it does so only in states that no policy can enter, they are all of these.
    """
    chain = transitions_of(mdp, policy)
    can_end = ending(chain.indptr, chain.indices, exits_of(mdp, policy))
    outside = ~reachable_states(mdp, policy) & ~mdp.terminal
    endless = outside & ~can_end
    if not endless.any():
        return endless
    return outside if (endless & possible).any() else outside & ~possible
