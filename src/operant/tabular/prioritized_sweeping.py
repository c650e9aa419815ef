"""Prioritized sweeping with a learned model (Moore and Atkeson 1993, Machine Learning 13).

The agent counts outcomes. If a backup would change the value of a cell by more than a threshold, the cell is queued
with the change as its priority. After every real step the cells with the highest priority get a full backup over all
observed outcomes, and their known predecessors are queued. So changes propagate backwards along relevant paths.

What differs: cells are pairs of state and action, as in Sutton and Barto (2018, section 8.4), but backups are
expectations over the counts, as in the paper, so planning is correct in stochastic environments; there is no step size.
The agent explores ε-greedily, whereas the paper gives unknown actions an optimistic value (as `initial_value` can).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from operant.mdp.heap import Heap, pop, push
from operant.runtime.bounds import NonNegativeFloat, PositiveInt, UnitFloat
from operant.tabular.acting import Cell, Rule, Table, epsilon_greedy, tick
from operant.tabular.configs import ExploringConfig
from operant.tabular.count_model import Counts, expected_backup, observe
from operant.tabular.learner import Kernels, TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.simulator import Model, Quota, Step, World, advance, has_quota


@dataclass(frozen=True)
class PrioritizedSweepingConfig(ExploringConfig):
    """Hyperparameters of prioritized sweeping."""

    gamma: UnitFloat = 0.95
    """Discount factor in [0, 1]; 1 is for tasks whose episodes end. A higher one means a longer horizon."""
    planning_steps: PositiveInt = 5
    """Maximum number of backups per real step. More need less experience and more computation."""
    threshold: NonNegativeFloat = 1e-4
    """Minimum change of a value for a backup, in units of return. Lower is more accurate and slower."""


PRESETS: Mapping[str, Mapping[str, Any]] = {"CliffWalking-v1": {"gamma": 1.0}}
"""Configuration by task."""


class SweepingRule(NamedTuple):
    """Shared constants, maximum backups per step, and the threshold."""

    base: Rule
    planning: int
    threshold: float


class Predecessors(NamedTuple):
    """Predecessors of each state, as linked lists of edges; edge `cell * K + slot` is the slot of a cell's model.

    Attributes:
        head: `[S, states]`, the first edge into each state; -1: none.
        following: `[S, states * A * K]`, the next edge into the same state; -1: none.
    """

    head: NDArray[np.int64]
    following: NDArray[np.int64]

    @classmethod
    def new(cls, model: Counts) -> Self:
        """Return the empty lists of an empty model."""
        seeds, states, actions, slots = model.successors.shape
        return cls(np.full((seeds, states), -1, np.int64), np.full((seeds, states * actions * slots), -1, np.int64))

    def with_room(self, slots: int) -> Self:
        """Return the same lists, in the same order, for a model with twice the current `slots`."""
        wider = np.full((len(self.head), self.following.shape[1] // slots, 2 * slots), -1, np.int64)
        wider[:, :, :slots] = _renamed(self.following, slots).reshape(len(self.head), -1, slots)
        return self._replace(head=_renamed(self.head, slots), following=wider.reshape(len(self.head), -1))


def _renamed(edges: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
    """Return the indices of edges after doubling the slots."""
    return np.where(edges < 0, -1, edges // slots * 2 * slots + edges % slots)


class Agent(NamedTuple):
    """Tables, the model, predecessors, and the queue."""

    table: Table
    model: Counts
    predecessors: Predecessors
    heap: Heap


@compiled
def link(lists: Predecessors, i: int, edge: int, state: int) -> None:
    """Add an edge into a state."""
    lists.following[i, edge] = lists.head[i, state]
    lists.head[i, state] = edge


@compiled
def consider(rule: SweepingRule, agent: Agent, i: int, cell: Cell) -> None:
    """Queue a cell if its value would change by more than the threshold."""
    state, action = cell
    change = abs(expected_backup(rule.base, agent.model, agent.table.q, i, cell) - agent.table.q[i, state, action])
    if change > rule.threshold:
        push(agent.heap, i, state * agent.model.tries.shape[2] + action, change)


@compiled
def sweep(rule: SweepingRule, agent: Agent, i: int) -> None:
    """Back up the cell with the highest priority, and queue its predecessors if needed."""
    table, lists = agent.table, agent.predecessors
    actions, slots = agent.model.successors.shape[2], agent.model.successors.shape[3]
    cell_index = pop(agent.heap, i)
    state, action = cell_index // actions, cell_index % actions
    table.visits[i, state, action] += 1
    table.q[i, state, action] = expected_backup(rule.base, agent.model, table.q, i, (state, action))
    edge = lists.head[i, state]
    while edge >= 0:
        origin = edge // slots
        consider(rule, agent, i, (origin // actions, origin % actions))
        edge = lists.following[i, edge]


@compiled
def choose(rule: SweepingRule, agent: Agent, i: int, state: int) -> int:
    """Return an ε-greedy action."""
    return epsilon_greedy(rule.base, agent.table, i, state)


@compiled
def learn(rule: SweepingRule, agent: Agent, i: int, step: Step) -> None:
    """Count a step and plan from it backwards."""
    model, cell = agent.model, (step.state, step.action)
    states, actions, slots = model.successors.shape[1], model.successors.shape[2], model.successors.shape[3]
    slot, first = observe(model, i, cell, step.reward, states if step.terminated else step.successor)
    if first and not step.terminated:
        link(agent.predecessors, i, (step.state * actions + step.action) * slots + slot, step.successor)
    consider(rule, agent, i, cell)
    backups = 0
    while backups < rule.planning and agent.heap.queued[i] > 0:
        sweep(rule, agent, i)
        backups += 1
    tick(rule.base, agent.table, i, step.terminated or step.truncated)


@compiled
def run(model: Model, world: World, rule: SweepingRule, agent: Agent, quota: Quota) -> None:
    """Run prioritized sweeping in a simulated model that the agent does not see; seeds with a full model wait."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i) and not agent.model.full[i]:
            step = advance(model, world, i, choose(rule, agent, i, world.state[i]))
            learn(rule, agent, i, step)
            quota.left[i] -= 1


class PrioritizedSweeping(TabularLearner):
    """Prioritized sweeping (see `TabularLearner` for the arguments)."""

    config: PrioritizedSweepingConfig
    rule: SweepingRule
    agent: Agent
    kernels = Kernels(choose, learn, run)
    GROWING = frozenset({"successors", "counts", "following"})

    def make_rule(self, base: Rule) -> SweepingRule:
        """Add the constants of planning."""
        return SweepingRule(base, self.config.planning_steps, float(self.config.threshold))

    def make_agent(self) -> Agent:
        """Return the initial tables and an empty model."""
        table = Table.new(self.rule.base, self.seeds, self.states, self.actions, self.config.initial_value)
        model = Counts.new(len(self.seeds), self.states, self.actions)
        heap = Heap.new(len(self.seeds), self.states * self.actions)
        return Agent(table, model, Predecessors.new(model), heap)

    def make_room(self) -> None:
        """Double the slots of a full model."""
        model = self.agent.model
        if model.full.any():
            lists = self.agent.predecessors.with_room(model.successors.shape[3])
            self.agent = self.agent._replace(model=model.with_room(), predecessors=lists)
