"""Errors of predicted state values in a known model, |V - V^π|."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp import MDP, check_policy, policy_evaluation
from operant.mdp.policies import reachable_states

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ValueErrors:
    """Errors of the values of `S` seeds, over the non-terminal states that the policy enters from the start.

    Attributes:
        truth: `[states]`, V^π.
        gamma: the discount factor.
        states: number of states that count.
        rmse: `[S]`, root of the mean of (V - V^π)^2.
        mean: `[S]`, mean of |V - V^π|.
        largest: `[S]`, maximum of |V - V^π|.
        state: `[S]`, the state with the largest error.
    """

    truth: Floats
    gamma: float
    states: int
    rmse: Floats
    mean: Floats
    largest: Floats
    state: NDArray[np.int64]


def value_errors(
    mdp: MDP, values: ArrayLike, policy: ArrayLike, *, gamma: float, truth: Floats | None = None
) -> ValueErrors:
    """Return the errors of predicted values.

    Args:
        mdp: the model.
        values: `[S, states]`.
        policy: the evaluated policy: `[states]` actions, or `[states, A]` probabilities.
        gamma: the discount factor.
        truth: `[states]`, V^π, if known.

    Raises:
        ValueError: if the shape of the values is another one, the policy does not fit the model, or `gamma` is 1 and
            the policy never ends an episode.
    """
    predicted, table = np.asarray(values, np.float64), check_policy(mdp, policy)
    if predicted.ndim != 2 or predicted.shape[1] != mdp.states:
        raise ValueError(f"values must have shape {('S', mdp.states)}, got {predicted.shape}")
    if truth is None:
        truth = policy_evaluation(mdp, table, gamma=gamma).values
    counted = np.flatnonzero(reachable_states(mdp, table) & ~mdp.terminal)
    errors = np.abs(predicted - truth)[:, counted]
    return ValueErrors(
        truth=truth,
        gamma=gamma,
        states=counted.size,
        rmse=np.sqrt((errors**2).mean(axis=1)),
        mean=errors.mean(axis=1),
        largest=errors.max(axis=1),
        state=counted[errors.argmax(axis=1)],
    )
