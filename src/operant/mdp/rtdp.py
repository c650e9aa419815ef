"""Asynchronous and real-time value iteration: back up the states that greedy trajectories visit (Barto et al. 1995)."""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from operant.mdp.bellman_kernels import Rows, Vectors, best_action, compiled
from operant.mdp.iteration import Iteration
from operant.mdp.model import MDP
from operant.mdp.problem import Problem
from operant.mdp.random import StreamStates, stream_states, uniform
from operant.mdp.solution import Solution

__all__ = ["PURPOSES", "asynchronous_value_iteration", "back_up_at_random", "follow_greedy", "return_bound"]

Order = Literal["real-time", "random"]
PURPOSES: Mapping[Order, str] = {"real-time": "trajectories", "random": "order of backups"}
"""Purpose of the random numbers of each order."""

LONGEST = 1_000
"""Maximum length of a trajectory."""


@compiled
def follow_greedy(rows: Rows, vectors: Vectors, starts: NDArray[np.float64], rng: StreamStates, count: int) -> int:
    """Back up states along greedy trajectories by the stream `rng`, `[1]`, at least `count` times; return how often."""
    values, policy = vectors.values, vectors.policy
    length, backups = min(values.size, LONGEST), 0
    while backups < count:
        s = min(np.searchsorted(starts, uniform(rng, 0), side="right"), values.size - 1)
        for _ in range(length):
            best, policy[s] = best_action(rows, s, values, policy[s], vectors.margin)
            values[s] = best
            backups += 1
            left, k, following = uniform(rng, 0), s * rows.actions + policy[s], -1
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
def back_up_at_random(rows: Rows, vectors: Vectors, rng: StreamStates, count: int) -> None:
    """Back up states sampled uniformly by the stream `rng`, `[1]`, in place."""
    values, policy = vectors.values, vectors.policy
    for _ in range(count):
        s = np.int64(uniform(rng, 0) * values.size)
        best, policy[s] = best_action(rows, s, values, policy[s], vectors.margin)
        if policy[s] >= 0:
            values[s] = best


def asynchronous_value_iteration(
    mdp: MDP,
    *,
    gamma: float,
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
    order: Order = "real-time",
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
    rng, starts = stream_states([seed], PURPOSES[order]), np.cumsum(mdp.start)
    for _ in solver.rounds():
        vectors = Vectors(solver.values, solver.out, solver.policy, problem.margin(solver.values))
        if order == "random":
            back_up_at_random(problem.rows, vectors, rng, mdp.states)
        else:
            follow_greedy(problem.rows, vectors, starts, rng, mdp.states)
        solver.back_up()
        if solver.finished:
            break
    return solver.conclude(f"{order}-value-iteration")


def return_bound(mdp: MDP, problem: Problem) -> float:
    """Return an upper bound on all optimal values with a discount: the value of always getting the maximum reward."""
    max_reward = float(mdp.expected_rewards.max(where=mdp.feasible, initial=-np.inf))
    return max_reward / (1 - (problem.max_discount if max_reward > 0 else problem.min_discount))
