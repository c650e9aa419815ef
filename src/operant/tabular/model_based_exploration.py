"""R-max and MBIE-EB: model-based learning with optimism in the face of uncertainty.

Both count outcomes, and act greedily with respect to an optimistic model:

    R-max (Brafman and Tennenholtz 2002, JMLR 3)    an action tried fewer than m times has the maximal value
    MBIE-EB (Strehl and Littman 2008, JCSS 74)      Q(s, a) = r̂ + γ Σ P̂ max Q + β R / sqrt(N(s, a))

Unlike ε-greedy exploration, they plan paths to unknown states, so the number of steps that they need is polynomial in
the number of states, not exponential.

R is `reward_max`, and β is in units of it (in the paper, in units of reward). MBIE-EB clips values at
`reward_max / (1 - gamma)`; in R-max known actions have the values of the estimated model.

What differs: known pairs of R-max continue to count outcomes, and their estimates change with the next plan, whereas
the paper estimates them from their first m outcomes; R-max plans when a pair becomes known, MBIE-EB after every step,
both by Gauss-Seidel value iteration from the previous values until no value changes by more than `tolerance`; episodes
may end; ties are broken at random.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from operant.runtime.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, UnitFloat
from operant.runtime.learner import Metrics
from operant.tabular.acting import Cell, Rule, Table, greedy, tick
from operant.tabular.configs import BaseConfig
from operant.tabular.count_model import Counts, expected_backup, observe
from operant.tabular.formulas import count_bonus
from operant.tabular.learner import History, Kernels, TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.simulator import Model, Quota, Step, World, advance, has_quota

logger = logging.getLogger(__name__)

NEGLIGIBLE = 0.01
"""Share of the maximum reward up to which changes of values do not matter in planning."""


@dataclass(frozen=True)
class OptimismConfig(BaseConfig):
    """Common hyperparameters of R-max and MBIE-EB."""

    gamma: UnitFloat = 0.95
    """Discount factor in [0, 1). An unknown action has the value `reward_max / (1 - gamma)`."""
    reward_max: PositiveFloat = 1.0
    """Maximum possible reward. With a higher value exploration takes longer; a lower one may prevent exploration,
    which a warning says once an action's mean reward is higher."""
    tolerance: PositiveFloat = 1e-5
    """Planning stops when no value changes by more than this fraction of the value of an unknown action, nor by more
    than 1 % of `reward_max`."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.gamma == 1.0:
            raise ValueError(
                "gamma must be in [0, 1), because the value of an unknown action would be infinite; got 1.0"
            )

    @property
    def value_max(self) -> float:
        """Value of an unknown action."""
        return self.reward_max / (1.0 - self.gamma)

    @property
    def change_max(self) -> float:
        """Change of a value at which planning stops; with gamma near 1 one step changes little of a large value."""
        return min(self.tolerance * self.value_max, NEGLIGIBLE * self.reward_max)


@dataclass(frozen=True)
class RMaxConfig(OptimismConfig):
    """Hyperparameters of R-max."""

    known: PositiveInt = 16
    """Number m of tries after which an action is known. More give better estimates and cost more steps."""


@dataclass(frozen=True)
class MBIEEBConfig(OptimismConfig):
    """Hyperparameters of MBIE-EB."""

    bonus_coef: NonNegativeFloat = 0.1
    """β of the bonus `β * reward_max / sqrt(N)`, so in units of `reward_max`. Higher explores longer."""


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "operant/RiverSwim-v0": {"reward_max": 10_000.0},
    "operant/SixArms-v0": {"reward_max": 6000.0},
}
"""Configuration by task."""


ROUNDING = 1e-12
"""Relative excess of a value over the maximum that counts as a rounding error."""


class OptimismRule(NamedTuple):
    """Shared constants, and the parameters of the optimistic model.

    Attributes:
        base: the shared constants.
        known: tries below which an action has the value `value_max`.
        value_max: the maximum value.
        clips: whether to clip values at it; R-max does not clip those of known actions.
        beta: scale of the bonus, in units of reward.
        always: whether to plan after every step; otherwise when an action becomes known.
        tolerance: maximum change of a value at which planning stops.
    """

    base: Rule
    known: int
    value_max: float
    clips: bool
    beta: float
    always: bool
    tolerance: float


class Agent(NamedTuple):
    """Tables and the model."""

    table: Table
    model: Counts


@compiled
def optimistic_value(rule: OptimismRule, agent: Agent, i: int, cell: Cell) -> float:
    """Return the value of an action in the optimistic model."""
    state, action = cell
    tries = agent.model.tries[i, state, action]
    if tries < rule.known:
        return rule.value_max
    value = expected_backup(rule.base, agent.model, agent.table.q, i, cell) + count_bonus(rule.beta, tries)
    if rule.clips or value <= rule.value_max * (1.0 + ROUNDING):
        return min(value, rule.value_max)
    return value


@compiled
def plan(rule: OptimismRule, agent: Agent, i: int) -> None:
    """Run value iteration over all states, in place, until convergence."""
    q, choices = agent.table.q, rule.base.choices
    largest = np.inf
    while largest > rule.tolerance:
        largest = 0.0
        for state in range(q.shape[1]):
            for k in range(choices.counts[state]):
                action = choices.options[state, k]
                value = optimistic_value(rule, agent, i, (state, action))
                largest = max(largest, abs(value - q[i, state, action]))
                q[i, state, action] = value


@compiled
def choose(rule: OptimismRule, agent: Agent, i: int, state: int) -> int:
    """Return a greedy action."""
    return greedy(rule.base.choices, agent.table.q[i, state], state, agent.table.rng, i)


@compiled
def learn(rule: OptimismRule, agent: Agent, i: int, step: Step) -> None:
    """Count a step, and plan if needed."""
    model, state, action = agent.model, step.state, step.action
    observe(model, i, (state, action), step.reward, model.successors.shape[1] if step.terminated else step.successor)
    agent.table.visits[i, state, action] += 1
    if rule.always or model.tries[i, state, action] == rule.known:
        plan(rule, agent, i)
    tick(rule.base, agent.table, i, step.terminated or step.truncated)


@compiled
def run(model: Model, world: World, rule: OptimismRule, agent: Agent, quota: Quota) -> None:
    """Run R-max or MBIE-EB in a simulated model that the agent does not see; a seed with a full learned model waits."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i) and not agent.model.full[i]:
            step = advance(model, world, i, choose(rule, agent, i, world.state[i]))
            learn(rule, agent, i, step)
            quota.left[i] -= 1


