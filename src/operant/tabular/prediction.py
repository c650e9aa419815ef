"""Prediction: learning the state values of a fixed policy."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from operant.envs.base import BatchEnv
from operant.mdp import MDP, check_policy
from operant.tabular.acting import HasTable, Rule, Table, sampled_action
from operant.tabular.configs import TableConfig
from operant.tabular.learner import TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.player import shares
from operant.tabular.simulator import UNLIMITED, Step

Floats = NDArray[np.float64]


class Policy(NamedTuple):
    """A stochastic policy for sampling.

    Attributes:
        cumulative: `[states * A]`, cumulative probabilities of the actions of each state.
        actions: A.
    """

    cumulative: Floats
    actions: int


class PredictionRule(NamedTuple):
    """Shared constants, and the evaluated policy.

    Attributes:
        base: the shared constants.
        policy: the evaluated policy.
    """

    base: Rule
    policy: Policy


class HasPolicy(Protocol):
    """The constants of an algorithm that evaluates a policy."""

    @property
    def policy(self) -> Policy:
        """The evaluated policy."""
        ...


@compiled
def follow(rule: HasPolicy, agent: HasTable, i: int, state: int) -> int:
    """Sample an action from the policy."""
    return sampled_action(rule.policy.cumulative, rule.policy.actions, agent.table.rng, i, state)


@compiled
def of_state(step: Step) -> Step:
    """Return the step with action 0, the only action of a table of states."""
    return Step(step.state, 0, step.reward, step.successor, step.terminated, step.truncated)


class Prediction(TabularLearner):
    """`S` seeds that evaluate one policy.

    Args:
        config: hyperparameters.
        source: as in `TabularLearner`.
        seeds: as in `TabularLearner`.
        budget: as in `TabularLearner`.
        feasible: as in `TabularLearner`.
        policy: actions `[states]`, or probabilities `[states, A]`. Default: uniform over feasible actions.

    Raises:
        ValueError: if the policy has the wrong shape, or an infeasible action.
    """

    learns_action_values = False

    def __init__(
        self,
        config: TableConfig,
        source: MDP | BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int = UNLIMITED,
        feasible: NDArray[np.bool_] | None = None,
        policy: ArrayLike | None = None,
    ) -> None:
        self._given = policy
        super().__init__(config, source, seeds=seeds, budget=budget, feasible=feasible)

    def make_rule(self, base: Rule) -> Any:
        """Add the policy."""
        return PredictionRule(base, self.make_policy())

    def make_policy(self) -> Policy:
        """Return the policy for the kernels."""
        self.followed = policy_table(self._given, self.feasible)
        return Policy(np.cumsum(self.followed, axis=1).ravel(), self.actions)

    def new_table(self) -> Table:
        """Return the initial state values, `[S, states, 1]`; those of terminal states are 0."""
        table = Table.new(self.rule.base, self.seeds, self.states, 1, self.config.initial_value)
        table.q[:, ~self.feasible.any(axis=1)] = 0.0
        return table

    @property
    def values(self) -> Floats:
        """Values of states, `[S, states]`; a view."""
        return self.agent.table.q[:, :, 0]

    def probabilities(self, states: NDArray[np.int64], *, exploring: bool = False) -> Floats:
        """Return the policy in states `[S, N]`, `[S, N, A]`; it is the same for all seeds."""
        return self.followed[states]


def policy_table(policy: ArrayLike | None, feasible: NDArray[np.bool_]) -> Floats:
    """Return a policy as probabilities `[states, A]`; None is uniform over feasible actions.

    Raises:
        ValueError: if the policy has the wrong shape, or an infeasible action.
    """
    if policy is None:
        return shares(feasible)
    entries = int(feasible.sum())
    model = MDP(  # a model with these feasible actions, where each ends the episode
        states=feasible.shape[0],
        actions=feasible.shape[1],
        indptr=np.concatenate([[0], np.cumsum(feasible)]),
        successors=np.zeros(entries, np.int64),
        probabilities=np.ones(entries),
        rewards=np.zeros(entries),
        terminates=np.ones(entries, np.bool_),
        start=shares(np.asarray(feasible.any(axis=1))),
    )
    return check_policy(model, policy)
