"""Shared base of off-policy actor-critics: construction, named networks, collection, and losses by shards."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.compatibility import require_suitable
from operant.control.off_policy import OffPolicyConfig, alternate
from operant.control.replay_collector import Act, Experience
from operant.control.state_noise import StateNoiseConfig
from operant.envs import BatchEnv
from operant.nets import BoundEnsemble, Ensemble, EnsemblePass, Program, StackedAdam, one_by_one, programs
from operant.runtime.budget import require_budget
from operant.runtime.learner import Metrics
from operant.runtime.shards import Shards
from operant.runtime.transitions import Transitions
from operant.runtime.weights import Weights
from operant.state import Resumable

Descent = tuple[Mapping[str, Tensor], dict[str, Tensor]]
"""Gradients `[S, P]` of named parameters, and diagnostics `[S]`."""

C = TypeVar("C", bound=OffPolicyConfig)


@dataclass(frozen=True)
class NoisyBatch:
    """A batch, and the noise `[S, M, ...]` of its samples."""

    transitions: Transitions
    noise: Tensor

    @property
    def weights(self) -> Tensor | None:
        """The weights of the transitions."""
        return self.transitions.weights

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Return the batch with `function` applied to every tensor."""
        return type(self)(self.transitions.map(function), function(self.noise))


