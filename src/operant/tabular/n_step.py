"""n-step TD prediction and n-step SARSA: bootstrapping after n real rewards (Sutton and Barto 2018, chapter 7).

The target of the step n steps ago is `r_t + γ r_{t+1} + ... + γ^{n-1} r_{t+n-1} + γ^n V(s_{t+n})`, or without the last
term if the episode has terminated before. n = 1 is TD(0) and SARSA; n beyond the length of an episode is
Monte Carlo, every visit.

What differs: an episode cut by a time limit bootstraps from its true last state.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from operant.runtime.bounds import PositiveInt
from operant.tabular.acting import HasBase, Table, improve, planned, sarsa_value, tick
from operant.tabular.configs import ControlConfig, TableConfig
from operant.tabular.formulas import q_target
from operant.tabular.learner import Kernels, PlainRule, TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.prediction import Prediction, PredictionRule, follow, of_state
from operant.tabular.simulator import Model, Quota, Step, World, advance, has_quota


@dataclass(frozen=True)
class NStepTDConfig(TableConfig):
    """Hyperparameters of n-step TD prediction."""

    n_step: PositiveInt = 1
    """Number of rewards in a target. More propagate rewards faster, with more variance; 1 is TD(0)."""


@dataclass(frozen=True)
class NStepSarsaConfig(ControlConfig):
    """Hyperparameters of n-step SARSA."""

    n_step: PositiveInt = 4
    """Number of rewards in a target. More propagate rewards faster, with more variance; 1 is SARSA."""


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "CliffWalking-v1": {"gamma": 1.0, "step_size": 0.25},
    "operant/RandomWalk19-v0": {"gamma": 1.0, "step_size": 0.4},
}
"""Configuration by task."""


class Window(NamedTuple):
    """The last steps of the current episode, which have no update yet, as a ring buffer.

    Attributes:
        states: `[S, n]`.
        actions: `[S, n]`; 0 for prediction.
        rewards: `[S, n]`.
        first: `[S]`, position of the oldest step.
        held: `[S]`, number of steps.
    """

    states: NDArray[np.int64]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float64]
    first: NDArray[np.int64]
    held: NDArray[np.int64]

    @classmethod
    def new(cls, seeds: int, n: int) -> Self:
        """Return an empty window."""
        steps, seeds_alone = (seeds, n), (seeds,)
        return cls(
            np.zeros(steps, np.int64),
            np.zeros(steps, np.int64),
            np.zeros(steps),
            np.zeros(seeds_alone, np.int64),
            np.zeros(seeds_alone, np.int64),
        )


class Agent(NamedTuple):
    """Tables, the window, and SARSA's pending action `[S]` (-1: none)."""

    table: Table
    window: Window
    pending: NDArray[np.int64]


def forget(agent: Agent) -> None:
    """Forget the steps of unfinished episodes, and the pending actions."""
    agent.window.held[:] = 0
    agent.pending[:] = -1


@compiled
def update_oldest(rule: HasBase, agent: Agent, i: int, next_value: float) -> None:
    """Update the oldest step of the window by the return so far, and remove it."""
    window = agent.window
    n, first = window.rewards.shape[1], window.first[i]
    target = next_value
    for back in range(window.held[i] - 1, -1, -1):
        target = q_target(window.rewards[i, (first + back) % n], target, False, rule.base.gamma)
    improve(rule.base, agent.table, i, (window.states[i, first], window.actions[i, first]), target)
    window.first[i] = (first + 1) % n
    window.held[i] -= 1


@compiled
def push(rule: HasBase, agent: Agent, i: int, step: Step, next_value: float) -> None:
    """Add a step to the window and make the updates that are due; `next_value` is 0 after a termination."""
    window, ended = agent.window, step.terminated or step.truncated
    n = window.rewards.shape[1]
    slot = (window.first[i] + window.held[i]) % n
    window.states[i, slot], window.actions[i, slot], window.rewards[i, slot] = step.state, step.action, step.reward
    window.held[i] += 1
    if window.held[i] == n:
        update_oldest(rule, agent, i, next_value)
    while ended and window.held[i] > 0:
        update_oldest(rule, agent, i, next_value)
    tick(rule.base, agent.table, i, ended)


@compiled
def learn_td(rule: PredictionRule, agent: Agent, i: int, step: Step) -> None:
    """Move V(s) of n steps ago towards the n-step return."""
    next_value = 0.0 if step.terminated else agent.table.q[i, step.successor, 0]
    push(rule, agent, i, of_state(step), next_value)


@compiled
def learn_sarsa(rule: PlainRule, agent: Agent, i: int, step: Step) -> None:
    """Select the next action and move Q(s, a) of n steps ago towards the n-step return."""
    push(rule, agent, i, step, sarsa_value(rule, agent, i, step))


@compiled
def run_td(model: Model, world: World, rule: PredictionRule, agent: Agent, quota: Quota) -> None:
    """Run n-step TD in a model."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            step = advance(model, world, i, follow(rule, agent, i, world.state[i]))
            learn_td(rule, agent, i, step)
            quota.left[i] -= 1


@compiled
def run_sarsa(model: Model, world: World, rule: PlainRule, agent: Agent, quota: Quota) -> None:
    """Run n-step SARSA in a model."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            step = advance(model, world, i, planned(rule, agent, i, world.state[i]))
            learn_sarsa(rule, agent, i, step)
            quota.left[i] -= 1


class NStepTD(Prediction):
    """n-step TD prediction (see `Prediction` for the arguments)."""

    config: NStepTDConfig
    agent: Agent
    kernels = Kernels(follow, learn_td, run_td)

    def make_agent(self) -> Agent:
        """Return the initial tables."""
        return Agent(self.new_table(), Window.new(len(self.seeds), self.config.n_step), np.full(len(self.seeds), -1))

    def begin_anew(self) -> None:
        """Empty the windows."""
        forget(self.agent)


class NStepSarsa(TabularLearner):
    """n-step SARSA (see `TabularLearner` for the arguments)."""

    config: NStepSarsaConfig
    rule: PlainRule
    agent: Agent
    kernels = Kernels(planned, learn_sarsa, run_sarsa)

    def make_agent(self) -> Agent:
        """Return the initial tables."""
        table = Table.new(self.rule.base, self.seeds, self.states, self.actions, self.config.initial_value)
        return Agent(table, Window.new(len(self.seeds), self.config.n_step), np.full(len(self.seeds), -1))

    def begin_anew(self) -> None:
        """Empty the windows, and forget the pending actions."""
        forget(self.agent)
