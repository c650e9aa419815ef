"""Asynchronous and real-time value iteration: back up the states that greedy trajectories visit (Barto et al. 1995)."""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from operant.mdp.bellman_kernels import Rows, Vectors, best_action, compiled
from operant.mdp.iteration import Iteration
from operant.mdp.model import MDP
from operant.mdp.problem import Problem
from operant.mdp.solution import Solution

__all__ = ["asynchronous_value_iteration", "back_up_at_random", "follow_greedy", "random_state", "return_bound"]

LONGEST = 1_000
"""Maximum length of a trajectory."""


def random_state(seed: int) -> NDArray[np.uint64]:
    """Return the state of the random numbers of this module, `[1]`.

    Raises:
        ValueError: if the seed is negative, or too large for 64 bits.
    """
    if not 0 <= seed < 2**64:
        raise ValueError(f"seed is {seed}, expected 0 to {2**64 - 1}")
    return np.array([seed], np.uint64)


@compiled
def _uniform(state: NDArray[np.uint64]) -> float:
    """Return a number in [0, 1) and advance `state`, `[1]` of uint64, by splitmix64 (Steele et al. 2014)."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return np.float64(z >> np.uint64(11)) * 2.0**-53


@compiled
def follow_greedy(
    rows: Rows, vectors: Vectors, starts: NDArray[np.float64], state: NDArray[np.uint64], count: int
) -> int:
    """Back up states along greedy trajectories, at least `count` times; return how often."""
    values, policy = vectors.values, vectors.policy
    length, backups = min(values.size, LONGEST), 0
    while backups < count:
        s = min(np.searchsorted(starts, _uniform(state), side="right"), values.size - 1)
        for _ in range(length):
            best, policy[s] = best_action(rows, s, values, policy[s], vectors.margin)
            values[s] = best
            backups += 1
            left, k, following = _uniform(state), s * rows.actions + policy[s], -1
            for j in range(rows.indptr[k], rows.indptr[k + 1]):
                left -= rows.probabilities[j]
                if left < 0:
                    following = np.int64(rows.successors[j])
                    break
            if following < 0:
                break
            s = following
    return backups


@compiled
def back_up_at_random(rows: Rows, vectors: Vectors, state: NDArray[np.uint64], count: int) -> None:
    """Back up uniformly sampled states, in place."""
    values, policy = vectors.values, vectors.policy
    for _ in range(count):
        s = np.int64(_uniform(state) * values.size)
        best, policy[s] = best_action(rows, s, values, policy[s], vectors.margin)
        if policy[s] >= 0:
            values[s] = best


def asynchronous_value_iteration(
    mdp: MDP,
    *,
    gamma: float,
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
    order: Literal["real-time", "random"] = "real-time",
    seed: int = 0,
    threads: int | None = None,
) -> Solution:
    """Solve a model by asynchronous backups in place, along trajectories or in random order.

    In real time the backups follow greedy trajectories from the start distribution, so they focus on the states of good
    policies. A round makes about as many backups as there are states, plus a sweep over all of them, without which the
    values of unvisited states would not converge. With a discount the initial values are upper bounds (optimism), which
    attracts trajectories to unexplored states.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        tolerance: accuracy of every value, in units of reward.
        max_iterations: maximum rounds; then `converged` is false.
        order: `"real-time"` along greedy trajectories from the start distribution; `"random"` uniformly.
        seed: seed of the trajectories or the order.
        threads: maximum number of threads per sweep; None: automatic.

    Returns:
        The solution; `iterations` counts rounds.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and from some state no policy ends the episode.
    """
    if order not in ("real-time", "random"):
        raise ValueError(f"order is {order!r}, expected 'real-time' or 'random'")
    solver = Iteration.begin(mdp, gamma=gamma, tolerance=tolerance, limit=max_iterations, threads=threads)
    problem = solver.problem
    if problem.discounted:
        solver.values = problem.start(np.full(mdp.states, return_bound(mdp, problem)))
    state, starts = random_state(seed), np.cumsum(mdp.start)
    for _ in solver.rounds():
        vectors = Vectors(solver.values, solver.out, solver.policy, problem.margin(solver.values))
        if order == "random":
            back_up_at_random(problem.rows, vectors, state, mdp.states)
        else:
            follow_greedy(problem.rows, vectors, starts, state, mdp.states)
        solver.back_up()
        if solver.finished:
            break
    return solver.conclude(f"{order}-value-iteration")


def return_bound(mdp: MDP, problem: Problem) -> float:
    """Return an upper bound on all optimal values with a discount: the value of always getting the maximum reward."""
    max_reward = float(mdp.expected_rewards.max(where=mdp.feasible, initial=-np.inf))
    return max_reward / (1 - (problem.max_discount if max_reward > 0 else problem.min_discount))
