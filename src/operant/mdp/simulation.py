"""Simulated trajectories of a model."""

from numbers import Integral
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from operant.mdp.model import MDP
from operant.mdp.named_tables import index_of
from operant.mdp.policies import check_policy
from operant.mdp.validation import Floats, Ints, check_count
from operant.streams import seed_sequence

__all__ = ["Trajectory", "simulate"]


class Trajectory(NamedTuple):
    """A simulated episode, or its first T steps.

    Attributes:
        states: `[T + 1]`; the last one is the successor of the last step.
        actions: `[T]`.
        rewards: `[T]`.
        terminated: whether the last step ended the episode.
    """

    states: Ints
    actions: Ints
    rewards: Floats
    terminated: bool


def simulate(
    mdp: MDP, policy: ArrayLike, *, steps: int | None = None, start: int | str | None = None, seed: int = 0
) -> Trajectory:
    """Simulate a policy until the episode ends, for at most a number of steps.

    Args:
        mdp: the model.
        policy: `[S]` actions, or `[S, A]` probabilities.
        steps: maximum number of steps. Default: `mdp.max_steps`.
        start: the first state, or its name. Default: drawn from `mdp.start`.
        seed: seed of the random numbers; equal seeds give equal trajectories.

    Raises:
        ValueError: if the policy does not fit the model, the first state is terminal or not in the model, the seed is
            negative, or neither `steps` nor the model limits the episode.
        TypeError: if `steps`, `start` or `seed` is not a whole number.
    """
    table = check_policy(mdp, policy).cumsum(axis=1)
    if steps is None and mdp.max_steps is None:
        raise ValueError("the model has no step limit: give a number of steps")
    limit = check_count(mdp.max_steps if steps is None else steps, "steps")
    if not isinstance(cast(object, seed), Integral):
        raise TypeError(f"seed is {seed!r}, expected a whole number")
    random = np.random.Generator(np.random.PCG64(seed_sequence(seed, "simulation")))
    state = _first_state(mdp, start, random)
    states, actions, rewards, terminated = [state], list[int](), list[float](), False
    while not terminated and len(actions) < limit:
        action = _draw(table[state], random)
        row = state * mdp.actions + action
        begin, end = int(mdp.indptr[row]), int(mdp.indptr[row + 1])
        entry = begin + _draw(mdp.probabilities[begin:end].cumsum(), random)
        state, terminated = int(mdp.successors[entry]), bool(mdp.terminates[entry])
        states.append(state)
        actions.append(action)
        rewards.append(float(mdp.rewards[entry]))
    return Trajectory(np.array(states, np.int64), np.array(actions, np.int64), np.array(rewards, float), terminated)


def _first_state(mdp: MDP, start: int | str | None, random: np.random.Generator) -> int:
    if start is None:
        return _draw(mdp.start.cumsum(), random)
    index = index_of(start, mdp.state_names) if isinstance(start, str) else start
    if not isinstance(cast(object, index), Integral):
        raise TypeError(f"start is {start!r}, expected a state")
    index = int(index)
    if not 0 <= index < mdp.states:
        raise ValueError(f"start is {index}, expected 0 to {mdp.states - 1}")
    if mdp.terminal[index]:
        raise ValueError(f"start is {start!r}, which is terminal: it has no actions")
    return index


def _draw(cumulative: Floats, random: np.random.Generator) -> int:
    """Return a random index with the given cumulative probabilities, never one of probability 0."""
    total = float(cumulative[-1])
    below = min(random.random() * total, float(np.nextafter(total, 0.0)))  # the product may be rounded up
    return int(np.searchsorted(cumulative, below, side="right"))
