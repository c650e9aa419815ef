"""Twin delayed deep deterministic policy gradient (Fujimoto et al. 2018, arXiv:1802.09477), and DDPG as a variant.

A deterministic policy follows the gradient of a critic through its actions. Three changes make training stable: the
minimum of two critics gives the target; the policy is updated only every second critic update; and clipped noise
smooths the target action, so that the policy does not exploit narrow peaks of a critic.

DDPG (Lillicrap et al. 2016, arXiv:1509.02971) has one critic, no delay and no target noise.

What differs from the papers: layers are initialized orthogonally, the policy's last one with a small gain; an episode
cut by a time limit bootstraps from its true final observation (Pardo et al. 2018). DDPG explores with independent
Gaussian noise instead of an Ornstein-Uhlenbeck process (Fujimoto et al. found no disadvantage), and has neither weight
decay nor batch normalization. Actions are in units of half the range of the action space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.off_policy import OffPolicyConfig, exploration_noise
from operant.control.off_policy_learner import Descent, OffPolicyLearner, by_shards, critic_descent
from operant.control.presets import PUSH, REACH
from operant.control.state_noise import StateNoiseConfig
from operant.envs import BatchEnv, Tree
from operant.nets import Bounded, BoundEnsemble, EnsemblePass, compilable
from operant.runtime.bounds import NonNegativeFloat, PositiveInt
from operant.runtime.learner import Metrics
from operant.runtime.shards import Shards
from operant.runtime.transitions import Transitions
from operant.state import State


@dataclass(frozen=True)
class TD3Config(StateNoiseConfig, OffPolicyConfig):
    """Hyperparameters of TD3. Defaults are those of the paper (section 6.1) and of its code."""

    n_critics: PositiveInt = 2
    """Number of critics, whose minimum gives the targets. One overestimates; more than two underestimate further."""
    policy_delay: PositiveInt = 2
    """Critic updates per update of policy and targets."""
    exploration_noise: NonNegativeFloat = 0.1
    """Standard deviation of the exploration noise, in half action ranges. Higher explores more."""
    action_penalty: NonNegativeFloat = 0.0
    """Weight of the mean squared action in the policy loss. More keep actions away from the ends of their range, where
    the policy has almost no gradient. Andrychowicz et al. (2017, appendix A) have 1."""
    target_policy_noise: NonNegativeFloat = 0.2
    """Standard deviation of the noise on target actions, in half action ranges. Higher smooths the critics more."""
    target_noise_clip: NonNegativeFloat = 0.5
    """Clip range of the noise on target actions, in half action ranges."""


ACTOR_GAIN = 0.01
"""Gain of the policy's last layer: initially, actions are near the center of the action space."""

