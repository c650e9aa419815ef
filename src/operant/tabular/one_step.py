"""Q-learning, SARSA and Expected SARSA: control by one-step temporal differences.

They differ in the value of the next state:

    Q-learning      max_a Q(s', a)                      off-policy: learns the values of the greedy policy
    SARSA           Q(s', a'), a' the next action       on-policy: learns the values of the behavior policy
    Expected SARSA  (1 - ε) max_a Q + ε mean_a Q        on-policy, without the noise of a'

Watkins and Dayan 1992 (Q-learning), Rummery and Niranjan 1994 (SARSA), van Seijen et al. 2009 (Expected SARSA).

What differs: ties are broken at random; an episode cut by a time limit bootstraps from the value of its true last
state (Pardo et al. 2018, arXiv:1712.00378); `bonus_coef` adds a reward for rarely tried actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from operant.runtime.bounds import NonNegativeFloat
from operant.tabular.acting import Rule, Table, best_value, exploring_value, improve, planned, sarsa_value, tick
from operant.tabular.configs import ControlConfig
from operant.tabular.formulas import count_bonus, q_target
from operant.tabular.learner import Kernels, TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.simulator import Model, Quota, Step, World, advance, has_quota


@dataclass(frozen=True)
class OneStepConfig(ControlConfig):
    """Hyperparameters of Q-learning, SARSA and Expected SARSA."""

    bonus_coef: NonNegativeFloat = 0.0
    """β of the bonus β / sqrt(N) added to the reward of the N-th try of an action. Higher explores longer; 0: none."""


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "FrozenLake-v1": {
        "step_size_schedule": "visits",
        "step_size_power": 0.6,
        "exploration_initial_eps": 1.0,
        "exploration_schedule": "linear",
        "exploration_final_eps": 0.1,
        "exploration_span": 1e5,
        "schedule_unit": "steps",
    },
    "CliffWalking-v1": {"gamma": 1.0, "step_size": 0.5, "exploration_initial_eps": 0.1},
    "decaying": {
        "exploration_initial_eps": 1.0,
        "exploration_schedule": "exponential",
        "exploration_final_eps": 0.01,
        "exploration_factor": 0.9995,
    },
}
"""Configuration by task, or by name: `decaying` decreases ε from 1 to 0.01 within 9208 episodes."""


class OneStepRule(NamedTuple):
    """Shared constants, and the scale of the bonus."""

    base: Rule
    bonus: float


class Agent(NamedTuple):
    """Tables, and SARSA's pending action `[S]` (-1: none)."""

    table: Table
    pending: NDArray[np.int64]


@compiled
def with_bonus(rule: OneStepRule, agent: Agent, i: int, step: Step) -> float:
    """Return the reward of a step plus the bonus of its action."""
    if rule.bonus == 0.0:
        return step.reward
    return step.reward + count_bonus(rule.bonus, agent.table.visits[i, step.state, step.action] + 1)


@compiled
def update(rule: OneStepRule, agent: Agent, i: int, step: Step, next_value: float) -> None:
    """Move Q(s, a) towards `r + γ V(s')`, with the method's next value."""
    target = q_target(with_bonus(rule, agent, i, step), next_value, step.terminated, rule.base.gamma)
    improve(rule.base, agent.table, i, (step.state, step.action), target)
    tick(rule.base, agent.table, i, step.terminated or step.truncated)


@compiled
def learn_q_learning(rule: OneStepRule, agent: Agent, i: int, step: Step) -> None:
    """Move Q(s, a) towards `r + γ max_a' Q(s', a')`."""
    next_value = 0.0
    if not step.terminated:
        next_value = best_value(rule.base.choices, agent.table.q[i, step.successor], step.successor)
    update(rule, agent, i, step, next_value)


@compiled
def learn_sarsa(rule: OneStepRule, agent: Agent, i: int, step: Step) -> None:
    """Select a' and move Q(s, a) towards `r + γ Q(s', a')`."""
    update(rule, agent, i, step, sarsa_value(rule, agent, i, step))


@compiled
def learn_expected_sarsa(rule: OneStepRule, agent: Agent, i: int, step: Step) -> None:
    """Move Q(s, a) towards `r + γ E[Q(s', a')]` under the ε-greedy policy."""
    next_value = 0.0 if step.terminated else exploring_value(rule.base, agent.table, i, step.successor)
    update(rule, agent, i, step, next_value)


@compiled
def run_q_learning(model: Model, world: World, rule: OneStepRule, agent: Agent, quota: Quota) -> None:
    """Run Q-learning in a model."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            step = advance(model, world, i, planned(rule, agent, i, world.state[i]))
            learn_q_learning(rule, agent, i, step)
            quota.left[i] -= 1


@compiled
def run_sarsa(model: Model, world: World, rule: OneStepRule, agent: Agent, quota: Quota) -> None:
    """Run SARSA in a model."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            step = advance(model, world, i, planned(rule, agent, i, world.state[i]))
            learn_sarsa(rule, agent, i, step)
            quota.left[i] -= 1


@compiled
def run_expected_sarsa(model: Model, world: World, rule: OneStepRule, agent: Agent, quota: Quota) -> None:
    """Run Expected SARSA in a model."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            step = advance(model, world, i, planned(rule, agent, i, world.state[i]))
            learn_expected_sarsa(rule, agent, i, step)
            quota.left[i] -= 1


class OneStep(TabularLearner):
    """Base of Q-learning, SARSA and Expected SARSA."""

    config: OneStepConfig
    rule: OneStepRule
    agent: Agent

    def make_rule(self, base: Rule) -> OneStepRule:
        """Add the scale of the bonus."""
        return OneStepRule(base, float(self.config.bonus_coef))

    def make_agent(self) -> Agent:
        """Return the initial tables."""
        table = Table.new(self.rule.base, self.seeds, self.states, self.actions, self.config.initial_value)
        return Agent(table, np.full(len(self.seeds), -1, np.int64))

    def begin_anew(self) -> None:
        """Forget the pending actions."""
        self.agent.pending[:] = -1


class QLearning(OneStep):
    """Q-learning (see `TabularLearner` for the arguments)."""

    kernels = Kernels(planned, learn_q_learning, run_q_learning)


class Sarsa(OneStep):
    """SARSA (see `TabularLearner` for the arguments)."""

    kernels = Kernels(planned, learn_sarsa, run_sarsa)


class ExpectedSarsa(OneStep):
    """Expected SARSA (see `TabularLearner` for the arguments)."""

    kernels = Kernels(planned, learn_expected_sarsa, run_expected_sarsa)
