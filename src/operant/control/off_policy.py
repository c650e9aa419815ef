"""Shared parts of off-policy actor-critics: hyperparameters, alternating collection and updates, exploration noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol

import torch
from torch import Tensor

from operant import streams
from operant.control.replay_collector import Experience, ReplayConfig
from operant.control.scaled_experience import ScaledExperience
from operant.control.state_noise import StateNoise, require_state_noise
from operant.nets import (
    Activation,
    EncoderName,
    Ensemble,
    encoders,
    modules,
    network_of_vectors,
    whole_network,
)
from operant.runtime.bounds import Interval, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import iterations
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import DROPPED, update_metrics
from operant.runtime.rollouts import all_episodes
from operant.runtime.transitions import Transitions

EXPLORED = 1000
"""Maximum number of environment steps per seed with random actions in one iteration, so that training stops soon after
an interruption also if many come first."""


class StartsConfig(Protocol):
    """Hyperparameters of a learner that begins with random actions."""

    @property
    def num_envs(self) -> int:
        """Environments per seed."""
        ...

    @property
    def learning_starts(self) -> int:
        """Environment steps per seed with random actions."""
        ...


class TurnsConfig(StartsConfig, Protocol):
    """Hyperparameters of a learner that alternates collection and updates (see `OffPolicyConfig`)."""

    @property
    def rollout_steps(self) -> int:
        """Environment steps per seed of one round."""
        ...

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of one round."""
        ...

    @property
    def rounds_per_iteration(self) -> int:
        """Rounds of collection and training per iteration."""
        ...


class TakesTurns(Protocol):
    """A learner that alternates collection and updates.

    Attributes:
        consumed: environment steps per seed so far.
        rollout_steps: environment steps per seed of one `collect`.
        experience: environments and replay buffer.
    """

    consumed: int
    rollout_steps: int
    experience: Experience

    @property
    def config(self) -> TurnsConfig:
        """Hyperparameters."""
        ...

    @property
    def counts(self) -> Tensor:
        """Updates `[2, S]` so far: attempted, and skipped."""
        ...

    def collect(self) -> Metrics:
        """Take `rollout_steps` steps and store the transitions."""
        ...

    def sample(self) -> Transitions:
        """Sample a batch."""
        ...

    def update(self, batch: Transitions) -> Metrics:
        """Take one gradient step on all losses that are due."""
        ...


def random_steps(config: StartsConfig, consumed: int) -> int:
    """Return the number of random steps per environment in the next iteration; 0 after `learning_starts` steps.

    Args:
        config: hyperparameters.
        consumed: environment steps per seed so far.
    """
    left = iterations(max(config.learning_starts - consumed, 0), config.num_envs)
    return min(left, iterations(EXPLORED, config.num_envs))


def explore(learner: TakesTurns) -> Metrics:
    """Take the next of the `learning_starts` steps of random actions, at most `EXPLORED`, and store the transitions."""
    config = learner.config
    steps = random_steps(config, learner.consumed)
    learner.consumed += steps * config.num_envs
    return learner.experience.explore(steps)


def alternate(learner: TakesTurns, rounds: int, *, begin: Callable[[], Metrics] | None = None) -> Metrics:
    """Collect, then take `gradient_steps` updates on batches from the replay buffer, `rounds` times.

    The first calls of a run take `learning_starts` steps of random actions by `begin` (default: `explore`), and only
    the last of them continues with the rounds.

    Returns:
        Metrics of finished episodes, dropped transitions, and the last update if there was one.
    """
    episodes, counts = list[Metrics](), learner.counts
    report: Metrics = {}
    if random_steps(learner.config, learner.consumed):
        episodes.append(begin() if begin else explore(learner))
        if random_steps(learner.config, learner.consumed):
            return episodes[0]
    for _ in range(rounds):
        episodes.append(learner.collect())
        for _ in range(learner.config.gradient_steps):
            report = learner.update(learner.sample())
    learner.consumed += rounds * learner.rollout_steps
    return {**merge(episodes), **report, **update_metrics(learner.counts - counts)}


