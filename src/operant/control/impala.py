"""IMPALA: importance-weighted actor-learner architecture (Espeholt et al. 2018, arXiv:1802.01561).

Actors have copies of the policy and environments of their own. Each collects a rollout of a few steps, tagged with the
version of its parameters. The learner takes finished rollouts, corrects for the difference between the policies that
acted and the current one by V-trace (truncated importance weights), and updates policy and critic by a gradient step.

`max_staleness` limits the updates between both. With 0 the actors wait for every update: the data is on-policy, and
V-trace gives the λ-return. Where the actors are (in this process, in workers, on a host) then changes no bit, and a run
resumes bitwise. Above 0 nobody waits: an actor continues with the latest parameters that there are, the learner takes
what is finished, and drops and counts what is too stale. Which rollout meets which update depends on time, so that two
runs of a seed differ, and resume is statistical.

What differs from the paper: an actor has several environments, of several seeds. Rollouts do not queue: an actor that
has finished one waits until the learner has finished its update. Policy and critic share no layers by default, and
nothing is recurrent. An episode cut by a time limit bootstraps from the value of its true final observation. λ < 1 also
applies to advantages (see `operant.ops.vtrace`). Continuous actions are in units of half the range of the action space.
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
from operant.nets import OPTIMIZERS, Activation, OptimizerName, Pass, Spec, TorsoName, compilable, encoders, modules
from operant.runtime.bounds import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import iterations, remaining, require_budget, scheduled
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import update_metrics
from operant.runtime.rollout_workers import RolloutWorkers
from operant.runtime.rollouts import Rollout, by_seed, joined
from operant.runtime.trial import require_makeable
from operant.runtime.weights import Weights
from operant.state import DeclaredState, Resumable, State


@dataclass(frozen=True)
class IMPALAConfig:
    """Hyperparameters of IMPALA. Defaults are the paper's for single Atari games, where a task has no preset."""

    num_actors: PositiveInt = 4
    """Actors, each with a copy of the policy. More collect more at a time, and make rollouts staler."""
    num_envs: PositiveInt = 8
    """Environments of each actor per seed. More give less correlated batches, from more steps."""
    num_steps: PositiveInt = 20
    """Steps per environment in one rollout, T. More look further ahead before bootstrapping, and update less often."""
    rollouts_per_batch: PositiveInt = 4
    """Rollouts in one update, at most num_actors. Fewer update more often, and make the others staler."""
    workers: NonNegativeInt = 0
    """Processes that share the actors; 0: they are in this one. On Ray with --ray. Their number changes no bit if
    max_staleness is 0."""
    max_staleness: NonNegativeInt = 0
    """Largest number of updates between the parameters that collected a rollout and those that learn from it; staler
    ones are dropped. 0: collecting and learning take turns, and runs are reproducible. Otherwise at least num_actors /
    rollouts_per_batch, with workers."""
    rho_bar: PositiveFloat = 1.0
    """Largest importance weight of a TD error and of a gradient. Higher corrects more, with more variance."""
    c_bar: PositiveFloat = 1.0
    """Largest importance weight of the trace to the next step. Higher carries corrections further back."""
    td_lambda: UnitFloat = 1.0
    """λ of V-trace: 0 trusts the critic (bias), 1 the rewards (variance)."""
    gamma: UnitFloat = 0.99
    """Discount per step. Higher looks further ahead and has more variance."""
    optimizer: OptimizerName = "rmsprop"
    """The paper's RMSProp, or Adam, which needs less tuning."""
    learning_rate: PositiveFloat = 6e-4
    """Step size of the optimizer."""
    lr_schedule: Literal["constant", "linear"] = "linear"
    """Whether the learning rate is constant or falls linearly to zero over the budget."""
    adam_eps: PositiveFloat = 0.01
    """Added to the second moment under the root (RMSProp) or to the root (Adam). Higher takes smaller steps."""
    vf_coef: NonNegativeFloat = 0.5
    """Weight of the value loss (half the squared error). Matters most with shared networks."""
    ent_coef: NonNegativeFloat = 0.01
    """Weight of the entropy bonus. Higher explores more and commits later."""
    max_grad_norm: PositiveFloat | None = 40.0
    """Largest gradient norm of one seed, of the loss summed over its samples; None: no clipping."""
    hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Widths of the hidden layers."""
    activation: Activation = "tanh"
    """Nonlinearity of the hidden layers."""
    share_features: bool = False
    """Whether policy and value share the hidden layers, as in the paper."""
    encoder: TorsoName | str = "auto"
    """Convolutions before the hidden layers, for images; `auto` chooses by their size. Or a
    `torch.nn.Module` of yours, path/to/file.py:Name (see `operant.nets.StackedModule`)."""
    network: str | None = None
    """A whole `torch.nn.Module` of yours instead of all layers, path/to/file.py:Name, which returns policy outputs
    and value (see `operant.nets.StackedNetwork`). None: the layers that the fields around say."""
    log_std_init: float = 0.0
    """Initial logarithm of the standard deviation of continuous actions, in half action ranges."""
    deadline: PositiveFloat = 120.0
    """Seconds that a worker may take for a rollout before another one takes its place."""

    def __post_init__(self) -> None:
        """Validate."""
        require(self, encoder=encoders(self.encoder), network=modules(self.network))
        actors, rollouts = self.num_actors, self.rollouts_per_batch
        if rollouts > actors:
            raise ValueError(f"rollouts_per_batch must be at most num_actors, {actors}, got {rollouts}")
        if self.workers > actors:
            raise ValueError(
                f"workers must be at most num_actors, {actors}, got {self.workers}: the others have no actor"
            )
        if self.max_staleness and not self.workers:
            raise ValueError(
                f"max_staleness={self.max_staleness} needs actors that collect next to this process: use "
                f"workers={actors}, or max_staleness=0"
            )
        if 0 < self.max_staleness < (least := -(-actors // rollouts)):
            raise ValueError(
                f"max_staleness must be 0 or at least num_actors / rollouts_per_batch = {least}, the number of updates "
                f"between two rollouts of an actor, got {self.max_staleness}: most rollouts would be dropped"
            )


DIAGNOSTICS = ("losses/policy", "losses/value", "losses/entropy", "losses/gradient_norm")
"""Diagnostics of an update."""

DROPPED, LOST = "health/dropped_rollouts", "health/lost_workers"
"""Names of the metrics that count rollouts that were too stale, and workers that were replaced."""

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
    """Make policy and critic of each seed, and their environments."""
    return Agent(
        env,
        seeds=seeds,
        rows=config.num_envs,
        algorithm=algorithm,
        spec=Spec(
            config.hidden_sizes,
            config.activation,
            config.share_features or config.network is not None,
            torso=config.encoder,
            network=config.network,
        ),
        log_std=config.log_std_init,
        scaling=Scaling(observations=False, rewards=False, gamma=config.gamma),
    )


class Actor(DeclaredState):
    """Acts with a copy of the policy (see `operant.runtime.rollout_workers.RolloutActor`).

    Args:
        number: index of the actor. Its environments and random streams depend only on seed and index.
        config: hyperparameters.
        make_env: makes its environments.
        seeds: one non-negative integer per run.
        algorithm: its name in the catalog, for messages.
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
        """Return a rollout of the policy with these parameters, its actions and their log-probabilities."""
        agent = self.agent
        agent.parameters.copy_(parameters)
        rollout = agent.collect(self.num_steps)
        actions, outputs = rollout.kept
        log_probs = agent.head.log_prob(by_seed(outputs), agent.networks.free, by_seed(actions))
        return {**vars(rollout), "kept": (actions, by_time(log_probs, rollout))}


