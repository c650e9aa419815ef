"""Prioritized sweeping: backups in order of priority (Moore and Atkeson 1993)."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.bellman_kernels import Rows, Vectors, best_action, compiled
from operant.mdp.heap import Heap, pop, push
from operant.mdp.iteration import Iteration
from operant.mdp.model import MDP
from operant.mdp.solution import Solution
from operant.mdp.undiscounted import check_bounded
from operant.mdp.validation import check_count

__all__ = ["Predecessors", "drain", "fill", "predecessors_of", "prioritized_sweeping"]


class Predecessors(NamedTuple):
    """Predecessors of each state, sparse: starts of the lists, states, and maximum probabilities."""

    begins: NDArray[np.int64]
    states: NDArray[np.int64]
    weights: NDArray[np.float64]


@compiled
def fill(rows: Rows, vectors: Vectors, heap: Heap, threshold: float) -> None:
    """Fill an empty heap with all states that a backup changes by more than the threshold."""
    values, policy = vectors.values, vectors.policy
    for s in range(values.size):
        best, action = best_action(rows, s, values, policy[s], vectors.margin)
        if action >= 0 and abs(best - values[s]) > threshold:
            push(heap, 0, s, abs(best - values[s]))


@compiled
def drain(  # noqa: PLR0917 - kernels have no keyword arguments
    rows: Rows, vectors: Vectors, predecessors: Predecessors, heap: Heap, threshold: float, limit: int
) -> int:
    """Back up the state with the highest priority until none is above the threshold; return the number of backups."""
    values, policy = vectors.values, vectors.policy
    for backups in range(limit):
        if heap.queued[0] == 0:
            return backups
        s = pop(heap, 0)
        heap.priority[0, s] = 0.0
        best, policy[s] = best_action(rows, s, values, policy[s], vectors.margin)
        change = rows.gamma * abs(best - values[s])
        values[s] = best
        for j in range(predecessors.begins[s], predecessors.begins[s + 1]):
            t: int = predecessors.states[j]
            priority = heap.priority[0, t] + predecessors.weights[j] * change
            if priority > threshold:
                push(heap, 0, t, priority)
            else:
                heap.priority[0, t] = priority
    return limit


def prioritized_sweeping(
    mdp: MDP,
    *,
    gamma: float,
    tolerance: float = 1e-6,
    max_backups: int | None = None,
    initial: ArrayLike | None = None,
) -> Solution:
    """Solve a model by single backups, always of the state with the largest possible change.

    The change of a state is bounded by the changes of its successors since its last backup, each times the maximum
    probability of reaching it.

    It is efficient for sparse rewards, such as one goal in a large maze.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        tolerance: accuracy of every value, in units of reward.
        max_backups: maximum number of backups; then `converged` is false. None: 100 000 times the number of states.
        initial: `[S]`, initial values; None: as in `value_iteration`.

    Returns:
        The solution; `iterations` counts backups of single states.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and from some state no policy ends the episode.
        TypeError: if `max_backups` is not a whole number.
    """
    limit = 100_000 * mdp.states if max_backups is None else check_count(max_backups, "max_backups")
    solver = Iteration.begin(mdp, gamma=gamma, tolerance=tolerance, limit=limit, initial=initial, threads=1)
    problem, predecessors = solver.problem, predecessors_of(solver.problem.rows, mdp.states)
    threshold = tolerance / (4 * problem.stretch)
    while True:
        heap = Heap.new(1, mdp.states)
        vectors = Vectors(solver.values, solver.out, solver.policy, problem.margin(solver.values))
        most = min(limit - solver.count, 1_000 * mdp.states)
        fill(problem.rows, vectors, heap, threshold)
        solver.count += drain(problem.rows, vectors, predecessors, heap, threshold, most)
        solver.back_up()
        if solver.finished:
            return solver.conclude("prioritized-sweeping")
        threshold = min(threshold, solver.residual) / 2
        if not problem.discounted:
            check_bounded(mdp, solver.policy)


def predecessors_of(rows: Rows, states: int) -> Predecessors:
    """Return the states that can lead to each state."""
    lengths = np.diff(rows.indptr.view(np.int64))
    owners = np.repeat(np.arange(lengths.size) // rows.actions, lengths)
    order = np.lexsort((rows.probabilities, owners, rows.successors))
    owners, successors, weights = owners[order], rows.successors[order], rows.probabilities[order]
    last = np.ones(owners.size, np.bool_)
    last[:-1] = (owners[1:] != owners[:-1]) | (successors[1:] != successors[:-1])
    counts = np.bincount(successors[last], minlength=states)
    return Predecessors(np.concatenate([[0], np.cumsum(counts)]), owners[last], weights[last])
