"""Undiscounted models: proper policies.

At gamma = 1 the value of a state is the best value of a **proper** policy, under which every episode ends with
probability 1 (Bertsekas and Tsitsiklis 1991).
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp import sparse
from operant.mdp.bellman_kernels import compiled
from operant.mdp.linear import solve, solve_chain
from operant.mdp.model import MDP
from operant.mdp.problem import Problem

__all__ = [
    "chain_steps",
    "check_bounded",
    "check_chain_ends",
    "check_ends",
    "ends",
    "proper_policy",
    "proper_start",
    "reach",
    "shortest_way",
]

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
Bools = NDArray[np.bool_]


@compiled
def _attract(predecessors: tuple[Actions, Actions], exits: Bools, policy: Actions, queue: Actions) -> None:
    """Search backwards from the rows that can end, breadth first; set each state's action to the one on the path."""
    begins, rows = predecessors
    actions, count = exits.size // policy.size, 0
    for k in range(exits.size):
        if exits[k] and policy[k // actions] < 0:
            policy[k // actions] = k % actions
            queue[count] = k // actions
            count += 1
    head = 0
    while head < count:
        s = queue[head]
        head += 1
        for j in range(begins[s], begins[s + 1]):
            k = rows[j]
            if policy[k // actions] < 0:
                policy[k // actions] = k % actions
                queue[count] = k // actions
                count += 1


def reach(indptr: NDArray[Any], successors: NDArray[Any], exits: Bools, states: int) -> Actions:
    """Return in every state an action on a shortest path to a row that can end, -1 if there is none."""
    graph = sparse.csr_matrix((np.ones(successors.size, np.int8), successors, indptr), shape=(exits.size, states))
    back = graph.tocsc()
    policy = np.full(states, -1)
    predecessors = back.indptr.astype(np.int64), back.indices.astype(np.int64)
    _attract(predecessors, exits, policy, np.empty_like(policy))
    return policy


def shortest_way(mdp: MDP) -> Actions:
    """Return in every state an action on a shortest path to an end, `[S]`; -1 if there is none."""
    indptr, successors, _ = mdp.continuation
    return reach(indptr, successors, mdp.exits.ravel(), mdp.states)


def proper_policy(mdp: MDP) -> Actions:
    """Return a proper policy: shortest paths to an end.

    Returns:
        `[S]`, -1 in terminal states.

    Raises:
        ValueError: if from some states no policy ends an episode.
    """
    policy = shortest_way(mdp)
    _raise_if_any((policy < 0) & ~mdp.terminal, "no policy ends an episode that is in")
    return policy


def ends(mdp: MDP, policy: Actions) -> Bools:
    """Return the states from which a policy can reach an end, `[S]`; it is proper if all can."""
    states = np.arange(mdp.states)
    rows = states * mdp.actions + np.maximum(policy, 0)
    indptr, successors, probabilities = mdp.continuation
    matrix = sparse.csr_matrix((probabilities, successors, indptr), shape=(mdp.states * mdp.actions, mdp.states))[rows]
    reached = reach(matrix.indptr, matrix.indices, mdp.exits.ravel()[rows], mdp.states)
    return (reached >= 0) | mdp.terminal


def check_ends(mdp: MDP, policy: Actions) -> None:
    """Raise ValueError unless a policy is proper."""
    _raise_if_any(~ends(mdp, policy), "this policy never ends an episode that is in")


def check_bounded(mdp: MDP, policy: Actions) -> None:
    """Raise ValueError if improvements of a proper policy have led to an improper one.

    This happens only if some states have a positive average reward.
    """
    trapped = np.flatnonzero(~ends(mdp, policy))
    if trapped.size:
        others = trapped.size - 1
        where = f"state {trapped[0]}" + (f" and {others} other{'s' * (others > 1)}" if others else "")
        raise ValueError(
            f"gamma is 1, but rewards can be collected forever in {where}, "
            "so values are infinite; use gamma below 1, a finite horizon or the average reward"
        )


def _raise_if_any(wrong: Bools, what: str) -> None:
    if wrong.any():
        states = np.flatnonzero(wrong)
        more = f" and {states.size - 5} more" if states.size > 5 else ""
        raise ValueError(
            f"gamma is 1, but {what} state {', '.join(map(str, states[:5]))}{more}, so its value is not defined; "
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
    values, policy = problem.start(None), proper_policy(mdp)
    chain = problem.chain(policy)
    steps = chain_steps(chain)
    solve_chain(chain, values, 8 * problem.rounding(steps * problem.largest_reward))
    return values, policy, float(steps.max(initial=1.0))


def check_chain_ends(chain: Problem, exits: Bools) -> None:
    """Raise ValueError if the chain of a policy never ends from some state.

    Args:
        chain: the chain.
        exits: `[S]`, states in which it may end, including terminal ones.
    """
    reached = reach(chain.rows.indptr.view(np.int64), chain.rows.successors.astype(np.int64), exits, chain.states)
    _raise_if_any(reached < 0, "this policy never ends an episode that is in")
