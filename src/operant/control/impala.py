"""IMPALA: importance-weighted actor-learner architecture (Espeholt et al. 2018, arXiv:1802.01561).

Each actor has a copy of the policy and its own environments, and collects rollouts of a few steps, tagged with the
version of its parameters. The learner takes finished rollouts, corrects for the difference between the acting policies
and the current one by V-trace (truncated importance weights), and updates policy and critic by a gradient step.

`max_staleness` limits the number of updates between acting and learning. With 0 the actors wait for every update: the
data is on-policy, V-trace gives the λ-return, the placement of actors (in this process, in workers, on a host) does not
change results, and resume is bitwise. Above 0 nothing waits: an actor continues with the latest parameters, the learner
takes finished rollouts, and it drops and counts those that are too stale. The order of rollouts depends on timing, so
runs with the same seed differ, and resume is statistical.

What differs from the paper: an actor has environments of several seeds. Rollouts do not queue: after a rollout, an
actor waits until the learner has finished its update. Policy and critic share no layers by default, and
networks are not recurrent. An episode cut by a time limit bootstraps from the value of its true final observation. λ <
1 also applies to advantages (see `operant.ops.vtrace`). Continuous actions are in units of half the range of the action
space.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any, Literal

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.agent import Agent, Samples, Scaling
from operant.envs import BatchEnv, EnvMaker, maker_like, only_here
from operant.nets import OPTIMIZERS, Activation, EncoderName, OptimizerName, Pass, Spec, compilable, encoders, modules
from operant.runtime.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import FixedRollouts, iterations, remaining, require_budget, scheduled
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import update_metrics
from operant.runtime.rollout_workers import RolloutWorkers
from operant.runtime.rollouts import Rollout, by_seed, joined
from operant.runtime.trial import require_makeable
from operant.runtime.weights import Weights
from operant.state import DeclaredState, Resumable, State


@dataclass(frozen=True)
class IMPALAConfig(FixedRollouts):
    """Hyperparameters of IMPALA. Defaults are those of the paper for single Atari games."""

    num_actors: PositiveInt = 4
    """Number of actors, each with a copy of the policy. More collect faster, and make rollouts staler."""
    num_envs: PositiveInt = 8
    """Number of environments per actor and seed. More give less correlated batches."""
    num_steps: PositiveInt = 20
    """Number of steps per environment and rollout, T. More mean later bootstrapping and less frequent updates."""
    rollouts_per_batch: PositiveInt = 4
    """Number of rollouts per update, at most num_actors. Fewer mean more frequent updates and staler rollouts."""
    workers: NonNegativeInt = 0
    """Number of worker processes for the actors; 0: none. On Ray with --ray. If max_staleness is 0, the number does
    not change results, bit for bit."""
    max_staleness: NonNegativeInt = 0
    """Maximum number of updates between the parameters that collected a rollout and those that learn from it; staler
    rollouts are dropped. 0: collection and learning alternate, and runs are reproducible. Otherwise at least
    num_actors / rollouts_per_batch, with workers."""
    rho_bar: PositiveFloat = 1.0
    """Maximum importance weight of TD errors and gradients. Higher corrects more, with more variance."""
    c_bar: PositiveFloat = 1.0
    """Maximum importance weight of the trace. Higher propagates corrections further back."""
    td_lambda: UnitFloat = 1.0
    """λ of V-trace: bias of the critic at 0, variance of the sampled return at 1."""
    gamma: UnitFloat = 0.99
    """Discount factor. A higher one means a longer horizon and more variance."""
    optimizer: OptimizerName = "rmsprop"
    """The paper's RMSProp, or Adam, which needs less tuning."""
    learning_rate: PositiveFloat = 6e-4
    """Learning rate of the optimizer."""
    lr_schedule: Literal["constant", "linear"] = "linear"
    """Schedule of the learning rate: constant, or linear to zero over the budget."""
    adam_eps: PositiveFloat = 0.01
    """Epsilon of the optimizer: inside the square root for RMSProp, outside for Adam. Higher means smaller steps."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss (half the squared error). It matters most with shared networks."""
    ent_coef: NonNegativeFloat = 0.01
    """Weight of the entropy bonus. A higher weight keeps the policy exploring longer."""
    max_grad_norm: PositiveFloat | None = 40.0
    """Maximum gradient norm per seed, of the loss summed over samples; None: no clipping."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Sizes of the hidden layers."""
    activation: Activation = "tanh"
    """Activation function of the hidden layers."""
    share_features: bool = False
    """Whether policy and value share the hidden layers, as in the paper."""
    encoder: EncoderName | str = "auto"
    """Convolutional layers for images; `auto` selects them by the image size. Or the path of a custom
    `torch.nn.Module`, path/to/file.py:Name (see `operant.nets.StackedModule`)."""
    network: str | None = None
    """Path of a custom `torch.nn.Module` that replaces all layers, path/to/file.py:Name, and returns policy outputs
    and value (see `operant.nets.StackedNetwork`). None: the layers defined by the other fields."""
    log_std_init: float = 0.0
    """Initial log standard deviation of continuous actions, in half ranges of the action space."""
    deadline: PositiveFloat = 120.0
    """Timeout of a worker in seconds per rollout, after which it is replaced."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self, encoder=encoders(self.encoder), network=modules(self.network))
        actors, rollouts = self.num_actors, self.rollouts_per_batch
        if rollouts > actors:
            raise ValueError(f"rollouts_per_batch must be at most num_actors, {actors}, got {rollouts}")
        if self.workers > actors:
            raise ValueError(
                f"workers must be at most num_actors, {actors}, got {self.workers}: the others would have no actor"
            )
        if self.max_staleness and not self.workers:
            raise ValueError(
                f"max_staleness={self.max_staleness} needs actors in other processes: use "
                f"workers={actors}, or max_staleness=0"
            )
        if 0 < self.max_staleness < (minimum := -(-actors // rollouts)):
            raise ValueError(
                f"max_staleness must be 0 or at least num_actors / rollouts_per_batch = {minimum}, the updates "
                f"between two rollouts of an actor, got {self.max_staleness}: most rollouts would be dropped"
            )

    @property
    def rollout_steps(self) -> int:
        """Environment steps per seed of an iteration, all rollouts of a batch."""
        return self.rollouts_per_batch * self.num_steps * self.num_envs

    @property
    def total_envs(self) -> int:
        """Number of environments of all actors per seed."""
        return self.num_actors * self.num_envs


DIAGNOSTICS = ("losses/policy", "losses/value", "losses/entropy", "losses/gradient_norm")
"""Diagnostics of an update."""

DROPPED, LOST = "health/dropped_rollouts", "health/lost_workers"
"""Metrics of dropped stale rollouts and replaced workers."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "CartPole-v1": {
        "num_envs": 4,
        "num_steps": 64,
        "optimizer": "adam",
        "learning_rate": 2.5e-3,
        "adam_eps": 1e-5,
        "vf_coef": 1.0,
        "ent_coef": 0.0,
        "max_grad_norm": 1024.0,
    },
}
"""Presets by task, selected automatically. Other fields keep their defaults."""