class OffPolicyLearner(Resumable, ABC, Generic[C]):
    """Base of learners with an actor and critics that learn from a replay buffer.

    A subclass sets up its actions, calls `set_up`, makes its networks by `set_networks`, and defines `collect` and
    `update`.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds; with several shards, those of this process.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed.
        algorithm: name in the catalog, for messages.
        shards: division of environments and batches among processes.

    Attributes:
        consumed: environment steps per seed so far.
        rollout_steps: environment steps per seed of one `collect`.
        first_env: the environments, or those of the first of several shards in this process.
        experience: the environments and their replay buffer.
        target_range: lowest and highest possible targets of the critics.
        shapes: shapes of the networks, by parameter name.
        parameters: parameters by name, `[S, P]` each.
        optimizers: optimizers of the parameters trained by gradient steps.

    Raises:
        ValueError: if the environment's spaces are unsupported, the budget is too small, or environments or batches
            cannot be divided among the shards.
    """

    STATE = ("consumed", "parameters", "optimizers", "experience", "action_streams")

    action_streams: list[torch.Generator]
    experience: Experience
    shapes: Mapping[str, Ensemble]
    parameters: Mapping[str, Tensor]
    optimizers: Mapping[str, StackedAdam]
    actor: BoundEnsemble

    def __init__(
        self,
        config: C,
        env: BatchEnv | Sequence[BatchEnv],
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str,
        shards: Shards,
    ) -> None:
        self.first_env = env[0] if isinstance(env, Sequence) else env
        require_suitable(self.first_env, algorithm)
        require_budget(budget, learning_starts=config.learning_starts)
        require_shards(config, shards)
        self.config, self.shards, self.seeds, self.budget = config, shards, list(seeds), budget
        self.device = self.first_env.device
        self.target_range = config.target_range(config.gamma)
        self.rollout_steps, self.consumed = config.rollout_steps, 0

    def set_up(
        self,
        env: BatchEnv | Sequence[BatchEnv],
        to_env: Callable[[Tensor], Tensor],
        random: Callable[[tuple[int, ...], torch.Generator], Tensor],
    ) -> None:
        """Start the environments, with an empty replay buffer; the functions are those of `Experience`."""
        config = self.config
        self.experience = config.experience(
            env,
            seeds=self.seeds,
            rows=config.num_envs,
            capacity=config.buffer_size,
            to_env=to_env,
            random=random,
            config=config,
            shards=self.shards,
        )
        self.close = self.experience.close
        self.action_streams = streams.of_seeds(self.seeds, "policy", device=self.device)

    def set_networks(
        self, shapes: Mapping[str, Ensemble], initial: Mapping[str, Tensor], *, targets: Mapping[str, str]
    ) -> None:
        """Set up networks, their targets and the optimizers.

        Args:
            shapes: shapes of the trained networks, by name.
            initial: initial trained parameters by name, `[S, P]` each: those of the networks, and others.
            targets: names of the target networks, each with the name of the network that it copies.
        """
        trained = {name: part.to(self.device) for name, part in initial.items()}
        self.shapes = {**shapes, **{target: shapes[name] for target, name in targets.items()}}
        self.bind({**trained, **{target: trained[name].clone() for target, name in targets.items()}})
        self.optimizers = {
            name: StackedAdam(part, max_grad_norm=self.config.max_grad_norm) for name, part in trained.items()
        }

    @property
    def stacks(self) -> list[object]:
        """The shapes of the networks."""
        return [shape.mlp for shape in self.shapes.values()]

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of the whole run."""
        return self.config.updates(self.budget)

    def bind(self, parameters: Mapping[str, Tensor]) -> None:
        """Use `parameters`, by name `[S, P]` each; networks become attributes with the same names."""
        self.parameters = parameters
        for name, shape in self.shapes.items():
            setattr(self, name, shape.bind(parameters[name]))

    def for_seed(self, seed: int) -> Self:
        """Return a learner of the seed at one index, sharing the storage of its networks."""
        learner = copy(self)
        learner.bind({name: part[seed : seed + 1] for name, part in self.parameters.items()})
        return learner

    def one_by_one(self) -> list[Self]:
        """Return the targets of compilation (see `operant.nets.one_by_one`)."""
        samples = self.config.batch_size // self.shards.count
        return one_by_one(self, samples=samples, hidden=self.config.hidden_sizes)

    def mean_of_shards(
        self, differentiate: "Callable[[Self, Transitions, Tensor], Descent]", batch: NoisyBatch
    ) -> Descent:
        """Return the means over the shards of a batch of what `differentiate` returns (see `by_shards`)."""
        sizes, names = dict[str, int](), list[str]()

        def rows(learner: Self, part: NoisyBatch) -> tuple[Tensor, Sequence[Tensor]]:
            gradients, report = differentiate(learner, part.transitions, part.noise)
            sizes.update({name: gradient.shape[1] for name, gradient in gradients.items()})
            names[:] = report
            columns = [*gradients.values()]
            return columns[0] if len(columns) == 1 else torch.cat(columns, dim=1), [*report.values()]

        def stacked(parts: NoisyBatch) -> tuple[Tensor, Sequence[Tensor]]:
            return rows(self.of_shards(), parts)

        gradient, numbers = self.shards.mean(partial(rows, self), batch, stacked, kind=differentiate)
        columns: Sequence[Tensor] = torch.split(gradient, [*sizes.values()], dim=1)
        return dict(zip(sizes, columns, strict=True)), dict(zip(names, numbers, strict=True))

    def of_shards(self) -> Self:
        """Return this learner with the current networks of each seed for every shard of this process."""
        learner = self._of_shards
        for name, part in learner.parameters.items():
            if part is not self.parameters[name]:
                part.unflatten(0, (len(self.seeds), -1)).copy_(self.parameters[name].unsqueeze(1))
        return learner

    @cached_property
    def _of_shards(self) -> Self:
        learner, count = copy(self), len(self.shards.mine)
        for name in [name for name, value in vars(self).items() if isinstance(value, Program)]:
            del vars(learner)[name]
        learner.seeds = [seed for seed in self.seeds for _ in range(count)]
        # Compiled programs know nothing of parts, nor do modules from outside: they have copies of the parameters.
        compiled = any(program.compiled for program in programs(self))
        shapes = {name: None if compiled else shape.in_parts(count) for name, shape in self.shapes.items()}
        learner.shapes = {name: shape or self.shapes[name] for name, shape in shapes.items()}
        learner.bind(
            {
                name: part if shapes.get(name) else part.repeat_interleave(count, 0)
                for name, part in self.parameters.items()
            }
        )
        for own, program in zip(programs(self), programs(learner), strict=True):
            program.compiled = own.compiled
        return learner

    def iterate(self) -> Metrics:
        """Alternate collection and updates; the first calls take random actions."""
        return alternate(self, self.config.rounds_per_iteration)

    @abstractmethod
    def collect(self) -> Metrics:
        """Take `train_freq` steps, and store the transitions."""

    def sample(self) -> Transitions:
        """Sample a batch from the replay buffer."""
        return self.experience.sample(self.config.batch_size, gamma=self.config.gamma)

    @abstractmethod
    def update(self, batch: Transitions) -> Metrics:
        """Take one gradient step on all losses that are due."""

    def collect_with(self, act: Callable[[Tensor, int, slice, BoundEnsemble], Tensor]) -> Metrics:
        """Take `train_freq` steps, and store the transitions.

        Args:
            act: returns actions `[S, n, A]` for observations `[S, n, D]`, the step, the slice of these n environments
                among the N of each seed, and the actor; for several shards together `[S * K', N / K, ...]`.
        """
        mixed = self._sometimes_random() if self.config.random_exploration else None

        def acting(actor: BoundEnsemble) -> Act:
            def own(obs: Tensor, t: int, envs: slice) -> Tensor:
                return act(obs, t, envs, actor)

            return own if mixed is None else mixed(own)

        return self.experience.collect(
            self.config.train_freq, acting(self.actor), lambda: acting(self.of_shards().actor)
        )

    def _sometimes_random(self) -> Callable[[Act], Act]:
        """Return a function of a policy that returns it with a share `random_exploration` of random actions."""
        generators, shape = self.action_streams, (self.config.train_freq, self.config.num_envs)
        drawn = streams.draw(generators, lambda s: torch.rand(shape, generator=s, device=s.device), dim=1)
        chosen = drawn < self.config.random_exploration
        actions = streams.draw(generators, lambda s: self.experience.random(shape, s), dim=1)

        def mixed(act: Act) -> Act:
            def mix(obs: Tensor, t: int, envs: slice) -> Tensor:
                own = act(obs, t, envs)
                where = chosen[t][:, envs].reshape(*own.shape[:2], *[1] * (own.dim() - 2))
                return torch.where(where, actions[t][:, envs].reshape(own.shape), own)

            return mix

        return mixed

    def descend(self, gradients: Mapping[str, Tensor], report: dict[str, Tensor]) -> dict[str, Tensor]:
        """Update parameters by their gradients, and return the metrics."""
        for name, gradient in gradients.items():
            self.optimizers[name].step(gradient, learning_rate=self.config.learning_rate)
        return report

    @property
    def counts(self) -> Tensor:
        """Updates `[2, S]` of all optimizers together: attempted, and skipped."""
        return torch.stack([optimizer.counts for optimizer in self.optimizers.values()]).sum(0)

    @property
    def learned(self) -> Weights:
        """All trained parameters and their targets; and the weights of wrappers."""
        return {**self.parameters, **self.experience.learned}


N = TypeVar("N", bound=OffPolicyLearner[Any])


def by_shards(
    differentiate: Callable[[N, Transitions, Tensor], Descent],
) -> Callable[[N, Transitions, Tensor], Descent]:
    """Decorate a method that differentiates the losses of a batch with its noise `[S, M, ...]`, to run it by shards."""

    @wraps(differentiate)
    def descent(learner: N, batch: Transitions, noise: Tensor) -> Descent:
        if learner.shards.count == 1:
            return differentiate(learner, batch, noise)
        return learner.mean_of_shards(differentiate, NoisyBatch(batch, noise))

    return descent


def critic_descent(networks: EnsemblePass, q: Tensor, targets: Tensor, weights: Tensor | None) -> Descent:
    """Differentiate the sum over the critics of half their mean squared error to the same targets.

    Args:
        networks: forward pass of the critics.
        q: their values of the actions taken, `[critics, S, M]`.
        targets: `[S, M]`.
        weights: weights of the samples `[S, M]`; None: all 1.
    """
    losses = ops.value_loss(q, targets.expand_as(q)).sum(0)
    loss = ops.weighted_mean(losses, weights)
    q_mean = ops.weighted_mean(q.detach().mean(0), weights)
    return {"critics": networks.gradient(loss.sum())}, {"losses/critic": loss.detach(), "value/q": q_mean}


def require_shards(config: OffPolicyConfig, shards: Shards) -> None:
    """Check that environments and batches can be divided.

    Raises:
        ValueError: if they cannot be divided.
    """
    shards.require_even(num_envs=config.num_envs, batch_size=config.batch_size)
    if shards.count > 1 and isinstance(config, StateNoiseConfig) and config.sde_every is not None:
        raise ValueError(f"use_sde does not support shards: leave out --shards {shards.count}")
    if shards.count > 1 and config.hindsight != "none":
        raise ValueError(f"hindsight does not support shards: leave out --shards {shards.count}")
