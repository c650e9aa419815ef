"""Advantage actor-critic: the synchronous form of A3C (Mnih et al. 2016, arXiv:1602.01783, algorithm S3).

Collect a few steps in many environments; estimate the advantage of every action relative to the critic; update
policy and critic by one gradient step, and discard the steps. With one step per rollout it is the classic one-step
actor-critic (Barto, Sutton and Anderson 1983; Sutton and Barto 2018, section 13.5), the entry `actor-critic`.

What differs from the paper: all environments act with the same parameters and contribute to one gradient; the paper's
actors run asynchronously (as in `operant.experimental.a3c`). Policy and critic share no layers by default, as in the
paper's physics tasks; its Atari networks share them (`share_features`). The gradient of each seed is clipped by its
norm, and layers are initialized orthogonally. The paper samples a learning rate for each run; the default 7e-4 is that
of OpenAI's A2C. An episode cut by a time limit bootstraps from the value of its true final observation (Pardo et al.
2018). The one-step actor-critic omits the textbook's factor γ^t, as is usual: its gradient is not that of the
discounted return (Thomas 2014). Continuous actions are in units of half the range of the action space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from operant import ops
from operant.control.agent import Agent, Samples, Scaling
from operant.control.reward_channels import OwnReward, RewardChannels, channels_of
from operant.control.state_noise import StateNoiseConfig
from operant.envs import BatchEnv
from operant.nets import OPTIMIZERS, Activation, EncoderName, OptimizerName, Pass, Spec, compilable, encoders, modules
from operant.runtime.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import FixedRollouts, iterations, remaining, require_budget, scheduled
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import update_metrics
from operant.runtime.rollouts import Rollout, by_seed
from operant.runtime.weights import Weights
from operant.state import Resumable


@dataclass(frozen=True)
class A2CConfig(FixedRollouts, StateNoiseConfig):
    """Hyperparameters of advantage actor-critic. Defaults are from the paper, or from OpenAI's A2C if it gives none."""

    num_envs: PositiveInt = 16
    """Number of environments per seed, N. More give less correlated batches and a less noisy gradient."""
    num_steps: PositiveInt = 5
    """Number of steps per environment and rollout, T. More mean later bootstrapping and less frequent updates."""
    optimizer: OptimizerName = "rmsprop"
    """The paper's RMSProp, or Adam, which needs less tuning."""
    learning_rate: PositiveFloat = 7e-4
    """Learning rate of the optimizer."""
    lr_schedule: Literal["constant", "linear"] = "linear"
    """Schedule of the learning rate: constant, or linear to zero over the budget."""
    adam_eps: PositiveFloat = 1e-5
    """Epsilon of the optimizer: inside the square root for RMSProp, outside for Adam. Higher means smaller steps."""
    gamma: UnitFloat = 0.99
    """Discount factor. A higher one means a longer horizon and more variance."""
    estimator: Literal["n-step", "gae"] = "n-step"
    """Estimator of advantages: n-step returns as in the paper, or generalized advantage estimation."""
    n_step: PositiveInt | None = None
    """Maximum number of rewards in an n-step return; None: the whole rollout. More mean less bias, more variance."""
    gae_lambda: UnitFloat = 0.95
    """λ of generalized advantage estimation: bias of the critic at 0, variance of the sampled return at 1."""
    target: Literal["advantage", "monte-carlo", "bootstrap"] = "advantage"
    """Target of the critic: the return of the advantages, all rewards of the rollout, or one reward."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss (half the squared error). It matters most with shared networks."""
    ent_coef: NonNegativeFloat = 0.01
    """Weight of the entropy bonus. A higher weight keeps the policy exploring longer."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Maximum gradient norm per seed; None: no clipping."""
    normalize_advantage: Literal["batch", "none"] = "none"
    """Whether to normalize the advantages of each rollout per seed."""
    critic_ensemble_size: PositiveInt = 1
    """Number of critics, trained on the same data from different initializations; the value is their mean."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Sizes of the hidden layers."""
    activation: Activation = "tanh"
    """Activation function of the hidden layers."""
    share_features: bool = False
    """Whether policy and value function share the hidden layers."""
    encoder: EncoderName | str = "auto"
    """Convolutional layers for images; `auto` selects them by the image size. Or the path of a custom
    `torch.nn.Module`, path/to/file.py:Name (see `operant.nets.StackedModule`)."""
    network: str | None = None
    """Path of a custom `torch.nn.Module` that replaces all layers, path/to/file.py:Name, and returns policy outputs
    and value (see `operant.nets.StackedNetwork`). None: the layers defined by the other fields."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions, in half ranges of the action space."""
    normalize_obs: bool = False
    """Whether to normalize observations by running mean and standard deviation."""
    normalize_reward: bool = False
    """Whether to divide rewards by the running standard deviation of the discounted return."""
    reward_channels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Additional rewards by their name in `Step.extras`, such as intrinsic='{"gamma": 0.99, "weight": 0.5}'. Each
    has its own value head and discount (see `operant.control.reward_channels.RewardChannel` for the fields)."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self, encoder=encoders(self.encoder), network=modules(self.network))
        if (self.normalize_advantage == "batch") and self.rollout_steps == 1:
            raise ValueError(
                "normalize_advantage makes the advantage of a single sample 0: use more environments or "
                "steps, or switch it off"
            )
        if self.critic_ensemble_size > 1 and self.share_features:
            raise ValueError(
                f"critic_ensemble_size must be 1 with share_features, got {self.critic_ensemble_size}: several critics "
                "share no layers with the policy"
            )
        if self.channels.count > 1 and self.critic_ensemble_size > 1:
            raise ValueError(
                f"critic_ensemble_size must be 1 with reward_channels ({', '.join(self.reward_channels)}), "
                f"got {self.critic_ensemble_size}"
            )

    @property
    def channels(self) -> OwnReward | RewardChannels:
        """The reward channels."""
        return channels_of(self.reward_channels, gamma=self.gamma, gae_lambda=self.gae_lambda)


