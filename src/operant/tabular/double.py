"""Double Q-learning: two tables, each evaluating the actions that the other selects (van Hasselt 2010, NeurIPS).

The maximum over noisy estimates is biased upward. Here a randomly chosen table is updated; it selects the best next
action, and the other table, whose noise is independent, evaluates it:

    Q_A(s, a) ← Q_A(s, a) + α (r + γ Q_B(s', argmax_a' Q_A(s', a')) - Q_A(s, a)),   and vice versa

The agent acts on the mean of both tables. What differs: ties are broken at random; an episode cut by a time limit
bootstraps from its true last state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from operant.tabular.acting import Table, epsilon_greedy, greedy, tick
from operant.tabular.configs import ControlConfig
from operant.tabular.formulas import moved, q_target
from operant.tabular.learner import Kernels, PlainRule, TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.random import below
from operant.tabular.schedules import step_size_of
from operant.tabular.simulator import Model, Quota, Step, World, advance, has_quota


@dataclass(frozen=True)
class DoubleQLearningConfig(ControlConfig):
    """Hyperparameters of Double Q-learning."""


PRESETS: Mapping[str, Mapping[str, Any]] = {"CliffWalking-v1": {"gamma": 1.0, "step_size": 0.5}}
"""Configuration by task."""


class Agent(NamedTuple):
    """Both tables, and their mean for acting.

    Attributes:
        table: table whose `q` is the mean, and whose `visits` count updates of either.
        pair: `[2 S, states, A]`: table A of all seeds, then table B.
        updates: `[2 S, states, A]`, number of updates of each table.
    """

    table: Table
    pair: NDArray[np.float64]
    updates: NDArray[np.int64]


@compiled
def choose(rule: PlainRule, agent: Agent, i: int, state: int) -> int:
    """Return an ε-greedy action for the mean of both tables."""
    return epsilon_greedy(rule.base, agent.table, i, state)


@compiled
def learn(rule: PlainRule, agent: Agent, i: int, step: Step) -> None:
    """Move one of the tables, chosen at random, towards `r + γ Q_other(s', argmax Q_own(s', ·))`."""
    table, pair, base, seeds = agent.table, agent.pair, rule.base, len(agent.table.rng)
    state, action, successor = step.state, step.action, step.successor
    coin = below(table.rng, i, 2)
    this, other = i + coin * seeds, i + (1 - coin) * seeds
    next_value = 0.0
    if not step.terminated:
        next_value = pair[other, successor, greedy(base.choices, pair[this, successor], successor, table.rng, i)]
    target = q_target(step.reward, next_value, step.terminated, base.gamma)
    table.visits[i, state, action] += 1
    agent.updates[this, state, action] += 1
    step_size = step_size_of(base.step_size, table.step_size[i], agent.updates[this, state, action])
    pair[this, state, action] = moved(pair[this, state, action], target, step_size)
    table.q[i, state, action] = 0.5 * (pair[this, state, action] + pair[other, state, action])
    tick(base, table, i, step.terminated or step.truncated)


@compiled
def run(model: Model, world: World, rule: PlainRule, agent: Agent, quota: Quota) -> None:
    """Run Double Q-learning in a model."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            step = advance(model, world, i, choose(rule, agent, i, world.state[i]))
            learn(rule, agent, i, step)
            quota.left[i] -= 1


class DoubleQLearning(TabularLearner):
    """Double Q-learning (see `TabularLearner` for the arguments)."""

    config: DoubleQLearningConfig
    rule: PlainRule
    agent: Agent
    kernels = Kernels(choose, learn, run)

    def make_agent(self) -> Agent:
        """Return the initial tables."""
        table = Table.new(self.rule.base, self.seeds, self.states, self.actions, self.config.initial_value)
        return Agent(table, np.concatenate([table.q, table.q]), np.concatenate([table.visits, table.visits]))
