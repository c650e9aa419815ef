"""Undiscounted models: proper policies.

At gamma = 1 the value of a state is the best value of a **proper** policy, under which every episode ends with
probability 1 (Bertsekas and Tsitsiklis 1991).
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from operant.mdp import bellman_kernels, sparse
from operant.mdp.bellman_kernels import compiled
from operant.mdp.linear import solve
from operant.mdp.model import MDP
from operant.mdp.problem import Problem

__all__ = [
    "chain_steps",
    "check_bounded",
    "check_chain_ends",
    "check_ends",
    "ends",
    "exits",
    "proper_policy",
    "reach",
    "shortest_way",
]

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
Bools = NDArray[np.bool_]


@compiled
def _attract(
    predecessors: tuple[Actions, Actions], exits: Bools, policy: Actions, queue: Actions
) -> None:  # pragma: no cover
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


def exits(mdp: MDP) -> Bools:
    """Return the rows that may end the episode, `[S * A]`."""
    return np.diff(mdp.indptr) > np.diff(mdp.continuation[0])


def shortest_way(mdp: MDP) -> Actions:
    """Return in every state an action on a shortest path to an end, `[S]`; -1 if there is none."""
    indptr, successors, _ = mdp.continuation
    return reach(indptr, successors, exits(mdp), mdp.states)


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
    reached = reach(matrix.indptr, matrix.indices, exits(mdp)[rows], mdp.states)
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


def check_chain_ends(chain: Problem) -> None:
    """Raise ValueError if the chain of a policy never ends from some state."""
    ends = np.zeros(chain.states)
    bellman_kernels.endings(0, chain.states, chain.rows, ends)
    leaking = ends > 1e-12
    reached = reach(chain.rows.indptr.view(np.int64), chain.rows.successors.astype(np.int64), leaking, chain.states)
    _raise_if_any(reached < 0, "this policy never ends an episode that is in")
