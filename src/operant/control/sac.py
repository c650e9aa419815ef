"""Soft actor-critic with a learned temperature (Haarnoja et al. 2018, arXiv:1812.05905).

Maximize return and entropy together. Two critics learn the soft action values from a replay buffer, with targets from
the minimum of their target critics. The policy, a Gaussian squashed by tanh, follows the gradient of the smaller critic
through reparameterized actions. The temperature is trained so that the entropy reaches a target.

What differs from the paper: layers are initialized orthogonally; the logarithm of the policy's standard deviation is
clipped to [-20, 2], as in the paper's code; an episode cut by a time limit bootstraps from its true final observation
(Pardo et al. 2018); the temperature is parameterized by its logarithm, and its initial value is 1. Actions are in
units of half the range of the action space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.off_policy import OffPolicyConfig, exploration_noise
from operant.control.off_policy_learner import Descent, OffPolicyLearner, by_shards, critic_descent
from operant.control.presets import REACH
from operant.control.state_noise import StateNoiseConfig
from operant.envs import BatchEnv, Tree
from operant.nets import Bounded, BoundEnsemble, EnsemblePass, compilable
from operant.runtime.bounds import NonNegativeFloat
from operant.runtime.learner import Metrics
from operant.runtime.shards import Shards
from operant.runtime.transitions import Transitions


@dataclass(frozen=True)
class SACConfig(StateNoiseConfig, OffPolicyConfig):
    """Hyperparameters of SAC. Defaults are those of the paper (appendix D, table 1)."""

    target_entropy: float | None = None
    """Target entropy of the policy, in nats; None: minus the number of action dimensions."""
    ent_coef: NonNegativeFloat | None = None
    """Fixed entropy coefficient (temperature) in reward per nat; None: learned. Higher explores more."""


CRITICS = 2
LEAST_ALPHA = 1e-37
"""Replacement for a temperature of 0, whose logarithm is -inf and could not be saved."""
ACTOR_GAIN = 0.01
"""Gain of the policy's last layer: initially, the distribution is nearly the same in all states."""
LOG_STD = (-20.0, 2.0)
"""Bounds of the policy's log standard deviation."""

