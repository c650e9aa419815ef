"""Tables of values, and action selection.

A table has one value per cell: a state-action pair for control, a state (with a single action) for prediction.
Infeasible actions are ignored; ties are broken at random.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from operant.tabular.formulas import expected_value, moved
from operant.tabular.numba_config import compiled
from operant.tabular.random import StreamStates, below, draw, stream_states, uniform
from operant.tabular.schedules import Schedule, scheduled, step_size_of
from operant.tabular.simulator import Step

Floats = NDArray[np.float64]
Cell = tuple[int, int]
"""A state and an action."""


class Choices(NamedTuple):
    """The feasible actions of every state.

    Attributes:
        options: int64 `[states, A]`, the feasible actions first.
        counts: int64 `[states]`, number of feasible actions.
    """

    options: NDArray[np.int64]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, feasible: NDArray[np.bool_]) -> Self:
        """Return the choices of a mask `[states, A]`."""
        order = np.argsort(~feasible, axis=1, kind="stable")
        return cls(np.ascontiguousarray(order, np.int64), feasible.sum(axis=1, dtype=np.int64))


class Rule(NamedTuple):
    """Constants of a learner's updates.

    Attributes:
        choices: the feasible actions.
        gamma: discount factor.
        step_size: step size of the updates.
        epsilon: ε of exploration.
        count_steps: whether schedules count steps; otherwise they count episodes.
    """

    choices: Choices
    gamma: float
    step_size: Schedule
    epsilon: Schedule
    count_steps: bool


class Table(NamedTuple):
    """The values of `S` seeds, with the state of updates and exploration.

    Attributes:
        q: float64 `[S, states, A]`.
        visits: int64 `[S, states, A]`, updates of every cell.
        clock: int64 `[S]`, episodes or steps, for schedules.
        epsilon: float64 `[S]`, current exploration rate.
        step_size: float64 `[S]`, current step size.
        rng: uint64 `[S]`, stream of the policy.
    """

    q: NDArray[np.float64]
    visits: NDArray[np.int64]
    clock: NDArray[np.int64]
    epsilon: NDArray[np.float64]
    step_size: NDArray[np.float64]
    rng: StreamStates

    @classmethod
    def new(cls, rule: Rule, seeds: Sequence[int], states: int, actions: int, initial: float) -> Self:
        """Return the tables of `S` seeds before learning, all values `initial`."""
        shape = (len(seeds), states, actions)
        return cls(
            q=np.full(shape, initial, np.float64),
            visits=np.zeros(shape, np.int64),
            clock=np.zeros(len(seeds), np.int64),
            epsilon=np.full(len(seeds), rule.epsilon.initial),
            step_size=np.full(len(seeds), rule.step_size.initial),
            rng=stream_states(seeds, "policy"),
        )


class HasBase(Protocol):
    """The constants of an algorithm."""

    @property
    def base(self) -> Rule:
        """The constants that all algorithms share."""
        ...


class HasTable(Protocol):
    """State of an algorithm that learns values."""

    @property
    def table(self) -> Table:
        """The values."""
        ...


class Planning(HasTable, Protocol):
    """State of an algorithm that may select an action one step ahead, as SARSA does."""

    @property
    def pending(self) -> NDArray[np.int64]:
        """The action `[S]` of the next step; -1 if not selected yet."""
        ...


@compiled
def best_value(choices: Choices, values: Floats, state: int) -> float:
    """Return `max_a Q(s, a)` from the values `[A]` of a state's actions."""
    option: int = choices.options[state, 0]
    best = values[option]
    for k in range(1, choices.counts[state]):
        option = choices.options[state, k]
        best = max(best, values[option])
    return best


@compiled
def mean_value(choices: Choices, values: Floats, state: int) -> float:
    """Return the mean of `Q(s, a)` over the feasible actions, from the values `[A]` of a state's actions."""
    total = 0.0
    for k in range(choices.counts[state]):
        option: int = choices.options[state, k]
        total += values[option]
    return total / choices.counts[state]


@compiled
def exploring_value(rule: Rule, table: Table, i: int, state: int) -> float:
    """Return the expected value of a state under the current ε-greedy policy."""
    values = table.q[i, state]
    best, mean = best_value(rule.choices, values, state), mean_value(rule.choices, values, state)
    return expected_value(best, mean, table.epsilon[i])


@compiled
def random_action(choices: Choices, rng: StreamStates, i: int, state: int) -> int:
    """Sample a feasible action uniformly."""
    return choices.options[state, below(rng, i, choices.counts[state])]


@compiled
def greedy(choices: Choices, values: Floats, state: int, rng: StreamStates, i: int) -> int:
    """Return the action with the largest of the values `[A]`; ties are broken at random, by stream `i`."""
    count = choices.counts[state]
    action = choices.options[state, 0]
    best, ties = values[action], 1
    for k in range(1, count):
        option = choices.options[state, k]
        if values[option] > best:
            best, action, ties = values[option], option, 1
        elif values[option] == best:
            ties += 1
    if ties == 1:
        return action
    left = below(rng, i, ties)
    for k in range(count):
        option = choices.options[state, k]
        if values[option] == best:
            if left == 0:
                return option
            left -= 1
    return action


@compiled
def epsilon_greedy(rule: Rule, table: Table, i: int, state: int) -> int:
    """Return a random feasible action with probability ε, else a greedy one (Sutton and Barto 2018, section 2.2)."""
    if uniform(table.rng, i) < table.epsilon[i]:
        return random_action(rule.choices, table.rng, i, state)
    return greedy(rule.choices, table.q[i, state], state, table.rng, i)


@compiled
def sampled_action(cumulative: Floats, actions: int, rng: StreamStates, i: int, state: int) -> int:
    """Sample an action of a stochastic policy, given as cumulative probabilities `[states * A]`."""
    return draw(cumulative, state * actions, (state + 1) * actions, rng, i) - state * actions


@compiled
def improve(rule: Rule, table: Table, i: int, cell: Cell, target: float) -> None:
    """Move `Q(s, a)` of a cell `(s, a)` towards a target by the step size, and count the update."""
    state, action = cell
    table.visits[i, state, action] += 1
    step_size = step_size_of(rule.step_size, table.step_size[i], table.visits[i, state, action])
    table.q[i, state, action] = moved(table.q[i, state, action], target, step_size)


@compiled
def tick(rule: Rule, table: Table, i: int, ended: bool) -> None:
    """Count a step or a finished episode, and update the schedules."""
    if ended or rule.count_steps:
        table.clock[i] += 1
        table.epsilon[i] = scheduled(rule.epsilon, table.clock[i])
        table.step_size[i] = scheduled(rule.step_size, table.clock[i])


@compiled
def planned(rule: HasBase, agent: Planning, i: int, state: int) -> int:
    """Return SARSA's pending action, `agent.pending[i]`, or else an ε-greedy one."""
    return epsilon_greedy(rule.base, agent.table, i, state) if agent.pending[i] < 0 else agent.pending[i]


@compiled
def sarsa_value(rule: HasBase, agent: Planning, i: int, step: Step) -> float:
    """Select the next action, store it in `agent.pending`, and return its value; 0 after a termination."""
    agent.pending[i] = -1
    if step.terminated:
        return 0.0
    action = epsilon_greedy(rule.base, agent.table, i, step.successor)
    if not step.truncated:
        agent.pending[i] = action
    return agent.table.q[i, step.successor, action]
