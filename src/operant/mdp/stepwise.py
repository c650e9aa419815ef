"""Solvers as iterators over steps: every sweep, every improvement, every few single backups.

`operant.mdp.iterate` yields the sweeps over all actions; here policies are also evaluated sweep by sweep, and single
states are backed up in an order of their own.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.mdp.bellman_kernels import Vectors
from operant.mdp.evaluation import chain_of
from operant.mdp.heap import Heap
from operant.mdp.iterate import Sweep, sweeps
from operant.mdp.model import MDP
from operant.mdp.policies import check_policy, exits_of
from operant.mdp.problem import Problem
from operant.mdp.random import StreamStates, stream_states
from operant.mdp.rtdp import PURPOSES, back_up_at_random, follow_greedy, return_bound
from operant.mdp.sweeping import drain, fill, predecessors_of
from operant.mdp.undiscounted import check_chain_ends, proper_start, start_policy
from operant.mdp.validation import check_count

Floats = NDArray[np.float64]

__all__ = ["Step", "StepMethod", "evaluation_sweeps", "steps"]

StepMethod = Literal[
    "value-iteration",
    "gauss-seidel",
    "random-order",
    "real-time",
    "prioritized-sweeping",
    "policy-iteration",
    "modified-policy-iteration",
]
"""Methods of `steps`."""


PATIENCE = 100
"""Sweeps without a smaller change after which a change within rounding errors counts as one."""


class Step(NamedTuple):
    """The result of one step.

    Attributes:
        values: `[S]`.
        policy: `[S]`, -1 in terminal states and where no action has been selected yet.
        residual: maximum absolute change of a value in the step, or in a sweep after it.
        phase: `"sweep"`, `"evaluation"`, `"improvement"` or `"backups"`.
        backups: backups of single states so far.
    """

    values: Floats
    policy: NDArray[np.int64]
    residual: float
    phase: str
    backups: int


def steps(
    mdp: MDP,
    *,
    gamma: float,
    method: StepMethod,
    tolerance: float = 1e-10,
    backups: int = 1,
    evaluations: int = 5,
    seed: int = 0,
) -> Iterator[Step]:
    """Return an iterator that solves a model step by step, from values of 0, and ends within the tolerance.

    It also ends if only rounding errors still change values, by which they may alternate forever. For the real-time and
    the random order with a discount, the initial values are upper bounds. At gamma = 1 all methods begin with the
    values of a policy that ends every episode, since other values may lead to a wrong solution.

    Args:
        mdp: the model.
        gamma: the discount factor; at 1 every state needs a policy that ends the episode.
        method: policy iteration evaluates each policy by sweeps to convergence, then improves it.
        tolerance: bound on the error of a value, in units of reward; for gamma above 0.999 on a thousand times the last
            change, and at gamma = 1 on the last change.
        backups: backups per step, for `"prioritized-sweeping"`.
        evaluations: sweeps over the actions of a policy between two improvements of modified policy iteration.
        seed: seed of trajectories and of the random order.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and from some state no policy ends the episode.
        TypeError: if `backups`, `evaluations` or `seed` is not a whole number.
    """
    if method not in get_args(StepMethod):
        raise ValueError(f"method is {method!r}, expected one of {', '.join(get_args(StepMethod))}")
    check_count(backups, "backups")
    check_count(evaluations, "evaluations", least=0)
    if not tolerance > 0:
        raise ValueError(f"tolerance is {tolerance}, expected above 0")
    rng = stream_states([seed], PURPOSES["real-time" if method == "real-time" else "random"])
    problem = Problem.of(mdp, gamma, threads=1, centered=False)
    threshold = tolerance / min(problem.stretch, 1e3) if problem.discounted else tolerance
    if method == "policy-iteration":
        return _policy_iteration(mdp, problem, threshold)
    if method == "prioritized-sweeping":
        return _prioritized(mdp, problem, threshold, backups)
    if method in ("real-time", "random-order"):
        return _asynchronous(mdp, problem, threshold, rng, real_time=method == "real-time")
    name = "jacobi" if method == "value-iteration" else method
    rounds = 1 + evaluations if method == "modified-policy-iteration" else 1
    found = sweeps(mdp, gamma=gamma, method=name, evaluations=evaluations)
    return _until_still(found, rounds * mdp.states, _Stillness(problem, threshold))


def evaluation_sweeps(mdp: MDP, policy: ArrayLike, *, gamma: float, tolerance: float = 1e-10) -> Iterator[Step]:
    """Return an iterator that evaluates a policy sweep by sweep, from values of 0; `policy` of a step is always -1.

    Args:
        mdp: the model.
        policy: `[S]` actions, or `[S, A]` probabilities.
        gamma: the discount factor; at 1 the policy must end every episode.
        tolerance: as in `steps`.

    Raises:
        ValueError: if an argument is out of range, or `gamma` is 1 and the policy never ends an episode.
    """
    probabilities = check_policy(mdp, policy)
    chain = chain_of(mdp, probabilities, gamma, 1, centered=False)
    if not chain.discounted:
        check_chain_ends(chain, exits_of(mdp, probabilities), mdp.state_names)
    threshold = tolerance / min(chain.stretch, 1e3) if chain.discounted else tolerance
    return _evaluation(chain, np.zeros(mdp.states), np.full(mdp.states, -1), threshold, 0)


class _Stillness:
    """Whether values have stopped changing, or only rounding errors still change them.

    Args:
        problem: the model, or the chain of a policy.
        threshold: largest change that does not matter.
        patience: steps without a smaller change after which rounding errors are its cause, if they can be.
    """

    def __init__(self, problem: Problem, threshold: float, patience: int = PATIENCE) -> None:
        self._problem, self._threshold, self._patience = problem, threshold, patience
        self._smallest, self._waited = np.inf, 0

    def reached(self, residual: float, values: Floats) -> bool:
        """Return whether the last step, with this change, can be the last."""
        self._waited = 0 if residual < self._smallest else self._waited + 1
        self._smallest = min(self._smallest, residual)
        noise = 2 * self._problem.rounding(values) * min(self._problem.stretch, 1e6)
        return residual <= self._threshold or (self._waited >= self._patience and residual <= noise)


def _until_still(results: Iterator[Sweep], states: int, stillness: _Stillness) -> Iterator[Step]:
    for count, sweep in enumerate(results, 1):
        yield Step(*sweep, "sweep", count * states)
        if stillness.reached(sweep.residual, sweep.values):
            return


def _evaluation(
    chain: Problem, values: Floats, policy: NDArray[np.int64], threshold: float, count: int
) -> Iterator[Step]:
    """Sweep over the policy's actions until no value changes by more than `threshold`."""
    stillness, residual = _Stillness(chain, threshold), np.inf
    while not stillness.reached(residual, values):
        out = np.empty_like(values)
        low, high = chain.follow(values, out)
        values, residual, count = out, max(-low, high, 0.0), count + values.size
        yield Step(values.copy(), policy.copy(), residual, "evaluation", count)


