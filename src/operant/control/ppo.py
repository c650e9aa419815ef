"""Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347): clipped, with a KL penalty, or with both.

Collect a rollout with the current policy; estimate the advantage of every action by generalized advantage estimation
(Schulman et al. 2016); update policy and value for several epochs of minibatches. The clipped objective (section 3)
removes the incentive for changes of the probability ratio beyond the clip range. The penalized one (section 4)
subtracts β times the KL divergence from the policy of the rollout, and adapts β to a target.

What differs from the paper: value and policy have separate networks by default (the paper's Atari experiments share
them: `share_features`); the gradient of each seed is clipped by its norm, layers are initialized orthogonally, Adam's
epsilon is 1e-5 (Huang et al. 2022, details 2, 3 and 11); an episode cut by a time limit bootstraps from the value of
its true final observation (Pardo et al. 2018), whereas most implementations treat it as terminal. Continuous actions
are in units of half the range of the action space. β stays within `BETA_RANGE`, and may also be adapted within an
update (dual descent, `kl_coef_rounds`); the paper adapts it for the next one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from operant import doors, ops, streams
from operant.control import presets
from operant.control.agent import Agent, Samples, Scaling
from operant.control.reward_channels import OwnReward, RewardChannels, channels_of
from operant.control.state_noise import StateNoiseConfig
from operant.envs import BatchEnv
from operant.nets import Activation, EncoderName, Pass, Spec, StackedAdam, compilable, encoders, modules, one_by_one
from operant.runtime.bounds import Interval, NonNegativeFloat, PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import FixedRollouts, iterations, remaining, require_budget, scheduled
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import update_metrics
from operant.runtime.rollouts import Rollout
from operant.runtime.shards import Shards
from operant.runtime.weights import Weights
from operant.state import Resumable

Clip = tuple[float, float]


@dataclass(frozen=True)
class PPOConfig(FixedRollouts, StateNoiseConfig):
    """Hyperparameters of PPO. Defaults are those of the paper's continuous control experiments (table 3)."""

    num_envs: PositiveInt = 1
    """Number of environments per seed, N. More give less correlated batches and faster rollouts."""
    num_steps: PositiveInt = 2048
    """Number of steps per environment and rollout, T. More mean later bootstrapping and less frequent updates."""
    num_epochs: PositiveInt = 10
    """Number of passes over each rollout. More use the data better until the policy overfits (monitor approx_kl)."""
    num_minibatches: PositiveInt = 32
    """Number of minibatches per rollout, one gradient step each. More mean more and noisier steps."""
    learning_rate: PositiveFloat = 3e-4
    """Learning rate of Adam."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """Schedule of the learning rate: constant, or linear to zero over the budget."""
    clip_range_schedule: Literal["constant", "linear"] = "constant"
    """Schedule of the clip range: constant, or linear to zero over the budget."""
    gamma: UnitFloat = 0.99
    """Discount factor. A higher one means a longer horizon and more variance."""
    gae_lambda: UnitFloat = 0.95
    """λ of generalized advantage estimation: bias of the critic at 0, variance of the sampled return at 1."""
    clip_range: Annotated[float, Interval("(0, 1]")] = 0.2
    """Clip range of the probability ratio below 1. A larger range allows larger updates."""
    clip_range_high: PositiveFloat | None = None
    """Clip range of the probability ratio above 1; None: `clip_range`."""
    objective: Literal["clip", "penalty", "clip-and-penalty"] | str = "clip"
    """Objective that limits the policy update: by clipping, by a KL penalty, or by both. Or the path of a custom
    function, path/to/file.py:function, with the signature of `operant.control.ppo.clipped`."""
    kl_coef: PositiveFloat = 1.0
    """Initial weight β of the KL penalty. A larger weight means smaller updates; with a target, β is adapted."""
    kl_coef_target: PositiveFloat | None = 0.01
    """Target of KL(old‖new) per update, in nats, to which β is adapted. None: β is constant."""
    kl_coef_rounds: PositiveInt = 1
    """Maximum rounds of epochs per rollout, with β adapted after each. A seed stops when it reaches the target."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss (half the squared error). It matters most with shared networks."""
    ent_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus. A higher weight keeps the policy exploring longer."""
    max_grad_norm: PositiveFloat | None = 0.5
    """Maximum gradient norm per seed; None: no clipping."""
    normalize_advantage: Literal["minibatch", "batch", "none"] = "minibatch"
    """Samples per seed over which advantages are normalized: those of a minibatch, of the batch, or none."""
    clip_range_vf: PositiveFloat | None = None
    """Clip range of the value around its old estimate; None: no clipping, which usually works better."""
    target_kl: PositiveFloat | None = None
    """Threshold of approx_kl at which a seed stops updating on a rollout; None: never."""
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
    adam_eps: PositiveFloat = 1e-5
    """Epsilon of Adam, for numerical stability."""
    normalize_obs: bool = False
    """Whether to normalize observations by running mean and standard deviation."""
    normalize_reward: bool = False
    """Whether to divide rewards by the running standard deviation of the discounted return."""
    reward_channels: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """Additional rewards by their name in `Step.extras`, such as intrinsic='{"gamma": 0.99, "weight": 0.5}'. Each
    has its own value head and discount (see `operant.control.reward_channels.RewardChannel` for the fields)."""

    def __post_init__(self) -> None:
        """Validate."""
        require(
            self,
            objective=doors.choices(OBJECTIVES, self.objective, "operant.objectives"),
            encoder=encoders(self.encoder),
            network=modules(self.network),
        )
        _ = self.channels
        if self.rollout_steps % self.num_minibatches:
            raise ValueError(
                f"num_minibatches ({self.num_minibatches}) must divide the rollout: {self.num_envs} environments x "
                f"{self.num_steps} steps = {self.rollout_steps} samples"
            )
        parts = self.num_minibatches if self.normalize_advantage == "minibatch" else 1
        if self.normalize_advantage != "none" and self.rollout_steps == parts:
            raise ValueError(
                f"normalize_advantage={self.normalize_advantage!r} makes the advantage of a single "
                "sample 0: use fewer num_minibatches, more environments or steps, or 'none'"
            )

    @property
    def minibatch(self) -> int:
        """Samples per seed in one gradient step."""
        return self.rollout_steps // self.num_minibatches

    @property
    def channels(self) -> OwnReward | RewardChannels:
        """The reward channels."""
        return channels_of(self.reward_channels, gamma=self.gamma, gae_lambda=self.gae_lambda)

    @property
    def spec(self) -> Spec:
        """The sizes of the networks."""
        return Spec(
            hidden=self.hidden_sizes,
            activation=self.activation,
            shared=self.share_features or self.network is not None,
            encoder=self.encoder,
            value_heads=self.channels.count,
            network=self.network,
        )


def clipped(log_probs: Tensor, batch: Samples, clip: Clip, beta: Tensor, kl: Callable[[], Tensor]) -> Tensor:
    """Compute equation 7 of the paper."""
    low, high = clip
    return ops.clipped_surrogate(log_probs, batch.old_log_probs, batch.advantages, clip_low=low, clip_high=high)


def penalized(log_probs: Tensor, batch: Samples, clip: Clip, beta: Tensor, kl: Callable[[], Tensor]) -> Tensor:
    """Compute equation 8 of the paper, with KL(old‖new)."""
    return ops.penalized_surrogate(log_probs, batch.old_log_probs, batch.advantages, kl(), beta=beta)


def both(log_probs: Tensor, batch: Samples, clip: Clip, beta: Tensor, kl: Callable[[], Tensor]) -> Tensor:
    """Compute equation 7 with the penalty of equation 8 (section 4)."""
    return torch.addcmul(clipped(log_probs, batch, clip, beta, kl), beta, kl())


Objective = Callable[[Tensor, Samples, Clip, Tensor, Callable[[], Tensor]], Tensor]
OBJECTIVES: Mapping[str, Objective] = {"clip": clipped, "penalty": penalized, "clip-and-penalty": both}
"""Losses `[S, M]` of the policy, by name."""
PENALIZED = ("penalty", "clip-and-penalty")
"""Objectives with an adaptive β."""
BETA_RANGE = (1e-6, 1e6)
"""Bounds of β; the lower one is positive because doubling cannot raise it from 0."""


def objective_of(name: str) -> Objective:
    """Return an objective by name: one of `OBJECTIVES`, or a custom function, whose result is validated.

    Raises:
        operant.doors.DoorError: if there is none, or it does not take these arguments.
    """
    expected = "a function (log_probs, batch, clip, beta, kl) -> losses [S, M]"
    function = doors.chosen(OBJECTIVES, name, arguments=5, expected=expected, group="operant.objectives")
    if name in OBJECTIVES:
        return function

    @wraps(function)
    def checked(log_probs: Tensor, *others: Any) -> Tensor:
        losses = function(log_probs, *others)
        shape = getattr(losses, "shape", None)
        if shape != log_probs.shape:
            result = f"{losses!r:.80}" if shape is None else f"one of shape {tuple(shape)}"
            raise ValueError(
                f"objective {name} must return a tensor of losses of shape {tuple(log_probs.shape)}, seeds and "
                f"samples, got {result}"
            )
        return losses

    return checked


_MEASURED = ("policy", "value", "entropy", "approx_kl", "clip_fraction", "gradient_norm")
DIAGNOSTICS = tuple(f"losses/{name}" for name in _MEASURED)
"""Diagnostics of the last epoch of an update."""
APPROX_KL = DIAGNOSTICS.index("losses/approx_kl")

PRESETS = presets.PPO
"""Presets by task or name."""


class PPO(Resumable):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds; with several shards, those of this process.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed, over which schedules decay to zero.
        algorithm: name in the catalog, for messages.
        shards: division of environments and minibatches among processes. Default: one shard.

    Attributes:
        consumed: environment steps per seed so far.
        agent: policy, value and environments; the learner exposes its `act`, `describe`, `noise` and `close`.
    """

    STATE = ("consumed", "agent", "optimizer", "beta", "batch_streams")
    AGENT: ClassVar[type[Agent]] = Agent

    def __init__(
        self,
        config: PPOConfig,
        env: BatchEnv | Sequence[BatchEnv],
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "ppo",
        shards: Shards | None = None,
    ) -> None:
        require_budget(budget)
        self.config, self.seeds, self.budget, self.shards = config, list(seeds), budget, shards or Shards()
        minibatch = {"num_envs * num_steps / num_minibatches": config.minibatch}
        self.shards.require_even(num_envs=config.num_envs, **minibatch)
        self.agent = self.AGENT(
            env,
            seeds=seeds,
            rows=config.num_envs,
            algorithm=algorithm,
            spec=config.spec,
            log_std=config.log_std_init,
            scaling=Scaling(config.normalize_obs, config.normalize_reward, config.gamma),
            shards=self.shards,
            sde_sample_freq=config.sde_every,
        )
        self.device = self.agent.device
        self.channels, self.objective = config.channels, objective_of(config.objective)
        self.act, self.noise, self.close = self.agent.act, self.agent.noise, self.agent.close
        self.describe = self.agent.describe
        self.optimizer = StackedAdam(self.agent.parameters, epsilon=config.adam_eps, max_grad_norm=config.max_grad_norm)
        self.beta = torch.full((len(seeds),), config.kl_coef, device=self.device)
        self.batch_streams = streams.of_seeds(seeds, "minibatches", device=self.device)
        self.mean_gradient = self.gradient if self.shards.count == 1 else self.gradient_of_shards
        self.rollout_steps = config.rollout_steps
        self.consumed = 0

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers."""
        return self.agent.learned

    @property
    def gradient_steps(self) -> int:
        """Maximum number of gradient steps of the whole run, with one round of β."""
        return iterations(self.budget, self.rollout_steps) * self.config.num_epochs * self.config.num_minibatches

    def iterate(self) -> Metrics:
        """Collect a rollout, estimate advantages, and update policy and value."""
        rollout = self.agent.collect_finite(self.config.num_steps, self.config.reward_channels)
        batch = self.estimate_advantages(rollout)
        metrics = self.update(batch, remaining(self.consumed, self.budget))
        self.consumed += self.rollout_steps
        return {**rollout.metrics, **metrics}

    @torch.no_grad()
    def estimate_advantages(self, rollout: Rollout) -> Samples:
        """Estimate the advantage of every action, and the critic's targets."""
        config = self.config
        data = self.channels.read(rollout, self.agent.networks.value)
        advantages = ops.gae(data.rewards, data.values, data.next_values, lam=data.gae_lambda, **data.ends)
        batch = Samples.of(rollout, self.agent, advantages=advantages, values=data.values, mix=self.channels.mix)
        scope = config.normalize_advantage
        over_batch = scope == "batch" or (scope == "minibatch" and config.num_minibatches == 1)
        return batch.standardized() if over_batch else batch

    def update(self, batch: Samples, left: float) -> Metrics:
        """Take `num_epochs * num_minibatches` gradient steps per round; `left` is the remaining share of the budget."""
        config = self.config
        learning_rate = scheduled(config.learning_rate, config.lr_schedule, left)
        clip_scale = scheduled(1.0, config.clip_range_schedule, left)
        active = None if config.target_kl is None else torch.ones(len(self.seeds), dtype=torch.bool, device=self.device)
        old_free, counts = self.agent.networks.free.clone(), self.optimizer.counts
        metrics: dict[str, Tensor | float] = {}
        report = torch.full((len(DIAGNOSTICS), len(self.seeds)), torch.nan, device=self.device)
        for _ in range(config.kl_coef_rounds):
            report = self.optimize(batch, old_free, (learning_rate, clip_scale), active, report)
            metrics.update(zip(DIAGNOSTICS, report, strict=True))
            if config.objective not in PENALIZED:
                break
            metrics["schedule/beta"] = self.beta.clone()
            metrics["losses/kl"], active = self.adapt(batch, old_free)
            if not active.any():
                break
        metrics |= self.channels.explained_variance(batch.old_values, batch.targets, batch.weights)
        metrics["schedule/learning_rate"] = learning_rate
        return metrics | update_metrics(self.optimizer.counts - counts)

    def optimize(
        self, batch: Samples, old_free: Tensor, scale: tuple[float, float], active: Tensor | None, report: Tensor
    ) -> Tensor:
        """Run the epochs for the `active` seeds, None for all; `scale` is learning rate and clip range.

        Returns:
            Diagnostics `[6, S]` of the last epoch of each seed; those of `report` for seeds without one.
        """
        limit = float("inf") if self.config.target_kl is None else self.config.target_kl
        for epoch in range(self.config.num_epochs):
            measure = active is not None or epoch == self.config.num_epochs - 1
            measured, participants = list[Tensor](), active
            for part in self.minibatches(batch, active):
                gradient, diagnostics = self.mean_gradient(part, old_free, scale[1], measure)
                if active is not None:
                    active = active & (diagnostics[APPROX_KL] <= limit)
                norm = self.optimizer.step(gradient, learning_rate=scale[0], active=active)
                if measure:
                    measured.append(torch.stack([*diagnostics, norm]))
            if measure:
                latest = torch.stack(measured).mean(0)
                report = latest if participants is None else torch.where(participants, latest, report)
            if active is not None and not active.any():
                break
        return report

    @torch.no_grad()
    def adapt(self, batch: Samples, old_free: Tensor) -> tuple[Tensor, Tensor]:
        """Adapt β; return KL(old‖new) `[S]` over the rollout, and a mask of the seeds that miss the target."""
        networks, target = self.agent.networks, self.config.kl_coef_target
        kl = self.agent.head.kl(batch.outputs, old_free, networks.policy(batch.obs), networks.free)
        divergence = ops.weighted_mean(kl, batch.weights)
        beta = self.beta if target is None else ops.adapt_penalty(self.beta, divergence, target=target)
        far = beta != self.beta
        self.beta.copy_(beta.clamp(*BETA_RANGE))
        return divergence, far

    def minibatches(self, batch: Samples, active: Tensor | None = None) -> Iterator[Samples]:
        """Split a batch at random, with one random stream per active seed."""
        standardize = self.config.normalize_advantage == "minibatch"
        return self.agent.minibatches(
            batch, self.config.num_minibatches, self.batch_streams, active=active, standardize=standardize
        )

    @compilable
    def gradient(
        self, batch: Samples, old_free: Tensor, clip_scale: float, measure: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the gradient `[S, P]` of the loss, and if `measure` the diagnostics of the update (see `loss`)."""
        networks = Pass(self.agent.networks, batch.obs)
        loss, diagnose = self.loss(networks, batch, old_free, clip_scale)
        return networks.gradient(loss), diagnose() if measure else []

    def loss(
        self, networks: Pass, batch: Samples, old_free: Tensor, clip_scale: float
    ) -> tuple[Tensor, Callable[[], list[Tensor]]]:
        """Return equation 9 of the paper, negated and summed over seeds, and a function that measures the update.

        `old_free` are the head's free parameters `[S, free]` at collection.
        """
        config, head = self.config, self.agent.head
        clip_low = config.clip_range * clip_scale
        clip_high = clip_low if config.clip_range_high is None else config.clip_range_high * clip_scale
        outputs, free = networks.outputs, networks.free
        log_probs = head.log_prob(outputs, free, batch.actions)
        kl = partial(head.kl, batch.outputs, old_free, outputs, free)
        policy = self.objective(log_probs, batch, (clip_low, clip_high), self.beta.unsqueeze(1), kl)
        values, targets, clip = networks.values, batch.targets, config.clip_range_vf
        if clip is None:
            value = ops.value_loss(values, targets)
        else:
            value = ops.clipped_value_loss(values, targets, old_values=batch.old_values, clip=clip)
        if self.channels.count > 1:
            value = value.sum(-1)
        loss = torch.add(policy, value, alpha=config.vf_coef)
        if config.ent_coef:
            entropy = head.entropy(outputs, free)
            loss = torch.sub(loss, entropy, alpha=config.ent_coef)

        @torch.no_grad()
        def diagnose() -> list[Tensor]:
            beyond = ops.clip_fraction(
                log_probs, batch.old_log_probs, clip_low=clip_low, clip_high=clip_high, weights=batch.weights
            )
            moved = ops.approximate_kl(log_probs, batch.old_log_probs, weights=batch.weights)
            entropy = head.entropy(outputs, free)
            means = [ops.weighted_mean(x.expand_as(policy), batch.weights) for x in (policy, value, entropy)]
            return [*means, moved, beyond]

        return ops.weighted_mean(loss, batch.weights).sum(), diagnose

    def for_seed(self, seed: int) -> Self:
        """Return a learner of only the seed at an index, sharing the memory of its networks."""
        learner = copy(self)
        learner.agent, learner.beta = self.agent.for_seed(seed), self.beta[seed : seed + 1]
        return learner

    def one_by_one(self) -> list[Self]:
        """Return the targets of compilation (see `operant.nets.one_by_one`)."""
        samples = self.config.minibatch // self.shards.count
        return one_by_one(self, samples=samples, hidden=self.config.hidden_sizes)

    def gradient_of_shards(
        self, batch: Samples, old_free: Tensor, clip_scale: float, measure: bool
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the result of `gradient`, computed by shards."""

        def stacked(parts: Samples) -> tuple[Tensor, Sequence[Tensor]]:
            count, learner = len(self.shards.mine), self.of_shards
            learner.agent = self.agent.of_shards()
            learner.beta.unflatten(0, (-1, count)).copy_(self.beta.unsqueeze(1))
            return learner.gradient(parts, old_free.repeat_interleave(count, 0), clip_scale, measure)

        alone = partial(self.gradient, old_free=old_free, clip_scale=clip_scale, measure=measure)
        return self.shards.mean(alone, batch, stacked, kind=measure)

    @cached_property
    def of_shards(self) -> Self:
        """Return this learner with a separate copy of each seed's networks for every shard of this process."""
        learner, count = copy(self), len(self.shards.mine)
        vars(learner).pop("gradient", None)
        learner.seeds = [seed for seed in self.seeds for _ in range(count)]
        learner.agent, learner.beta = self.agent.of_shards(), self.beta.repeat_interleave(count)
        learner.gradient.compiled = self.gradient.compiled
        return learner
