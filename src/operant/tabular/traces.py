r"""TD(λ) and SARSA(λ): every step updates all earlier cells, by eligibility traces.

With the TD error `δ = r + γ V(s') - V(s)`, every cell moves by `α δ z`, where its trace z grows at each visit and
decays by `γ λ` per step (Sutton 1988; Singh and Sutton 1996; van Seijen et al. 2016, "True online temporal-difference
learning", JMLR 17):

    accumulating    z ← γλ z + 1
    replacing       z ← 1
    true_online     z ← γλ z + 1 - α γλ z, and V equals the online λ-return algorithm exactly if α is constant within
                    an episode

λ = 0 is TD(0) and SARSA. Offline, with all updates of an episode made at its end, accumulating traces are
the λ-return of `operant.tabular.episodic` (Sutton and Barto 2018, section 12.2).

What differs: an episode cut by a time limit bootstraps from its true last state. Only cells with a trace above 1e-30
are updated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from operant.runtime.bounds import UnitFloat
from operant.tabular.acting import Cell, Floats, Rule, Table, planned, sarsa_value, tick
from operant.tabular.configs import ControlConfig, TableConfig
from operant.tabular.formulas import q_target
from operant.tabular.learner import Kernels, TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.prediction import Policy, Prediction, follow, of_state
from operant.tabular.simulator import Model, Quota, Step, World, advance, has_quota

TraceKind = Literal["accumulating", "replacing", "true_online"]
KINDS: tuple[TraceKind, ...] = ("accumulating", "replacing", "true_online")
ACCUMULATING, REPLACING, TRUE_ONLINE = range(3)
NEGLIGIBLE = 1e-30


@dataclass(frozen=True)
class TDLambdaConfig(TableConfig):
    """Hyperparameters of TD(λ) prediction."""

    td_lambda: UnitFloat = 0.9
    """λ, decay of traces: 0 is TD(0), 1 Monte Carlo."""
    traces: TraceKind = "accumulating"
    """Traces: accumulating, replacing, or true online, exactly equal to the online λ-return."""
    update: Literal["online", "offline"] = "online"
    """Updates of values: at every step, or at the end of an episode (accumulating and replacing traces)."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        _require_no_visits(self)
        if self.update == "offline" and self.traces == "true_online":
            raise ValueError("update must be online with true_online traces, got 'offline'")


@dataclass(frozen=True)
class SarsaLambdaConfig(ControlConfig):
    """Hyperparameters of SARSA(λ)."""

    td_lambda: UnitFloat = 0.9
    """λ, decay of traces: 0 is SARSA, 1 Monte Carlo."""
    traces: TraceKind = "replacing"
    """Traces: accumulating, replacing, or true online, exactly equal to the online λ-return."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        _require_no_visits(self)


def _require_no_visits(config: TDLambdaConfig | SarsaLambdaConfig) -> None:
    if config.step_size_schedule == "visits":
        raise ValueError("step_size_schedule must be constant, linear or exponential with traces, got 'visits'")


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "CliffWalking-v1": {"gamma": 1.0, "step_size": 0.25},
    "operant/RandomWalk19-v0": {"gamma": 1.0, "step_size": 0.2, "td_lambda": 0.8},
}
"""Configuration by task."""


class TraceRule(NamedTuple):
    """Settings of traces: λ, index in `KINDS`, offline updates."""

    lam: float
    kind: int
    offline: bool


class Traces(NamedTuple):
    """The traces of `S` seeds.

    Attributes:
        z: `[S, states, A]`.
        active: `[S, states * A]`, the cells with a trace, unordered.
        live: `[S]`, number of these cells.
        old_value: `[S]`, value of the current cell at the previous step (true online).
        moves: `[S, states, A]`, pending updates of offline learning; `[S, 0, 0]` if online.
    """

    z: NDArray[np.float64]
    active: NDArray[np.int64]
    live: NDArray[np.int64]
    old_value: NDArray[np.float64]
    moves: NDArray[np.float64]

    @classmethod
    def new(cls, seeds: Sequence[int], states: int, actions: int, *, offline: bool = False) -> Self:
        """Return traces that are all 0."""
        shape = (len(seeds), states, actions)
        return cls(
            z=np.zeros(shape),
            active=np.zeros((len(seeds), states * actions), np.int64),
            live=np.zeros(len(seeds), np.int64),
            old_value=np.zeros(len(seeds)),
            moves=np.zeros(shape if offline else (len(seeds), 0, 0)),
        )


class Agent(NamedTuple):
    """Tables, traces, and SARSA's pending action `[S]` (-1: none)."""

    table: Table
    traces: Traces
    pending: NDArray[np.int64]


def forget(agent: Agent) -> None:
    """Set the traces to 0, and forget the updates and actions of unfinished episodes."""
    for part in (agent.traces.z, agent.traces.live, agent.traces.old_value, agent.traces.moves):
        part.fill(0)
    agent.pending[:] = -1


@compiled
def grown(trace: float, kind: int, step_size: float) -> float:
    """Return a decayed trace after a visit to its cell."""
    if kind == REPLACING:
        return 1.0
    return trace + 1.0 - step_size * trace if kind == TRUE_ONLINE else trace + 1.0


@compiled
def visit(traces: Traces, kind: int, i: int, cell: Cell, step_size: float) -> None:
    """Increase the trace of the current cell."""
    state, action = cell
    if traces.z[i, state, action] == 0.0:
        traces.active[i, traces.live[i]] = state * traces.z.shape[2] + action
        traces.live[i] += 1
    traces.z[i, state, action] = grown(traces.z[i, state, action], kind, step_size)


