"""Protocols of learners and policies."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from operant.envs.base import Tree
from operant.nets.actor_critic import BoundActorCritic
from operant.nets.heads import Head
from operant.state import State

Metrics = Mapping[str, Tensor | float]
"""Metrics of one iteration by name: scalars, or tensors `[S]` with one number per seed, which are never modified later.

NaN means that there is no value, except under `losses/`, where it means that training fails.
"""


class Learner(Protocol):
    """A learner, which collects experience and updates a policy.

    Attributes:
        consumed: budget used per seed, in the learner's unit (environment steps, prompts, examples).
    """

    consumed: int

    def iterate(self) -> Metrics:
        """Run one iteration of experience collection and updates, and return its metrics."""
        ...

    def state_dict(self) -> State:
        """Return the complete state for an exact resume."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Restore a state of `state_dict` exactly."""
        ...


Weights = Mapping[str, Tensor]
"""Network weights and normalization statistics of S seeds, `[S, ...]` by name."""


@runtime_checkable
class HasWeights(Protocol):
    """A learner whose weights can be saved as best weights and used to initialize others."""

    @property
    def consumed(self) -> int:
        """Budget used per seed."""
        ...

    @property
    def learned(self) -> Weights:
        """The weights, without copies."""
        ...


@runtime_checkable
class NetworkAgent(Protocol):
    """An agent with networks, such as `operant.control.agent.Agent`."""

    @property
    def head(self) -> Head:
        """Action distribution on the policy's outputs."""
        ...

    @property
    def networks(self) -> BoundActorCritic:
        """Policy and critic networks of all seeds."""
        ...


@runtime_checkable
class HasAgent(Protocol):
    """A learner with an agent that acts."""

    @property
    def agent(self) -> object:
        """The agent, such as a `NetworkAgent`."""
        ...


@runtime_checkable
class HasCriticKind(Protocol):
    """A learner whose critic may predict action values, or nothing."""

    @property
    def critic_kind(self) -> str:
        """Predictions of the critic: "none", "V" or "Q"."""
        ...


@runtime_checkable
class RenewableWeights(HasWeights, Protocol):
    """Weights from which other tensors are computed."""

    @property
    def kept(self) -> Weights:
        """The weights to save as best weights, by the names of `learned`."""
        ...

    def refresh(self) -> None:
        """Recompute derived tensors after a change of the weights."""
        ...


@runtime_checkable
class Describing(Protocol):
    """A learner that reports the outputs of its networks."""

    def describe(self, obs: Tree, hidden_state: Tree | None) -> Mapping[str, Tensor]:
        """Return the outputs of policies and critics, without changing the learner.

        Args:
            obs: observations `[S, N, ...]`, as for `Policy.act`.
            hidden_state: as for `Policy.act`.

        Returns:
            Outputs by name, if available: `probabilities` `[S, N, A]` of discrete actions (concatenated for several
            components), `mean` and `std` `[S, N, A]` of continuous actions (before clipping), `q` `[S, N, A]`, and
            `value` `[S, N]`.
        """
        ...


PolicyModule = tuple[nn.Module, Mapping[str, Any], Mapping[str, Tensor]]
"""Network of a greedy policy, how its inputs and outputs are processed, and the tensors of the processing."""


@runtime_checkable
class HasPolicyModule(Protocol):
    """A learner that describes its greedy policy for `operant export --format onnx` and `torchscript`."""

    def policy_module(self, index: int) -> PolicyModule:
        """Return the greedy policy of the seed at an index.

        Returns:
            A module from observations, encoded by `operant.envs.Features`, `[N, ...]`, to outputs `[N, O]`; what the
            outputs mean, from `operant.control.exporting.of_choices` or `of_box`.
        """
        ...


@runtime_checkable
class HasDevice(Protocol):
    """A learner that names its device. Default: the device of its environments."""

    @property
    def device(self) -> torch.device:
        """The device of networks and tensor environments."""
        ...


@runtime_checkable
class HasGradientSteps(Protocol):
    """A learner whose updates may be compiled. Default: no gradient steps, so that nothing is compiled by itself."""

    @property
    def gradient_steps(self) -> int:
        """Minimum number of gradient steps of the whole run."""
        ...


class Policy(Protocol):
    """A policy for `S` seeds with `N` environments each."""

    def act(self, obs: Tree, hidden_state: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Select one action per environment.

        Args:
            obs: observations `[S, N, ...]` of the environment.
            hidden_state: `[S, N, ...]` from the previous call; None at the start and for feed-forward policies.
            noise: noise `[S, N, ...]` of the action distribution (`ops.distributions`); None: greedy actions.

        Returns:
            Actions `[S, N]` (discrete) or `[S, N, A]` (continuous), within the action space, and the next hidden state.
        """
        ...

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Draw the noise for one action of each of `rows` environments of one seed, `[N, ...]`, with N = `rows`."""
        ...


class ControlLearner(Learner, Policy, Protocol):
    """What a learner of deep control needs, called as `MyLearner(config, env, seeds=..., budget=...)`.

    It may also be a `HasWeights`, which gives it best weights, `HasDevice`, `HasGradientSteps` and `Describing`.
    """

    def close(self) -> None:
        """Close the environments. It can be called twice."""
        ...


METHODS = ("iterate", "state_dict", "load_state_dict", "act", "noise", "close")
"""Methods of a `ControlLearner`."""
