"""Policies over an infinite horizon without a discount: gain, bias and stationary distributions of their chains."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from operant.mdp import sparse
from operant.mdp.analysis import policy_chain
from operant.mdp.average import require_no_terminal_state
from operant.mdp.graphs import closed_components
from operant.mdp.model import MDP
from operant.mdp.policies import check_policy, exits_of
from operant.mdp.validation import Floats, Ints, labeled, raise_if_any

__all__ = ["AverageEvaluation", "average_policy_evaluation", "stationary_distributions"]


@dataclass(frozen=True, eq=False)
class AverageEvaluation:
    """Average reward and relative values of a policy.

    Attributes:
        gain: `[S]`, the average reward per step from each state; equal for states that reach the same recurrent class.
        bias: `[S]`, the expected sum of the differences between rewards and gain (as a Cesàro limit if the chain is
            periodic); its mean under every stationary distribution is 0.
    """

    gain: Floats
    bias: Floats


@dataclass(frozen=True)
class _Recurrent:
    """A recurrent class of a chain.

    Attributes:
        states: `[C]`, its states.
        distribution: `[C]`, its stationary distribution.
        factors: of `I - P` without the last state; None with a single state.
    """

    states: Ints
    distribution: Floats
    factors: sparse.Factors | None


def average_policy_evaluation(mdp: MDP, policy: ArrayLike) -> AverageEvaluation:
    """Compute gain and bias of a policy (Puterman 1994, §8.2), for chains with any number of recurrent classes.

    They solve `g = P_π g` and `h + g = R_π + P_π h`. `relative_value_iteration` computes the optimal gain; its `bias`
    is 0 in state 0, and so differs by a constant.

    Args:
        mdp: the model.
        policy: `[S]` actions, or `[S, A]` probabilities.

    Raises:
        ValueError: if the policy does not fit the model, or may end an episode.
    """
    chain, rewards = _endless_chain(mdp, policy)
    gain, bias = np.zeros(mdp.states), np.zeros(mdp.states)
    transient = np.ones(mdp.states, np.bool_)
    for found in _recurrent_classes(chain):
        states, transient[found.states] = found.states, False
        gain[states] = found.distribution @ rewards[states]
        if found.factors is not None:
            bias[states[:-1]] = found.factors.solve((rewards - gain)[states[:-1]])
        bias[states] -= found.distribution @ bias[states]
    if transient.any():
        rows = chain[np.flatnonzero(transient)]
        factors = _factors(rows[:, transient])
        entered = rows[:, ~transient]
        gain[transient] = factors.solve(entered @ gain[~transient])
        bias[transient] = factors.solve((rewards - gain)[transient] + entered @ bias[~transient])
    return AverageEvaluation(gain, bias)


def stationary_distributions(mdp: MDP, policy: ArrayLike) -> Floats:
    """Return the stationary distribution of each recurrent class of a policy's chain: `μ = μ P_π`.

    With one class it is the share of the steps that the policy spends in each state, from any start. For episodes that
    end, `occupancy` counts visits.

    Args:
        mdp: the model.
        policy: `[S]` actions, or `[S, A]` probabilities.

    Returns:
        `[classes, S]`, in the order of their first states; 0 outside the class.

    Raises:
        ValueError: if the policy does not fit the model, or may end an episode.
    """
    chain, _ = _endless_chain(mdp, policy)
    classes = _recurrent_classes(chain)
    table = np.zeros((len(classes), mdp.states))
    for row, found in zip(table, classes, strict=True):
        row[found.states] = found.distribution
    return table


def _endless_chain(mdp: MDP, policy: ArrayLike) -> tuple[sparse.Sparse, Floats]:
    """Return the chain of a policy and its rewards; raise ValueError if it may end."""
    probabilities = check_policy(mdp, policy)
    require_no_terminal_state(mdp)
    raise_if_any(
        exits_of(mdp, probabilities),
        lambda s: (
            f"the policy may end the episode in state {labeled(s, mdp.state_names)}, but the average reward needs an "
            "infinite horizon"
        ),
    )
    chain, rewards = policy_chain(mdp, probabilities)
    chain.eliminate_zeros()
    return chain, rewards


def _recurrent_classes(chain: sparse.Sparse) -> list[_Recurrent]:
    labels, closed = closed_components(*chain.nonzero(), chain.shape[0])
    classes = [np.flatnonzero(labels == label) for label in np.flatnonzero(closed)]
    return [_recurrent(chain, states) for states in sorted(classes, key=lambda states: int(states[0]))]


def _recurrent(chain: sparse.Sparse, states: Ints) -> _Recurrent:
    """Return a recurrent class; the probability of its last state is set to 1, then all are divided by their sum."""
    if states.size == 1:
        return _Recurrent(states, np.ones(1), None)
    others = np.zeros(chain.shape[0], np.bool_)
    others[states[:-1]] = True
    factors = _factors(chain[states[:-1]][:, others])
    last = np.asarray((chain[states[-1:]][:, others]).sum(axis=0), np.float64)
    weights = np.append(np.maximum(factors.solve(last, trans="T"), 0.0), 1.0)
    return _Recurrent(states, weights / weights.sum(), factors)


def _factors(matrix: sparse.Sparse) -> sparse.Factors:
    """Return the factors of `I - P` for the transitions within a set of states that the chain leaves."""
    return sparse.splu((sparse.eye_array(matrix.shape[0]) - matrix).tocsc())
