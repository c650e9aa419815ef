"""A model at a discount, prepared for the kernels, with certified bounds on its optimal values.

**Offset.** The kernels work on `W = V - c`, where `c` is the value of always getting the minimum reward, `r_min / (1 -
gamma)`: they solve an equivalent model with the rewards `r - c (1 - gamma m)`, where `m` is the probability that a row
continues. In double precision a small value of a distant goal is rounded away next to -100 but not next to 0, so one
sweep propagates it.

**Bounds** (MacQueen 1966; for rows that sum to less than 1, Porteus 1975). Let `d = TW - W`, let the rows continue with
probabilities between `m_low` and `m_high`, and let `gamma m_high < 1`. A constant `k` added to all values adds between
`gamma m_low k` and `gamma m_high k` to their backups. So `TW + f(min d) <= W* <= TW + f(max d)`, where `f(x) = x b /
(1 - b)` and `b` is `gamma m_high` if that widens the bound, else `gamma m_low`. The greedy policy of `W`
has the same lower bound. The rounding error bound is added on both sides.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Self, TypeVar, TypeVarTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.cores import allowed_cores
from operant.mdp import bellman_kernels
from operant.mdp.bellman_kernels import TINY, Actions, Change, Floats, Rows, Vectors
from operant.mdp.model import MDP
from operant.mdp.rows import Facts

__all__ = ["Problem", "Workers", "check_gamma", "check_tolerance", "warn_of_limit"]

Bools = NDArray[np.bool_]
Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

logger = logging.getLogger(__name__)

UNIT = float(np.finfo(np.float64).eps)
LARGEST = 1e150
"""Largest value whose square is representable."""
ROWS_PER_THREAD = 100_000
"""Minimum rows per thread: a sweep over them takes 0.5 ms, starting a thread 0.1 ms."""


def check_gamma(gamma: float) -> float:
    """Return a discount factor, or raise ValueError if it is not between 0 and 1."""
    if not isinstance(cast(object, gamma), Real) or not 0 <= gamma <= 1:
        raise ValueError(f"gamma is {gamma!r}, expected a number between 0 and 1")
    return float(gamma)


def check_tolerance(tolerance: float, max_iterations: int) -> None:
    """Raise ValueError unless these are valid stopping criteria."""
    if not isinstance(cast(object, tolerance), Real) or not 0 < tolerance < np.inf:
        raise ValueError(f"tolerance is {tolerance!r}, expected a positive number")
    if not isinstance(cast(object, max_iterations), Integral) or max_iterations < 1:
        raise ValueError(f"max_iterations is {max_iterations!r}, expected an integer of at least 1")


def warn_of_limit(max_iterations: int, tolerance: float) -> None:
    """Log that a solver has reached its limit before its tolerance."""
    logger.warning(
        "the solver stopped at max_iterations=%d without certifying the tolerance %g: raise either, or see the bounds",
        max_iterations,
        tolerance,
    )


class Workers:
    """Threads that share the sweeps over one model.

    Args:
        rows: number of rows of a sweep.
        threads: maximum number; None: all that the process may use. Small models use fewer.
    """

    def __init__(self, rows: int, threads: int | None = None) -> None:
        allowed = allowed_cores()
        if threads is not None and threads < 1:
            raise ValueError(f"threads is {threads}, expected at least 1, or None")
        self.threads = min(threads or allowed, allowed, max(1, rows // ROWS_PER_THREAD))
        self._pool = ThreadPoolExecutor(self.threads) if self.threads > 1 else None

    def run(self, kernel: Callable[[int, int, *Arguments], Result], size: int, *arguments: *Arguments) -> list[Result]:
        """Call `kernel(begin, end, *arguments)` on parts of `[0, size)`, and return the results."""
        if self._pool is None:
            return [kernel(0, size, *arguments)]
        cuts = [size * i // self.threads for i in range(self.threads + 1)]

        def part(i: int) -> Result:
            return kernel(cuts[i], cuts[i + 1], *arguments)

        return list(self._pool.map(part, range(self.threads)))


@dataclass(frozen=True, eq=False)
class Problem:
    """A model at a discount, or the chain of a policy.

    Attributes:
        rows: the transitions that continue, and the rewards minus the offset.
        terminal: `[S]`, states with value 0.
        offset: constant subtracted from the value of every non-terminal state.
        min_discount: lower bound on gamma times the probability that a row continues.
        max_discount: upper bound on it.
        longest: maximum number of successors of a row.
        largest_reward: largest absolute reward.
        noise: part of the rounding error of a backup that is independent of the values.
        ceiling: upper bound on the values of an even problem, minus the offset; none is negative.
        stretch: a-priori bound on the error at a Bellman residual of 1.
        workers: the threads of a sweep.
    """

    rows: Rows
    terminal: Bools
    offset: float
    min_discount: float
    max_discount: float
    longest: int
    largest_reward: float
    noise: float
    ceiling: float
    stretch: float
    workers: Workers

    @classmethod
    def of(cls, mdp: MDP, gamma: float, *, threads: int | None = None, centered: bool = True) -> Self:
        """Prepare a model, with an offset if `centered`.

        Raises:
            ValueError: if `gamma` is not between 0 and 1, or `threads` is below 1.
        """
        rows = mdp.rows._replace(gamma=check_gamma(gamma))
        return cls.of_rows(rows, mdp.terminal, facts=mdp.facts, threads=threads, centered=centered)

    @classmethod
    def of_rows(
        cls,
        rows: Rows,
        terminal: Bools,
        *,
        facts: Facts,
        threads: int | None = None,
        centered: bool = True,
        roundings: int = 0,
    ) -> Self:
        """Prepare rows with plain rewards; rewards of terminal states are ignored.

        Args:
            rows: one row per state and action.
            terminal: `[S]`.
            facts: facts about the rows.
            threads: maximum number of threads per sweep; None: automatic.
            centered: whether to use an offset.
            roundings: number of roundings in each probability and reward.

        Raises:
            ValueError: if `gamma` is not between 0 and 1, `threads` is below 1, or values may overflow.
        """
        gamma, workers = check_gamma(rows.gamma), Workers(rows.rewards.size, threads)
        ends, min_end, max_end, longest, smallest, largest = facts
        min_discount, max_discount = gamma * (1 - max_end) * (1 - 4 * UNIT), gamma * (1 - min_end) * (1 + 4 * UNIT)
        stretch = 1 / (1 - max_discount) if max_discount < 1 else float(np.inf)
        _check_representable(largest, stretch if max_discount < 1 else 1.0, gamma)
        offset, rewards = 0.0, rows.rewards
        if centered and max_discount < 1 and gamma < 1:
            offset = smallest / (1 - gamma)
            rewards = rewards - smallest
            if min_end or max_end:
                rewards -= (gamma * offset) * ends
            rewards[np.repeat(terminal, rows.actions) & (rows.rewards > -np.inf)] = 0.0
        missing = max(abs(min_end), abs(max_end))
        return cls(
            rows=rows._replace(rewards=rewards),
            terminal=terminal,
            offset=offset,
            min_discount=min_discount,
            max_discount=max_discount,
            longest=longest + roundings,
            largest_reward=largest,
            noise=UNIT / 2 * ((longest + 10 + roundings) * largest + (6 * missing + roundings) * abs(offset))
            + (UNIT * longest) ** 2 * abs(offset)
            + TINY,
            ceiling=float(rewards.max(initial=0.0)) * stretch,
            stretch=stretch,
            workers=workers,
        )

    @property
    def states(self) -> int:
        """S."""
        return self.terminal.size

    @cached_property
    def endless(self) -> bool:
        """Whether no state is terminal."""
        return not self.terminal.any()

    @property
    def discounted(self) -> bool:
        """Whether every backup contracts, as needed for the bounds of this module."""
        return self.max_discount < 1

    @property
    def even(self) -> bool:
        """Whether all rows continue with equal probability, so a constant can be added to all values."""
        return self.discounted and self.min_discount > self.max_discount * (1 - 1e-6)

    def start(self, initial: ArrayLike | None, name: str = "initial") -> Floats:
        """Return the initial values, minus the offset: `initial`, or the lowest possible ones."""
        if initial is None:
            return np.zeros(self.states)
        values = np.asarray(initial, float)
        if values.shape != (self.states,) or not np.isfinite(values).all():
            found = f"the shape {values.shape}" if values.shape != (self.states,) else "NaN or Inf"
            raise ValueError(f"{name} has {found}, expected {self.states} finite numbers")
        return np.where(self.terminal, 0.0, values - self.offset)

    def restore(self, values: Floats, shift: float = 0.0) -> Floats:
        """Return values with the offset added, and `shift`; 0 in terminal states."""
        restored = values + (self.offset + shift)
        if not self.endless:
            restored[self.terminal] = 0.0
        return restored

    def margin(self, values: Floats) -> float:
        """Return the margin by which an action must be better to replace the policy's.

        With a discount it is minus infinity: the first of the best actions is selected. At gamma = 1 an equally good
        action may cycle forever, so rounding errors must not select it.
        """
        return -np.inf if self.discounted else 4 * self.rounding(values)

    def keep_margin(self, values: Floats) -> float:
        """Return the margin by which an action must be better on exact values to be certainly better."""
        return 8 * self.rounding(values) * min(self.stretch, 1e3)

    def improve(self, values: Floats, out: Floats, policy: Actions, *, margin: float | None = None) -> Change:
        """Write the backup of `values` to `out`, make `policy` greedy; return the minimum and maximum change.

        The policy's action is kept unless another is better by more than `margin` (None: the default).
        """
        vectors = Vectors(values, out, policy, self.margin(values) if margin is None else margin)
        parts = self.workers.run(bellman_kernels.jacobi, self.states, self.rows, vectors)
        return min(part[0] for part in parts), max(part[1] for part in parts)

    def sweep(self, values: Floats, policy: Actions, *, backward: bool) -> Change:
        """Back up `values` in place; return the minimum and maximum change."""
        return bellman_kernels.gauss_seidel(self.rows, Vectors(values, values, policy, self.margin(values)), backward)

    def center(self, values: Floats, change: Change) -> float:
        """Move the values of an even problem by a constant, to the middle of the bounds from a backup.

        Returns:
            The constant.
        """
        middle, live = sum(self.shifts(change, 0.0)) / 2, True if self.endless else ~self.terminal
        highest, lowest = float(values.max()), float(values.min(where=live, initial=np.inf))
        constant = min(max(middle, -lowest), max(self.ceiling - highest, 0.0))
        if constant:
            np.add(values, constant, out=values, where=live)
        return constant

    def action_values(self, values: Floats) -> Floats:
        """Return all action values, minus the offset, `[S, A]`; minus infinity if infeasible."""
        table = np.empty(self.rows.rewards.size)
        self.workers.run(bellman_kernels.action_values, table.size, self.rows, values, table)
        return table.reshape(self.states, self.rows.actions)

    def chain(self, policy: Actions, before: tuple[Actions, Self] | None = None) -> Self:
        """Return the chain of a policy: one row per state.

        Args:
            policy: `[S]`, -1 in terminal states.
            before: another policy and its chain, which is reused if possible.
        """
        previous, chain = (np.full(self.states, -1), None) if before is None else before
        begins = np.zeros(self.states + 1, np.uint64) if chain is None else chain.rows.indptr
        if bellman_kernels.lay_out(self.rows, policy, begins) or chain is None:
            size, previous = int(begins[-1]), np.full(self.states, -1)
            numbers = np.empty(size, np.uint32), np.empty(size), np.empty(self.states)
            chain = replace(self, rows=Rows(begins, *numbers, actions=1, gamma=self.rows.gamma))
        self.workers.run(bellman_kernels.select, self.states, self.rows, (previous, policy), chain.rows)
        return chain

    def follow(self, values: Floats, out: Floats) -> Change:
        """Write the backup of the values of a chain to `out`; return the minimum and maximum change."""
        parts = self.workers.run(bellman_kernels.follow, self.states, self.rows, self.terminal, values, out)
        return min(part[0] for part in parts), max(part[1] for part in parts)

    def rounding(self, values: Floats) -> float:
        """Bound the error of a floating-point backup of `values` (Higham 2002, §3.1).

        A sum of n products errs by n half units of the sum of their magnitudes, which is at most the maximum value;
        multiplying by gamma and adding the reward add two more. The reward itself is a sum, minus the offset.
        """
        size = max(float(values.max(initial=0.0)), -float(values.min(initial=0.0)))
        return UNIT / 2 * (self.longest + 3) * size + self.noise

    def close(self, change: Change, tolerance: float, values: Floats) -> bool:
        """Return whether the backup that returned `values`, with this change, can be the last.

        It can if all values are within `tolerance` of the optimum, or if only rounding errors remain.
        """
        error = self.rounding(values)
        if not self.discounted:
            return self.spread(change) <= max(tolerance / (4 * self.stretch), 2 * error)
        down, up = self.shifts(change, error)
        return up - down <= 2 * tolerance or self.spread(change) <= 2 * error

    def spread(self, change: Change) -> float:
        """Return the part of a change beyond a constant shift; in an uneven problem the whole change."""
        low, high = change
        return high - low if self.even else max(-low, high)

    def shifts(self, change: Change, error: float) -> tuple[float, float]:
        """Return the offsets of a backup for bounds on the optimal values, with a discount.

        Args:
            change: minimum and maximum change of the backup.
            error: bound on the rounding error.
        """
        error += UNIT * (self.longest + 8) * max(abs(change[0]), abs(change[1]))
        low, high = change[0] - error, change[1] + error
        down, up = (
            self.max_discount if low < 0 else self.min_discount,
            self.max_discount if high > 0 else self.min_discount,
        )
        lower, upper = low * down / (1 - down), high * up / (1 - up)
        error += 2 * UNIT * (abs(self.offset) + max(abs(lower), abs(upper)))
        return lower - error, upper + error


def _check_representable(largest: float, stretch: float, gamma: float) -> None:
    """Raise ValueError if values may be too large for double precision, with room for sums and squares."""
    if not largest * stretch <= LARGEST:
        raise ValueError(
            f"rewards of up to {largest:g} at gamma {gamma} may give values of {largest * stretch:g}, "
            f"expected {LARGEST:g} at most; divide the rewards by a constant"
        )
