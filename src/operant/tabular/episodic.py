r"""Updates at the end of an episode: Monte Carlo prediction and control, and the offline λ-return.

The return of every step is computed backwards from the end, and every visited cell moves towards it. With `λ = 1` the
target is the return (Sutton and Barto 2018, sections 5.1 and 5.4, in incremental form); with a smaller λ it is
`G_t^λ = r + γ ((1 - λ) V(s') + λ G_{t+1}^λ)` (section 12.1), with the values before the episode.

First-visit Monte Carlo averages the return of the first visit of a cell in each episode, which is unbiased; every-visit
Monte Carlo averages the returns of all visits, which is biased but consistent.

What differs: returns of a truncated episode bootstrap from the value of its true last state. They depend on earlier
values, so their mean is neither unbiased nor does it converge fast.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from operant.runtime.bounds import UnitFloat
from operant.tabular.acting import Rule, Table, epsilon_greedy, exploring_value, improve, tick
from operant.tabular.configs import ControlConfig, TableConfig
from operant.tabular.formulas import lambda_return
from operant.tabular.learner import Kernels, TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.prediction import Policy, Prediction, follow, of_state
from operant.tabular.simulator import Model, Quota, Step, World, advance, has_quota, require_ends

logger = logging.getLogger(__name__)

Visits = Literal["first", "every"]


@dataclass(frozen=True)
class MonteCarloPredictionConfig(TableConfig):
    """Hyperparameters of Monte Carlo prediction."""

    step_size_schedule: Literal["constant", "linear", "exponential", "visits"] = "visits"
    """Schedule of α. `visits` averages all returns, as the method is defined; a constant α forgets old ones. For tasks
    with truncated episodes, whose returns contain earlier values, use `constant`, or a `step_size_power` of about 0.6.
    """
    visits: Visits = "first"
    """Visits of a state per episode that are used: the first one, or every one."""


@dataclass(frozen=True)
class LambdaReturnConfig(TableConfig):
    """Hyperparameters of the offline λ-return algorithm."""

    td_lambda: UnitFloat = 0.9
    """λ: 0 gives one-step targets, 1 Monte Carlo returns."""
    sweep: Literal["sequential", "together"] = "sequential"
    """Updates of an episode: sequential, each from the latest values; or all from the values before the episode, which
    equals offline TD(λ)."""


@dataclass(frozen=True)
class MonteCarloConfig(ControlConfig):
    """Hyperparameters of on-policy Monte Carlo control."""

    visits: Visits = "every"
    """Visits of a state-action pair per episode that are used: the first one, or every one."""


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "operant/RandomWalk5-v0": {"gamma": 1.0},
    "operant/RandomWalk19-v0": {"gamma": 1.0},
}
"""Configuration by task."""


class EpisodeRule(NamedTuple):
    """Settings of episodic updates: λ, whether only first visits are used, whether all updates are made together."""

    lam: float
    first_visit: bool
    together: bool


class Episode(NamedTuple):
    """The steps of the current episode.

    Attributes:
        states: `[S, L]`.
        actions: `[S, L]`; 0 for prediction.
        rewards: `[S, L]`; replaced by the targets at the end of the episode.
        length: `[S]`.
        seen: `[S, states, A]`, number of the last episode that visited a cell, starting at 1.
        number: `[S]`, number of the current episode, starting at 1.
    """

    states: NDArray[np.int64]
    actions: NDArray[np.int64]
    rewards: NDArray[np.float64]
    length: NDArray[np.int64]
    seen: NDArray[np.int64]
    number: NDArray[np.int64]

    @classmethod
    def new(cls, seeds: int, states: int, actions: int, capacity: int = 64) -> Self:
        """Return an empty episode."""
        steps = (seeds, capacity)
        return cls(
            states=np.zeros(steps, np.int64),
            actions=np.zeros(steps, np.int64),
            rewards=np.zeros(steps),
            length=np.zeros(seeds, np.int64),
            seen=np.zeros((seeds, states, actions), np.int64),
            number=np.ones(seeds, np.int64),
        )


class Agent(NamedTuple):
    """Tables and the steps of the current episode."""

    table: Table
    episode: Episode


@compiled
def backward(rule: "EpisodicPredictionRule | EpisodicControlRule", agent: Agent, i: int, last_value: float) -> None:
    """Replace the rewards of the episode by the targets (or the errors, if all updates are made together)."""
    episode, how = agent.episode, rule.how
    following, next_value = last_value, last_value
    for t in range(episode.length[i] - 1, -1, -1):
        value = agent.table.q[i, episode.states[i, t], episode.actions[i, t]]
        following = lambda_return(episode.rewards[i, t], next_value, following, rule.base.gamma, how.lam)
        episode.rewards[i, t] = following - value if how.together else following
        next_value = value


@compiled
def learn_episode(
    rule: "EpisodicPredictionRule | EpisodicControlRule", agent: Agent, i: int, last_value: float
) -> None:
    """Update the values of an episode's cells and clear it; `last_value` is 0 after a termination."""
    episode, how = agent.episode, rule.how
    backward(rule, agent, i, last_value)
    for t in range(episode.length[i]):
        state, action = episode.states[i, t], episode.actions[i, t]
        if how.first_visit and episode.seen[i, state, action] == episode.number[i]:
            continue
        episode.seen[i, state, action] = episode.number[i]
        target = episode.rewards[i, t]
        if how.together:
            target += agent.table.q[i, state, action]
        improve(rule.base, agent.table, i, (state, action), target)
    episode.number[i] += 1
    episode.length[i] = 0


