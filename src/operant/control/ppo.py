"""Proximal policy optimisation with the clipped objective (Schulman et al. 2017, arXiv:1707.06347).

Collect a rollout with the current policy; judge every action by generalised advantage estimation (Schulman et al.
2016); improve policy and value for several epochs of minibatches, where the objective stops rewarding a change as soon
as the probability ratio has moved by more than the clip range in the profitable direction.

What differs from the paper: value and policy have separate networks by default (the paper's Atari experiments share
them: `shared`); the gradient of each seed is clipped by its norm, layers are initialised orthogonally and Adam's
epsilon is 1e-5 (Huang et al. 2022, details 2, 3 and 11); an episode cut by a time limit bootstraps from the value of
its true final observation (Pardo et al. 2018), where most implementations take it for a terminal state. Continuous
actions are in units of half the range of the action space.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import inf
from operator import itemgetter
from typing import Any, Literal

import torch
from torch import Tensor

from operant import ops, streams
from operant.envs import BatchEnv, Normalise, require_space
from operant.nets import Activation, ActorCritic, Pass, Spec, StackedAdam, head_for
from operant.runtime.learner import Metrics
from operant.runtime.rollouts import Collector, Rollout, by_seed
from operant.state import State, clone, copy_into, generator_state, set_generator_state


@dataclass(frozen=True)
class PPOConfig:
    """Hyperparameters of PPO. Defaults are those of the paper's continuous control experiments (table 3)."""

    environments: int = 1
    """Environments a seed, N. More give less correlated batches and a faster rollout."""
    steps: int = 2048
    """Steps of every environment in one rollout, T. More see further before bootstrapping, and update less often."""
    epochs: int = 10
    """Passes over each rollout. More use the data better until the policy overfits to it (watch approx_kl)."""
    minibatches: int = 32
    """Parts that a rollout is split into, each one gradient step. More take more and noisier steps."""
    learning_rate: float = 3e-4
    """Step size of Adam."""
    anneal: Literal["none", "learning_rate", "both"] = "none"
    """What falls linearly to zero over the budget: nothing, the learning rate, or it and the clip range."""
    gamma: float = 0.99
    """Discount a step. Higher looks further ahead and has more variance."""
    lam: float = 0.95
    """λ of the advantage estimates: 0 trusts the critic (bias), 1 the sampled return (variance)."""
    clip_low: float = 0.2
    """How far the probability ratio may fall below 1 before a lower one is not rewarded. Higher moves faster."""
    clip_high: float | None = None
    """How far it may rise above 1; None: as `clip_low`."""
    value_coefficient: float = 0.5
    """Weight of the value loss (half the squared error). Matters most where the networks are shared."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus. Higher explores more and commits later."""
    max_grad_norm: float | None = 0.5
    """Largest gradient norm of one seed; None: no clipping."""
    normalise_advantages: Literal["minibatch", "batch", "none"] = "minibatch"
    """Over which samples of a seed advantages get mean 0 and standard deviation 1."""
    value_clip: float | None = None
    """Clip range of the value around its old estimate; None: no clipping, which usually learns better."""
    target_kl: float | None = None
    """A seed stops its updates on a rollout once approx_kl exceeds this; None: never."""
    hidden: tuple[int, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Nonlinearity of the hidden layers."""
    shared: bool = False
    """Whether policy and value share the hidden layers."""
    log_std: float = 0.0
    """Initial logarithm of the standard deviation of continuous actions, in half action ranges."""
    adam_epsilon: float = 1e-5
    """Added to the root of Adam's second moment."""
    normalise_observations: bool = False
    """Whether observations are normalised by running mean and standard deviation."""
    normalise_rewards: bool = False
    """Whether rewards are divided by the running standard deviation of the discounted return."""

    def __post_init__(self) -> None:
        """Refuse values that cannot work, naming the field."""
        for name in ("environments", "steps", "epochs", "minibatches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.environments * self.steps % self.minibatches:
            raise ValueError(
                f"minibatches ({self.minibatches}) must divide the rollout: {self.environments} environments x "
                f"{self.steps} steps = {self.environments * self.steps} samples"
            )
        scope = self.normalise_advantages
        for name, fits, expected in (
            ("learning_rate", 0 < self.learning_rate < inf, "positive and finite"),
            ("anneal", self.anneal in ("none", "learning_rate", "both"), "none, learning_rate or both"),
            ("gamma", 0 <= self.gamma <= 1, "in [0, 1]"),
            ("lam", 0 <= self.lam <= 1, "in [0, 1]"),
            ("clip_low", 0 < self.clip_low <= 1, "in (0, 1]"),
            ("clip_high", self.clip_high is None or self.clip_high > 0, "positive or None"),
            ("value_coefficient", 0 <= self.value_coefficient < inf, "finite and not negative"),
            ("entropy_coefficient", 0 <= self.entropy_coefficient < inf, "finite and not negative"),
            ("normalise_advantages", scope in ("minibatch", "batch", "none"), "minibatch, batch or none"),
            ("value_clip", self.value_clip is None or self.value_clip > 0, "positive or None"),
            ("target_kl", self.target_kl is None or self.target_kl > 0, "positive or None"),
            ("adam_epsilon", 0 < self.adam_epsilon < inf, "positive and finite"),
        ):
            if not fits:
                raise ValueError(f"{name} must be {expected}, got {getattr(self, name)!r}")


DIAGNOSTICS = (
    "losses/policy",
    "losses/value",
    "losses/entropy",
    "losses/approx_kl",
    "losses/clip_fraction",
    "losses/gradient_norm",
)
"""What is measured in the last epoch of an update."""
APPROX_KL = DIAGNOSTICS.index("losses/approx_kl")

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {
        "environments": 64,
        "steps": 32,
        "epochs": 4,
        "minibatches": 8,
        "learning_rate": 7e-3,
        "anneal": "both",
        "hidden": (32, 32),
    },
    "Pendulum-v1": {
        "environments": 32,
        "steps": 64,
        "epochs": 10,
        "minibatches": 16,
        "learning_rate": 1e-3,
        "anneal": "learning_rate",
        "gamma": 0.95,
        "activation": "relu",
    },
    "zoo": {
        "environments": 8,
        "steps": 32,
        "epochs": 20,
        "minibatches": 1,
        "learning_rate": 1e-3,
        "anneal": "both",
        "gamma": 0.98,
        "lam": 0.8,
    },
}
"""Configuration by task, which selects its own, or by name; what is not named keeps its default.

`zoo` is what RL Baselines3 Zoo uses for CartPole-v1.
"""


@dataclass(frozen=True)
class Batch:
    """One rollout ready for the updates; every tensor is `[S, M, ...]` with M = T * N samples a seed.

    `weights` are None when every sample counts; otherwise 1 where it is valid and 0 where not.
    """

    obs: Tensor
    actions: Tensor
    old_log_probs: Tensor
    advantages: Tensor
    targets: Tensor
    old_values: Tensor
    weights: Tensor | None

    def shuffled(self, order: Tensor, parts: int) -> "Batch":
        """Return the samples in the order `[S, M]`, a permutation for each seed, as `[parts, S, M / parts, ...]`."""
        seeds, samples = order.shape
        flat = order + torch.arange(seeds, device=order.device).unsqueeze(1) * samples
        index = flat.view(seeds, parts, samples // parts).transpose(0, 1).reshape(-1)

        def pick(tensor: Tensor) -> Tensor:
            return tensor.flatten(0, 1)[index].view(parts, seeds, samples // parts, *tensor.shape[2:])

        return self.map(pick)

    def map(self, function: Callable[[Tensor], Tensor]) -> "Batch":
        """Return the batch with `function` applied to every tensor."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: function(value) for name, value in values.items() if value is not None})


class PPO:
    """The learner: `S` seeds trained as one program.

    Args:
        config: hyperparameters.
        env: `S * config.environments` rows, made with the same seeds.
        seeds: one non-negative integer for each of the S runs; each owns its streams of random numbers.
        budget: environment steps a seed, over which schedules fall to zero.

    Attributes:
        consumed: environment steps a seed so far.
        parameters: `[S, P]` of policy and value.
    """

    def __init__(self, config: PPOConfig, env: BatchEnv, *, seeds: Sequence[int], budget: int) -> None:
        require_space(env, algorithm="ppo")
        if env.rows != len(seeds) * config.environments:
            raise ValueError(
                f"{len(seeds)} seeds with {config.environments} environments each need "
                f"{len(seeds) * config.environments} rows, but the environment has {env.rows}"
            )
        if budget < 1:
            raise ValueError(f"budget must be at least 1 environment step, got {budget}")
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.normaliser: Normalise | None = None
        if config.normalise_observations or config.normalise_rewards:
            env = self.normaliser = Normalise(
                env,
                seeds=len(seeds),
                observations=config.normalise_observations,
                rewards=config.normalise_rewards,
                gamma=config.gamma,
            )
        self.collector = Collector(env, seeds=len(seeds))
        self.head = head_for(env.action_space, log_std=config.log_std, device=env.device)
        spec = Spec(hidden=config.hidden, activation=config.activation, shared=config.shared)
        shape = ActorCritic(self.collector.obs.shape[-1], self.head, spec)
        initial = shape.initial([streams.torch_generator(seed, "networks") for seed in seeds])
        self.parameters = initial.to(env.device)
        self.networks = shape.bind(self.parameters)
        self.optimizer = StackedAdam(self.parameters, epsilon=config.adam_epsilon, max_grad_norm=config.max_grad_norm)
        self.policy_streams = [streams.torch_generator(seed, "policy", device=env.device) for seed in seeds]
        self.batch_streams = [streams.torch_generator(seed, "minibatches", device=env.device) for seed in seeds]
        self.consumed = 0

    def iterate(self) -> Metrics:
        """Collect a rollout, judge it and improve on it."""
        remaining = max(1.0 - self.consumed / self.budget, 1e-6)
        rollout = self.collect()
        batch = self.judge(rollout)
        metrics = self.improve(batch, remaining)
        self.consumed += self.config.steps * self.config.environments
        return {**rollout.metrics, **metrics}

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Act with the current policy for `steps` steps, keeping the policy's actions and outputs."""
        rows = self.config.environments
        noise = [self.head.noise((self.config.steps, rows), stream) for stream in self.policy_streams]
        steps = torch.stack(noise, dim=1).unbind(0)

        def act(obs: Tensor, t: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
            outputs = self.networks.policy(obs)
            actions = self.head.sample(outputs, self.networks.free, steps[t])
            return (actions, outputs), self.head.to_env(actions)

        return self.collector.collect(self.config.steps, act)

    @torch.no_grad()
    def judge(self, rollout: Rollout) -> Batch:
        """Estimate the advantage of every action, and the returns that the critic should predict."""
        config = self.config
        values, next_values = rollout.successor_values(self.networks.value)
        advantages = ops.gae(
            rollout.rewards,
            values,
            next_values,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            gamma=config.gamma,
            lam=config.lam,
        )
        actions, outputs = (by_seed(kept) for kept in rollout.kept)
        weights = None if rollout.valid is None else by_seed(rollout.valid).to(advantages.dtype)
        flat, old_values = by_seed(advantages), by_seed(values)
        scope = config.normalise_advantages
        whole = scope == "batch" or (scope == "minibatch" and config.minibatches == 1)
        return Batch(
            obs=by_seed(rollout.obs),
            actions=actions,
            old_log_probs=self.head.log_prob(outputs, self.networks.free, actions),
            advantages=ops.standardise(flat, weights) if whole else flat,
            targets=flat + old_values,
            old_values=old_values,
            weights=weights,
        )

    def improve(self, batch: Batch, remaining: float) -> Metrics:
        """Take `epochs * minibatches` gradient steps; `remaining` is the share of the budget not yet used."""
        config = self.config
        learning_rate = config.learning_rate * (1.0 if config.anneal == "none" else remaining)
        clip_scale = remaining if config.anneal == "both" else 1.0
        active = None if config.target_kl is None else torch.ones(len(self.seeds), dtype=torch.bool, device=self.device)
        skipped = self.optimizer.skipped.clone()
        measured: list[Tensor] = []
        for epoch in range(config.epochs):
            measure = active is not None or epoch == config.epochs - 1
            measured = []
            for part in self.minibatches(batch):
                networks = Pass(self.networks, part.obs)
                loss, diagnose = self.loss(networks, part, clip_scale)
                gradient = networks.gradient(loss)
                diagnostics = diagnose() if measure else []
                if active is not None:
                    active &= diagnostics[APPROX_KL] <= (config.target_kl or 0.0)
                norm = self.optimizer.step(gradient, learning_rate=learning_rate, active=active)
                if measure:
                    measured.append(torch.stack([*diagnostics, norm]))
            if active is not None and not active.any():
                break
        metrics: dict[str, Tensor | float] = dict(zip(DIAGNOSTICS, torch.stack(measured).mean(0), strict=True))
        metrics["value/explained_variance"] = ops.explained_variance(batch.old_values, batch.targets, batch.weights)
        metrics["schedule/learning_rate"] = learning_rate
        metrics["health/skipped_updates"] = self.optimizer.skipped - skipped
        return metrics

    def minibatches(self, batch: Batch) -> Iterator[Batch]:
        """Split a batch at random, each seed by its own stream; one part needs no order."""
        if self.config.minibatches == 1:
            return iter([batch])
        parts, samples = self.config.minibatches, batch.targets.shape[1]
        order = [torch.randperm(samples, generator=stream, device=self.device) for stream in self.batch_streams]
        batch = batch.shuffled(torch.stack(order), parts)
        if self.config.normalise_advantages == "minibatch":
            batch = replace(batch, advantages=ops.standardise(batch.advantages, batch.weights))
        return (batch.map(itemgetter(part)) for part in range(parts))

    def loss(self, networks: Pass, batch: Batch, clip_scale: float) -> tuple[Tensor, Callable[[], list[Tensor]]]:
        """Return equation 9 of the paper, negated and summed over seeds, and a function that measures the update."""
        config = self.config
        clip_low = config.clip_low * clip_scale
        clip_high = clip_low if config.clip_high is None else config.clip_high * clip_scale
        outputs, free = networks.outputs, networks.free
        log_probs = self.head.log_prob(outputs, free, batch.actions)
        policy = ops.clipped_surrogate(
            log_probs, batch.old_log_probs, batch.advantages, clip_low=clip_low, clip_high=clip_high
        )
        anchor = None if config.value_clip is None else batch.old_values
        value = ops.value_loss(networks.values, batch.targets, old_values=anchor, clip=config.value_clip)
        loss = torch.add(policy, value, alpha=config.value_coefficient)
        if config.entropy_coefficient:
            entropy = self.head.entropy(outputs, free)
            loss = torch.sub(loss, entropy, alpha=config.entropy_coefficient)

        @torch.no_grad()
        def diagnose() -> list[Tensor]:
            clipped = ops.clip_fraction(
                log_probs, batch.old_log_probs, clip_low=clip_low, clip_high=clip_high, weights=batch.weights
            )
            kl = ops.approximate_kl(log_probs, batch.old_log_probs, weights=batch.weights)
            entropy = self.head.entropy(outputs, free)
            means = [ops.weighted_mean(x.expand_as(policy), batch.weights) for x in (policy, value, entropy)]
            return [*means, kl, clipped]

        return ops.weighted_mean(loss, batch.weights).sum(), diagnose

    @torch.no_grad()
    def act(self, obs: Tensor, memory: None, noise: Tensor | None) -> tuple[Tensor, None]:
        """Choose actions for observations `[S, N, ...]` as the environment gives them (see `runtime.Policy`)."""
        obs = obs if self.normaliser is None else self.normaliser.normalise(obs)
        outputs, free = self.networks.policy(obs.reshape(*obs.shape[:2], -1).float()), self.networks.free
        actions = self.head.mode(outputs, free) if noise is None else self.head.sample(outputs, free, noise)
        return self.head.to_env(actions), None

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Draw the noise for one action of each of `rows` rows of every seed."""
        return self.head.noise((len(self.seeds), rows), generator)

    def state_dict(self) -> State:
        """Return networks, optimizer, random streams, environments and counters."""
        return clone(
            {
                "consumed": self.consumed,
                "parameters": self.parameters,
                "optimizer": self.optimizer.state_dict(),
                "collector": self.collector.state_dict(),
                "policy_streams": [generator_state(stream) for stream in self.policy_streams],
                "batch_streams": [generator_state(stream) for stream in self.batch_streams],
            }
        )

    def load_state_dict(self, state: State) -> None:
        """Go on exactly where the state was taken."""
        copy_into(self.parameters, state["parameters"], "parameters")
        self.optimizer.load_state_dict(state["optimizer"])
        self.collector.load_state_dict(state["collector"])
        for name in ("policy_streams", "batch_streams"):
            for stream, saved in zip(getattr(self, name), state[name], strict=True):
                set_generator_state(stream, saved)
        self.consumed = state["consumed"]
