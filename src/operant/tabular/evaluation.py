"""Evaluation of policies in a known model: by sampled episodes, and exactly."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp import MDP, check_policy, policy_evaluation, sparse
from operant.mdp.problem import check_gamma
from operant.tabular.acting import sampled_action
from operant.tabular.numba_config import compiled
from operant.tabular.random import StreamStates, stream_states
from operant.tabular.simulator import UNLIMITED, Model, World, advance, begin_all

Floats = NDArray[np.float64]

LONGEST_EPISODE = 10_000
"""Steps after which an episode is truncated if a task has no limit, because a poor policy may never end it."""


def step_limit(own: int | None, chosen: int | None = None) -> int:
    """Return the number of steps after which an evaluation truncates an episode.

    Args:
        own: limit of the task; None: none.
        chosen: another limit, of which the lower one counts; None or 0: none.

    Returns:
        The lower limit; `LONGEST_EPISODE` if there is none.
    """
    return min((limit for limit in (own, chosen) if limit), default=LONGEST_EPISODE)


class Sampled(NamedTuple):
    """Episodes of `S` policies.

    Attributes:
        returns: `[S, episodes]`, undiscounted.
        lengths: `[S, episodes]`, in steps.
        cut: bool `[S, episodes]`, whether the episode was truncated.
    """

    returns: Floats
    lengths: NDArray[np.int64]
    cut: NDArray[np.bool_]


class _Followed(NamedTuple):
    cumulative: Floats
    rng: StreamStates


@compiled
def _play(model: Model, world: World, policies: _Followed, episodes: int, cut: NDArray[np.bool_]) -> None:
    """Follow the policy of every seed for some episodes, and write truncations to `cut [S, episodes]`."""
    for i in range(len(world.state)):
        while world.episodes[i] < episodes:
            episode = world.episodes[i]
            action = sampled_action(policies.cumulative[i], model.actions, policies.rng, i, world.state[i])
            cut[i, episode] = advance(model, world, i, action).truncated


def sampled_returns(
    mdp: MDP, policies: ArrayLike, *, seeds: Sequence[int], episodes: int, longest: int | None = None
) -> Sampled:
    """Simulate episodes of policies; the same seeds give the same episodes.

    Args:
        mdp: the model; episodes are truncated at its step limit.
        policies: `[S, states, A]`, probabilities.
        seeds: one non-negative integer per policy.
        episodes: episodes per seed.
        longest: steps after which an episode is truncated, unless the model's limit is lower. Default: the model's
            limit, or `LONGEST_EPISODE` if it has none.

    Raises:
        ValueError: if the shapes differ, a policy does not fit the model, or `episodes` is not positive.
    """
    table, expected = np.asarray(policies), (len(seeds), mdp.states, mdp.actions)
    if table.shape != expected or episodes < 1:
        raise ValueError(f"policies must have shape {expected}, got {table.shape}; episodes at least 1, got {episodes}")
    table = checked_policies(mdp, table)
    limit = step_limit(mdp.max_steps, longest)
    model, world = Model.of(mdp, limit), World.new(seeds, "evaluation", record=episodes)
    begin_all(model, world)
    cumulative = np.cumsum(table, axis=2).reshape(len(seeds), -1)
    cut = np.zeros((len(seeds), episodes), np.bool_)
    _play(model, world, _Followed(cumulative, stream_states(seeds, "evaluation policy")), episodes, cut)
    return Sampled(world.returns, world.lengths, cut)


def checked_policies(mdp: MDP, policies: ArrayLike) -> Floats:
    """Return policies as probabilities, `[..., states, A]`; 0 in terminal states.

    Raises:
        ValueError: if a policy does not fit the model.
    """
    table = np.asarray(policies)
    if table.shape[-2:] != (mdp.states, mdp.actions):
        raise ValueError(f"policies has shape {table.shape}, expected (..., {mdp.states}, {mdp.actions})")
    checked = [check_policy(mdp, policy) for policy in table.reshape(-1, mdp.states, mdp.actions)]
    return np.array(checked, np.float64).reshape(table.shape)


def expected_returns(mdp: MDP, policies: ArrayLike, *, gamma: float = 1.0, steps: int | None = None) -> Floats:
    """Return the exact values of policies within a number of steps.

    With γ = 1 this is the expected score of an evaluation, without sampling noise. `exact_values` has no step limit.

    Args:
        mdp: the model.
        policies: `[..., states, A]`, probabilities.
        gamma: discount factor.
        steps: horizon. Default: the step limit of the model.

    Returns:
        `[..., states]`; the mean over `mdp.start` is the value of the task.

    Raises:
        ValueError: if there is neither a step limit nor a number of steps, gamma is not between 0 and 1, or a policy
            does not fit the model.
    """
    check_gamma(gamma)
    horizon = mdp.max_steps if steps is None else steps
    if horizon is None or not 0 <= horizon < UNLIMITED:
        raise ValueError(f"the model has no step limit: give a number of steps, got {steps}")
    table = checked_policies(mdp, policies)
    indptr, successors, probabilities = mdp.continuation
    rows = mdp.states * mdp.actions
    transitions = sparse.csr_array((probabilities, successors, indptr), shape=(rows, mdp.states))
    rewards = np.where(mdp.feasible, mdp.expected_rewards, 0.0)
    flat = table.reshape(-1, mdp.states, mdp.actions)
    values = np.zeros((len(flat), mdp.states))
    for _ in range(horizon):
        q = rewards + gamma * (transitions @ values.T).T.reshape(flat.shape)
        values = (flat * q).sum(axis=2)
    return values.reshape(table.shape[:-1])


def exact_values(mdp: MDP, policies: ArrayLike, *, gamma: float) -> Floats:
    """Return the exact values of policies over whole episodes of any length.

    Args:
        mdp: the model; its step limit is ignored.
        policies: `[S, states, A]`, probabilities.
        gamma: discount factor.

    Returns:
        `[S, states]`.

    Raises:
        ValueError: if `gamma` is 1 and a policy never ends an episode, or a policy does not fit the model.
    """
    return np.stack([policy_evaluation(mdp, policy, gamma=gamma).values for policy in np.asarray(policies)])
