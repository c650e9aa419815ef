"""Models without a discount: do episodes end, and how far can a value be from the optimum?

At gamma = 1 the value of a state is the best that a **proper** policy earns, one under which every episode ends with
probability 1 (Bertsekas and Tsitsiklis 1991). The Bellman equation may have other solutions, and a small residual
proves nothing. Two inequalities do, for any vector: `L <= T_pi L` for a proper policy pi gives `L <= V_pi <= V*`, and
`TU <= U` gives `V* <= U`, because both survive any number of backups. Such vectors are sought in the form `V - e h`
and `V + e h`, where `h` counts steps, and are returned only if one last backup, rounding included, confirms them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from operant.mdp import kernels
from operant.mdp.kernels import compiled
from operant.mdp.linear import solve
from operant.mdp.model import MDP
from operant.mdp.problem import Problem

__all__ = [
    "bounds_of_chain",
    "bounds_without_discount",
    "check_bounded",
    "check_chain_ends",
    "check_ends",
    "ends",
    "expected_steps",
    "proper_policy",
    "shortest_way",
]

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
Bools = NDArray[np.bool_]

IMPROVEMENTS = 100
"""How often the policy that counts steps is improved before the search for an upper bound is given up."""


@compiled
def _attract(predecessors, exits, policy, queue):  # pragma: no cover
    """Go back from the rows that can end, breadth first; give each state the action by which it was reached."""
    begins, rows = predecessors
    actions, count = exits.size // policy.size, 0
    for k in range(exits.size):
        if exits[k] and policy[k // actions] < 0:
            policy[k // actions] = k % actions
            queue[count] = k // actions
            count += 1
    taken = 0
    while taken < count:
        s = queue[taken]
        taken += 1
        for j in range(begins[s], begins[s + 1]):
            k = rows[j]
            if policy[k // actions] < 0:
                policy[k // actions] = k % actions
                queue[count] = k // actions
                count += 1


def _reach(indptr: NDArray[Any], successors: NDArray[Any], exits: Bools, states: int) -> Actions:
    """Return in every state an action on a shortest way to a row that can end, -1 where there is none."""
    graph = sparse.csr_matrix((np.ones(successors.size, np.int8), successors, indptr), shape=(exits.size, states))
    back = graph.tocsc()
    policy = np.full(states, -1)
    predecessors = back.indptr.astype(np.int64), back.indices.astype(np.int64)
    _attract(predecessors, exits, policy, np.empty_like(policy))
    return policy


def _can_end(mdp: MDP) -> Bools:
    """Return which rows may end the episode, `[S * A]`."""
    return np.diff(mdp.indptr) > np.diff(mdp.continuation[0])


def shortest_way(mdp: MDP) -> Actions:
    """Return in every state an action on a shortest way to an end, `[S]`; -1 where there is none."""
    indptr, successors, _ = mdp.continuation
    return _reach(indptr, successors, _can_end(mdp), mdp.states)


def proper_policy(mdp: MDP) -> Actions:
    """Return a policy under which every episode ends with probability 1: on a shortest way to an end.

    Returns:
        `[S]`, -1 in terminal states.

    Raises:
        ValueError: from some states no policy ends an episode.
    """
    policy = shortest_way(mdp)
    _refuse((policy < 0) & ~mdp.terminal, "no policy ends an episode that is in")
    return policy


def ends(mdp: MDP, policy: Actions) -> Bools:
    """Return from which states an end can be reached under a policy, `[S]`; it is proper if from all."""
    states = np.arange(mdp.states)
    rows = states * mdp.actions + np.maximum(policy, 0)
    indptr, successors, probabilities = mdp.continuation
    matrix = sparse.csr_matrix((probabilities, successors, indptr), shape=(mdp.states * mdp.actions, mdp.states))[rows]
    reached = _reach(matrix.indptr, matrix.indices, _can_end(mdp)[rows], mdp.states)
    return (reached >= 0) | mdp.terminal


def check_ends(mdp: MDP, policy: Actions) -> None:
    """Raise ValueError unless a policy is proper."""
    _refuse(~ends(mdp, policy), "this policy never ends an episode that is in")


def check_bounded(mdp: MDP, policy: Actions) -> None:
    """Raise ValueError where improvements of a proper policy have led to one that is not.

    They do so only towards states among which the average reward is positive.
    """
    trapped = np.flatnonzero(~ends(mdp, policy))
    if trapped.size:
        raise ValueError(
            f"gamma is 1, but rewards can be collected for ever in state {trapped[0]} and {trapped.size - 1} others, "
            "so that values are infinite; take gamma below 1, a finite horizon or the average reward"
        )


def _refuse(wrong: Bools, what: str) -> None:
    if wrong.any():
        found = np.flatnonzero(wrong)
        more = f" and {found.size - 5} more" if found.size > 5 else ""
        raise ValueError(
            f"gamma is 1, but {what} state {', '.join(map(str, found[:5]))}{more}, so that its value is not defined; "
            "take gamma below 1, a finite horizon or the average reward, or mark the states that end an episode"
        )


def _steps(chain: Problem) -> Floats:
    rewards = np.where(chain.terminal, 0.0, 1.0)
    return solve(replace(chain, rows=chain.rows._replace(rewards=rewards)), np.zeros(chain.states), 1e-6)


def expected_steps(problem: Problem, policy: Actions) -> Floats:
    """Return how many steps a proper policy is expected to take until the end, `[S]`."""
    return _steps(problem.chain(policy))


def check_chain_ends(chain: Problem) -> None:
    """Raise ValueError if the chain of a policy, the last step of which leads out of it, never ends from some state."""
    masses = np.zeros(chain.states)
    kernels.mass_range(0, chain.states, chain.rows, masses)
    exits = masses < 1 - 1e-12
    reached = _reach(chain.rows.indptr.view(np.int64), chain.rows.successors.astype(np.int64), exits, chain.states)
    _refuse(reached < 0, "this policy never ends an episode that is in")


def bounds_of_chain(chain: Problem, values: Floats) -> tuple[Floats, Floats] | None:
    """Return certified bounds on the values of a chain that ends with probability 1, or None where none were found."""
    noise = 4 * chain.rounding(values)
    rise, steps = _rise(chain, values), _steps(chain)
    lower = values - 2 * (noise - rise.min(initial=0.0)) * steps
    upper = values + 2 * (noise + rise.max(initial=0.0)) * steps
    falls = _rise(chain, lower).min(initial=np.inf) <= chain.rounding(lower)
    rises = _rise(chain, upper).max(initial=-np.inf) >= -chain.rounding(upper)
    return None if falls or rises else (lower, upper)


def bounds_without_discount(
    mdp: MDP, problem: Problem, values: Floats, policy: Actions
) -> tuple[Floats, Floats] | None:
    """Return certified lower and upper bounds on the optimal values, each `[S]`, or None where none were found.

    None is the answer where optimal policies include improper ones: no `h` counts their steps.

    Args:
        mdp: the model.
        problem: the same at gamma = 1.
        values: `[S]`, about optimal.
        policy: `[S]`, about optimal.
    """
    if not ends(mdp, policy).all():
        return None
    chain, noise = problem.chain(policy), 4 * problem.rounding(values)
    fall = -_rise(chain, values).min(initial=0.0) + noise
    lower = values - 2 * fall * expected_steps(problem, policy)
    if not _rise(chain, lower).min(initial=np.inf) > problem.rounding(lower):
        return None
    slack = 2 * (_rise(problem, values).max(initial=0.0) + noise)
    upper = values + slack * _longest_ways(mdp, problem, values, policy, slack)
    return (lower, upper) if _rise(problem, upper).max(initial=-np.inf) < -problem.rounding(upper) else None


def _rise(problem: Problem, values: Floats) -> Floats:
    """Return by how much a backup raises the values of the states that are not terminal."""
    out = np.empty_like(values)
    problem.improve(values, out, np.zeros(problem.states, np.int64))
    return (out - values)[~problem.terminal]


def _longest_ways(mdp: MDP, problem: Problem, values: Floats, policy: Actions, slack: float) -> Floats:
    """Solve `h = max_a (1 + A_a / slack + P_a h)`, where `A` are advantages; NaN where `h` is infinite."""
    advantages = (problem.action_values(values) - values[:, None]).ravel()
    counting = replace(problem, rows=problem.rows._replace(rewards=1 + advantages / slack))
    steps, out, policy = np.zeros_like(values), np.empty_like(values), policy.copy()
    for _ in range(IMPROVEMENTS):
        steps = solve(counting.chain(policy), steps, 1e-6)
        previous = policy.copy()
        counting.improve(steps, out, policy, margin=1e-3)
        if (policy == previous).all():
            break
        if not ends(mdp, policy).all():
            return np.full_like(values, np.nan)
    return steps