@compiled
def remember(episode: Episode, i: int, step: Step) -> None:
    """Add a step to the episode, which must not be full."""
    t = episode.length[i]
    episode.states[i, t], episode.actions[i, t], episode.rewards[i, t] = step.state, step.action, step.reward
    episode.length[i] += 1


@compiled
def has_space(agent: Agent, i: int) -> bool:
    """Return whether there is space for another step."""
    return agent.episode.length[i] < agent.episode.rewards.shape[1]


@compiled
def learn_prediction(rule: "EpisodicPredictionRule", agent: Agent, i: int, step: Step) -> None:
    """Store a step; at the end of the episode, update V(s) of all its states."""
    remember(agent.episode, i, of_state(step))
    if step.terminated or step.truncated:
        learn_episode(rule, agent, i, 0.0 if step.terminated else agent.table.q[i, step.successor, 0])
    tick(rule.base, agent.table, i, step.terminated or step.truncated)


@compiled
def learn_control(rule: "EpisodicControlRule", agent: Agent, i: int, step: Step) -> None:
    """Store a step; at the end of the episode, update Q(s, a) of all its actions."""
    remember(agent.episode, i, step)
    if step.terminated or step.truncated:
        last_value = 0.0 if step.terminated else exploring_value(rule.base, agent.table, i, step.successor)
        learn_episode(rule, agent, i, last_value)
    tick(rule.base, agent.table, i, step.terminated or step.truncated)


@compiled
def choose_control(rule: "EpisodicControlRule", agent: Agent, i: int, state: int) -> int:
    """Return an ε-greedy action."""
    return epsilon_greedy(rule.base, agent.table, i, state)


@compiled
def run_prediction(model: Model, world: World, rule: "EpisodicPredictionRule", agent: Agent, quota: Quota) -> None:
    """Run prediction in a model; a seed whose episode is full waits."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i) and has_space(agent, i):
            step = advance(model, world, i, follow(rule, agent, i, world.state[i]))
            learn_prediction(rule, agent, i, step)
            quota.left[i] -= 1


@compiled
def run_control(model: Model, world: World, rule: "EpisodicControlRule", agent: Agent, quota: Quota) -> None:
    """Run Monte Carlo control in a model; a seed whose episode is full waits."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i) and has_space(agent, i):
            step = advance(model, world, i, choose_control(rule, agent, i, world.state[i]))
            learn_control(rule, agent, i, step)
            quota.left[i] -= 1


class EpisodicPredictionRule(NamedTuple):
    """Shared constants, the evaluated policy, and the settings of episodic updates."""

    base: Rule
    policy: Policy
    how: EpisodeRule


class EpisodicControlRule(NamedTuple):
    """Shared constants, and the settings of episodic updates."""

    base: Rule
    how: EpisodeRule