def _agent(config: IMPALAConfig, env: BatchEnv, seeds: Sequence[int], *, algorithm: str) -> Agent:
    """Create policy and critic of each seed, and their environments."""
    return Agent(
        env,
        seeds=seeds,
        rows=config.num_envs,
        algorithm=algorithm,
        spec=Spec(
            config.hidden_sizes,
            config.activation,
            config.share_features or config.network is not None,
            encoder=config.encoder,
            network=config.network,
        ),
        log_std=config.log_std_init,
        scaling=Scaling(observations=False, rewards=False, gamma=config.gamma),
    )


class Actor(DeclaredState):
    """An actor with a copy of the policy (see `operant.runtime.rollout_workers.RolloutActor`).

    Args:
        number: index of the actor. Its environments and random streams depend only on seed and index.
        config: hyperparameters.
        make_env: factory of its environments.
        seeds: one non-negative integer per run.
        algorithm: name in the catalog, for messages.
    """

    STATE = (("collector", "agent.experience"), ("streams", "agent.streams"))

    def __init__(
        self, number: int, config: IMPALAConfig, make_env: EnvMaker, *, seeds: Sequence[int], algorithm: str
    ) -> None:
        env = make_env(*seeds, first_row=number * config.num_envs)
        self.num_steps = config.num_steps
        self.agent = _agent(config, env, seeds, algorithm=algorithm)
        self.agent.streams = [streams.torch_generator(seed, "actor", number) for seed in seeds]
        self.close = self.agent.close

    @torch.no_grad()
    def collect(self, parameters: Tensor) -> State:
        """Collect a rollout of the policy with these parameters; return it with actions and log-probabilities."""
        agent = self.agent
        agent.parameters.copy_(parameters)
        rollout = agent.collect(self.num_steps)
        actions, outputs = rollout.kept
        log_probs = agent.head.log_prob(by_seed(outputs), agent.networks.free, by_seed(actions))
        return {**vars(rollout), "kept": (actions, by_time(log_probs, rollout))}


