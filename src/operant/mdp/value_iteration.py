"""Value iteration: back up all states by the Bellman optimality equation until nothing changes (Bellman 1957)."""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from operant.mdp.iteration import Iteration
from operant.mdp.model import MDP
from operant.mdp.solution import Solution

__all__ = ["q_value_iteration", "value_iteration"]


def value_iteration(
    mdp: MDP,
    *,
    gamma: float,
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
    method: Literal["jacobi", "gauss-seidel"] = "jacobi",
    initial: ArrayLike | None = None,
    threads: int | None = None,
    device: str | None = None,
) -> Solution:
    """Solve a model by sweeps over all states.

    It stops when certified bounds are at most twice the tolerance apart, and returns their middle. If all rows sum to
    1, their distance is the span of the last change (MacQueen 1966; Puterman 1994, §6.6.3), which may decrease much
    faster than the change.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        tolerance: accuracy of every value, in units of reward. At gamma = 1 the sweeps stop when the last
            change times the expected remaining steps is below a quarter of it, and then the bounds are computed.
        max_iterations: maximum sweeps; then `converged` is false.
        method: `"jacobi"` backs up all states from the previous values, on several threads if useful; `"gauss-seidel"`
            uses the newest values, in alternating order.
        initial: `[S]`, initial values; None: the lowest possible values. At gamma = 1 it must be None, and the initial
            values are those of a proper policy.
        threads: maximum number of threads per sweep; None: automatic.
        device: a PyTorch device such as `"cuda"` for `"jacobi"`; None: compiled code on the CPU.

    Returns:
        The solution; `iterations` counts sweeps.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and from some state no policy ends the episode.
    """
    if method not in ("jacobi", "gauss-seidel"):
        raise ValueError(f"method is {method!r}, expected 'jacobi' or 'gauss-seidel'")
    if device is not None and method != "jacobi":
        raise ValueError(f"device is {device!r}, expected None for {method!r}, which is sequential")
    solver = Iteration.begin(
        mdp, gamma=gamma, tolerance=tolerance, limit=max_iterations, initial=initial, threads=threads
    )
    if device is not None:
        from operant.mdp.device import iterate_on_device  # noqa: PLC0415 (torch only on request)

        iterate_on_device(solver, device)
    elif method == "gauss-seidel":
        _in_place(solver)
    else:
        for _ in solver.rounds():
            solver.back_up()
            if solver.finished:
                break
    return solver.conclude(f"value-iteration-{method}")


def _in_place(solver: Iteration) -> None:
    """Sweep by Gauss-Seidel, and check the bounds when the last change is small, or occasionally."""
    for count in solver.rounds():
        low, high = solver.problem.sweep(solver.values, solver.policy, backward=count % 2 == 0)
        small = max(-low, high) * solver.problem.stretch <= 2 * solver.tolerance
        if small or count.bit_count() == 1 or count == solver.limit:
            solver.back_up()
            if solver.finished:
                break


def q_value_iteration(
    mdp: MDP,
    *,
    gamma: float,
    tolerance: float = 1e-6,
    max_iterations: int = 100_000,
    initial: ArrayLike | None = None,
    threads: int | None = None,
) -> Solution:
    """Solve a model by sweeps over the table of action values, `Q <- R + gamma P max_a Q`.

    The maxima of successive tables are the values of value iteration.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        tolerance: accuracy of every value, in units of reward.
        max_iterations: maximum sweeps; then `converged` is false.
        initial: `[S, A]`, initial action values; None: as in `value_iteration`, also at gamma = 1.
        threads: maximum number of threads per sweep; None: automatic.

    Returns:
        The solution; `iterations` counts sweeps, and `q` is the table.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and from some state no policy ends the episode.
    """
    if initial is not None:
        table = np.asarray(initial, float)
        if table.shape != (mdp.states, mdp.actions):
            raise ValueError(f"initial has the shape {table.shape}, expected {(mdp.states, mdp.actions)}")
        initial = np.where(mdp.terminal, 0.0, table.max(axis=1, where=mdp.feasible, initial=-np.inf))
    solver = Iteration.begin(
        mdp, gamma=gamma, tolerance=tolerance, limit=max_iterations, initial=initial, threads=threads
    )
    live = ~mdp.terminal
    for _ in solver.rounds():
        table = solver.problem.action_values(solver.values)
        best = np.where(live, table.max(axis=1), 0.0)
        current = np.take_along_axis(table, np.maximum(solver.policy, 0)[:, None], axis=1)[:, 0]
        stays = (solver.policy >= 0) & (current >= best - solver.problem.margin(solver.values))
        solver.policy = np.where(live, np.where(stays, solver.policy, table.argmax(axis=1)), -1)
        difference = (best - solver.values)[live]
        solver.change = float(difference.min(initial=np.inf)), float(difference.max(initial=-np.inf))
        solver.values = best
        if solver.finished:
            break
    return solver.conclude("q-value-iteration")