class Optimist(TabularLearner):
    """Base of R-max and MBIE-EB."""

    rule: OptimismRule
    agent: Agent
    kernels = Kernels(choose, learn, run)
    GROWING = frozenset({"successors", "counts"})
    _warned = False

    def make_agent(self) -> Agent:
        """Return tables with the maximum values, and an empty model."""
        table = Table.new(self.rule.base, self.seeds, self.states, self.actions, self.rule.value_max)
        return Agent(table, Counts.new(len(self.seeds), self.states, self.actions))

    def make_room(self) -> None:
        """Double the slots of a full model."""
        self.agent = self.agent._replace(model=self.agent.model.with_room())

    def iterate(self) -> Metrics:
        """Act and learn; warn once if rewards exceed `reward_max`."""
        metrics = super().iterate()
        self._check_rewards()
        return metrics

    def run_episodes(self, episodes: int) -> History:
        """Act and learn for some episodes (see `TabularLearner`); warn once if rewards exceed `reward_max`."""
        history = super().run_episodes(episodes)
        self._check_rewards()
        return history

    def _check_rewards(self) -> None:
        model, reward_max = self.agent.model, self.config.reward_max
        if self._warned:
            return
        largest = float((model.reward_sums / np.maximum(model.tries, 1)).max())
        if largest > reward_max * (1.0 + 1e-9):
            self._warned = True
            logger.warning(
                "an action has the mean reward %g, but reward_max is %g: untried actions look worse than they may be, "
                "which can prevent exploration; set reward_max to the largest possible reward",
                largest,
                reward_max,
            )


class RMax(Optimist):
    """R-max (see `TabularLearner` for the arguments)."""

    config: RMaxConfig

    def make_rule(self, base: Rule) -> OptimismRule:
        """Add the number of tries that makes an action known."""
        config = self.config
        return OptimismRule(
            base, config.known, config.value_max, clips=False, beta=0.0, always=False, tolerance=config.change_max
        )


class MBIEEB(Optimist):
    """MBIE-EB (see `TabularLearner` for the arguments)."""

    config: MBIEEBConfig

    def make_rule(self, base: Rule) -> OptimismRule:
        """Add the bonus."""
        config = self.config
        beta = config.bonus_coef * config.reward_max
        return OptimismRule(base, 1, config.value_max, clips=True, beta=beta, always=True, tolerance=config.change_max)