TARGET_LAMBDA = {"monte-carlo": 1.0, "bootstrap": 0.0}
"""λ of the critic's target, if it differs from the return of the advantages."""

DIAGNOSTICS = ("losses/policy", "losses/value", "losses/entropy", "losses/gradient_norm")
"""Diagnostics of an update."""

_MUJOCO: Mapping[str, Any] = {
    "num_steps": 32,
    "optimizer": "adam",
    "learning_rate": 2e-3,
    "estimator": "gae",
    "normalize_advantage": "batch",
    "ent_coef": 0.0,
    "normalize_obs": True,
    "normalize_reward": True,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {
        "num_steps": 64,
        "optimizer": "adam",
        "learning_rate": 5e-3,
        "estimator": "gae",
        "gae_lambda": 0.98,
        "ent_coef": 0.0,
    },
    "Acrobot-v1": {
        "num_steps": 16,
        "optimizer": "adam",
        "learning_rate": 2e-3,
        "estimator": "gae",
        "normalize_advantage": "batch",
        "ent_coef": 0.0,
    },
    "MountainCar-v0": {"ent_coef": 0.0, "normalize_obs": True, "normalize_reward": True},
    "Pendulum-v1": {
        "num_envs": 8,
        "num_steps": 32,
        "optimizer": "adam",
        "learning_rate": 3e-3,
        "gamma": 0.95,
        "estimator": "gae",
        "gae_lambda": 0.98,
        "ent_coef": 0.0,
        "normalize_advantage": "batch",
        "activation": "relu",
        "normalize_reward": True,
    },
    "LunarLander-v3": {
        "num_envs": 8,
        "learning_rate": 8.3e-4,
        "gamma": 0.995,
        "ent_coef": 1e-5,
    },
    "HalfCheetah-v5": _MUJOCO,
    "Hopper-v5": _MUJOCO,
    "Walker2d-v5": _MUJOCO,
    "zoo": {"num_envs": 8, "lr_schedule": "constant", "ent_coef": 0.0, "vf_coef": 1.0},
}
"""Presets: by task, selected automatically, or by name. Other fields keep their defaults.

`zoo` has RL Baselines3 Zoo's hyperparameters for CartPole-v1. Its value loss has the weight 0.5 and no factor ½, which
equals a weight of 1 here.
"""


