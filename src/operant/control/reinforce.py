"""REINFORCE (Williams 1992, Machine Learning 8) and its successors among policy gradients.

Collect whole episodes with the current policy; estimate the weight Ψ of every action; update the policy by one
step along `Σ_t ∇log π(a_t|s_t) Ψ_t`, a sum over the steps and a mean over the episodes. Ψ defines the method (Schulman
et al. 2016, arXiv:1506.02438, section 2), and is one field, `advantage_kind`: the return of the whole episode
(`reinforce`), the return after the action (`reinforce-to-go`), that minus a learned baseline (`reinforce-baseline`), a
learned Q or A, the TD residual, or generalized advantage estimation (`vpg`).

What differs from the paper: the optimizer is Adam, and several episodes may run in parallel. The baseline is a separate
network, fitted to the returns after Ψ is estimated, so it does not depend on the actions of the batch. Ψ is never
standardized within an episode, because the Ψ of `reinforce` is constant there and would become 0. As is usual, the
factor γ^t of the discounted objective is omitted unless Ψ is the return of the whole episode, which biases the gradient
(Thomas 2014); `discount_steps` restores it. If a time limit cuts an episode, the methods with a critic bootstrap from
the value of its true final observation (Pardo et al. 2018); `total` and `to-go` have no critic and ignore rewards
after the cut, so the time limit is part of their task.

Every batch starts new episodes, with random streams indexed by the batch. Seeds with long episodes use their budget
faster, so a seed that is ahead of the others waits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium
import torch
from torch import Tensor

from operant import ops, streams
from operant.control.agent import Agent, Scaling
from operant.control.compatibility import actions_of
from operant.envs import BatchEnv, Tree, wrappers
from operant.nets import Activation, EncoderName, Spec, StackedAdam, compilable, encoders, modules
from operant.ops.returns import Ends
from operant.runtime.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import require_budget
from operant.runtime.episodes import Episodes
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import update_metrics
from operant.runtime.rollouts import Rollout, by_seed
from operant.runtime.weights import Weights
from operant.state import Resumable
from operant.tensors import integers


@dataclass(frozen=True)
class Evidence:
    """Inputs of Ψ; tensors are `[T, ...]`. Without a critic, its estimates are 0.

    Attributes:
        rewards: `r_t` of whole episodes, each of which begins at t = 0.
        values: `V(s_t)`.
        next_values: V of the true successors.
        action_values: `Q(s_t, a_t)`.
        ends: the keyword arguments `terminated`, `truncated` and `gamma` of ops.
        lam: λ of generalized advantage estimation.
    """

    rewards: Tensor
    values: Tensor
    next_values: Tensor
    action_values: Tensor
    ends: Ends
    lam: float


@dataclass(frozen=True)
class Psi:
    """Definition of one Ψ: the critic that it needs, and its estimator `[T, ...]`."""

    critic: Literal["none", "V", "Q"]
    estimate: Callable[[Evidence], Tensor]


PSI: Mapping[str, Psi] = {
    "total": Psi("none", lambda e: ops.episode_totals(e.rewards, **e.ends)),
    "to-go": Psi("none", lambda e: ops.discounted_returns(e.rewards, **e.ends)),
    "baseline": Psi("V", lambda e: ops.discounted_returns(e.rewards, next_values=e.next_values, **e.ends) - e.values),
    "q": Psi("Q", lambda e: e.action_values),
    "advantage": Psi("Q", lambda e: e.action_values - e.values),
    "td": Psi("V", lambda e: ops.gae(e.rewards, e.values, e.next_values, lam=0.0, **e.ends)),
    "gae": Psi("V", lambda e: ops.gae(e.rewards, e.values, e.next_values, lam=e.lam, **e.ends)),
}
"""Ψ by name. With exact values and γ = 1 all give the policy gradient in expectation, with different variances."""


@dataclass(frozen=True)
class ReinforceConfig:
    """Hyperparameters of REINFORCE. The paper gives none; defaults are one episode, one step, and Adam's 1e-3."""

    num_envs: PositiveInt = 1
    """Number of episodes per seed and batch, E, one per environment. More mean less noisy, less frequent updates."""
    advantage_kind: Literal["total", "to-go", "baseline", "q", "advantage", "td", "gae"] = "total"
    """Estimator of Ψ, the weight of an action."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of the policy's Adam."""
    gamma: UnitFloat = 0.99
    """Discount factor. A higher one means a longer horizon and more variance."""
    gae_lambda: UnitFloat = 0.97
    """λ of `gae`: bias of the critic at 0, variance of the sampled return at 1."""
    discount_steps: bool = False
    """Whether to weight step t by γ^t, for the gradient of the discounted return; late steps then matter little."""
    target: Literal["monte-carlo", "bootstrap"] = "monte-carlo"
    """Target of the critic: the observed return, or one reward plus the critic's next value."""
    critic_steps: PositiveInt = 1
    """Number of critic gradient steps per batch. Too many overfit the baseline."""
    critic_learning_rate: PositiveFloat = 1e-3
    """Learning rate of the critic's Adam."""
    normalize_advantage: Literal["batch", "none"] = "none"
    """Whether to normalize Ψ over the batch of each seed, never within an episode: `batch` needs several
    environments."""
    ent_coef: NonNegativeFloat = 0.0
    """Weight of the entropy bonus, summed over steps like Ψ. A higher weight keeps the policy exploring longer."""
    max_grad_norm: PositiveFloat | None = None
    """Maximum gradient norm per seed, for policy and critic separately; None: no clipping."""
    max_episode_steps: PositiveInt = 100_000
    """Maximum length of an episode in steps; a longer one raises an error."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Sizes of the hidden layers of policy and critic."""
    activation: Activation = "tanh"
    """Activation function of the hidden layers."""
    encoder: EncoderName | str = "auto"
    """Convolutional layers for images; `auto` selects them by the image size. Or the path of a custom
    `torch.nn.Module`, path/to/file.py:Name (see `operant.nets.StackedModule`)."""
    network: str | None = None
    """Path of a custom `torch.nn.Module` that replaces all layers, path/to/file.py:Name, and returns policy outputs
    and value (see `operant.nets.StackedNetwork`); policy and critic have one copy each. None: the layers defined by
    the other fields."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions, in half ranges of the action space."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self, encoder=encoders(self.encoder), network=modules(self.network))
        if self.normalize_advantage == "batch" and self.num_envs == 1:
            raise ValueError(
                "normalize_advantage='batch' normalizes within an episode if num_envs is 1, where the weight of "
                "advantage_kind='total' is constant and becomes 0: use more environments, or normalize_advantage='none'"
            )


@dataclass(frozen=True)
class Batch:
    """Whole episodes of every seed, and Ψ of their actions; every tensor is `[S, M, ...]` with M = T * E.

    Attributes:
        obs: inputs of the policy.
        actions: actions in the units of the policy.
        psi: weights Ψ of the actions.
        targets: targets of the critic.
        values: predictions of the critic.
        weights: 1 for steps of an episode, 0 after its end.
    """

    obs: Tensor
    actions: Tensor
    psi: Tensor
    targets: Tensor
    values: Tensor
    weights: Tensor

    def padded(self) -> "Batch":
        """Pad to a power of two with copies of the last step of weight 0, to limit the number of distinct shapes."""
        steps = self.weights.shape[1]
        index = torch.arange(1 << (steps - 1).bit_length(), device=self.weights.device)
        repeated = Batch(*(tensor[:, index.clamp(max=steps - 1)] for tensor in vars(self).values()))
        return replace(repeated, weights=repeated.weights * (index < steps))


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 8,
        "learning_rate": 3e-3,
        "critic_learning_rate": 1e-2,
        "critic_steps": 5,
    },
}
"""Presets by task, selected automatically. Other fields keep their defaults."""

DIAGNOSTICS = ("losses/policy", "losses/value", "losses/entropy", "losses/gradient_norm")
CHUNK = 64
"""Number of steps for which noise is sampled together."""
LEAD = 0.01
"""Fraction of the budget that a seed may be ahead of the others before it waits."""


class Reinforce(Resumable):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps so far, of the seed with the fewest.
        agent: policy and critic; the learner exposes its `act`, `noise` and `close`.
        used: environment steps per seed so far, `[S]`.
        batches: updates per seed so far, `[S]`.

    Raises:
        ValueError: if the budget is not positive, or Ψ needs a Q and the actions are not discrete.
    """

    STATE = (
        "consumed",
        "used",
        "batches",
        ("parameters", "agent.parameters"),
        "optimizer",
        "critic_optimizer",
        "measured",
    )
    """Random streams are derived from the batch index and need no state."""

    def __init__(
        self,
        config: ReinforceConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "reinforce",
    ) -> None:
        require_budget(budget)
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        if stateful := [type(wrapper).__name__ for wrapper in wrappers(env) if wrapper.STATE]:
            raise ValueError(
                f"{algorithm} starts new episodes in every batch and does not save environments, so resume would lose "
                f"the state of {stateful[0]}: use another algorithm, such as a2c, or a wrapper without STATE"
            )
        agent = self.agent = Agent(
            env,
            seeds=seeds,
            rows=config.num_envs,
            algorithm=algorithm,
            spec=Spec(
                config.hidden_sizes, config.activation, shared=False, encoder=config.encoder, network=config.network
            ),
            log_std=config.log_std_init,
            scaling=Scaling(observations=False, rewards=False, gamma=config.gamma),
        )
        self.critic_kind = PSI[config.advantage_kind].critic
        if self.critic_kind == "Q" and not isinstance(env.action_space, gymnasium.spaces.Discrete):
            raise ValueError(
                f"advantage_kind={config.advantage_kind!r} needs Discrete actions, but those of "
                f"{env.task} are {actions_of(env)}; use advantage_kind='baseline', 'td' or 'gae'"
            )
        if self.critic_kind == "Q" and config.network is not None:
            raise ValueError(
                f"advantage_kind={config.advantage_kind!r} needs a value per action, and a custom network returns "
                "one per state; use advantage_kind='baseline', 'td' or 'gae', or leave out network"
            )
        self.act, self.noise, self.close = agent.act, agent.noise, agent.close
        self.episodes = Episodes(env, seeds=len(seeds), max_steps=config.max_episode_steps)
        actor, critic = agent.parameters.view(len(self.seeds), 2, -1).unbind(1)
        self.optimizer = StackedAdam(actor, max_grad_norm=config.max_grad_norm)
        self.critic_optimizer = StackedAdam(critic, max_grad_norm=config.max_grad_norm)
        self.used, self.batches = torch.zeros(2, len(self.seeds), dtype=torch.int64)
        self.measured = torch.zeros(len(DIAGNOSTICS), len(self.seeds), device=env.device)
        self.consumed = 0

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers."""
        return self.agent.learned

    @property
    def gradient_steps(self) -> int:
        """Minimum number of gradient steps of the whole run: with the longest episodes."""
        batches = self.budget // (self.config.num_envs * self.config.max_episode_steps)
        return batches * (1 + self.config.critic_steps * (self.critic_kind != "none"))

    def iterate(self) -> Metrics:
        """Collect a batch of episodes, estimate Ψ, and update, for the seeds that are not ahead of the others."""
        active = self.turn()
        rollout = self.collect(active)
        batch = self.estimate_advantages(rollout)
        metrics = self.update(batch, active)
        self.used += batch.weights.sum(1).long().cpu()
        self.batches += active.cpu()
        self.consumed = int(self.used.min())
        return {**rollout.metrics, **metrics}

    def turn(self) -> Tensor:
        """Return a mask `[S]` of the active seeds: those not far ahead of the slowest, and not finished before it."""
        near = self.used <= self.used.min() + int(LEAD * self.budget)
        return (near & ((self.used < self.budget) | (self.used.min() >= self.budget))).to(self.device)

    @torch.no_grad()
    def collect(self, active: Tensor) -> Rollout:
        """Collect one episode per environment of the active seeds."""
        rows, head, networks = self.config.num_envs, self.agent.head, self.agent.networks
        turns = list(zip(self.seeds, integers(self.batches), strict=True))
        starts = [streams.integer(seed, "episodes", batch, row) for seed, batch in turns for row in range(rows)]
        noise = [streams.torch_generator(seed, "policy", batch, device=self.device) for seed, batch in turns]
        drawn: Sequence[Tensor] = ()

        def act(obs: Tensor, t: int) -> tuple[tuple[Tensor], Tensor]:
            nonlocal drawn
            if t % CHUNK == 0:
                drawn = streams.draw(noise, lambda stream: head.noise((CHUNK, rows), stream), dim=1).unbind(0)
            actions = head.sample(networks.policy(obs), networks.free, drawn[t % CHUNK])
            return (actions,), head.to_env(actions)

        return self.episodes.collect(starts, act, active)

    @torch.no_grad()
    def estimate_advantages(self, rollout: Rollout) -> Batch:
        """Estimate Ψ of every action, and the critic's targets."""
        config, rewards = self.config, rollout.rewards
        (actions,) = rollout.kept
        ends = Ends(terminated=rollout.terminated, truncated=rollout.truncated, gamma=config.gamma)
        values = next_values = action_values = torch.zeros_like(rewards)
        if self.critic_kind != "none":
            values, next_values = rollout.successor_values(self.value)
        if self.critic_kind == "Q":
            chosen = self._chosen(self._critic(by_seed(rollout.obs)), by_seed(actions))
            action_values = chosen.view(*rewards.shape[1::-1], -1).movedim(1, 0)
        psi = PSI[config.advantage_kind].estimate(
            Evidence(rewards, values, next_values, action_values, ends, config.gae_lambda)
        )
        if config.discount_steps and config.advantage_kind != "total":
            steps = torch.arange(len(rewards), device=self.device, dtype=rewards.dtype)
            psi = psi * (config.gamma**steps).view(-1, 1, 1)
        lam = 1.0 if config.target == "monte-carlo" else 0.0
        targets = ops.lambda_returns(rewards, next_values, lam=lam, **ends)
        valid = torch.ones_like(rollout.terminated) if rollout.valid is None else rollout.valid
        weights = by_seed(valid).to(rewards.dtype)
        flat = by_seed(psi)
        return Batch(
            obs=by_seed(rollout.obs),
            actions=by_seed(actions),
            psi=ops.standardize(flat, weights) if config.normalize_advantage == "batch" else flat,
            targets=by_seed(targets),
            values=by_seed(values if self.critic_kind != "Q" else action_values),
            weights=weights,
        )

    def update(self, batch: Batch, active: Tensor) -> Metrics:
        """Take one step of the policy and refit the critic, for the active seeds `[S]`."""
        config, before = self.config, self.optimizer.counts + self.critic_optimizer.counts
        if self.policy_gradient.compiled:
            batch = batch.padded()
        gradient, losses, entropy = self.policy_gradient(batch)
        norm = self.optimizer.step(gradient, learning_rate=config.learning_rate, active=active)
        error = torch.zeros_like(norm)
        if self.critic_kind != "none":
            for _ in range(config.critic_steps):
                gradient, error = self.critic_gradient(batch)
                self.critic_optimizer.step(gradient, learning_rate=config.critic_learning_rate, active=active)
        # A waiting seed repeats its last finite metrics.
        measured = torch.where(active, torch.stack((losses, error, entropy, norm)), self.measured)
        self.measured = torch.where(measured.isfinite(), measured, self.measured)
        metrics: dict[str, Tensor | float] = dict(zip(DIAGNOSTICS, measured, strict=True))
        counts = (self.optimizer.counts + self.critic_optimizer.counts - before).float()
        metrics |= update_metrics(counts.masked_fill(~active, torch.nan))
        if self.critic_kind == "none":
            del metrics["losses/value"]
            return metrics
        explained = ops.explained_variance(batch.values, batch.targets, batch.weights)
        metrics["value/explained_variance"] = explained.masked_fill(~active, torch.nan)
        return metrics

    @compilable
    def policy_gradient(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradient `[S, P]` of the policy loss, the loss `[S]` and the mean entropy `[S]`."""
        networks, head = self.agent.networks, self.agent.head
        trace = networks.shape.mlp.trace(networks.actor, networks.shape.encode(batch.obs))
        last, free = trace[-1].requires_grad_(), networks.free.detach().requires_grad_()
        outputs = networks.shape.allowed(last[..., : head.outputs], batch.obs)
        losses = ops.policy_gradient(head.log_prob(outputs, free, batch.actions), batch.psi)
        entropy = head.entropy(outputs, free).expand_as(losses)
        total = (batch.weights * (losses - self.config.ent_coef * entropy)).sum(1)
        total = total / self.config.num_envs
        along = torch.autograd.grad(total.sum(), (last, free), materialize_grads=True)
        pieces = networks.shape.mlp.pullback(networks.actor, trace, along[0])
        return torch.cat((*pieces, along[1]), dim=1), total.detach(), ops.weighted_mean(entropy.detach(), batch.weights)

    @compilable
    def critic_gradient(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the gradient `[S, P]` of half the mean squared error of the critic, and the error `[S]`."""
        networks = self.agent.networks
        trace = networks.shape.mlp.trace(networks.critic, networks.shape.encode(batch.obs))
        last = trace[-1].requires_grad_()
        losses = ops.value_loss(self._chosen(last, batch.actions), batch.targets)
        error = ops.weighted_mean(losses, batch.weights)
        (along,) = torch.autograd.grad(error.sum(), last)
        pieces = networks.shape.mlp.pullback(networks.critic, trace, along)
        return torch.cat((*pieces, torch.zeros_like(networks.free)), dim=1), error.detach()

    def value(self, obs: Tensor) -> Tensor:
        """Return the values `[S, M]` of observations `[S, M, ...]`; of a Q the mean over the policy's actions."""
        if self.critic_kind == "V":
            return self.agent.networks.value(obs)
        return (self.agent.networks.policy(obs).softmax(-1) * self._critic(obs)).sum(-1)

    @torch.no_grad()
    def describe(self, obs: Tree, hidden_state: Tree | None) -> Mapping[str, Tensor]:
        """Return the outputs of policy and, if there is one, critic (see `operant.runtime.learner.Describing`)."""
        inputs = self.agent.read(obs)
        outputs = self.agent.head.describe(self.agent.networks.policy(inputs), self.agent.networks.free)
        if self.critic_kind == "Q":
            outputs["q"] = self._critic(inputs)
        return outputs if self.critic_kind == "none" else outputs | {"value": self.value(inputs)}

    def _critic(self, obs: Tensor) -> Tensor:
        networks = self.agent.networks
        return networks.shape.mlp(networks.critic, networks.shape.encode(obs))

    def _chosen(self, outputs: Tensor, actions: Tensor) -> Tensor:
        """Return the critic's values `[S, M]` of the actions; a V has one value per state."""
        if self.critic_kind == "V":
            return outputs[..., self.agent.networks.shape.value_column]
        return outputs.gather(-1, actions.unsqueeze(-1)).squeeze(-1)