_MUJOCO: Mapping[str, Any] = {"learning_starts": 10_000, "learning_rate": 1e-3}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "Pendulum-v1": {"learning_starts": 500, "learning_rate": 1e-3, "buffer_size": 100_000, "hidden_sizes": (64, 64)},
    "operant/Reach-v0": REACH,
    "gymnasium_robotics:FetchReach-v4": REACH,
    "gymnasium_robotics:FetchPush-v4": PUSH,
    "HalfCheetah-v5": _MUJOCO,
    "Hopper-v5": _MUJOCO,
    "Walker2d-v5": _MUJOCO,
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults."""


class TD3(OffPolicyLearner[TD3Config]):
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
        updates: critic updates so far.
        experience: the environments and their replay buffer.
        parameters: parameters by name, `[S, P]` each: `actor`, `critics`, `target_actor`, `target_critics`.

    Raises:
        ValueError: if the environment's spaces are unsupported, or the number of environments is wrong.
    """

    STATE = (*OffPolicyLearner.STATE, "update_streams", "updates", "actor_loss")

    actor: BoundEnsemble
    critics: BoundEnsemble
    target_actor: BoundEnsemble
    target_critics: BoundEnsemble

    def __init__(
        self,
        config: TD3Config,
        env: BatchEnv | Sequence[BatchEnv],
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "td3",
        shards: Shards | None = None,
    ) -> None:
        super().__init__(config, env, seeds=seeds, budget=budget, algorithm=algorithm, shards=shards or Shards())
        self.bounds = Bounded(self.first_env.action_space, device=self.device)
        self.set_up(env, self.bounds.to_env, self.bounds.uniform)
        self.update_streams = streams.of_seeds(seeds, "updates", device=self.device)
        self._make_networks(self.experience.collector.obs.shape[-1], self.bounds.dimensions)
        actor, every = self.shapes["actor"], config.sde_every
        self.draw_noise = exploration_noise(config, self.action_streams, actor, self.bounds.dimensions, every=every)
        self.updates = 0
        # Metrics of the last policy update; with a delay, some iterations have none.
        self.actor_loss = torch.zeros(len(seeds), device=self.device)

    def _make_networks(self, features: int, dimensions: int) -> None:
        config = self.config
        actor = config.actors(features, dimensions)
        critics = config.critics(features, 1, members=config.n_critics, beside=dimensions)
        generators = streams.of_seeds(self.seeds, "networks")
        initial = {
            "actor": actor.initial(generators, [(dimensions, ACTOR_GAIN)]),
            "critics": critics.initial(generators, [(1, 1.0)]),
        }
        targets = {"target_actor": "actor", "target_critics": "critics"}
        self.set_networks({"actor": actor, "critics": critics}, initial, targets=targets)

    def bind(self, parameters: Mapping[str, Tensor]) -> None:
        """Use `parameters`, by name `[S, P]` each."""
        super().bind(parameters)
        self.first_critic = self.critics.first()

    def policy(self, obs: Tensor) -> Tensor:
        """Return the actions `[S, M, A]`, in [-1, 1], for `[S, M, D]`."""
        return self.actor(obs)[0].tanh()

    @torch.no_grad()
    def collect(self) -> Metrics:
        """Take `train_freq` noisy actions of the policy, and store the transitions."""
        noise = self.draw_noise()
        std = self.config.exploration_noise

        def act(obs: Tensor, t: int, envs: slice, actor: BoundEnsemble) -> Tensor:
            trace = actor.trace(obs)
            actions = actor.by_member(trace[-1])[0].tanh()
            return ops.perturbed_action(actions, noise(trace, t)[:, envs].reshape(actions.shape), std=std)

        return self.collect_with(act)

    @compilable
    @torch.no_grad()
    def compute_targets(self, batch: Transitions, noise: Tensor) -> Tensor:
        """Return the targets `[S, M]` of the critics (algorithm 1, equations 10 and 14); `noise` is standard normal."""
        config = self.config
        actions = self.target_actor(batch.next_obs)[0].tanh()
        if config.target_policy_noise:
            actions = ops.perturbed_action(
                actions, noise, std=config.target_policy_noise, clip=config.target_noise_clip
            )
        next_q = self.target_critics(torch.cat((batch.next_obs, actions), dim=-1)).squeeze(-1)
        targets = ops.q_target(
            batch.rewards, ops.clipped_double_q(next_q), terminated=batch.terminated, gamma=batch.discounts
        )
        return targets.clamp(*self.target_range)

    def update(self, batch: Transitions) -> Metrics:
        """Take one gradient step on the critics; every `policy_delay` steps also on the policy and the targets."""
        samples = self.config.batch_size
        noise = streams.draw(self.update_streams, lambda stream: self.bounds.normal((samples,), stream))
        metrics = self.descend(*self.improve_critics(batch, noise))
        self.updates += 1
        if self.updates % self.config.policy_delay == 0:
            self.actor_loss = self.descend(*self.improve_policy(batch, noise))["losses/actor"]
            for name in ("actor", "critics"):
                self.parameters[f"target_{name}"].lerp_(self.parameters[name], self.config.tau)
        return {**metrics, "losses/actor": self.actor_loss}

    @by_shards
    def improve_critics(self, batch: Transitions, noise: Tensor) -> Descent:
        """Differentiate the critic loss; `noise` is the noise of target actions."""
        return self.critic_gradient(batch, self.compute_targets(batch, noise))

    @by_shards
    def improve_policy(self, batch: Transitions, noise: Tensor) -> Descent:
        """Differentiate the policy loss; `noise` is not used."""
        return self.actor_gradient(batch)

    @compilable
    def critic_gradient(self, batch: Transitions, targets: Tensor) -> Descent:
        """Differentiate the squared error of all critics to the same targets `[S, M]`."""
        networks = EnsemblePass(self.critics, torch.cat((batch.obs, batch.actions), dim=-1))
        return critic_descent(networks, networks.outputs.squeeze(-1), targets, batch.weights)

    @compilable
    def actor_gradient(self, batch: Transitions) -> Descent:
        """Differentiate -Q(s, π(s)) by the first critic (Silver et al. 2014, theorem 1)."""
        networks = EnsemblePass(self.actor, batch.obs)
        actions = networks.outputs[0].tanh()
        q = self.first_critic.frozen(torch.cat((batch.obs, actions), dim=-1))[0].squeeze(-1)
        penalty = self.config.action_penalty
        losses = penalty * actions.square().mean(-1) - q if penalty else -q
        loss = ops.weighted_mean(losses, batch.weights)
        return {"actor": networks.gradient(loss.sum())}, {"losses/actor": loss.detach()}

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: None, noise: Tensor | None) -> tuple[Tensor, None]:
        """Select actions for raw observations `[S, N, ...]` (see `runtime.Policy`)."""
        actions = self.policy(self.experience.read(obs))
        if noise is not None:
            actions = ops.perturbed_action(actions, noise, std=self.config.exploration_noise)
        return self.bounds.to_env(actions), None

    @torch.no_grad()
    def describe(self, obs: Tree, hidden_state: None) -> Mapping[str, Tensor]:
        """Return the action, and its value by the first critic (see `operant.runtime.learner.Describing`)."""
        inputs = self.experience.read(obs)
        actions = self.policy(inputs)
        value = self.critics(torch.cat((inputs, actions), -1))[0].squeeze(-1)
        return {"mean": self.bounds.to_env(actions), "value": value}

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action for each of `rows` environments of one seed."""
        return self.bounds.normal((rows,), generator)

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly; an invalid state leaves the learner unchanged."""
        self.actor_loss = self.actor_loss.clone()  # the original is part of the saved metrics
        super().load_state_dict(state)
