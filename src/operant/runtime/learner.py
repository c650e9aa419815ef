"""The one protocol of everything that learns from data, and of what it learns."""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from operant.envs.base import Tree
from operant.nets.actor_critic import BoundActorCritic
from operant.nets.heads import Head
from operant.state import State

Metrics = Mapping[str, Tensor | float]
"""Named numbers of one iteration: scalars, or tensors `[S]` with one number a seed, which nobody writes to later.

Not a number says that there is nothing to report, except under `losses/`, where it says that training is going wrong.
"""


class Learner(Protocol):
    """Collects, estimates and updates.

    Attributes:
        consumed: budget used so far, per seed, in the learner's own unit (environment steps, prompts, examples).
    """

    consumed: int

    def iterate(self) -> Metrics:
        """Collect experience, estimate advantages or compute targets, update, and return what happened."""
        ...

    def state_dict(self) -> State:
        """Return everything that an exact resume needs."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue from a state of `state_dict`, exactly."""
        ...


Weights = Mapping[str, Tensor]
"""Networks of S seeds, and the moments by which they normalize, `[S, ...]` by name."""


@runtime_checkable
class HasWeights(Protocol):
    """Something that has learned what others can begin with, and whose best can be kept."""

    @property
    def consumed(self) -> int:
        """Budget used so far, per seed."""
        ...

    @property
    def learned(self) -> Weights:
        """The tensors themselves, not copies."""
        ...


@runtime_checkable
class NetworkAgent(Protocol):
    """Something that acts by networks, such as `operant.control.agent.Agent`."""

    @property
    def head(self) -> Head:
        """What the policy's outputs mean."""
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
        """What acts, such as a `NetworkAgent`."""
        ...


@runtime_checkable
class HasCriticKind(Protocol):
    """A learner whose critic may predict something else than the values of states, or nothing."""

    @property
    def critic_kind(self) -> str:
        """What it predicts: "none", "V" or "Q"."""
        ...


class RenewableWeights(HasWeights, Protocol):
    """Weights that something else is computed from."""

    def refresh(self) -> None:
        """Compute it anew, after they were changed."""
        ...


@runtime_checkable
class Describing(Protocol):
    """Knows what its policies make of observations."""

    def describe(self, obs: Tree, memory: Tree | None) -> Mapping[str, Tensor]:
        """Return what policies and critics say of observations; nothing is changed.

        Args:
            obs: `[S, N, ...]`, as for `Policy.act`.
            memory: as for `Policy.act`.

        Returns:
            By name, those that there are: `probabilities` `[S, N, A]` of discrete actions (of several choices, one
            after another), `mean` and `std` `[S, N, A]` of continuous ones (before what is out of bounds is clipped),
            `q` `[S, N, A]`, and `value` `[S, N]`.
        """
        ...


class Policy(Protocol):
    """Chooses actions for `S` seeds and `N` rows each."""

    def act(self, obs: Tree, memory: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Return one action a row, and the memory to hand over with the next observation.

        Args:
            obs: `[S, N, ...]`, as the environment gives it.
            memory: `[S, N, ...]` from the previous call; None at first, and always None for feed-forward policies.
            noise: what the action distribution needs to sample (`ops.distributions`); None chooses greedily.

        Returns:
            Actions `[S, N]` (discrete) or `[S, N, A]` (continuous), within the action space, and the memory.
        """
        ...

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Draw the noise for one action of each of `rows` rows of every seed, `[S, N, ...]`."""
        ...
