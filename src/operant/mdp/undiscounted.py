"""Undiscounted models: proper policies.

At gamma = 1 the value of a state is the best value of a **proper** policy, under which every episode ends with
probability 1 (Bertsekas and Tsitsiklis 1991).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp import sparse
from operant.mdp.bellman_kernels import Vectors, gauss_seidel
from operant.mdp.graphs import ending, ending_actions
from operant.mdp.linear import solve, solve_iteratively
from operant.mdp.model import MDP
from operant.mdp.problem import Problem
from operant.mdp.validation import labeled

__all__ = [
    "chain_steps",
    "check_bounded",
    "check_chain_ends",
    "check_ends",
    "ends",
    "proper_policy",
    "proper_start",
    "quick_policy",
    "shortest_way",
    "start_policy",
]

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
Bools = NDArray[np.bool_]

LONGEST = 1e9
"""Expected steps above which a policy is too long to be evaluated accurately."""
NEAR = 0.9999
"""Discount at which the cost of steps is minimized."""


def shortest_way(mdp: MDP) -> Actions:
    """Return in every state an action on a shortest path to an end, `[S]`; -1 if there is none."""
    indptr, successors, _ = mdp.continuation
    return ending_actions(indptr, successors, mdp.exits.ravel(), mdp.states)


def proper_policy(mdp: MDP) -> Actions:
    """Return a proper policy: shortest paths to an end.

    Returns:
        `[S]`, -1 in terminal states.

    Raises:
        ValueError: if from some states no policy ends an episode.
    """
    policy = shortest_way(mdp)
    _raise_if_any((policy < 0) & ~mdp.terminal, "no policy ends an episode that is in", mdp.state_names)
    return policy


def quick_policy(mdp: MDP) -> Actions:
    """Return a policy with nearly the fewest expected steps to an end, `[S]`; it may not be proper.

    On a shortest path of a stochastic model every step may be unlikely, so that the expected steps are exponential.
    """
    rows = mdp.rows._replace(rewards=np.where(mdp.feasible.ravel(), -1.0, -np.inf), gamma=NEAR)
    values, policy = np.where(mdp.terminal, 0.0, -1.0 / (1.0 - NEAR)), np.full(mdp.states, -1)
    for count in range(10_000):
        low, high = gauss_seidel(rows, Vectors(values, values, policy, -np.inf), count % 2 == 1)
        if max(-low, high) < 1e-6:
            break
    return policy


def ends(mdp: MDP, policy: Actions) -> Bools:
    """Return the states from which a policy can reach an end, `[S]`; it is proper if all can."""
    states = np.arange(mdp.states)
    rows = states * mdp.actions + np.maximum(policy, 0)
    indptr, successors, probabilities = mdp.continuation
    matrix = sparse.csr_matrix((probabilities, successors, indptr), shape=(mdp.states * mdp.actions, mdp.states))[rows]
    return ending(matrix.indptr, matrix.indices, mdp.exits.ravel()[rows]) | mdp.terminal


def check_ends(mdp: MDP, policy: Actions) -> None:
    """Raise ValueError unless a policy is proper."""
    _raise_if_any(~ends(mdp, policy), "this policy never ends an episode that is in", mdp.state_names)


def check_bounded(mdp: MDP, policy: Actions) -> None:
    """Raise ValueError if improvements of a proper policy have led to an improper one.

    This happens only if some states have a positive average reward.
    """
    trapped = np.flatnonzero(~ends(mdp, policy))
    if trapped.size:
        others = trapped.size - 1
        first = labeled(int(trapped[0]), mdp.state_names)
        where = f"state {first}" + (f" and {others} other{'s' * (others > 1)}" if others else "")
        raise ValueError(
            f"gamma is 1, but rewards can be collected forever in {where}, "
            "so values are infinite; use gamma below 1, a finite horizon or the average reward"
        )


def _raise_if_any(wrong: Bools, what: str, names: Sequence[str]) -> None:
    if wrong.any():
        states = np.flatnonzero(wrong)
        listed = ", ".join(labeled(int(s), names) for s in states[:5])
        more = f" and {states.size - 5} more" if states.size > 5 else ""
        raise ValueError(
            f"gamma is 1, but {what} state {listed}{more}, so its value is not defined; "
            "use gamma below 1, a finite horizon or the average reward, or mark the states that end an episode"
        )


def chain_steps(chain: Problem) -> Floats:
    """Return the expected number of steps until a chain ends, `[S]`."""
    rewards = np.where(chain.terminal, 0.0, 1.0)
    return solve(replace(chain, rows=chain.rows._replace(rewards=rewards)), np.zeros(chain.states), 1e-6)


def proper_start(mdp: MDP, problem: Problem, initial: ArrayLike | None = None) -> tuple[Floats, Actions, float]:
    """Return the values from which backups lead to the optimum over proper policies.

    From other values, such as 0, they may converge to another solution of the Bellman equation.

    Returns:
        The values of a proper policy, `[S]`; the policy, `[S]`; its longest expected episode, at least 1.

    Raises:
        ValueError: if initial values are given, or from some states no policy ends an episode.
    """
    if initial is not None:
        raise ValueError("initial values were given, expected None: at gamma = 1 the solver needs its own")
    policy, chain, steps = _start(mdp, problem)
    target = 8 * problem.rounding(steps * problem.largest_reward)
    return solve_iteratively(chain, problem.start(None), target), policy, float(steps.max(initial=1.0))


def start_policy(mdp: MDP, problem: Problem) -> Actions:
    """Return the proper policy of `proper_start`, `[S]`.

    Raises:
        ValueError: if from some states no policy ends an episode.
    """
    return _start(mdp, problem)[0]


def _start(mdp: MDP, problem: Problem) -> tuple[Actions, Problem, Floats]:
    """Return a proper policy that can be evaluated accurately, its chain, and its expected steps."""
    policy = proper_policy(mdp)
    chain = problem.chain(policy)
    steps = chain_steps(chain)
    if not ((steps >= 0.0) & (steps <= LONGEST)).all() and ends(mdp, quick := quick_policy(mdp)).all():
        policy, chain = quick, problem.chain(quick)
        steps = chain_steps(chain)
    return policy, chain, steps


def check_chain_ends(chain: Problem, exits: Bools, names: Sequence[str] = ()) -> None:
    """Raise ValueError if the chain of a policy never ends from some state.

    Args:
        chain: the chain.
        exits: `[S]`, states in which it may end, including terminal ones.
        names: names of the states, if any.
    """
    can_end = ending(chain.rows.indptr.view(np.int64), chain.rows.successors.astype(np.int64), exits)
    _raise_if_any(~can_end, "this policy never ends an episode that is in", names)
