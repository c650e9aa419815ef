"""Agents of on-policy methods, `Agent`, and the flattened samples of their rollouts, `Samples`."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, Self

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.compatibility import require_suitable
from operant.control.state_noise import StateNoise, require_state_noise
from operant.envs import BatchEnv, Normalize, TensorEnv, Tree, is_image, learned, start, wrappers
from operant.nets import ActorCritic, GaussianHead, Graph, Spec, head_for
from operant.runtime.rollouts import Act, Collector, Rollout, by_seed, without_broken
from operant.runtime.sharded_collector import ShardedCollector
from operant.runtime.shards import Shards
from operant.runtime.transitions import TensorFields
from operant.runtime.weights import Weights
from operant.state import DeclaredState, State
from operant.tensors import integers


@dataclass(frozen=True)
class Scaling:
    """Normalization of an environment's observations and rewards (`operant.envs.Normalize`).

    Attributes:
        observations: whether observations are normalized by running mean and standard deviation.
        rewards: whether rewards are divided by the running standard deviation of the discounted return.
        gamma: discount of that return.
    """

    observations: bool
    rewards: bool
    gamma: float


class Agent(DeclaredState):
    """A policy and a critic for each of `S` seeds, and their `S * N` environments.

    Args:
        env: `S * N` environments with the same seeds; with several shards those of this process, `S * N / K` each.
        seeds: one non-negative integer per run; each has its own random streams.
        rows: N.
        algorithm: name in the catalog, for messages.
        spec: sizes of the networks.
        log_std: initial log standard deviation of continuous actions.
        scaling: normalization of observations and rewards.
        shards: division of the environments among processes.
        sde_sample_freq: steps after which the weights of state-dependent noise are resampled; -1: once per rollout;
            None: state-independent noise.

    Attributes:
        parameters: `[S, P]` of policy and value.
        networks: networks with these parameters.
        head: action distribution, given the policy's outputs.
        collector: collector of the environments; with several shards, of the first one in this process.
        experience: the same collector, or those of all shards.
        device: device of networks and environments.

    Raises:
        ValueError: if the environment's spaces are unsupported, or it does not have `S * N` environments.
    """

    STATE = ("parameters", ("collector", "experience"), "streams")

    def __init__(
        self,
        env: BatchEnv | Sequence[BatchEnv],
        *,
        seeds: Sequence[int],
        rows: int,
        algorithm: str,
        spec: Spec,
        log_std: float,
        scaling: Scaling,
        shards: Shards | None = None,
        sde_sample_freq: int | None = None,
    ) -> None:
        self.envs = list(env) if isinstance(env, Sequence) else [env]
        self.shards = shards or Shards()
        require_suitable(env := self.envs[0], algorithm)
        for each in self.envs:
            require_rows(each, seeds, rows // self.shards.count)
            start(each, seeds)
        self.seeds, self.rows, self.device = list(seeds), rows, env.device
        if scaling.observations and is_image(env.observation_space):
            raise ValueError("normalize_obs is for vectors: the network scales images")
        if self.shards.count > 1:
            scaled = {"normalize_obs": scaling.observations, "normalize_reward": scaling.rewards}
            require_apart(env, *(name for name, is_scaled in scaled.items() if is_scaled))
        self.normalizer: Normalize | None = None
        if scaling.observations or scaling.rewards:
            env = self.normalizer = Normalize(
                env,
                seeds=len(seeds),
                observations=scaling.observations,
                rewards=scaling.rewards,
                gamma=scaling.gamma,
            )
        self.experience: Collector | ShardedCollector
        if self.shards.count > 1:
            self.experience = ShardedCollector(self.envs, seeds=len(seeds), shards=self.shards)
            self.collector = self.experience.collectors[0]
        else:
            self.experience = self.collector = Collector(env, seeds=len(seeds))
        self.head = head_for(env.action_space, log_std=log_std, device=env.device)
        features = self.collector.features
        shape = ActorCritic(features.shape, self.head, spec, masked=features.masked, image=features.image)
        initial = shape.initial(streams.of_seeds(seeds, "networks"))
        self.parameters = initial.to(env.device)
        self.networks = shape.bind(self.parameters)
        self.streams = streams.of_seeds(seeds, "policy", device=env.device)
        self.graph: Graph[dict[str, Any]] | None = None
        self.sde_sample_freq = sde_sample_freq
        if sde_sample_freq is not None:
            continuous = isinstance(self.head, GaussianHead)
            self.hidden_of = require_state_noise(shape.mlp, continuous=continuous, algorithm=algorithm)
            if self.shards.count > 1:
                raise ValueError(f"use_sde does not support shards: leave out --shards {self.shards.count}")

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers, such as normalization statistics."""
        return {"parameters": self.parameters, **learned(self.collector.env)}

    @property
    def stacks(self) -> list[object]:
        """The shapes of the networks."""
        return [self.networks.shape.mlp]

    def for_seed(self, seed: int) -> Self:
        """Return an agent with only the networks of the seed at an index, sharing their storage."""
        agent = copy(self)
        agent.parameters = self.parameters[seed : seed + 1]
        agent.networks = self.networks.shape.bind(agent.parameters)
        return agent

    def of_shards(self) -> Self:
        """Return an agent with a copy of each seed's current networks for every shard of this process."""
        agent = self._of_shards
        agent.parameters.unflatten(0, (len(self.seeds), -1)).copy_(self.parameters.unsqueeze(1))
        return agent

    @cached_property
    def _of_shards(self) -> Self:
        agent = copy(self)
        agent.parameters = self.parameters.repeat_interleave(len(self.shards.mine), 0)
        agent.networks = self.networks.shape.bind(agent.parameters)
        return agent

    @torch.no_grad()
    def collect(self, steps: int) -> Rollout:
        """Collect a rollout of `steps` steps with the current policy, including its actions and outputs."""
        if self.sde_sample_freq is not None:
            smooth = self._state_noise(steps, self.sde_sample_freq)
            return self.collector.collect(steps, self._acting(smooth))
        noise = streams.draw(self.streams, lambda stream: self.head.noise((steps, self.rows), stream), dim=1)
        if isinstance(self.experience, ShardedCollector):
            stacked = partial(self._acting_of_shards, noise)
            return self.experience.collect(steps, lambda rows: self._acting(noise[:, :, rows]), stacked)
        play = self._play if self.graph is None else self.graph
        return self.collector.rollout(**play(self.collector.obs, noise))

    def collect_finite(self, steps: int, channels: Collection[str] = ()) -> Rollout:
        """Collect a rollout (see `collect`) whose transitions with NaN or Inf are invalid (see `without_broken`)."""
        return without_broken(self.collect(steps), channels)

    def _play(self, obs: Tensor, noise: Tensor) -> dict[str, Any]:
        return self.collector.play(obs, len(noise), self._acting(noise))

    def _state_noise(self, steps: int, every: int) -> StateNoise:
        """Return the state-dependent noise of a rollout."""
        actions = self.head.outputs
        network = self.hidden_of
        return StateNoise(self.streams, steps=steps, rows=self.rows, network=network, actions=actions, every=every)

    def _acting(self, noise: Tensor | StateNoise) -> Act:
        """Return an actor with given noise `[T, S, N, ...]`, or with state-dependent noise."""
        drawn = () if isinstance(noise, StateNoise) else noise.unbind(0)

        def act(obs: Tensor, t: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
            outputs = self.networks.policy(obs)
            now = noise.at(self.networks.hidden(obs), t) if isinstance(noise, StateNoise) else drawn[t]
            actions = self.head.sample(outputs, self.networks.free, now)
            return (actions, outputs), self.head.to_env(actions)

        return act

    def _acting_of_shards(self, noise: Tensor) -> Act:
        """Return an actor for all shards of this process, with the noise `[T, S, N, ...]` of all environments."""
        local_noise = noise[:, :, self.shards.own_rows(self.rows)]
        stacks = len(self.seeds) * len(self.shards.mine)
        return self.of_shards()._acting(local_noise.reshape(len(local_noise), stacks, -1, *local_noise.shape[3:]))

    def capture(self) -> None:
        """Capture rollouts as a CUDA graph, for tensor environments on a CUDA device."""
        plain = self.shards.count == 1 and self.sde_sample_freq is None
        if self.device.type == "cuda" and plain and isinstance(self.collector.env, TensorEnv):
            self.graph = Graph(self._play, self.device)

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Select actions for raw observations `[S, N, ...]` (see `runtime.Policy`)."""
        outputs, free = self.networks.policy(self.read(obs)), self.networks.free
        actions = self.head.mode(outputs, free) if noise is None else self.head.sample(outputs, free, noise)
        return self.head.to_env(actions), None

    @torch.no_grad()
    def describe(self, obs: Tree, hidden_state: Tree | None) -> Mapping[str, Tensor]:
        """Return the outputs of policy and critic for observations (see `operant.runtime.learner.Describing`)."""
        inputs = self.read(obs)
        return self.described(self.networks.policy(inputs), inputs)

    def described(self, outputs: Tensor, inputs: Tensor) -> Mapping[str, Tensor]:
        """Return the description of a policy's outputs for inputs of the networks, with the value if it is one."""
        values = self.networks.value(inputs)
        description = self.head.describe(outputs, self.networks.free)
        return description | {"value": values} if values.dim() == 2 else description

    def order(self, samples: int, parts: int, stream: torch.Generator) -> Tensor:
        """Return a random permutation `[M]` of the samples of one seed, for division into equal parts."""
        return torch.randperm(samples, generator=stream, device=self.device)

    def minibatches(
        self,
        batch: "Samples",
        parts: int,
        generators: Sequence[torch.Generator],
        *,
        active: Tensor | None = None,
        standardize: bool = False,
    ) -> "Iterator[Samples]":
        """Split a batch at random into equal parts, with one random stream per seed; a single part is not shuffled.

        Args:
            batch: batch of all seeds.
            parts: number of parts.
            generators: one per seed.
            active: `[S]` mask of the seeds whose samples are shuffled. Default: all.
            standardize: whether to standardize the advantages of each part, if there are several.
        """
        if parts == 1:
            return iter([batch])
        samples = batch.targets.shape[1]
        order = torch.arange(samples, device=self.device).repeat(len(self.seeds), 1)
        for seed in range(len(self.seeds)) if active is None else integers(active.nonzero().flatten()):
            order[seed] = self.order(samples, parts, generators[seed])
        batch = batch.shuffled(order, parts)
        if standardize:
            batch = batch.standardized()
        return (batch.map(itemgetter(part)) for part in range(parts))

    def read(self, obs: Tree) -> Tensor:
        """Convert raw observations `[S, N, ...]` to the inputs of the networks."""
        if self.normalizer is not None:
            obs = self.normalizer.normalize(obs)
        return self.collector.features.by_seed(obs)

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action for each of `rows` environments of one seed."""
        return self.head.noise((rows,), generator)

    def close(self) -> None:
        """Close the environments."""
        for env in self.envs:
            env.close()

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly."""
        super().load_state_dict(state)
        if self.graph is not None:
            self.graph.forget()


def require_apart(env: BatchEnv, *options: str) -> None:
    """Check that no component needs all environments of each seed if they are in several shards.

    Args:
        env: environments of this process.
        options: options of the algorithm that need all environments.

    Raises:
        ValueError: if a component does.
    """
    learning = dict.fromkeys(type(wrapper).__name__ for wrapper in wrappers(env) if wrapper.learned)
    if users := [*options, *learning]:
        unwanted = [*options, *(["--bonus or --wrapper"] if learning else [])]
        raise ValueError(
            f"{', '.join(users)} on {env.task} needs all environments of each seed, which are in several shards: "
            f"leave out {' and '.join(unwanted)}, or --shards"
        )


def require_rows(env: BatchEnv, seeds: Sequence[int], rows: int) -> None:
    """Check that an environment has `rows` environments for every seed.

    Raises:
        ValueError: if the number differs.
    """
    if env.rows != len(seeds) * rows:
        raise ValueError(
            f"{len(seeds)} seeds with {rows} environments each need {len(seeds) * rows}, but there are {env.rows}"
        )


@dataclass(frozen=True)
class Samples(TensorFields):
    """Flattened samples of a rollout; every tensor is `[S, M, ...]` with M = T * N samples per seed.

    Attributes:
        obs: inputs of the policy.
        actions: actions in the units of the policy.
        outputs: outputs of the policy network.
        old_log_probs: log-probabilities of the actions at collection.
        advantages: advantages of the actions.
        targets: targets of the critic; `[S, M, K]` for K values.
        old_values: predictions of the critic; `[S, M, K]` for K values.
        weights: 1 for valid samples, else 0; None: all are valid.
    """

    obs: Tensor
    actions: Tensor
    outputs: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    targets: Tensor
    old_values: Tensor
    weights: Tensor | None

    @classmethod
    def of(
        cls,
        rollout: Rollout,
        agent: Agent,
        *,
        advantages: Tensor,
        values: Tensor,
        mix: Callable[[Tensor], Tensor] = lambda advantages: advantages,
    ) -> Self:
        """Flatten a rollout with `advantages` and `values` `[T, S, N]`; targets are their sum.

        With K values per state both are `[T, S, N, K]`, and `mix` combines K advantages into one, `[S, M]`.
        """
        actions, outputs = (by_seed(tensor) for tensor in rollout.kept)
        flat, old_values = by_seed(advantages), by_seed(values)
        return cls(
            obs=by_seed(rollout.obs),
            actions=actions,
            outputs=outputs,
            old_log_probs=agent.head.log_prob(outputs, agent.networks.free, actions),
            advantages=mix(flat),
            targets=flat + old_values,
            old_values=old_values,
            weights=rollout.weights,
        )

    def standardized(self) -> Self:
        """Return the samples with advantages standardized per seed."""
        return replace(self, advantages=ops.standardize(self.advantages, self.weights))

    def shuffled(self, order: Tensor, parts: int) -> Self:
        """Return the samples in the order `[S, M]`, a permutation for each seed, as `[parts, S, M / parts, ...]`."""
        seeds, samples = order.shape
        flat = order + torch.arange(seeds, device=order.device).unsqueeze(1) * samples
        index = flat.view(seeds, parts, samples // parts).transpose(0, 1).reshape(-1)

        def pick(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, 1)[index].view(parts, seeds, samples // parts, *tensor.shape[2:])

        return self.map(pick)
