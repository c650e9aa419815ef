"""Average reward per step over an infinite horizon."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from operant.mdp.graphs import closed_components
from operant.mdp.model import MDP
from operant.mdp.problem import Problem, check_tolerance, warn_of_limit
from operant.mdp.validation import labeled, raise_if_any

__all__ = ["AverageSolution", "relative_value_iteration", "require_no_terminal_state"]


@dataclass(frozen=True, eq=False)
class AverageSolution:
    """Optimal average reward, relative values, and a policy.

    Attributes:
        gain: optimal average reward per step, the middle of its bounds.
        lower: certified lower bound on the gain from every state, reached by the policy.
        upper: certified upper bound on the gain from every state.
        bias: `[S]`, the relative values, 0 in state 0.
        policy: `[S]`, an action in every state.
        iterations: sweeps.
        converged: whether the requested tolerance is reached.
        seconds: wall-clock time in seconds.
        reason: reason why it did not converge: the structure of the model, or rounding errors; empty if unknown.
    """

    gain: float
    lower: float
    upper: float
    bias: NDArray[np.float64]
    policy: NDArray[np.int64]
    iterations: int
    converged: bool
    seconds: float
    reason: str = ""


def relative_value_iteration(
    mdp: MDP,
    *,
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
    damping: float = 0.5,
    threads: int | None = None,
) -> AverageSolution:
    """Compute the optimal average reward by relative value iteration (White 1963; Puterman 1994, §8.5).

    After each sweep, the minimum and maximum change bound the optimal gain from every state (Odoni 1969), for any
    structure of the model. The bounds converge if all states have the same gain, e.g. if all states are connected;
    otherwise it stops at `max_iterations`.

    Args:
        mdp: the model, without terminal states and terminations.
        tolerance: accuracy of the gain, in units of reward.
        max_iterations: maximum sweeps; then `converged` is false.
        damping: weight of the old values in each sweep, for convergence of periodic models; 0: none.
        threads: maximum number of threads per sweep; None: automatic.

    Raises:
        ValueError: if an argument is out of range, or episodes can end in this model.
    """
    start_time = time.perf_counter()
    check_tolerance(tolerance, max_iterations)
    if not 0 <= damping < 1:
        raise ValueError(f"damping is {damping}, expected at least 0 and less than 1")
    require_no_terminal_state(mdp)
    raise_if_any(
        mdp.terminates, lambda i: f"transition {i} terminates, but the average reward needs an infinite horizon"
    )
    problem = Problem.of(mdp, 1.0, threads=threads)
    values, out, policy = np.zeros(mdp.states), np.empty(mdp.states), np.full(mdp.states, -1)
    iteration = 0
    while True:
        iteration += 1
        low, high = problem.improve(values, out, policy, margin=-np.inf)
        error = 2 * problem.rounding(values)
        low, high = low - error, high + error
        if high - low <= max(2 * tolerance, 4 * error) or iteration == max_iterations:
            break
        values = damping * values + (1 - damping) * out
        values -= values[0]
    converged = high - low <= 2 * tolerance
    if not converged and iteration == max_iterations:
        warn_of_limit(max_iterations, tolerance)
    return AverageSolution(
        gain=(low + high) / 2,
        lower=low,
        upper=high,
        bias=values - values[0],
        policy=policy,
        iterations=iteration,
        converged=converged,
        seconds=time.perf_counter() - start_time,
        reason="" if converged else _reason(mdp, rounded=high - low <= 4 * error),
    )


def closed_classes(mdp: MDP) -> list[NDArray[np.int64]]:
    """Return the sets of states that no action leaves and in which every state can reach every other."""
    origins = np.repeat(np.arange(mdp.states), np.diff(mdp.indptr).reshape(mdp.states, mdp.actions).sum(axis=1))
    labels, closed = closed_components(origins, mdp.successors, mdp.states)
    return [np.flatnonzero(labels == label) for label in np.flatnonzero(closed)]


def require_no_terminal_state(mdp: MDP) -> None:
    """Raise ValueError if a state of a model is terminal."""
    raise_if_any(
        mdp.terminal,
        lambda s: f"state {labeled(s, mdp.state_names)} is terminal, but the average reward needs an infinite horizon",
    )


def _reason(mdp: MDP, *, rounded: bool) -> str:
    if rounded:
        return "rounding errors are larger than the tolerance; raise it"
    closed = closed_classes(mdp)
    if len(closed) < 2:
        return ""
    first, second = (labeled(int(states[0]), mdp.state_names) for states in closed[:2])
    return (
        f"the model has {len(closed)} closed classes, each with its own average reward: states {first} and "
        f"{second} cannot reach each other; solve each class separately, or with a discount"
    )