def by_time(tensor: Tensor, rollout: Rollout) -> Tensor:
    """Reshape the samples of a rollout from `[S, T * N]` to `[T, S, N]`."""
    steps, seeds, rows = rollout.rewards.shape
    return tensor.view(seeds, steps, rows).movedim(1, 0)


class IMPALA(Resumable):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds and spaces as those of the actors; never stepped.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed, over which the learning rate decays to zero.
        algorithm: name in the catalog, for messages.
        make_env: factory of an actor's environments. Default: environments of the task of `env`.

    Attributes:
        consumed: environment steps per seed so far, including those of dropped rollouts.
        updates: number of updates, which is the version of the parameters.
        agent: policy and value; the learner exposes its `act`, `describe` and `noise`.
        workers: worker processes of the actors.

    Raises:
        ValueError: if no other process can make the task.
    """

    STATE = ("consumed", "updates", ("parameters", "agent.parameters"), "optimizer", "workers")

    def __init__(
        self,
        config: IMPALAConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "impala",
        make_env: EnvMaker | None = None,
    ) -> None:
        require_budget(budget)
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.agent = _agent(config, env, seeds, algorithm=algorithm)
        self.act, self.noise, self.describe = self.agent.act, self.agent.noise, self.agent.describe
        self.optimizer = OPTIMIZERS[config.optimizer](
            self.agent.parameters, epsilon=config.adam_eps, max_grad_norm=config.max_grad_norm
        )
        self.make_env = make_env or maker_like(env, config.num_envs)
        if make_env is None and config.workers and only_here(env):
            trial = partial(require_makeable, deadline=config.deadline, algorithm=algorithm, instead="workers=0")
            trial(env.task, self.make_env)
        make = partial(Actor, config=config, make_env=self.make_env, seeds=self.seeds, algorithm=algorithm)
        self.workers = RolloutWorkers(
            [partial(make, number) for number in range(config.num_actors)],
            workers=config.workers,
            deadline=config.deadline,
            device=self.device,
        )
        self.steps_per_rollout = config.num_steps * config.num_envs
        self.rollout_steps = config.rollout_steps
        self.consumed = self.updates = 0

    @property
    def learned(self) -> Weights:
        """The weights of networks."""
        return self.agent.learned

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of the whole run."""
        return iterations(self.budget, self.rollout_steps)

    def iterate(self) -> Metrics:
        """Take the next rollouts, estimate advantages by V-trace, and update policy and critic once."""
        left = remaining(self.consumed, self.budget)
        rollout, metrics = self.collect()
        batch, ratios = self.estimate_advantages(rollout)
        return {**metrics, **ratios, **self.update(batch, left)}

    def collect(self) -> tuple[Rollout, Metrics]:
        """Return the next rollouts, concatenated, and metrics of their staleness; stale ones are dropped."""
        config, lost = self.config, self.workers.lost
        self.workers.publish(self.updates, self.agent.parameters)
        rollouts: list[State] = []
        staleness: list[int] = []
        dropped = 0
        if not config.max_staleness:
            self.workers.start([self._in_turn(position) for position in range(config.rollouts_per_batch)])
        while len(rollouts) < config.rollouts_per_batch:
            if config.max_staleness:
                self.workers.start(self.workers.idle)
            collected = self.workers.take(None if config.max_staleness else self._in_turn(len(rollouts)))
            self.consumed += self.steps_per_rollout
            if self.updates - collected.version > config.max_staleness:
                dropped += 1
                continue
            rollouts.append(collected.rollout)
            staleness.append(self.updates - collected.version)
        if config.max_staleness:
            self.workers.start(self.workers.idle)  # they collect during the update
        rollout = joined(rollouts)
        return rollout, {
            **rollout.metrics,
            "staleness/mean": sum(staleness) / len(staleness),
            "staleness/most": float(max(staleness)),
            DROPPED: float(dropped),
            LOST: float(self.workers.lost - lost),
        }

    def _in_turn(self, position: int) -> int:
        """Return the actor whose rollout has a position in the next batch, if none is stale."""
        return (self.updates * self.config.rollouts_per_batch + position) % self.config.num_actors

    @torch.no_grad()
    def estimate_advantages(self, rollout: Rollout) -> tuple[Samples, Metrics]:
        """Estimate targets and advantages under the current policy by V-trace, and report the importance ratios."""
        config, networks, head = self.config, self.agent.networks, self.agent.head
        obs, (actions, behavior_log_probs) = by_seed(rollout.obs), rollout.kept
        outputs, values = networks.policy(obs), rollout.values(networks.value)
        log_probs = head.log_prob(outputs, networks.free, by_seed(actions))
        estimates = ops.vtrace(
            rollout.rewards,
            values[:-1],
            rollout.true_successors(values, networks.value),
            by_time(log_probs, rollout),
            behavior_log_probs,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            gamma=config.gamma,
            lam=config.td_lambda,
            rho_bar=config.rho_bar,
            c_bar=config.c_bar,
        )
        batch = Samples(
            obs=obs,
            actions=by_seed(actions),
            outputs=outputs,
            old_log_probs=by_seed(behavior_log_probs),
            advantages=by_seed(estimates.advantages),
            targets=by_seed(estimates.targets),
            old_values=by_seed(values[:-1]),
            weights=rollout.weights,
        )
        ratio = ops.truncated_weights(log_probs, batch.old_log_probs, cap=inf)
        truncated = (ratio > config.rho_bar).to(ratio.dtype)
        return batch, {
            "staleness/importance_ratio": ops.weighted_mean(ratio, batch.weights),
            "staleness/truncated_ratios": ops.weighted_mean(truncated, batch.weights),
        }

    def update(self, batch: Samples, left: float) -> Metrics:
        """Take one gradient step; `left` is the remaining fraction of the budget."""
        learning_rate = scheduled(self.config.learning_rate, self.config.lr_schedule, left)
        counts = self.optimizer.counts
        gradient, losses = self.gradient(batch)
        norm = self.optimizer.step(gradient, learning_rate=learning_rate)
        self.updates += 1
        metrics: dict[str, Tensor | float] = dict(zip(DIAGNOSTICS, (*losses, norm), strict=True))
        metrics["value/explained_variance"] = ops.explained_variance(batch.old_values, batch.targets, batch.weights)
        metrics["schedule/learning_rate"] = learning_rate
        return metrics | update_metrics(self.optimizer.counts - counts)

    @compilable
    def gradient(self, batch: Samples) -> tuple[Tensor, Tensor]:
        """Return the gradient `[S, P]` of the loss, and the means `[3, S]` of policy, value and entropy terms."""
        networks = Pass(self.agent.networks, batch.obs)
        loss, parts = self.loss(networks, batch)
        return networks.gradient(loss), parts

    def loss(self, networks: Pass, batch: Samples) -> tuple[Tensor, Tensor]:
        """Return the loss of section 4.2, summed over samples and seeds; and its parts, averaged per seed."""
        config, head = self.config, self.agent.head
        log_probs = head.log_prob(networks.outputs, networks.free, batch.actions)
        policy = ops.policy_gradient(log_probs, batch.advantages)
        value = ops.value_loss(networks.values, batch.targets)
        entropy = head.entropy(networks.outputs, networks.free).expand_as(policy)
        loss = policy + config.vf_coef * value - config.ent_coef * entropy
        parts = torch.stack((policy.detach(), value.detach(), entropy.detach()))
        if batch.weights is None:
            return loss.sum(), parts.mean(2)
        return (batch.weights * loss).sum(), ops.weighted_mean(parts, batch.weights.expand_as(parts))

    def close(self) -> None:
        """Stop the workers and close the environments. It can be called twice."""
        self.workers.close()
        self.agent.close()