def by_time(tensor: Tensor, rollout: Rollout) -> Tensor:
    """Reshape `[S, T * N]` of the samples of a rollout to `[T, S, N]`."""
    steps, seeds, rows = rollout.rewards.shape
    return tensor.view(seeds, steps, rows).movedim(1, 0)


class IMPALA(Resumable):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments, made with the same seeds: what those of the actors are like; never
            stepped.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed, over which the learning rate falls to zero.
        algorithm: its name in the catalog, for messages.
        make_env: makes the environments of an actor. Default: those of the task of `env`.

    Attributes:
        consumed: environment steps per seed so far, those of dropped rollouts included.
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
        self.rollout_steps = config.rollouts_per_batch * self.steps_per_rollout
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
        """Take the next rollouts, joined, and report their staleness; those that are too stale are dropped."""
        config, lost = self.config, self.workers.lost
        self.workers.publish(self.updates, self.agent.parameters)
        found: list[State] = []
        staleness: list[int] = []
        dropped = 0
        if not config.max_staleness:
            self.workers.start([self._in_turn(place) for place in range(config.rollouts_per_batch)])
        while len(found) < config.rollouts_per_batch:
            if config.max_staleness:
                self.workers.start(self.workers.idle)
            collected = self.workers.take(None if config.max_staleness else self._in_turn(len(found)))
            self.consumed += self.steps_per_rollout
            if self.updates - collected.version > config.max_staleness:
                dropped += 1
                continue
            found.append(collected.rollout)
            staleness.append(self.updates - collected.version)
        if config.max_staleness:
            self.workers.start(self.workers.idle)  # they collect during the update
        rollout = joined(found)
        return rollout, {
            **rollout.metrics,
            "staleness/mean": sum(staleness) / len(staleness),
            "staleness/most": float(max(staleness)),
            DROPPED: float(dropped),
            LOST: float(self.workers.lost - lost),
        }

    def _in_turn(self, place: int) -> int:
        """Return the actor whose rollout has a place in the next batch, if none is stale."""
        return (self.updates * self.config.rollouts_per_batch + place) % self.config.num_actors

    @torch.no_grad()
    def estimate_advantages(self, rollout: Rollout) -> tuple[Samples, Metrics]:
        """Estimate targets and advantages under the current policy by V-trace, and report the importance ratios."""
        config, networks, head = self.config, self.agent.networks, self.agent.head
        obs, (actions, behavior_log_probs) = by_seed(rollout.obs), rollout.kept
        outputs, values = networks.policy(obs), rollout.values(networks.value)
        log_probs = head.log_prob(outputs, networks.free, by_seed(actions))
        found = ops.vtrace(
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
            advantages=by_seed(found.advantages),
            targets=by_seed(found.targets),
            old_values=by_seed(values[:-1]),
            weights=None if rollout.valid is None else by_seed(rollout.valid).to(values.dtype),
        )
        ratio = ops.truncated_weights(log_probs, batch.old_log_probs, cap=inf)
        truncated = (ratio > config.rho_bar).to(ratio.dtype)
        return batch, {
            "staleness/importance_ratio": ops.weighted_mean(ratio, batch.weights),
            "staleness/truncated_ratios": ops.weighted_mean(truncated, batch.weights),
        }

    def update(self, batch: Samples, left: float) -> Metrics:
        """Take one gradient step, with the share `left` of the budget."""
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
        """End the workers and close the environments. Calling it twice does no harm."""
        self.workers.close()
        self.agent.close()
