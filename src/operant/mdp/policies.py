"""Policies as arrays: `[S]` actions, or `[S, A]` probabilities."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp import sparse
from operant.mdp.graphs import reachable
from operant.mdp.model import MDP
from operant.mdp.validation import ROUNDING, TOLERANCE, integers, raise_if_any

__all__ = ["check_deterministic", "check_policy", "exits_of", "reachable_states", "transitions_of"]


def check_deterministic(mdp: MDP, policy: ArrayLike) -> NDArray[np.int64]:
    """Return a policy of one action per state, `[S]`, -1 in terminal states.

    Raises:
        ValueError: if the shape is wrong, or an action is out of range or infeasible.
    """
    actions = integers(policy, "policy")
    if actions.shape != (mdp.states,):
        raise ValueError(f"policy has the shape {actions.shape}, expected {(mdp.states,)}")
    live = ~mdp.terminal
    inside = (actions >= 0) & (actions < mdp.actions)
    raise_if_any(
        live & ~inside, lambda s: f"policy takes action {actions[s]} in state {s}, expected 0 to {mdp.actions - 1}"
    )
    feasible = mdp.feasible[np.arange(mdp.states), np.where(inside, actions, 0)]
    raise_if_any(live & ~feasible, lambda s: f"policy takes action {actions[s]} in state {s}, which is not feasible")
    return np.where(live, actions, -1)


def exits_of(mdp: MDP, probabilities: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return the states in which a policy `[S, A]` may end the episode, and the terminal ones, `[S]`."""
    return ((probabilities > 0) & mdp.exits).any(axis=1) | mdp.terminal


def transitions_of(mdp: MDP, probabilities: NDArray[np.float64]) -> sparse.Sparse:
    """Return `P_π` of a policy `[S, A]`, sparse `[S, S]`: its transitions that do not terminate, without zeros."""
    weights = sparse.csr_array(
        (probabilities.ravel(), np.arange(probabilities.size), np.arange(mdp.states + 1) * mdp.actions),
        shape=(mdp.states, probabilities.size),
    )
    indptr, successors, going_on = mdp.continuation
    chain = weights @ sparse.csr_array((going_on, successors, indptr), shape=(probabilities.size, mdp.states))
    chain.eliminate_zeros()
    return chain


def reachable_states(mdp: MDP, policy: NDArray[np.float64] | None = None) -> NDArray[np.bool_]:
    """Return the states that an episode from the start of a model can enter without ending, `[S]`.

    Args:
        mdp: the model.
        policy: `[S, A]` probabilities. Default: any policy.
    """
    if policy is not None:
        return reachable(*transitions_of(mdp, policy).nonzero(), mdp.start > 0)
    indptr, successors, probabilities = mdp.continuation
    origins, possible = np.repeat(np.arange(mdp.states), np.diff(indptr[:: mdp.actions])), probabilities > 0
    return reachable(origins[possible], successors[possible], mdp.start > 0)


def check_policy(mdp: MDP, policy: ArrayLike) -> NDArray[np.float64]:
    """Return a policy as probabilities, `[S, A]`; terminal states are set to 0.

    Probabilities whose sum differs from 1 by more than float64 rounding, up to 1e-9 or the rounding of the policy's own
    precision, are divided by it.

    Raises:
        ValueError: for a wrong shape, or probabilities that are negative, NaN or Inf, do not sum to 1, or are positive
            for an infeasible action.
    """
    table = np.asarray(policy)
    if table.ndim == 1:
        actions = check_deterministic(mdp, table)
        return (actions[:, None] == np.arange(mdp.actions)).astype(float)
    probabilities = np.where(mdp.terminal[:, None], 0.0, np.asarray(table, float)) if table.ndim == 2 else table
    if probabilities.shape != (mdp.states, mdp.actions):
        raise ValueError(
            f"policy has the shape {table.shape}, expected {(mdp.states,)} for actions "
            f"or {(mdp.states, mdp.actions)} for probabilities"
        )
    tolerance = TOLERANCE
    if table.dtype.kind == "f":
        tolerance = max(TOLERANCE, float(np.finfo(table.dtype).eps) * (mdp.actions + 1))
    wrong = ~((probabilities >= 0) & (probabilities <= 1 + tolerance))
    raise_if_any(
        np.any(wrong, axis=1), lambda s: f"policy has the probabilities {table[s]} in state {s}, expected 0 to 1"
    )
    barred = (probabilities > 0) & ~mdp.feasible
    raise_if_any(
        np.any(barred, axis=1), lambda s: f"policy takes an action in state {s} that is not feasible: {table[s]}"
    )
    sums = probabilities.sum(axis=1)
    raise_if_any(
        (np.abs(sums - 1) > tolerance) & ~mdp.terminal,
        lambda s: f"policy has probabilities that sum to {sums[s]} in state {s}, expected 1",
    )
    rounded = (np.abs(sums - 1) > ROUNDING * (mdp.actions + 1)) & ~mdp.terminal
    return np.where(rounded[:, None], probabilities / np.where(rounded, sums, 1.0)[:, None], probabilities)
