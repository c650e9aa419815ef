r"""Exact scores of policies: the expected return in a known model, and endless cycles of a policy.

A policy and a model define a Markov chain. The distribution of the state is propagated from the start until every
episode has ended or is truncated, and each reward is weighted by its probability. The result is the expectation of
sampled evaluations, up to rounding errors.

A policy that never ends an episode runs to the limit. Its distribution is compared with an earlier one (Brent 1980); if
they are equal, the remaining cycles are computed in one step.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp import MDP
from operant.mdp.graphs import closed_components
from operant.mdp.policies import exits_of, reachable_states, transitions_of
from operant.tabular.evaluation import checked_policies
from operant.tabular.numba_config import compiled
from operant.tabular.simulator import Model

Floats = NDArray[np.float64]

MOST_WORK = 50_000_000
"""Maximum transitions times steps of exact scores: at most 0.1 s per seed."""

_NOTHING = 1e-16


class Expected(NamedTuple):
    """Expected results of `S` policies.

    Attributes:
        returns: `[S]`, expected undiscounted return.
        lengths: `[S]`, expected length in steps.
        cut: `[S]`, probability that an episode is truncated.
    """

    returns: Floats
    lengths: Floats
    cut: Floats


class _Chain(NamedTuple):
    """A policy `[states, A]` in a model, with the probabilities `[n]` of the model's transitions."""

    model: Model
    probabilities: Floats
    policy: Floats


class _Walk(NamedTuple):
    """The distribution of the state: `mass [states]`, and its `size[0]` support states."""

    mass: Floats
    active: NDArray[np.int64]
    size: NDArray[np.int64]


@compiled
def _carry(chain: _Chain, now: _Walk, after: _Walk) -> float:
    """Move the distribution by one step; return the expected reward."""
    model, paid = chain.model, 0.0
    after.size[0] = 0
    for k in range(now.size[0]):
        state = now.active[k]
        here = now.mass[state]
        now.mass[state] = 0.0
        for action in range(model.actions):
            chosen = here * chain.policy[state, action]
            if chosen == 0.0:
                continue
            row = state * model.actions + action
            for entry in range(model.indptr[row], model.indptr[row + 1]):
                moved = chosen * chain.probabilities[entry]
                paid += moved * model.rewards[entry]
                successor = model.successors[entry]
                if model.terminates[entry] or moved == 0.0:
                    continue
                if after.mass[successor] == 0.0:
                    after.active[after.size[0]] = successor
                    after.size[0] += 1
                after.mass[successor] += moved
    return paid


@compiled
def _total(walk: _Walk) -> float:
    """Return the probability that the episode continues."""
    total = 0.0
    for k in range(walk.size[0]):
        state: int = walk.active[k]
        total += walk.mass[state]
    return total


@compiled
def _copy(mass: Floats, saved: Floats) -> None:
    """Copy the mass of all states."""
    for state in range(len(mass)):
        saved[state] = mass[state]


@compiled
def _same(walk: _Walk, saved: Floats, count: int) -> bool:
    """Return whether a walk has the distribution `saved [states]`, with `count` support states."""
    if walk.size[0] != count:
        return False
    different = 0
    for k in range(count):
        different += walk.mass[walk.active[k]] != saved[walk.active[k]]
    return different == 0


@compiled
def _expect(chain: _Chain, now: _Walk, after: _Walk, saved: Floats, out: Floats) -> None:
    """Write return, length and the probability of truncation to `out [3]`.

    `now` is the start distribution; `after` is empty; `saved [states]` is scratch memory.
    """
    limit, paid, length, t, left = chain.model.max_steps, 0.0, 0.0, 0, _total(now)
    _copy(now.mass, saved)
    kept_count, kept_at, kept_paid, kept_length = now.size[0], 0, 0.0, 0.0
    while t < limit and left > _NOTHING:
        length += left
        paid += _carry(chain, now, after)
        now, after = after, now
        t += 1
        left = _total(now)
        if kept_at >= 0 and _same(now, saved, kept_count):
            rounds = (limit - t) // (t - kept_at)
            paid += rounds * (paid - kept_paid)
            length += rounds * (length - kept_length)
            t += rounds * (t - kept_at)
            kept_at = -1
        elif kept_at >= 0 and t & (t - 1) == 0:
            _copy(now.mass, saved)
            kept_count, kept_at, kept_paid, kept_length = now.size[0], t, paid, length
    out[0], out[1], out[2] = paid, length, left if left > _NOTHING else 0.0


def may_compute(mdp: MDP, limit: int) -> bool:
    """Return whether exact scores are fast, for episodes of at most `limit` steps."""
    return mdp.successors.size * limit <= MOST_WORK


def expected_episodes(mdp: MDP, policies: ArrayLike, *, limit: int) -> Expected:
    """Return the exact expected results of policies.

    Args:
        mdp: the model.
        policies: `[S, states, A]`, probabilities.
        limit: steps after which an episode is truncated.

    Raises:
        ValueError: if the shapes differ, a policy does not fit the model, or the limit is below 1.
    """
    table = np.asarray(policies, np.float64)
    if table.ndim != 3 or table.shape[1:] != (mdp.states, mdp.actions) or limit < 1:
        expected = ("S", mdp.states, mdp.actions)
        raise ValueError(f"policies must have shape {expected}, got {table.shape}; limit at least 1, got {limit}")
    table = checked_policies(mdp, table)
    model, results = Model.of(mdp, limit), np.zeros((len(table), 3))
    probabilities = np.array(mdp.probabilities, np.float64)
    for policy, out in zip(table, results, strict=True):
        start = np.flatnonzero(mdp.start)
        now, after = _walk(mdp.states), _walk(mdp.states)
        now.mass[start], now.active[: start.size], now.size[0] = mdp.start[start], start, start.size
        _expect(_Chain(model, probabilities, policy), now, after, np.zeros(mdp.states), out)
    return Expected(*results.T)


def _walk(states: int) -> _Walk:
    return _Walk(np.zeros(states), np.zeros(states, np.int64), np.zeros(1, np.int64))


def circling_states(mdp: MDP, policy: ArrayLike) -> NDArray[np.int64]:
    """Return the reachable states in which a policy cycles endlessly.

    They are the closed classes of its Markov chain that can be reached from the start and in which no episode ends.

    Args:
        mdp: the model; its step limit is ignored.
        policy: `[states, A]`, probabilities.

    Returns:
        The states in order; empty if every episode ends with probability 1.
    """
    table = np.asarray(policy, np.float64)
    classes, closed = closed_components(*transitions_of(mdp, table).nonzero(), mdp.states)
    closed[classes[exits_of(mdp, table)]] = False
    return np.flatnonzero(closed[classes] & reachable_states(mdp, table))
