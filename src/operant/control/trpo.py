"""Trust region policy optimization (Schulman et al. 2015, arXiv:1502.05477), and the natural policy gradient.

Collect a rollout with the current policy; estimate advantages by generalized advantage estimation (Schulman et al.
2016, arXiv:1506.02438); update the policy by one step that maximizes the surrogate while the mean KL(old‖new) stays
within δ (equation 14 of the paper): along `F⁻¹g`, computed by conjugate gradients from products with the Fisher matrix
F, to the boundary of the quadratic model of the KL (appendix C), then reduced until the true surrogate improves and the
true KL is within δ. The natural policy gradient (Kakade 2001) takes the same step without this line search.

What differs from the paper: advantages are those of GAE, with a separate critic network that is fitted
to the λ-returns by a few epochs of Adam. The paper uses Monte Carlo returns, to which `gae_lambda` = 1 comes close.
Products with F use its closed form (`operant.nets.Jacobian`), which equals the second derivative of the KL that the
paper computes by automatic differentiation. An episode cut by a time limit bootstraps from the value of its true final
observation (Pardo et al. 2018). Continuous actions are in units of half the range of the action space. Policy and value
never share a network, because a natural gradient step of the policy ignores the value and would damage it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Annotated, Literal, cast

import torch
from torch import Tensor

from operant import doors, ops, streams
from operant.control import presets
from operant.control.agent import Agent, Samples, Scaling
from operant.envs import BatchEnv
from operant.nets import (
    Activation,
    Jacobian,
    NetworkJacobian,
    Spec,
    StackedAdam,
    StackedMLP,
    StackedNetwork,
    compilable,
    jacobian,
    modules,
)
from operant.runtime.bounds import (
    Interval,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    UnitFloat,
    require,
)
from operant.runtime.budget import FixedRollouts, iterations, require_budget
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import update_metrics
from operant.runtime.rollouts import Rollout
from operant.runtime.weights import Weights
from operant.state import Resumable
from operant.tensors import linalg


@dataclass(frozen=True)
class TRPOConfig(FixedRollouts):
    """Hyperparameters of TRPO. Defaults are those of the paper (δ, conjugate gradients, 10 % of the data for F)."""

    num_envs: PositiveInt = 1
    """Number of environments per seed, N. More give less correlated batches and faster rollouts."""
    num_steps: PositiveInt = 2048
    """Number of steps per environment and rollout, T. More make updates more accurate and less frequent."""
    target_kl: PositiveFloat = 0.01
    """Trust region δ: maximum mean KL(old‖new) of an update, in nats. Larger values allow larger steps."""
    cg_max_steps: PositiveInt = 10
    """Number of conjugate-gradient iterations, each with one product with F. More are more accurate."""
    cg_damping: NonNegativeFloat = 0.1
    """Damping added to the diagonal of F. Higher moves the step towards the plain gradient, and shortens it."""
    sub_sampling_factor: PositiveInt = 10
    """F is averaged over every n-th sample, of all environments in turn. Higher is cheaper and noisier."""
    line_search: bool = True
    """Whether to backtrack until surrogate and KL are acceptable; False for the natural policy gradient."""
    line_search_shrinking_factor: Annotated[float, Interval("(0, 1)")] = 0.8
    """Factor of one backtrack of the line search. Higher searches a smaller range more finely."""
    line_search_max_iter: NonNegativeInt = 10
    """Maximum number of backtracks before the line search rejects the step."""
    gamma: UnitFloat = 0.99
    """Discount factor. A higher one means a longer horizon and more variance."""
    gae_lambda: UnitFloat = 0.95
    """λ of generalized advantage estimation: bias of the critic at 0, variance of the sampled return at 1."""
    normalize_advantage: Literal["batch", "none"] = "batch"
    """Whether to normalize the advantages of each rollout. Only the mean affects the step."""
    critic_epochs: PositiveInt = 10
    """Number of passes of the critic over each rollout. Too many overfit it."""
    critic_minibatches: PositiveInt = 32
    """Number of minibatches per rollout for the critic, one step of Adam each."""
    critic_learning_rate: PositiveFloat = 1e-3
    """Learning rate of the critic's Adam."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Sizes of the hidden layers of both networks."""
    activation: Activation = "tanh"
    """Activation function of the hidden layers."""
    network: str | None = None
    """Path of a custom `torch.nn.Module` that replaces all layers, path/to/file.py:Name, and returns policy outputs
    and value (see `operant.nets.StackedNetwork`); policy and critic have one copy each. None: the layers defined by
    the other fields."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions, in half ranges of the action space."""
    normalize_obs: bool = False
    """Whether to normalize observations by running mean and standard deviation."""
    normalize_reward: bool = False
    """Whether to divide rewards by the running standard deviation of the discounted return."""
    sampling: Literal["single-path", "vine"] = "single-path"
    """Sampling scheme: single path, or vine, which tries several actions in some states."""
    vine_points: PositiveInt = 4
    """Vine sampling: number of branching times per rollout and environment; must divide `num_steps`."""
    vine_actions: Annotated[int, Interval("[2, inf)")] = 4
    """Vine sampling: number of continuous actions tried per state; all discrete actions are tried."""
    vine_steps: PositiveInt = 50
    """Vine sampling: steps per branch. More mean less bias of the critic, more variance and cost."""
    vine_common: bool = True
    """Vine sampling: whether the branches of a state share random numbers, to reduce variance."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self, network=modules(self.network))
        if self.sampling == "vine" and self.num_steps % self.vine_points:
            raise ValueError(f"vine_points ({self.vine_points}) must divide num_steps ({self.num_steps})")
        samples = self.rollout_steps
        if self.sampling == "single-path" and samples == 1 and self.normalize_advantage == "batch":
            raise ValueError(
                "normalize_advantage='batch' makes the advantage of a single sample 0: use more environments or "
                "steps, or normalize_advantage='none'"
            )
        if self.sampling == "single-path" and samples % self.critic_minibatches:
            raise ValueError(
                f"critic_minibatches ({self.critic_minibatches}) must divide the rollout: {self.num_envs} "
                f"environments x {self.num_steps} steps = {samples} samples"
            )

    @property
    def step(self) -> Literal["trpo"]:
        """Step of the policy: one natural step, limited by `target_kl` (see `operant.runtime.advice.HasStep`)."""
        return "trpo"

    def planned_steps(self, budget: int) -> int:
        """Return the number of steps that training uses; the budget with branches, whose steps depend on the task."""
        return budget if self.sampling == "vine" else super().planned_steps(budget)


VINE = "operant.experimental.vine:VineCollector"
"""Collector if `sampling` is `vine`; by name, since experimental code imports this package."""

PRESETS = presets.TRPO
"""Presets by task or name."""


class TRPO(Resumable):
    """Learner that trains `S` seeds as one program, each with its own trust region and line search.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps per seed so far, including branches.
        agent: policy, value and environments; the learner exposes its `act`, `describe`, `noise` and `close`.
        actor: parameters `[S, D]` of the policies, a view of the agent's.
        critic: parameters of the value networks.
        skipped: policy steps `[S]` with NaN or Inf.

    Raises:
        ValueError: if the environment is unsupported, or the budget is not positive.
    """

    STATE = ("consumed", ("rejected", "skipped"), "agent", "optimizer", "batch_streams")

    def __init__(
        self,
        config: TRPOConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "trpo",
    ) -> None:
        require_budget(budget)
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.agent = Agent(
            env,
            seeds=seeds,
            rows=config.num_envs,
            algorithm=algorithm,
            spec=Spec(hidden=config.hidden_sizes, activation=config.activation, shared=False, network=config.network),
            log_std=config.log_std_init,
            scaling=Scaling(config.normalize_obs, config.normalize_reward, config.gamma),
        )
        self.act, self.noise, self.close = self.agent.act, self.agent.noise, self.agent.close
        self.describe = self.agent.describe
        self.mlp = cast(StackedMLP | StackedNetwork, self.agent.networks.shape.mlp)
        self.actor, self.critic = self.agent.parameters.view(len(seeds), 2, -1).unbind(1)
        self.optimizer = StackedAdam(self.critic)
        self.batch_streams = streams.of_seeds(seeds, "minibatches", device=env.device)
        self.rollout_steps = config.rollout_steps
        self.collect = self.follow_path
        if config.sampling == "vine":
            vine = doors.load(VINE, expected="the vine collector")(self.agent, config)
            self.collect, self.rollout_steps = vine.collect, vine.rollout_steps
        self.skipped = torch.zeros(len(seeds), dtype=torch.int64, device=env.device)
        self.consumed = 0

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers."""
        return self.agent.learned

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of the whole run, nearly all of them the critic's."""
        return iterations(self.budget, self.rollout_steps) * self.config.critic_epochs * self.config.critic_minibatches

    def iterate(self) -> Metrics:
        """Collect experience, estimate advantages, and update policy and critic."""
        batch, episodes = self.collect()
        if self.config.normalize_advantage == "batch":
            batch = batch.standardized()
        skipped, counts = self.skipped.clone(), self.optimizer.counts
        metrics = {**episodes, **self.update(batch), **self.fit_critic(batch)}
        policy = torch.stack((torch.ones_like(skipped), self.skipped - skipped))
        metrics |= update_metrics(policy + self.optimizer.counts - counts)
        self.consumed += self.rollout_steps
        return metrics

    def follow_path(self) -> tuple[Samples, Metrics]:
        """Collect a rollout; return its samples with their advantages, and the metrics of its episodes."""
        rollout = self.agent.collect_finite(self.config.num_steps)
        return self.estimate_advantages(rollout), rollout.metrics

    @torch.no_grad()
    def estimate_advantages(self, rollout: Rollout) -> Samples:
        """Estimate the advantage of every action, and the critic's targets."""
        values, next_values = rollout.successor_values(self.agent.networks.value)
        advantages = ops.gae(
            rollout.rewards,
            values,
            next_values,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            gamma=self.config.gamma,
            lam=self.config.gae_lambda,
        )
        return Samples.of(rollout, self.agent, advantages=advantages, values=values)

    def update(self, batch: Samples) -> Metrics:
        """Take one policy step per seed, within its trust region."""
        config = self.config
        step, loss, report = self.propose(batch)
        tried: list[Tensor] = []

        def acceptable(scaled: Tensor) -> Tensor:
            new = self.measure(batch, self.actor + scaled)
            tried[:] = new
            finite = new.isfinite().all(0)
            return finite & (new[0] < loss) & (new[1] <= config.target_kl) if config.line_search else finite

        backtracks = config.line_search_max_iter if config.line_search else 0
        search = ops.backtrack(
            acceptable, step, coefficient=config.line_search_shrinking_factor, max_backtracks=backtracks
        )
        self.actor += search.step
        new_loss, kl = tried
        self.skipped += ~step.isfinite().all(1)
        rejected = ~search.accepted & step.isfinite().all(1) & (step != 0).any(1)
        return {
            "losses/policy": torch.where(search.accepted, new_loss, loss),
            "losses/improvement": (loss - new_loss).masked_fill(~search.accepted, 0.0),
            "losses/kl": kl.masked_fill(~search.accepted, 0.0),
            "losses/step_scale": search.scale,
            "health/rejected_steps": rejected,
            **report,
        }

    @compilable
    def propose(self, batch: Samples) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the natural step `[S, D]` to the edge of the trust region, the loss `[S]` before it, and metrics."""
        config = self.config
        gradient, loss = self.policy_gradient(batch)
        step = ops.natural_step(
            self.fisher(batch),
            gradient,
            delta=config.target_kl,
            iterations=config.cg_max_steps,
            damping=config.cg_damping,
        )
        entropy = ops.weighted_mean(self.agent.head.entropy(batch.outputs, self.agent.networks.free), batch.weights)
        report = {"losses/entropy": entropy, "losses/gradient_norm": linalg.vector_norm(gradient, dim=1)}
        return step, loss, report

    def policy_gradient(self, batch: Samples) -> tuple[Tensor, Tensor]:
        """Return the ascent direction `[S, D]`, the gradient of the surrogate at the old policy, and its loss `[S]`."""
        policy, outputs = self.linearized(batch.obs)
        outputs, free = outputs.requires_grad_(), self.agent.networks.free.detach().requires_grad_()
        loss = self.surrogate(outputs, free, batch)
        by_outputs, by_free = torch.autograd.grad(loss.sum(), (outputs, free), materialize_grads=True)
        return -torch.cat((policy.pull(by_outputs), by_free), dim=1), loss.detach()

    def linearized(self, obs: Tensor) -> tuple[Jacobian | NetworkJacobian, Tensor]:
        """Return the policy networks at their parameters, and the head's outputs, with action masks applied."""
        shape = self.agent.networks.shape
        columns = slice(0, self.agent.head.outputs)
        policy = jacobian(self.mlp, self.agent.networks.actor, shape.encode(obs), columns)
        return policy, shape.allowed(policy.outputs, obs)

    def surrogate(self, outputs: Tensor, free: Tensor, batch: Samples) -> Tensor:
        """Return the loss `[S]`: minus the surrogate of equation 14, for a policy on the batch's states."""
        log_probs = self.agent.head.log_prob(outputs, free, batch.actions)
        return ops.weighted_mean(ops.surrogate(log_probs, batch.old_log_probs, batch.advantages), batch.weights)

    def sub_sample(self, samples: int) -> Tensor:
        """Return the indices of the samples, in the order `[T, N]`, whose states estimate the Fisher matrix.

        Every k-th one, moved by one whenever the environments repeat, so that all environments contribute.
        """
        envs, factor = self.config.num_envs, self.config.sub_sampling_factor
        every = torch.arange(0, samples, factor, device=self.device)
        return (every + every // lcm(envs, factor) % gcd(envs, factor)).clamp_(max=samples - 1)

    @torch.no_grad()
    def fisher(self, batch: Samples) -> Callable[[Tensor], Tensor]:
        """Return `v -> F v` `[S, D]`, with F the mean Fisher matrix over the states of the batch (appendix C.1).

        F depends only on the states, so the action weights of a vine are reduced to 0 or 1.
        """
        head, free, chosen = self.agent.head, self.agent.networks.free, self.sub_sample(batch.obs.shape[1])
        policy, outputs = self.linearized(batch.obs[:, chosen])
        weights = outputs.new_ones(outputs.shape[:2])
        if batch.weights is not None:
            weights = (batch.weights[:, chosen] > 0).to(outputs.dtype)
        shares = (weights / weights.sum(1, keepdim=True).clamp(min=1e-8)).unsqueeze(-1)

        def product(vector: Tensor) -> Tensor:
            by_weights, by_free = vector.split_with_sizes([self.mlp.size, head.free], dim=1)
            by_outputs, by_free = head.fisher(outputs, free, policy.push(by_weights), by_free)
            return torch.cat((policy.pull(by_outputs * shares), by_free), dim=1)

        return product

    @compilable
    @torch.no_grad()
    def measure(self, batch: Samples, actor: Tensor) -> Tensor:
        """Return the loss and the mean KL(old‖new), `[2, S]`, of new policies with parameters `actor` `[S, D]`.

        The old policy is the agent's, which collected the batch.
        """
        weights, free = actor.split_with_sizes([self.mlp.size, self.agent.head.free], dim=1)
        shape = self.agent.networks.shape
        outputs = self.mlp(self.mlp.layers(weights), shape.encode(batch.obs))[..., : self.agent.head.outputs]
        outputs = shape.allowed(outputs, batch.obs)
        kl = self.agent.head.kl(batch.outputs, self.agent.networks.free, outputs, free)
        return torch.stack((self.surrogate(outputs, free, batch), ops.weighted_mean(kl, batch.weights)))

    def fit_critic(self, batch: Samples) -> Metrics:
        """Fit the values to the targets by `critic_epochs * critic_minibatches` steps of Adam."""
        losses: list[Tensor] = []
        for _ in range(self.config.critic_epochs):
            losses = [self.critic_step(part) for part in self.minibatches(batch)]
        return {
            "losses/value": torch.stack(losses).mean(0),
            "value/explained_variance": ops.explained_variance(batch.old_values, batch.targets, batch.weights),
        }

    def critic_step(self, part: Samples) -> Tensor:
        """Take one step of Adam and return the loss `[S]` before it."""
        gradient, loss = self.critic_gradient(part)
        self.optimizer.step(gradient, learning_rate=self.config.critic_learning_rate)
        return loss

    @compilable
    def critic_gradient(self, part: Samples) -> tuple[Tensor, Tensor]:
        """Return the gradient `[S, D]` of half the mean squared error of the values, and the error `[S]`."""
        networks = self.agent.networks
        column = slice(networks.shape.value_first, networks.shape.value_first + 1)
        critic = jacobian(self.mlp, networks.critic, networks.shape.encode(part.obs), column)
        outputs = critic.outputs.requires_grad_()
        loss = ops.weighted_mean(ops.value_loss(outputs[..., 0], part.targets), part.weights)
        (gradient,) = torch.autograd.grad(loss.sum(), outputs)
        free = self.critic.new_zeros(len(self.seeds), self.agent.head.free)  # values do not depend on them
        return torch.cat((critic.pull(gradient), free), dim=1), loss.detach()

    def minibatches(self, batch: Samples) -> Iterator[Samples]:
        """Split a batch at random for the critic, with one random stream per seed."""
        return self.agent.minibatches(batch, self.config.critic_minibatches, self.batch_streams)
