"""Dyna-Q and Dyna-Q+: Q-learning with planning updates between steps.

Sutton 1990 ("Integrated architectures", ICML); Sutton and Barto 2018, sections 8.2 and 8.3.

A model stores the last outcome of each action in each state. After every real step, `planning_steps` stored
transitions are sampled and learned from. Dyna-Q+ adds `κ sqrt(τ)` to the stored reward of an action last tried τ steps
ago, and also samples untried actions of visited states (modeled as self-transitions with reward 0), so it detects
changes of the environment.

What differs: ties are broken at random; an episode cut by a time limit bootstraps from its true last state. As in the
book, the model stores only the last outcome, so in a stochastic environment planning learns from a single sample
(`operant.tabular.prioritized_sweeping` stores the frequencies of all outcomes).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from operant.runtime.bounds import NonNegativeFloat, NonNegativeInt, UnitFloat
from operant.tabular.acting import Rule, Table, best_value, epsilon_greedy, improve, tick
from operant.tabular.configs import ControlConfig
from operant.tabular.formulas import q_target, time_bonus
from operant.tabular.learner import Kernels, TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.random import below
from operant.tabular.simulator import Model, Quota, Step, World, advance, has_quota


@dataclass(frozen=True)
class DynaQConfig(ControlConfig):
    """Hyperparameters of Dyna-Q. Defaults are those of the book's maze (figure 8.2)."""

    gamma: UnitFloat = 0.95
    """Discount factor in [0, 1]; 1 is for tasks whose episodes end. A higher one means a longer horizon."""
    planning_steps: NonNegativeInt = 5
    """Number of planning steps per real step. More need less experience and more computation; 0 is Q-learning."""


@dataclass(frozen=True)
class DynaQPlusConfig(DynaQConfig):
    """Hyperparameters of Dyna-Q+."""

    bonus_coef: NonNegativeFloat = 1e-3
    """κ of the bonus `κ sqrt(τ)`, in units of reward. Higher detects changes sooner."""


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "CliffWalking-v1": {"gamma": 1.0, "step_size": 0.5},
    "operant/DynaMaze-v0": {"planning_steps": 50},
}
"""Configuration by task."""


class DynaRule(NamedTuple):
    """Constants of the algorithm.

    Attributes:
        base: the shared constants.
        planning: number of planning steps per real step.
        kappa: scale of the bonus.
        imagines: whether planning includes untried actions.
    """

    base: Rule
    planning: int
    kappa: float
    imagines: bool


class Memory(NamedTuple):
    """Last outcomes of the actions of `S` seeds.

    Attributes:
        rewards: `[S, states, A]`.
        successors: `[S, states, A]`.
        terminated: bool `[S, states, A]`.
        tried: `[S, states, A]`, step of the last try, starting at 1; 0: never.
        known: `[S, states * A]`, the cells available for planning, in the order of their first visit.
        admitted: `[S]`, number of available cells.
        met: bool `[S, states]`, whether the actions of a state are available.
        clock: `[S]`, number of real steps so far.
    """

    rewards: NDArray[np.float64]
    successors: NDArray[np.int64]
    terminated: NDArray[np.bool_]
    tried: NDArray[np.int64]
    known: NDArray[np.int64]
    admitted: NDArray[np.int64]
    met: NDArray[np.bool_]
    clock: NDArray[np.int64]

    @classmethod
    def new(cls, seeds: int, states: int, actions: int) -> Self:
        """Return an empty model, in which untried actions lead back to their state."""
        shape = (seeds, states, actions)
        return cls(
            rewards=np.zeros(shape),
            successors=np.ascontiguousarray(np.broadcast_to(np.arange(states)[:, None], shape)),
            terminated=np.zeros(shape, np.bool_),
            tried=np.zeros(shape, np.int64),
            known=np.zeros((seeds, states * actions), np.int64),
            admitted=np.zeros(seeds, np.int64),
            met=np.zeros((seeds, states), np.bool_),
            clock=np.zeros(seeds, np.int64),
        )


class Agent(NamedTuple):
    """Tables and model."""

    table: Table
    memory: Memory