_MUJOCO: Mapping[str, Any] = {"learning_starts": 10_000}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "Pendulum-v1": {
        "learning_starts": 500,
        "train_freq": 2,
        "learning_rate": 1e-3,
        "buffer_size": 100_000,
        "hidden_sizes": (64, 64),
    },
    "MountainCarContinuous-v0": {
        "use_sde": True,
        "learning_starts": 0,
        "train_freq": 32,
        "gradient_steps": 32,
        "rounds_per_iteration": 10,
        "batch_size": 512,
        "buffer_size": 50_000,
        "tau": 0.01,
        "ent_coef": 0.1,  # with γ near 1, the entropy of acting forever would be worth more than the top
        "hidden_sizes": (64, 64),
    },
    "operant/Reach-v0": REACH,
    "gymnasium_robotics:FetchReach-v4": REACH,
    "HalfCheetah-v5": _MUJOCO,
    "Hopper-v5": _MUJOCO,
    "Walker2d-v5": _MUJOCO,
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults."""


def initial_log_alpha(ent_coef: float | None, *, seeds: int) -> Tensor:
    """Return the logarithm `[S, 1]` of the initial temperature: a fixed coefficient, or 1 if it is learned (None)."""
    return torch.full((seeds, 1), log(max(1.0 if ent_coef is None else ent_coef, LEAST_ALPHA)))


class SAC(OffPolicyLearner[SACConfig]):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds and a bounded Box of actions; with several shards,
            those of this process.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed.
        algorithm: name in the catalog, for messages.
        shards: division of environments and batches among processes. Default: one shard.

    Attributes:
        consumed: environment steps per seed so far.
        experience: the environments and their replay buffer.
        parameters: parameters by name, `[S, P]` each: `actor`, `critics`, their `targets`, and `log_alpha` `[S, 1]`.

    Raises:
        ValueError: if the environment's spaces are unsupported, or the number of environments is wrong.
    """

    STATE = (*OffPolicyLearner.STATE, "update_streams")

    actor: BoundEnsemble
    critics: BoundEnsemble
    targets: BoundEnsemble

    def __init__(
        self,
        config: SACConfig,
        env: BatchEnv | Sequence[BatchEnv],
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "sac",
        shards: Shards | None = None,
    ) -> None:
        super().__init__(config, env, seeds=seeds, budget=budget, algorithm=algorithm, shards=shards or Shards())
        self.bounds = Bounded(self.first_env.action_space, device=self.device)
        self.set_up(env, self.bounds.to_env, self.bounds.uniform)
        self.update_streams = streams.of_seeds(seeds, "updates", device=self.device)
        dimensions = self.bounds.dimensions
        self.target_entropy = -float(dimensions) if config.target_entropy is None else config.target_entropy
        self._make_networks(self.experience.collector.obs.shape[-1], dimensions)
        actor, every = self.shapes["actor"], config.sde_every
        self.draw_noise = exploration_noise(config, self.action_streams, actor, dimensions, every=every)

    def _make_networks(self, features: int, dimensions: int) -> None:
        config = self.config
        actor = config.actors(features, 2 * dimensions)
        critics = config.critics(features, 1, members=CRITICS, beside=dimensions)
        generators = streams.of_seeds(self.seeds, "networks")
        initial = {
            "actor": actor.initial(generators, [(2 * dimensions, ACTOR_GAIN)]),
            "critics": critics.initial(generators, [(1, 1.0)]),
            "log_alpha": initial_log_alpha(config.ent_coef, seeds=len(self.seeds)),
        }
        self.set_networks({"actor": actor, "critics": critics}, initial, targets={"targets": "critics"})

    def policy(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log standard deviation `[S, M, A]` before squashing, for `[S, M, D]`."""
        return self.distribution(self.actor(obs))

    def distribution(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Split the outputs `[1, S, M, 2 A]` of the policy network into mean and log standard deviation."""
        mean, log_std = outputs[0].chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD)

    @torch.no_grad()
    def collect(self) -> Metrics:
        """Sample actions from the policy for `train_freq` steps, and store the transitions."""
        noise = self.draw_noise()

        def act(obs: Tensor, t: int, envs: slice, actor: BoundEnsemble) -> Tensor:
            trace = actor.trace(obs)
            mean, log_std = self.distribution(actor.by_member(trace[-1]))
            return ops.tanh_gaussian_sample(mean, log_std, noise(trace, t)[:, envs].reshape(mean.shape))

        return self.collect_with(act)

    @compilable
    @torch.no_grad()
    def compute_targets(self, batch: Transitions, noise: Tensor) -> Tensor:
        """Return the targets `[S, M]` of the critics: reward plus discounted soft value (equations 2, 3, 5)."""
        mean, log_std = self.policy(batch.next_obs)
        actions, log_probs = ops.tanh_gaussian_sample_log_prob(mean, log_std, noise)
        next_q = ops.clipped_double_q(self.targets(torch.cat((batch.next_obs, actions), dim=-1)).squeeze(-1))
        soft = ops.soft_q(next_q, log_probs, alpha=self.parameters["log_alpha"].exp())
        targets = ops.q_target(batch.rewards, soft, terminated=batch.terminated, gamma=batch.discounts)
        return targets.clamp(*self.target_range)

    def update(self, batch: Transitions) -> Metrics:
        """Take one gradient step on critics, policy and temperature, and update the target critics."""
        samples = self.config.batch_size
        noise = streams.draw(self.update_streams, lambda stream: self.bounds.normal((2, samples), stream), dim=1)
        metrics = self.descend(*self.improve_critics(batch, noise[0]))
        metrics |= self.descend(*self.improve_policy(batch, noise[1]))
        self.parameters["targets"].lerp_(self.parameters["critics"], self.config.tau)
        return metrics

    @by_shards
    def improve_critics(self, batch: Transitions, noise: Tensor) -> Descent:
        """Differentiate the critic loss; `noise` is the noise of target actions."""
        return self.critic_gradient(batch, self.compute_targets(batch, noise))

    @by_shards
    def improve_policy(self, batch: Transitions, noise: Tensor) -> Descent:
        """Differentiate the losses of policy and temperature; `noise` is the noise of the policy's actions."""
        return self.actor_gradient(batch, noise)

    @compilable
    def critic_gradient(self, batch: Transitions, targets: Tensor) -> Descent:
        """Differentiate equation 5: the squared error of both critics to the same targets `[S, M]`."""
        networks = EnsemblePass(self.critics, torch.cat((batch.obs, batch.actions), dim=-1))
        return critic_descent(networks, networks.outputs.squeeze(-1), targets, batch.weights)

    @compilable
    def actor_gradient(self, batch: Transitions, noise: Tensor) -> Descent:
        """Differentiate equations 9 (policy: α log π - Q at its own actions) and 18 (temperature)."""
        log_alpha = self.parameters["log_alpha"]
        alpha = log_alpha.exp()
        networks = EnsemblePass(self.actor, batch.obs)
        mean, log_std = self.distribution(networks.outputs)
        actions, log_probs = ops.tanh_gaussian_sample_log_prob(mean, log_std, noise)
        q = ops.clipped_double_q(self.critics.frozen(torch.cat((batch.obs, actions), dim=-1)).squeeze(-1))
        loss = ops.weighted_mean(-ops.soft_q(q, log_probs, alpha=alpha), batch.weights)
        gradients = {"actor": networks.gradient(loss.sum())}
        log_probs = log_probs.detach()
        if self.config.ent_coef is None:
            price = ops.temperature_loss(log_alpha, log_probs, target_entropy=self.target_entropy)
            # The loss is linear in α = exp(log α), so it equals its derivative with respect to log α.
            gradients["log_alpha"] = ops.weighted_mean(price, batch.weights).unsqueeze(1)
        return gradients, {
            "losses/actor": loss.detach(),
            "policy/entropy": -ops.weighted_mean(log_probs, batch.weights),
            "policy/alpha": alpha.squeeze(1),
        }

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: None, noise: Tensor | None) -> tuple[Tensor, None]:
        """Select actions for raw observations `[S, N, ...]` (see `runtime.Policy`)."""
        mean, log_std = self.policy(self.experience.read(obs))
        greedy = noise is None
        actions = ops.tanh_gaussian_mode(mean, log_std) if greedy else ops.tanh_gaussian_sample(mean, log_std, noise)
        return self.bounds.to_env(actions), None

    @torch.no_grad()
    def describe(self, obs: Tree, hidden_state: None) -> Mapping[str, Tensor]:
        """Return the most likely action, and the minimum of its critics (see `operant.runtime.learner.Describing`)."""
        inputs = self.experience.read(obs)
        actions = ops.tanh_gaussian_mode(*self.policy(inputs))
        value = self.critics(torch.cat((inputs, actions), -1)).amin(0).squeeze(-1)
        return {"mean": self.bounds.to_env(actions), "value": value}

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action for each of `rows` environments of one seed."""
        return self.bounds.normal((rows,), generator)
