"""The random baseline: uniform over feasible actions, without learning."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from operant.tabular.acting import random_action
from operant.tabular.configs import BaseConfig
from operant.tabular.learner import Floats, Kernels, PlainRule, TabularLearner
from operant.tabular.numba_config import compiled
from operant.tabular.player import shares
from operant.tabular.random import StreamStates, stream_states
from operant.tabular.simulator import Model, Quota, Step, World, advance, has_quota


@dataclass(frozen=True)
class RandomConfig(BaseConfig):
    """Hyperparameters of the random agent; they have no effect."""


PRESETS: Mapping[str, Mapping[str, Any]] = {}
"""No presets."""


class Agent(NamedTuple):
    """The streams `[S]` of the policy."""

    rng: StreamStates


@compiled
def choose(rule: PlainRule, agent: Agent, i: int, state: int) -> int:
    """Return a random feasible action."""
    return random_action(rule.base.choices, agent.rng, i, state)


@compiled
def learn(rule: PlainRule, agent: Agent, i: int, step: Step) -> None:
    """Do nothing."""


@compiled
def run(model: Model, world: World, rule: PlainRule, agent: Agent, quota: Quota) -> None:
    """Act in a model."""
    for i in range(len(quota.left)):
        while has_quota(world, quota, i):
            advance(model, world, i, choose(rule, agent, i, world.state[i]))
            quota.left[i] -= 1


class RandomAgent(TabularLearner):
    """The random agent (see `TabularLearner` for the arguments). It has no values."""

    config: RandomConfig
    rule: PlainRule
    agent: Agent
    kernels = Kernels(choose, learn, run)
    learns_values = False

    def make_agent(self) -> Agent:
        """Return the random streams."""
        return Agent(stream_states(self.seeds, "policy"))

    def probabilities(self, states: NDArray[np.int64], *, exploring: bool = False) -> Floats:
        """Return the policy in states `[S, N]`, `[S, N, A]`."""
        return shares(self.feasible[states])

    def schedules(self) -> dict[str, Floats]:
        """Return an empty dictionary: there are no schedules."""
        return {}
