"""A model at a discount, prepared for the kernels, with certified bounds on its optimal values.

**Offset.** The kernels work on `W = V - c`, where `c` is the least reward for ever, `r_min / (1 - gamma)`: they see an
equivalent model with the rewards `r - c (1 - gamma m)`, where `m` is the probability that a row goes on. In double
precision a hint of a far goal drowns in a value of -100 but not in one of 0, so that one sweep carries it all the way.

**Bounds** (MacQueen 1966; for rows that sum to less than 1, Porteus 1975). Let `d = TW - W`, let the rows go on with
probabilities between `m_low` and `m_high`, and let `gamma m_high < 1`. A constant `k` added to all values adds between
`gamma m_low k` and `gamma m_high k` to their backups. Hence `TW + f(min d) <= W* <= TW + f(max d)`, where
`f(x) = x b / (1 - b)` and `b` is `gamma m_high` where that moves the bound outward, `gamma m_low` elsewhere.
The greedy policy of `W` has the same lower bound. What floating point may have cost is added on both sides.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp import kernels
from operant.mdp.kernels import Rows, Vectors
from operant.mdp.model import MDP

__all__ = ["Problem", "Workers", "check_gamma", "check_tolerance", "rows_of"]

Floats = NDArray[np.float64]
Actions = NDArray[np.int64]
Bools = NDArray[np.bool_]
Change = tuple[float, float]

UNIT = float(np.finfo(np.float64).eps)
ROWS_PER_THREAD = 100_000
"""A thread does not pay for fewer: a sweep over them takes half a millisecond, waking a thread a tenth of one."""


def check_gamma(gamma: float) -> float:
    """Return a discount factor, or raise ValueError where it is not between 0 and 1."""
    if not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma}, expected a number between 0 and 1")
    return float(gamma)


def check_tolerance(tolerance: float, max_iterations: int) -> None:
    """Raise ValueError unless a solver could stop by these."""
    if not 0 < tolerance < np.inf:
        raise ValueError(f"tolerance is {tolerance}, expected a positive number")
    if max_iterations < 1:
        raise ValueError(f"max_iterations is {max_iterations}, expected at least 1")


class Workers:
    """Threads that share the sweeps over one model.

    Args:
        rows: how many rows a sweep visits.
        threads: how many at most; None for all that the process may use. A small model gets fewer.
    """

    def __init__(self, rows: int, threads: int | None = None) -> None:
        allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}, expected at least 1, or None to choose")
        self.threads = min(threads or allowed, allowed, max(1, rows // ROWS_PER_THREAD))
        self._pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None

    def run(self, kernel: Any, size: int, *arguments: Any) -> list[Any]:
        """Call `kernel(begin, end, *arguments)` on parts of `[0, size)`, and return what each call returned."""
        if self._pool is None:
            return [kernel(0, size, *arguments)]
        cuts = [size * i // self.threads for i in range(self.threads + 1)]
        return list(self._pool.map(lambda i: kernel(cuts[i], cuts[i + 1], *arguments), range(self.threads)))


@dataclass(frozen=True, eq=False)
class Problem:
    """A model at a discount, or the chain that a policy leaves of it.

    Attributes:
        rows: the transitions that go on, and the rewards less the offset.
        terminal: `[S]`, whose value is 0.
        offset: what is subtracted from the value of every state that is not terminal.
        least: at most gamma times the probability that any row goes on.
        most: at least that.
        longest: the greatest number of successors of a row.
        largest_reward: in absolute terms.
        ceiling: no value of an even problem is greater, less the offset, and none is negative.
        stretch: the error that a Bellman residual of 1 may hide, as far as is known before a solution is.
        workers: the threads that share a sweep.
    """

    rows: Rows
    terminal: Bools
    offset: float
    least: float
    most: float
    longest: int
    largest_reward: float
    ceiling: float
    stretch: float
    workers: Workers

    @classmethod
    def of(cls, mdp: MDP, gamma: float, *, threads: int | None = None, centred: bool = True) -> Self:
        """Prepare a model, with an offset where `centred`.

        Raises:
            ValueError: `gamma` is not between 0 and 1, or `threads` is below 1.
        """
        rows = rows_of(mdp.continuation, mdp.expected_rewards.ravel(), mdp.actions, gamma)
        return cls.of_rows(rows, mdp.terminal, threads=threads, centred=centred)

    @classmethod
    def of_rows(cls, rows: Rows, terminal: Bools, *, threads: int | None = None, centred: bool = True) -> Self:
        """Prepare rows with plain rewards, which are ignored in states that are terminal.

        Raises:
            ValueError: `gamma` is not between 0 and 1, or `threads` is below 1.
        """
        gamma, size = check_gamma(rows.gamma), rows.rewards.size
        workers, masses = Workers(size, threads), np.ones(size)
        parts = workers.run(kernels.mass_range, size, rows, masses)
        least, most, longest = min(p[0] for p in parts), max(p[1] for p in parts), max(p[2] for p in parts)
        feasible = rows.rewards > -np.inf
        smallest = float(rows.rewards.min(where=feasible, initial=np.inf))
        rounding = 4 * UNIT * (longest + 1)
        offset, rewards = 0.0, rows.rewards
        if centred and gamma < 1:
            offset = smallest / (1 - gamma)
            leak = 1 - masses
            leak[leak <= rounding] = 0.0
            rewards = np.where(
                np.repeat(terminal, rows.actions) & feasible, 0.0, rewards - smallest - gamma * offset * leak
            )
        most *= gamma * (1 + rounding)
        stretch = 1 / (1 - most) if most < 1 else float(np.inf)
        return cls(
            rows=rows._replace(rewards=rewards),
            terminal=terminal,
            offset=offset,
            least=gamma * least * (1 - rounding),
            most=most,
            longest=longest,
            largest_reward=float(np.abs(rows.rewards).max(where=feasible, initial=0.0)),
            ceiling=float(rewards.max(initial=0.0)) * stretch,
            stretch=stretch,
            workers=workers,
        )

    @property
    def states(self) -> int:
        """S."""
        return self.terminal.size

    @property
    def discounted(self) -> bool:
        """Whether every backup contracts, so that the bounds of this module hold."""
        return self.most < 1

    @property
    def even(self) -> bool:
        """Whether all rows go on alike, so that a constant can be added to all values at once."""
        return self.discounted and self.least > self.most * (1 - 1e-6)

    def start(self, initial: ArrayLike | None) -> Floats:
        """Return the first values, less the offset: `initial`, or the least that any policy can earn."""
        if initial is None:
            return np.zeros(self.states)
        values = np.asarray(initial, float)
        if values.shape != (self.states,) or not np.isfinite(values).all():
            raise ValueError(f"initial has the shape {values.shape}, expected {self.states} finite numbers")
        return np.where(self.terminal, 0.0, values - self.offset)

    def restore(self, values: Floats, shift: float = 0.0) -> Floats:
        """Return values with the offset added, and `shift`; 0 in terminal states."""
        return np.where(self.terminal, 0.0, values + (self.offset + shift))

    def margin(self, values: Floats) -> float:
        """Return by how much an action must be better to replace the one that a policy holds.

        Minus infinity with a discount: the first of the best actions is taken. At gamma = 1 an action that is as good
        may lead round in circles for ever, so that rounding errors must not choose it.
        """
        return -np.inf if self.discounted else 4 * self.rounding(values)

    def keep_margin(self, values: Floats) -> float:
        """Return by how much an action must be better for exact values of a policy to prove that it is."""
        return 8 * self.rounding(values) * min(self.stretch, 1e3)

    def improve(self, values: Floats, out: Floats, policy: Actions, *, margin: float | None = None) -> Change:
        """Write the backup of `values` to `out`, make `policy` greedy; return the least and the greatest change.

        An action that the policy holds stays unless another is better by more than `margin` (None: the default).
        """
        vectors = Vectors(values, out, policy, self.margin(values) if margin is None else margin)
        parts = self.workers.run(kernels.jacobi, self.states, self.rows, vectors)
        return min(part[0] for part in parts), max(part[1] for part in parts)

    def sweep(self, values: Floats, policy: Actions, *, backward: bool) -> Change:
        """Back up `values` in place, one state after the other; return the least and the greatest change."""
        return kernels.gauss_seidel(self.rows, Vectors(values, values, policy, self.margin(values)), backward)

    def centre(self, values: Floats, change: Change) -> None:
        """Move the values of an even problem by a constant, to the middle of the bounds that a backup gave them."""
        middle = sum(self.shifts(change, 0.0)) / 2
        highest, lowest = float(values.max()), float(values.min(where=~self.terminal, initial=np.inf))
        values[~self.terminal] += min(max(middle, -lowest), max(self.ceiling - highest, 0.0))

    def action_values(self, values: Floats) -> Floats:
        """Return the values of all actions, less the offset, `[S, A]`; minus infinity where one is not feasible."""
        table = np.empty(self.rows.rewards.size)
        self.workers.run(kernels.action_values, table.size, self.rows, values, table)
        return table.reshape(self.states, self.rows.actions)

    def chain(self, policy: Actions) -> Self:
        """Return what a policy leaves of the model: one row a state."""
        indptr, actions = self.rows.indptr.view(np.int64), self.rows.actions
        chosen = np.arange(self.states) * actions + np.maximum(policy, 0)
        begins = np.zeros(self.states + 1, np.int64)
        np.cumsum(np.where(policy >= 0, indptr[chosen + 1] - indptr[chosen], 0), out=begins[1:])
        size = int(begins[-1])
        rows = self.rows._replace(
            indptr=begins.view(np.uint64),
            successors=np.empty(size, np.uint32),
            probabilities=np.empty(size),
            rewards=np.empty(self.states),
            actions=1,
        )
        self.workers.run(kernels.select, self.states, self.rows, policy, rows)
        return replace(self, rows=rows)

    def rounding(self, values: Floats) -> float:
        """Bound the error of a floating-point backup of `values` (Higham 2002, §3.1)."""
        size = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
        scale = abs(self.offset) + self.largest_reward
        return UNIT * (self.longest + 4) * (size + 6 * scale)

    def close(self, change: Change, tolerance: float, values: Floats) -> bool:
        """Tell whether the backup that returned `values` was the last that is needed, given the change that it made.

        It was if all values are within `tolerance` of the optimum, or if rounding errors are all that still changes.
        """
        error = self.rounding(values)
        if not self.discounted:
            return self.spread(change) <= max(tolerance / (4 * self.stretch), error)
        down, up = self.shifts(change, error)
        return up - down <= 2 * tolerance or self.spread(change) <= 2 * error

    def spread(self, change: Change) -> float:
        """Return the part of a change that a constant does not explain, or all of it where rows do not go on alike."""
        low, high = change
        return high - low if self.even else max(-low, high)

    def shifts(self, change: Change, error: float) -> tuple[float, float]:
        """Return what to add to a backup for bounds on the optimal values, with a discount.

        Args:
            change: the least and the greatest that the backup made.
            error: bound on its rounding error.
        """
        low, high = change[0] - error, change[1] + error
        down, up = self.most if low < 0 else self.least, self.most if high > 0 else self.least
        return low * down / (1 - down) - error, high * up / (1 - up) + error


def rows_of(transitions: tuple[Any, Any, Any], rewards: Floats, actions: int, gamma: float) -> Rows:
    """Return sparse rows, `(indptr, successors, probabilities)`, with the types that the kernels take."""
    indptr, successors, probabilities = transitions
    begins = np.asarray(indptr, np.int64).view(np.uint64)
    return Rows(begins, np.asarray(successors).astype(np.uint32), probabilities, rewards, actions, gamma)