def planned_updates(config: TurnsConfig, budget: int) -> int:
    """Return the number of gradient steps of a learner that alternates collection and updates.

    Args:
        config: its hyperparameters.
        budget: environment steps per seed.
    """
    return _planned(config, budget)[1] * config.gradient_steps


def planned_steps(config: TurnsConfig, budget: int) -> int:
    """Return the number of environment steps per seed of a learner that alternates collection and updates.

    Args:
        config: its hyperparameters.
        budget: environment steps per seed.
    """
    drawn, rounds = _planned(config, budget)
    return drawn + rounds * config.rollout_steps


def _planned(config: TurnsConfig, budget: int) -> tuple[int, int]:
    """Return the number of steps per seed with random actions, and of the rounds after them."""
    drawn = iterations(config.learning_starts, config.num_envs) * config.num_envs
    turns = iterations(budget - drawn, config.rounds_per_iteration * config.rollout_steps)
    return drawn, max(turns, 1) * config.rounds_per_iteration


def merge(reports: Sequence[Metrics]) -> Metrics:
    """Return the metrics of all episodes of several rollouts, and the number of dropped transitions."""
    dropped = torch.stack([torch.as_tensor(report[DROPPED]) for report in reports])
    return {**all_episodes(reports), DROPPED: dropped.sum(0)}


