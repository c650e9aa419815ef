"""Common parts of the solvers: initialization, termination and results."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.certificates import bounds_without_discount
from operant.mdp.linear import DIRECT_UP_TO, factorize, solve_iteratively
from operant.mdp.model import MDP
from operant.mdp.problem import Problem, check_tolerance, warn_of_limit
from operant.mdp.solution import Solution
from operant.mdp.undiscounted import check_bounded, ends, proper_start, start_policy

__all__ = ["Iteration"]


@dataclass(eq=False)
class Iteration:
    """State of a solver.

    With a discount the initial values are the lowest possible ones, and the policy is -1 everywhere.
    At gamma = 1 the initial policy is proper and the initial values are its values. Backups raise them monotonically to
    the optimum over proper policies, even if the Bellman equation has other solutions (Bertsekas and Yu 2016).

    Attributes:
        mdp: the model.
        problem: the model for the kernels.
        tolerance: the requested accuracy.
        limit: maximum number of rounds.
        values: `[S]`, minus the offset.
        out: `[S]`, scratch.
        policy: `[S]`.
        start_time: `time.perf_counter()` at the start.
        change: minimum and maximum change in the last backup of all states.
        count: rounds so far.
        gap: largest amount by which a backup by the policy is below that by the best actions.
    """

    mdp: MDP
    problem: Problem
    tolerance: float
    limit: int
    values: NDArray[np.float64]
    out: NDArray[np.float64]
    policy: NDArray[np.int64]
    start_time: float
    change: tuple[float, float] = (np.inf, -np.inf)
    count: int = 0
    gap: float = 0.0

    @classmethod
    def begin(
        cls,
        mdp: MDP,
        *,
        gamma: float,
        tolerance: float,
        limit: int,
        initial: ArrayLike | None = None,
        threads: int | None = None,
    ) -> Self:
        """Prepare a model, initial values and an initial policy.

        Raises:
            ValueError: if an argument is out of range, or `gamma` is 1 and from some state no policy ends the episode.
        """
        start_time = time.perf_counter()
        check_tolerance(tolerance, limit)
        problem = Problem.of(mdp, gamma, threads=threads)
        if problem.discounted:
            values, policy = problem.start(initial), np.full(mdp.states, -1)
        else:
            values, policy, stretch = proper_start(mdp, problem, initial)
            problem = replace(problem, stretch=stretch)
        return cls(mdp, problem, tolerance, limit, values, np.empty_like(values), policy, start_time)

    def rounds(self) -> Iterator[int]:
        """Count rounds up to the limit; at gamma = 1, check occasionally for NaN and Inf."""
        while self.count < self.limit:
            self.count += 1
            yield self.count
            if self.count.bit_count() == 1 and not self.problem.discounted:
                check_bounded(self.mdp, self.policy)

    def back_up(self, *, margin: float | None = None) -> None:
        """Back up all states and make the policy greedy for the previous values."""
        self.change = self.problem.improve(self.values, self.out, self.policy, margin=margin)
        self.values, self.out = self.out, self.values

    def settle(self, *, direct: bool | None = None) -> None:
        """Evaluate the policy exactly and improve it, until no state changes its action.

        An action is replaced only by one that is better by more than rounding errors, so ties cannot cause cycles.

        Args:
            direct: True for a factorization, False for a Krylov method; None: chosen by the number of states.
        """
        problem = self.problem
        for _ in self.rounds():
            chain, previous = problem.chain(self.policy), self.policy.copy()
            if direct or (direct is None and problem.states <= DIRECT_UP_TO):
                self.values = factorize(chain)
            else:
                self.values = solve_iteratively(chain, self.values, 2 * problem.rounding(self.values))
            self.back_up(margin=problem.keep_margin(self.values))
            if (self.policy == previous).all():
                break
            if not problem.discounted:
                check_bounded(self.mdp, self.policy)
        if problem.discounted:
            problem.chain(self.policy).follow(self.out, backed_up := np.empty_like(self.out))
            self.gap = float((self.values - backed_up).max(initial=0.0))

    @property
    def finished(self) -> bool:
        """Whether the last backup of all states reached the tolerance or the limit."""
        return self.count >= self.limit or self.problem.close(self.change, self.tolerance, self.values)

    @property
    def residual(self) -> float:
        """The maximum absolute change in the last backup of all states."""
        return max(-self.change[0], self.change[1], 0.0)

    def conclude(self, method: str) -> Solution:
        """Turn the last backup of all states into a solution with certified bounds.

        At gamma = 1 small changes do not bound the error, so the policy is improved on exact values until it is stable.
        """
        problem, values = self.problem, self.values
        if problem.discounted:
            down, up = problem.shifts(self.change, problem.rounding(values))
            down -= self.gap / (1 - problem.max_discount)
            lower, upper = problem.restore(values, down), problem.restore(values, up)
            values, converged = problem.restore(values, (down + up) / 2), up - down <= 2 * self.tolerance
        else:
            if not ends(self.mdp, self.policy).all():
                self.policy = start_policy(self.mdp, problem)
            self.settle()
            values = self.values
            bounds = bounds_without_discount(self.mdp, problem, values, self.policy)
            lower, upper = bounds or (None, None)
            converged = False
            if bounds is not None:
                values = (bounds[0] + bounds[1]) / 2
                converged = float((bounds[1] - bounds[0]).max(initial=0.0)) <= 2 * self.tolerance
        if not converged and self.count >= self.limit:
            warn_of_limit(self.limit, self.tolerance)
        return Solution(
            values=values,
            policy=self.policy,
            iterations=self.count,
            residual=self.residual,
            converged=converged,
            lower=lower,
            upper=upper,
            gamma=problem.rows.gamma,
            method=method,
            seconds=time.perf_counter() - self.start_time,
            mdp=self.mdp,
        )