def _policy_iteration(mdp: MDP, problem: Problem, threshold: float) -> Iterator[Step]:
    """Alternate evaluations and improvements; an action is replaced only by a certainly better one."""
    values, out = problem.start(np.zeros(mdp.states)), np.empty(mdp.states)
    policy, previous, count = np.full(mdp.states, -1), None, 0
    if problem.discounted:
        problem.improve(values, out, policy)
    else:
        policy = start_policy(mdp, problem)
    while previous is None or (policy != previous).any():
        for step in _evaluation(problem.chain(policy), values, policy, threshold, count):
            values, count = step.values, step.backups
            yield step
        previous = policy.copy()
        margin = max(problem.keep_margin(values), 4 * threshold * min(problem.stretch, 1e3))
        low, high = problem.improve(values, out, policy, margin=margin)
        count += mdp.states
        yield Step(values.copy(), policy.copy(), max(-low, high, 0.0), "improvement", count)


def _prioritized(mdp: MDP, problem: Problem, threshold: float, backups: int) -> Iterator[Step]:
    """Back up the states with the largest possible changes, `backups` at a time; there is at least one step."""
    if problem.discounted:
        values, policy = problem.start(np.zeros(mdp.states)), np.full(mdp.states, -1)
    else:
        values, policy, _ = proper_start(mdp, problem)
    heap, predecessors = Heap.new(1, mdp.states), predecessors_of(problem.rows, mdp.states)
    vectors = Vectors(values, np.empty(mdp.states), policy, problem.margin(values))
    fill(problem.rows, vectors, heap, threshold)
    count, scratch = 0, policy.copy()
    stillness = _Stillness(problem, 0.0, PATIENCE * max(1, mdp.states // backups))
    while True:
        count += drain(problem.rows, vectors, predecessors, heap, threshold, backups)
        low, high = problem.improve(values, vectors.out, scratch)
        residual = max(-low, high, 0.0)
        yield Step(values.copy(), policy.copy(), residual, "backups", count)
        if not heap.queued[0] or stillness.reached(residual, values):
            return


def _asynchronous(
    mdp: MDP, problem: Problem, threshold: float, rng: StreamStates, *, real_time: bool
) -> Iterator[Step]:
    """Make at least as many backups as states, along greedy trajectories or at random, then a full sweep."""
    if problem.discounted:
        values, policy = problem.start(np.full(mdp.states, return_bound(mdp, problem))), np.full(mdp.states, -1)
    else:
        values, policy, _ = proper_start(mdp, problem)
    stillness, count, residual = _Stillness(problem, threshold), 0, np.inf
    starts = np.cumsum(mdp.start)
    while not stillness.reached(residual, values):
        out = np.empty_like(values)
        vectors = Vectors(values, out, policy, problem.margin(values))
        if real_time:
            count += follow_greedy(problem.rows, vectors, starts, rng, mdp.states)
        else:
            back_up_at_random(problem.rows, vectors, rng, mdp.states)
            count += mdp.states
        yield Step(values.copy(), policy.copy(), residual, "backups", count)
        low, high = problem.improve(values, out, policy)
        values, residual, count = out, max(-low, high, 0.0), count + mdp.states
        yield Step(values.copy(), policy.copy(), residual, "sweep", count)