@dataclass(frozen=True)
class OffPolicyConfig(ReplayConfig):
    """Shared hyperparameters of off-policy actor-critics."""

    num_envs: PositiveInt = 1
    """Number of environments per seed, N. More collect faster, with fewer updates per step."""
    learning_starts: NonNegativeInt = 1000
    """Environment steps per seed with random actions before training starts."""
    train_freq: PositiveInt = 1
    """Steps per environment between two training phases. More are faster but learn less from each step."""
    gradient_steps: PositiveInt = 1
    """Gradient steps per training phase. More use the data better until the critics overfit."""
    rounds_per_iteration: PositiveInt = 50
    """Rounds of collection and training per iteration. Metrics, evaluations and checkpoints are between iterations, and
    the end of the budget is, too: more rounds exceed it by more."""
    batch_size: PositiveInt = 256
    """Minibatch size in transitions. Larger ones give less noisy and slower steps."""
    buffer_size: PositiveInt = 1_000_000
    """Capacity of the replay buffer in transitions per seed. A larger buffer has less correlated but older data."""
    learning_rate: PositiveFloat = 3e-4
    """Learning rate of Adam, for all parameters."""
    random_exploration: Annotated[float, Interval("[0, 1]")] = 0.0
    """Share of actions in training that are random, as in the first `learning_starts` steps. More visit more states
    that the policy avoids, at the price of lower returns."""
    normalize_obs: bool = False
    """Whether to scale the inputs of the networks by running means and standard deviations."""
    gamma: UnitFloat = 0.99
    """Discount factor. A higher one means a longer horizon and values that are harder to learn."""
    tau: Annotated[float, Interval("(0, 1]")] = 0.005
    """Interpolation factor τ of target updates (Polyak averaging). Higher is faster and less stable."""
    hidden_sizes: tuple[PositiveInt, ...] = (256, 256)
    """Sizes of the hidden layers of policy and critics."""
    activation: Activation = "relu"
    """Activation function of the hidden layers."""
    encoder: EncoderName | str = "auto"
    """Path of a custom torch.nn.Module before the dense layers, path/to/file.py:Name; policy and critics have one copy
    each, and the critics' action is concatenated to its output. auto: none."""
    actor_network: str | None = None
    """Path of a custom `torch.nn.Module` that replaces all layers of the policy, path/to/file.py:Name, and returns
    its outputs (see `operant.nets.StackedNetwork`). None: the layers defined by the other fields."""
    critic_network: str | None = None
    """The same for each critic, which returns the value of an observation and an action, or the values of all
    discrete actions. None: the layers defined by the other fields."""
    max_grad_norm: PositiveFloat | None = None
    """Maximum gradient norm per seed; None: no clipping."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        require(
            self,
            encoder=encoders(self.encoder, images=False),
            actor_network=modules(self.actor_network),
            critic_network=modules(self.critic_network),
        )
        if self.encoder != "auto" and self.actor_network is not None and self.critic_network is not None:
            raise ValueError(f"actor_network and critic_network replace all layers: leave out encoder={self.encoder!r}")
        if self.buffer_size < self.num_envs:
            raise ValueError(
                f"buffer_size must hold one step of all {self.num_envs} environments of each seed, "
                f"got {self.buffer_size}"
            )

    @property
    def rollout_steps(self) -> int:
        """Environment steps per seed between two training phases."""
        return self.train_freq * self.num_envs

    @property
    def experience(self) -> type[Experience]:
        """Class of the environments and their replay buffer."""
        return ScaledExperience if self.normalize_obs else Experience

    def updates(self, budget: int) -> int:
        """Return the number of gradient steps of a run."""
        return planned_updates(self, budget)

    def planned_steps(self, budget: int) -> int:
        """Return the number of steps per seed that training with a budget uses."""
        return planned_steps(self, budget)

    def actors(self, width: int, outputs: int) -> Ensemble:
        """Return the policy networks for observations `[width]`."""
        return self._ensemble(self.actor_network, width, outputs, members=1)

    def critics(self, width: int, outputs: int, *, members: int, beside: int = 0) -> Ensemble:
        """Return the networks of the critics (see `_ensemble`)."""
        return self._ensemble(self.critic_network, width, outputs, members=members, beside=beside)

    def _ensemble(self, network: str | None, width: int, outputs: int, *, members: int, beside: int = 0) -> Ensemble:
        """Return networks of one shape for vectors.

        Args:
            network: path of a custom network that replaces all layers, if any.
            width: size D of the encoder's input.
            outputs: number of outputs of each network.
            members: networks per seed.
            beside: number of additional inputs of the dense layers, the action.
        """
        if network is not None:
            return Ensemble(whole_network(network, (width,), (outputs,), beside=beside), members=members)
        sizes = [*self.hidden_sizes, outputs]
        layers = network_of_vectors(width, sizes, activation=self.activation, encoder=self.encoder, beside=beside)
        return Ensemble(layers, members=members)


Noise = Callable[[Sequence[Tensor], int], Tensor]
"""Function of the layers of the actor (`BoundEnsemble.trace`) and the step that returns the noise `[S, N, A]`."""


def exploration_noise(
    config: OffPolicyConfig,
    generators: Sequence[torch.Generator],
    network: Ensemble,
    actions: int,
    *,
    every: int | None,
) -> Callable[[], Noise]:
    """Return a function that draws the noise of `train_freq` steps.

    Args:
        config: hyperparameters.
        generators: one per seed.
        network: network of the actor.
        actions: A, the number of action dimensions.
        every: `StateNoiseConfig.sde_every`; None: independent noise.

    Raises:
        ValueError: if the network has no hidden layer for state-dependent noise.
    """
    steps, rows = config.train_freq, config.num_envs

    def independent() -> Noise:
        noise = streams.draw(
            generators, lambda s: torch.empty(steps, rows, actions, device=s.device).normal_(generator=s), dim=1
        )
        return lambda trace, t: noise[t]

    if every is None:
        return independent
    mlp = require_state_noise(network.mlp, continuous=True, algorithm="")

    def of_states() -> Noise:
        noise = StateNoise(generators, steps=steps, rows=rows, network=mlp, actions=actions, every=every)
        return lambda trace, t: noise.at(trace[-2], t)

    return of_states
