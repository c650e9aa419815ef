"""Scalable families of models for tests of solvers."""

import numpy as np

from operant.mdp.model import MDP
from operant.mdp.validation import check_count

__all__ = ["random_model", "slippery_grid"]

MOVES = np.array([[0, -1], [1, 0], [0, 1], [-1, 0]])
"""Left, down, right, up as changes of row and column: the order of Gymnasium's FrozenLake."""


def slippery_grid(side: int, *, slip: float = 2 / 3) -> MDP:
    """Return a square grid with a reward of -1 per step until the last corner is reached.

    A move succeeds with probability `1 - slip`, otherwise it goes to one of the two sides. Walls block moves.

    Args:
        side: rows and columns; there are `side ** 2` states, row by row, and 4 actions.
        slip: the probability of slipping; 2/3 in Gymnasium's FrozenLake.

    Raises:
        ValueError: if the side is below 2, or the slip is not between 0 and 1.
    """
    if check_count(side, "side") < 2 or not 0 <= slip <= 1:
        raise ValueError(f"side is {side} and slip {slip}, expected a side of at least 2, and a probability")
    states = side**2
    row, column = np.divmod(np.arange(states), side)
    reached = [np.clip(row + dr, 0, side - 1) * side + np.clip(column + dc, 0, side - 1) for dr, dc in MOVES]
    turns = (np.arange(4)[:, None] + [-1, 0, 1]) % 4
    successors = np.stack(reached, axis=1)[:-1, turns]
    probabilities = np.broadcast_to([slip / 2, 1 - slip, slip / 2], successors.shape)
    lengths = np.append(np.full((states - 1) * 4, 3), np.zeros(4, int))
    kept = probabilities.ravel() > 0
    ends = np.concatenate([[0], np.cumsum(kept)])[np.concatenate([[0], np.cumsum(lengths)])]
    successors = successors.ravel()[kept]
    return MDP(
        states=states,
        actions=4,
        indptr=ends,
        successors=successors,
        probabilities=probabilities.ravel()[kept],
        rewards=np.full(successors.size, -1.0),
        terminates=successors == states - 1,
        start=np.eye(1, states)[0],
    )


def random_model(
    states: int, actions: int, successors: int, *, seed: int, termination: float = 0.0, infeasible: float = 0.0
) -> MDP:
    """Return a random sparse model, a Garnet (Archibald, McKinnon and Thomas 1995).

    The successors of each action are sampled with replacement, with probabilities from a flat Dirichlet distribution;
    its reward is standard normal.

    Args:
        states: S.
        actions: A.
        successors: number of successors per action.
        seed: seed of `numpy.random.default_rng`.
        termination: the probability that a transition ends the episode.
        infeasible: the probability that an action is not feasible; the first action of a state always is.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not (0 <= termination <= 1 and 0 <= infeasible <= 1):
        raise ValueError(f"termination is {termination} and infeasible {infeasible}, expected probabilities")
    rng = np.random.default_rng(seed)
    rows = check_count(states, "states") * check_count(actions, "actions")
    feasible = rng.random((states, actions)) >= infeasible
    feasible[:, 0] = True
    lengths = np.where(feasible.ravel(), check_count(successors, "successors"), 0)
    count = int(lengths.sum())
    return MDP(
        states=states,
        actions=actions,
        indptr=np.concatenate([[0], np.cumsum(lengths)]),
        successors=rng.integers(states, size=(count // successors, successors)).ravel(),
        probabilities=rng.dirichlet(np.ones(successors), count // successors).ravel(),
        rewards=np.repeat(rng.normal(size=rows), lengths),
        terminates=rng.random(count) < termination,
        start=np.full(states, 1 / states),
    )