@compiled
def admit(memory: Memory, i: int, state: int, action: int) -> None:
    """Make a cell available for planning."""
    memory.known[i, memory.admitted[i]] = state * memory.rewards.shape[2] + action
    memory.admitted[i] += 1


@compiled
def remember(rule: DynaRule, memory: Memory, i: int, step: Step) -> None:
    """Store the outcome of an action, and make new cells available for planning."""
    state, action, choices = step.state, step.action, rule.base.choices
    if not rule.imagines:
        if memory.tried[i, state, action] == 0:
            admit(memory, i, state, action)
    elif not memory.met[i, state]:
        memory.met[i, state] = True
        for k in range(choices.counts[state]):
            admit(memory, i, state, choices.options[state, k])
    memory.clock[i] += 1
    memory.tried[i, state, action] = memory.clock[i]
    memory.rewards[i, state, action] = step.reward
    memory.successors[i, state, action] = step.successor
    memory.terminated[i, state, action] = step.terminated


@compiled
def recall(rule: DynaRule, agent: Agent, i: int) -> Step:
    """Sample a stored step, and add the bonus to its reward."""
    memory = agent.memory
    cell = memory.known[i, below(agent.table.rng, i, memory.admitted[i])]
    state, action = cell // memory.rewards.shape[2], cell % memory.rewards.shape[2]
    reward = memory.rewards[i, state, action]
    if rule.kappa > 0.0:
        reward += time_bonus(rule.kappa, memory.clock[i] - memory.tried[i, state, action])
    successor, terminated = memory.successors[i, state, action], memory.terminated[i, state, action]
    return Step(state, action, reward, successor, terminated, False)


@compiled
def backup(rule: Rule, table: Table, i: int, step: Step) -> None:
    """Move Q(s, a) towards `r + γ max_a' Q(s', a')`."""
    next_value = 0.0
    if not step.terminated:
        next_value = best_value(rule.choices, table.q[i, step.successor], step.successor)
    target = q_target(step.reward, next_value, step.terminated, rule.gamma)
    improve(rule, table, i, (step.state, step.action), target)


@compiled
def choose(rule: DynaRule, agent: Agent, i: int, state: int) -> int:
    """Return an ε-greedy action."""
    return epsilon_greedy(rule.base, agent.table, i, state)


@compiled
def learn(rule: DynaRule, agent: Agent, i: int, step: Step) -> None:
    """Learn from a step, store it, and plan."""
    backup(rule.base, agent.table, i, step)
    remember(rule, agent.memory, i, step)
    for _ in range(rule.planning):
        backup(rule.base, agent.table, i, recall(rule, agent, i))
    tick(rule.base, agent.table, i, step.terminated or step.truncated)


@compiled
def run(model: Model, world: World, rule: DynaRule, agent: Agent, quota: Quota) -> None:
    """Run Dyna-Q or Dyna-Q+ in a simulated model that the agent does not see."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            step = advance(model, world, i, choose(rule, agent, i, world.state[i]))
            learn(rule, agent, i, step)
            quota.left[i] -= 1


class Dyna(TabularLearner):
    """Base of Dyna-Q and Dyna-Q+."""

    rule: DynaRule
    agent: Agent
    kernels = Kernels(choose, learn, run)

    def make_agent(self) -> Agent:
        """Return the initial tables."""
        table = Table.new(self.rule.base, self.seeds, self.states, self.actions, self.config.initial_value)
        return Agent(table, Memory.new(len(self.seeds), self.states, self.actions))


class DynaQ(Dyna):
    """Dyna-Q (see `TabularLearner` for the arguments)."""

    config: DynaQConfig

    def make_rule(self, base: Rule) -> DynaRule:
        """Add the constants of planning."""
        return DynaRule(base, self.config.planning_steps, kappa=0.0, imagines=False)


class DynaQPlus(Dyna):
    """Dyna-Q+ (see `TabularLearner` for the arguments)."""

    config: DynaQPlusConfig

    def make_rule(self, base: Rule) -> DynaRule:
        """Add the constants of planning and of the bonus."""
        return DynaRule(base, self.config.planning_steps, float(self.config.bonus_coef), imagines=True)
