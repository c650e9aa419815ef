"""Actor and critic of DreamerV3, and their imagined trajectories.

Hafner et al. 2023, arXiv:2301.04104, equations 6 to 11. Actions are discrete, or vectors in [-1, 1].
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium
import torch
from torch import Tensor

from operant import ops, streams
from operant.nets import Slots, StackedNormedMLP, shares
from operant.worlds.action_vectors import BoxActions
from operant.worlds.rssm import State
from operant.worlds.world_model import BoundWorld, WorldModel, WorldShape

STD = (0.1, 1.0)
"""Bounds of the standard deviations of continuous actions."""


class ActionDistribution(Protocol):
    """Action distributions, parameterized by the outputs of an actor.

    Attributes:
        outputs: number of outputs of the actor.
        width: size of an encoded action.
    """

    outputs: int
    width: int

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample the noise of `sample`, `[*shape, width]`."""
        ...

    def sample(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """Sample actions for outputs `[..., outputs]`; without noise the most likely ones."""
        ...

    def log_prob_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of actions, and the entropies, `[...]`."""
        ...

    def encode(self, actions: Tensor) -> Tensor:
        """Encode actions for the networks, `[..., width]`."""
        ...

    def to_env(self, actions: Tensor) -> Tensor:
        """Convert actions to members of the action space."""
        ...


class CategoricalActions:
    """Discrete actions, each with a minimum probability.

    Args:
        space: space of the actions.
        unimix: share of the uniform distribution.
    """

    def __init__(self, space: gymnasium.spaces.Discrete, unimix: float) -> None:
        self.outputs = self.width = int(space.n)
        self.start, self.unimix = int(space.start), unimix

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample standard Gumbel noise."""
        return streams.gumbel((*shape, self.width), generator)

    def sample(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """Return choices `[...]` by the Gumbel-max trick, or the most likely ones."""
        if noise is None:
            return ops.categorical_mode(outputs)
        return ops.categorical_sample(ops.unimix(outputs, self.unimix), noise)

    def log_prob_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of choices, and the entropies, `[...]`."""
        return ops.categorical_log_prob_entropy(ops.unimix(outputs, self.unimix), actions)

    def encode(self, actions: Tensor) -> Tensor:
        """Return one-hot vectors `[..., width]`."""
        return ops.one_hot(actions, self.width)

    def to_env(self, actions: Tensor) -> Tensor:
        """Convert actions to members of the space."""
        return actions + self.start


class GaussianActions:
    """Vectors in [-1, 1] from a normal distribution with mean in [-1, 1] and bounded standard deviation.

    Args:
        space: space of the actions, a box with finite bounds.
        device: device of the actions.
    """

    def __init__(self, space: gymnasium.Space[Any], device: torch.device) -> None:
        self.vectors = BoxActions(space, device=device)
        self.width = self.vectors.width
        self.outputs = 2 * self.width

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample standard normal noise."""
        return self.vectors.noise(shape, generator)

    def _parameters(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation."""
        mean, spread = outputs.chunk(2, -1)
        return mean.tanh(), ((STD[1] - STD[0]) * (spread + 2).sigmoid() + STD[0]).log()

    def sample(self, outputs: Tensor, noise: Tensor | None) -> Tensor:
        """Sample vectors `[..., width]`, which may lie outside of the bounds; without noise the means."""
        mean, log_std = self._parameters(outputs)
        return mean if noise is None else ops.gaussian_sample(mean, log_std, noise)

    def log_prob_entropy(self, outputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log-densities of vectors, and the entropies, `[...]`."""
        mean, log_std = self._parameters(outputs)
        return ops.gaussian_log_prob(mean, log_std, actions), ops.gaussian_entropy(mean, log_std)

    def encode(self, actions: Tensor) -> Tensor:
        """Clip the vectors to the bounds, `[..., width]`."""
        return actions.clamp(-1.0, 1.0)

    def to_env(self, actions: Tensor) -> Tensor:
        """Convert actions to members of the space."""
        return self.vectors.to_env(self.encode(actions))


def action_distribution(space: gymnasium.Space[Any], *, unimix: float, device: torch.device) -> ActionDistribution:
    """Return the distributions over the actions of a space."""
    if isinstance(space, gymnasium.spaces.Discrete):
        return CategoricalActions(space, unimix)
    return GaussianActions(space, device)


class Imagined(NamedTuple):
    """Trajectories of `H` steps from `I` states of each of `S` seeds, without gradients.

    Attributes:
        features: `[H + 1, S, I, F]` features of the states.
        actions: `[H, S, I, ...]` actions.
        rewards: `[H, S, I]` rewards of the transitions.
        continues: `[H, S, I]`, probability that the episode continues in the next state.
    """

    features: Tensor
    actions: Tensor
    rewards: Tensor
    continues: Tensor


@dataclass(frozen=True)
class AgentShape:
    """Shape of all networks.

    Attributes:
        world: parameters of the world model.
        outputs: outputs of the actor.
        layers: hidden layers of actor and critic.
    """

    world: WorldShape
    outputs: int
    layers: int


class Agent(Slots):
    """World model, actor and critic of `S` seeds.

    Args:
        shape: shape of the networks.

    Attributes:
        shape: shape of the networks.
    """

    def __init__(self, shape: AgentShape) -> None:
        self.shape, self.world = shape, WorldModel(shape.world)
        features, hidden = shape.world.rssm.features, (shape.world.rssm.units,) * shape.layers
        self.actor = StackedNormedMLP(features, hidden, shape.outputs, gain=0.01)
        self.critic = StackedNormedMLP(features, hidden, shape.world.bins, gain=0.0)
        self.parts = (self.world, self.actor, self.critic)
        super().__init__([slot for part in self.parts for slot in part.slots])

    def critic_of(self, parameters: Tensor) -> Tensor:
        """Return the critic's part of parameters `[S, P]`, which is the last one."""
        return parameters[:, -self.critic.size :]

    def bind(self, parameters: Tensor, support: Tensor) -> "BoundAgent":
        """Return the networks that compute with `parameters [S, P]`, and atoms `[K]` of rewards and values."""
        world, actor, critic = shares(self.parts, self.views(parameters))
        return BoundAgent(self, self.world.bind(world, support), actor, critic, support)


@dataclass(frozen=True)
class BoundAgent:
    """The networks with one set of parameters.

    Attributes:
        shape: shape of the networks.
        world: the world model.
        support: `[K]` atoms of rewards and values.
    """

    shape: Agent
    world: BoundWorld
    actor: Sequence[Tensor]
    critic: Sequence[Tensor]
    support: Tensor

    def policy(self, features: Tensor) -> Tensor:
        """Return the actor's outputs `[S, M, outputs]` at states `[S, M, F]`."""
        return self.shape.actor(self.actor, features)

    def value_logits(self, features: Tensor) -> Tensor:
        """Return the critic's logits `[S, M, K]` at states `[S, M, F]`."""
        return self.shape.critic(self.critic, features)

    @torch.no_grad()
    def imagine(self, start: State, actions: ActionDistribution, chance: Tensor, noise: Tensor) -> Imagined:
        """Imagine trajectories of the actor with the prior.

        Args:
            start: `[S, I, ...]`, initial states.
            actions: action distributions.
            chance: `[H, S, I, G, K]` Gumbel noise of the states.
            noise: `[H, S, I, A]` noise of the actions.
        """
        state, actions_taken, features = start, list[Tensor](), [start.features]
        for drawn, gumbel_noise in zip(noise.unbind(0), chance.unbind(0), strict=True):
            actions_taken.append(actions.sample(self.policy(features[-1]), drawn))
            state = self.world.rssm.imagine(state, actions.encode(actions_taken[-1]), gumbel_noise)
            features.append(state.features)
        steps, rows = len(actions_taken), start.deter.shape[1]
        reached = torch.cat(features[1:], 1)
        rewards, continues = (
            torch.unflatten(told, 1, (steps, rows)).transpose(0, 1)
            for told in (self.world.rewards(reached), self.world.continues(reached))
        )
        return Imagined(torch.stack(features), torch.stack(actions_taken), rewards, continues)