class A2C(Resumable):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed, over which the learning rate decays to zero.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps per seed so far.
        agent: policy, value and environments; the learner exposes its `act`, `describe`, `noise` and `close`.
    """

    STATE = ("consumed", "agent", "optimizer")

    def __init__(
        self,
        config: A2CConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "a2c",
    ) -> None:
        require_budget(budget)
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.agent = Agent(
            env,
            seeds=seeds,
            rows=config.num_envs,
            algorithm=algorithm,
            spec=Spec(
                config.hidden_sizes,
                config.activation,
                config.share_features or config.network is not None,
                critics=config.critic_ensemble_size,
                encoder=config.encoder,
                value_heads=config.channels.count,
                network=config.network,
            ),
            log_std=config.log_std_init,
            scaling=Scaling(config.normalize_obs, config.normalize_reward, config.gamma),
            sde_sample_freq=config.sde_every,
        )
        self.channels = config.channels
        self.act, self.noise, self.close = self.agent.act, self.agent.noise, self.agent.close
        self.describe = self.agent.describe
        self.optimizer = OPTIMIZERS[config.optimizer](
            self.agent.parameters, epsilon=config.adam_eps, max_grad_norm=config.max_grad_norm
        )
        self.rollout_steps = config.rollout_steps
        self.consumed = 0

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers."""
        return self.agent.learned

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of the whole run."""
        return iterations(self.budget, self.rollout_steps)

    def iterate(self) -> Metrics:
        """Collect a rollout, estimate advantages, and update policy and critic once."""
        rollout = self.agent.collect_finite(self.config.num_steps, self.config.reward_channels)
        batch = self.estimate_advantages(rollout)
        metrics = self.update(batch, remaining(self.consumed, self.budget))
        self.consumed += self.rollout_steps
        return {**rollout.metrics, **metrics}

    @torch.no_grad()
    def estimate_advantages(self, rollout: Rollout) -> Samples:
        """Estimate the advantage of every action, and the critic's targets."""
        config, data = self.config, self.channels.read(rollout, self.agent.networks.value)
        if config.estimator == "gae":
            advantages = ops.gae(data.rewards, data.values, data.next_values, lam=data.gae_lambda, **data.ends)
        else:
            n = config.n_step or config.num_steps
            advantages = ops.n_step_returns(data.rewards, data.next_values, n=n, **data.ends) - data.values
        batch = Samples.of(rollout, self.agent, advantages=advantages, values=data.values, mix=self.channels.mix)
        if config.target != "advantage":
            targets = ops.lambda_returns(data.rewards, data.next_values, lam=TARGET_LAMBDA[config.target], **data.ends)
            batch = replace(batch, targets=by_seed(targets))
        return batch.standardized() if config.normalize_advantage == "batch" else batch

    def update(self, batch: Samples, left: float) -> Metrics:
        """Take one gradient step; `left` is the remaining fraction of the budget."""
        learning_rate = scheduled(self.config.learning_rate, self.config.lr_schedule, left)
        counts = self.optimizer.counts
        gradient, losses = self.gradient(batch)
        norm = self.optimizer.step(gradient, learning_rate=learning_rate)
        metrics: dict[str, Tensor | float] = dict(zip(DIAGNOSTICS, (*losses, norm), strict=True))
        metrics |= self.channels.explained_variance(batch.old_values, batch.targets, batch.weights)
        metrics["schedule/learning_rate"] = learning_rate
        return metrics | update_metrics(self.optimizer.counts - counts)

    @compilable
    def gradient(self, batch: Samples) -> tuple[Tensor, Tensor]:
        """Return the gradient `[S, P]` of the loss, and the means `[3, S]` of policy, value and entropy terms."""
        networks = Pass(self.agent.networks, batch.obs)
        loss, parts = self.loss(networks, batch)
        return networks.gradient(loss), parts

    def loss(self, networks: Pass, batch: Samples) -> tuple[Tensor, Tensor]:
        """Return the loss of algorithm S3, with entropy bonus, summed over seeds; and its parts, averaged per seed."""
        config, targets = self.config, batch.targets
        log_probs = self.agent.head.log_prob(networks.outputs, networks.free, batch.actions)
        policy = ops.policy_gradient(log_probs, batch.advantages)
        if config.critic_ensemble_size == 1:
            value = ops.value_loss(networks.values, targets)
            value = value.sum(-1) if self.channels.count > 1 else value
        else:
            value = ops.value_loss(networks.values, targets.unsqueeze(1).expand_as(networks.values)).sum(1)
        entropy = self.agent.head.entropy(networks.outputs, networks.free).expand_as(policy)
        loss = torch.add(policy, value, alpha=config.vf_coef)
        loss = torch.sub(loss, entropy, alpha=config.ent_coef)
        parts = torch.stack((policy.detach(), value.detach(), entropy.detach()))
        weights = None if batch.weights is None else batch.weights.expand_as(parts)
        return ops.weighted_mean(loss, batch.weights).sum(), ops.weighted_mean(parts, weights)