def new_episode(learner: TabularLearner, actions: int) -> Episode:
    """Return an empty episode for `actions` values per state.

    Raises:
        ValueError: if the model of the learner, which learns at the end of an episode, has none.
    """
    if learner.model is not None:
        require_ends(learner.model)
    return Episode.new(len(learner.seeds), learner.states, actions)


def with_room(agent: Agent) -> Agent:
    """Return the agent with twice the space for steps, if the episode of a seed is full."""
    episode = agent.episode
    if (episode.length < episode.rewards.shape[1]).all():
        return agent
    doubled = {name: np.repeat(getattr(episode, name), 2, axis=1) for name in ("states", "actions", "rewards")}
    for name, steps in doubled.items():
        steps[:, : episode.rewards.shape[1]] = getattr(episode, name)
    return agent._replace(episode=episode._replace(**doubled))


class EpisodicPrediction(Prediction):
    """Base of Monte Carlo prediction and the offline λ-return."""

    rule: EpisodicPredictionRule
    agent: Agent
    kernels = Kernels(follow, learn_prediction, run_prediction)
    GROWING = frozenset({"states", "actions", "rewards"})

    def how(self) -> EpisodeRule:
        """Return the settings of episodic updates."""
        raise TypeError(f"{type(self).__name__} is abstract: use one of its subclasses")

    def make_rule(self, base: Rule) -> EpisodicPredictionRule:
        """Add the policy and the settings of episodic updates."""
        return EpisodicPredictionRule(base, self.make_policy(), self.how())

    def make_agent(self) -> Agent:
        """Return the initial tables."""
        return Agent(self.new_table(), new_episode(self, 1))

    def make_room(self) -> None:
        """Double the space for steps if an episode has filled it."""
        self.agent = with_room(self.agent)

    def begin_anew(self) -> None:
        """Forget the unfinished episodes."""
        self.agent.episode.length[:] = 0


class MonteCarloPrediction(EpisodicPrediction):
    """Monte Carlo prediction (see `Prediction` for the arguments)."""

    config: MonteCarloPredictionConfig
    _warned = False

    def _inspect(self) -> None:
        super()._inspect()
        averages = self.config.step_size_schedule == "visits" and self.config.step_size_power == 1.0
        if averages and self.world.cut.any() and not self._warned:
            self._warned = True
            logger.warning(
                "a time limit truncated an episode, whose returns contain the value of its last state: values that are "
                "means of all returns converge slowly then; use step_size_power=0.6, or step_size_schedule=constant"
            )

    def how(self) -> EpisodeRule:
        """Return the settings of episodic updates."""
        return EpisodeRule(lam=1.0, first_visit=self.config.visits == "first", together=False)


class LambdaReturn(EpisodicPrediction):
    """The offline λ-return algorithm (see `Prediction` for the arguments)."""

    config: LambdaReturnConfig

    def how(self) -> EpisodeRule:
        """Return the settings of episodic updates."""
        return EpisodeRule(float(self.config.td_lambda), first_visit=False, together=self.config.sweep == "together")


class MonteCarlo(TabularLearner):
    """On-policy Monte Carlo control (see `TabularLearner` for the arguments)."""

    config: MonteCarloConfig
    rule: EpisodicControlRule
    agent: Agent
    kernels = Kernels(choose_control, learn_control, run_control)
    GROWING = EpisodicPrediction.GROWING

    def make_rule(self, base: Rule) -> EpisodicControlRule:
        """Add the settings of episodic updates."""
        how = EpisodeRule(lam=1.0, first_visit=self.config.visits == "first", together=False)
        return EpisodicControlRule(base, how)

    def make_agent(self) -> Agent:
        """Return the initial tables."""
        table = Table.new(self.rule.base, self.seeds, self.states, self.actions, self.config.initial_value)
        return Agent(table, new_episode(self, self.actions))

    def make_room(self) -> None:
        """Double the space for steps if an episode has filled it."""
        self.agent = with_room(self.agent)

    def begin_anew(self) -> None:
        """Forget the unfinished episodes."""
        self.agent.episode.length[:] = 0