@compiled
def move_all(q: Floats, traces: Traces, i: int, amount: float, fading: float) -> None:
    """Move all cells by `amount` times their trace, and decay the traces."""
    actions, k = traces.z.shape[2], 0
    while k < traces.live[i]:
        state, action = traces.active[i, k] // actions, traces.active[i, k] % actions
        q[i, state, action] += amount * traces.z[i, state, action]
        traces.z[i, state, action] *= fading
        if traces.z[i, state, action] > NEGLIGIBLE:
            k += 1
        else:
            traces.z[i, state, action] = 0.0
            traces.live[i] -= 1
            traces.active[i, k] = traces.active[i, traces.live[i]]


@compiled
def make_moves(q: Floats, moves: Floats, i: int) -> None:
    """Apply the updates of an episode, and clear them."""
    for state in range(moves.shape[1]):
        for action in range(moves.shape[2]):
            q[i, state, action] += moves[i, state, action]
            moves[i, state, action] = 0.0


@compiled
def trace_update(rule: "TDRule | SarsaRule", agent: Agent, i: int, step: Step, next_value: float) -> None:
    """Update all values after a step; `next_value` is 0 after a termination."""
    table, traces, how = agent.table, agent.traces, rule.how
    state, action, step_size = step.state, step.action, table.step_size[i]
    value = table.q[i, state, action]
    error = q_target(step.reward, next_value, False, rule.base.gamma) - value
    table.visits[i, state, action] += 1
    visit(traces, how.kind, i, (state, action), step_size)
    fading = rule.base.gamma * how.lam
    if how.kind == TRUE_ONLINE:
        drift = value - traces.old_value[i]
        move_all(table.q, traces, i, step_size * (error + drift), fading)
        table.q[i, state, action] -= step_size * drift
        traces.old_value[i] = next_value
    else:
        move_all(traces.moves if how.offline else table.q, traces, i, step_size * error, fading)
    ended = step.terminated or step.truncated
    if ended:
        move_all(table.q, traces, i, 0.0, 0.0)
        traces.old_value[i] = 0.0
        make_moves(table.q, traces.moves, i)
    tick(rule.base, table, i, ended)


@compiled
def learn_td(rule: "TDRule", agent: Agent, i: int, step: Step) -> None:
    """Update the values of all earlier states."""
    next_value = 0.0 if step.terminated else agent.table.q[i, step.successor, 0]
    trace_update(rule, agent, i, of_state(step), next_value)


@compiled
def learn_sarsa(rule: "SarsaRule", agent: Agent, i: int, step: Step) -> None:
    """Select the next action and update the values of all earlier actions."""
    trace_update(rule, agent, i, step, sarsa_value(rule, agent, i, step))


@compiled
def run_td(model: Model, world: World, rule: "TDRule", agent: Agent, quota: Quota) -> None:
    """Run TD(λ) in a model."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            step = advance(model, world, i, follow(rule, agent, i, world.state[i]))
            learn_td(rule, agent, i, step)
            quota.left[i] -= 1


@compiled
def run_sarsa(model: Model, world: World, rule: "SarsaRule", agent: Agent, quota: Quota) -> None:
    """Run SARSA(λ) in a model."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            step = advance(model, world, i, planned(rule, agent, i, world.state[i]))
            learn_sarsa(rule, agent, i, step)
            quota.left[i] -= 1


class TDRule(NamedTuple):
    """Shared constants, the evaluated policy, and the settings of traces."""

    base: Rule
    policy: Policy
    how: TraceRule


class SarsaRule(NamedTuple):
    """Shared constants, and the settings of traces."""

    base: Rule
    how: TraceRule


class TDLambda(Prediction):
    """TD(λ) prediction (see `Prediction` for the arguments)."""

    config: TDLambdaConfig
    rule: TDRule
    agent: Agent
    kernels = Kernels(follow, learn_td, run_td)

    def make_rule(self, base: Rule) -> TDRule:
        """Add the policy and the traces."""
        how = TraceRule(float(self.config.td_lambda), KINDS.index(self.config.traces), self.config.update == "offline")
        return TDRule(base, self.make_policy(), how)

    def make_agent(self) -> Agent:
        """Return the initial tables."""
        traces = Traces.new(self.seeds, self.states, 1, offline=self.rule.how.offline)
        return Agent(self.new_table(), traces, np.full(len(self.seeds), -1))

    def begin_anew(self) -> None:
        """Forget the unfinished episodes."""
        forget(self.agent)


class SarsaLambda(TabularLearner):
    """SARSA(λ) (see `TabularLearner` for the arguments)."""

    config: SarsaLambdaConfig
    rule: SarsaRule
    agent: Agent
    kernels = Kernels(planned, learn_sarsa, run_sarsa)

    def make_rule(self, base: Rule) -> SarsaRule:
        """Add the traces."""
        return SarsaRule(base, TraceRule(float(self.config.td_lambda), KINDS.index(self.config.traces), offline=False))

    def make_agent(self) -> Agent:
        """Return the initial tables."""
        table = Table.new(self.rule.base, self.seeds, self.states, self.actions, self.config.initial_value)
        return Agent(table, Traces.new(self.seeds, self.states, self.actions), np.full(len(self.seeds), -1))

    def begin_anew(self) -> None:
        """Forget the unfinished episodes."""
        forget(self.agent)
