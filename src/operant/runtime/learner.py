"""Protocols of learners and policies."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from operant.envs.base import Tree
from operant.nets.actor_critic import BoundActorCritic
from operant.nets.heads import Head
from operant.state import State

Metrics = Mapping[str, Tensor | float]
"""Named numbers of one iteration: scalars, or tensors `[S]` with one number per seed, never modified later.

NaN means nothing to report, except under `losses/`, where it means that training fails.
"""


class Learner(Protocol):
    """Collects experience and updates a policy.

    Attributes:
        consumed: budget used per seed, in the learner's unit (environment steps, prompts, examples).
    """

    consumed: int

    def iterate(self) -> Metrics:
        """Run one iteration of collection and update, and return its metrics."""
        ...

    def state_dict(self) -> State:
        """Return the complete state for an exact resume."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict` exactly."""
        ...


Weights = Mapping[str, Tensor]
"""Networks of S seeds, and their normalization statistics, `[S, ...]` by name."""


@runtime_checkable
class HasWeights(Protocol):
    """A learner whose weights others can start from, and whose best weights can be saved."""

    @property
    def consumed(self) -> int:
        """Budget used per seed."""
        ...

    @property
    def learned(self) -> Weights:
        """The tensors themselves, not copies."""
        ...


@runtime_checkable
class NetworkAgent(Protocol):
    """An agent with networks, such as `operant.control.agent.Agent`."""

    @property
    def head(self) -> Head:
        """The action distribution of the policy's outputs."""
        ...

    @property
    def networks(self) -> BoundActorCritic:
        """Policy and critic of all seeds."""
        ...


@runtime_checkable
class HasAgent(Protocol):
    """A learner that leaves acting to an agent."""

    @property
    def agent(self) -> object:
        """The agent, such as a `NetworkAgent`."""
        ...


@runtime_checkable
class HasCriticKind(Protocol):
    """A learner whose critic may predict something other than state values, or nothing."""

    @property
    def critic_kind(self) -> str:
        """Kind of predictions: "none", "V" or "Q"."""
        ...


class RenewableWeights(HasWeights, Protocol):
    """Weights from which other tensors are computed."""

    def refresh(self) -> None:
        """Recompute them after a change."""
        ...


@runtime_checkable
class Describing(Protocol):
    """A learner that reports the outputs of its networks for observations."""

    def describe(self, obs: Tree, memory: Tree | None) -> Mapping[str, Tensor]:
        """Return the outputs of policies and critics for observations; nothing changes.

        Args:
            obs: `[S, N, ...]`, as for `Policy.act`.
            memory: as for `Policy.act`.

        Returns:
            By name, if available: `probabilities` `[S, N, A]` of discrete actions (of several choices, one
            after another), `mean` and `std` `[S, N, A]` of continuous ones (before what is out of bounds is clipped),
            `q` `[S, N, A]`, and `value` `[S, N]`.
        """
        ...


class Policy(Protocol):
    """Chooses actions for `S` seeds with `N` environments each."""

    def act(self, obs: Tree, memory: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Return one action per environment, and the hidden state for the next observation.

        Args:
            obs: `[S, N, ...]`, from the environment.
            memory: hidden state `[S, N, ...]` of the previous call; None at first and for feed-forward policies.
            noise: of the action distribution (`ops.distributions`); None: greedy.

        Returns:
            Actions `[S, N]` (discrete) or `[S, N, A]` (continuous), within the action space, and the hidden state.
        """
        ...

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Draw the noise for one action of each of `rows` environments per seed, `[S, N, ...]`."""
        ...
