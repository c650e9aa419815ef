"""DreamerV3: a policy learned in the imagination of a recurrent world model (Hafner et al. 2023, arXiv:2301.04104).

Learn a recurrent world model from sequences in a replay buffer: its states predict the next states, observations,
rewards and terminations. Imagine trajectories of the current policy from the states of these sequences, and learn from
them: the critic predicts distributions of λ-returns, and the actor follows policy gradients with returns divided by a
range between percentiles. Large numbers are squashed and losses do not depend on their scale, so one set of
hyperparameters suits rewards and observations of any scale.

Losses and their weights are those of the paper's second version of April 2024: KL weights of 1 for the dynamics and 0.1
for the representation above one free nat, policy gradients for all actions, a critic loss on replayed sequences,
and LaProp with adaptive gradient clipping. What differs from it: hidden layers have layer normalization, as in the
first version; states of a sampled sequence start at zero instead of a stored state; imagination may start only from the
last frames of a sequence (`imagined_frames`); λ-returns of replayed sequences bootstrap from the critic instead of
imagined returns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from operant import ops, streams
from operant.control.agent import require_rows
from operant.control.compatibility import require_suitable
from operant.envs import BatchEnv, Tree, learned, start
from operant.nets import StackedLaProp, compilable
from operant.runtime.budget import require_budget
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import DROPPED, update_metrics
from operant.runtime.replay import Replay
from operant.runtime.rollouts import Collector
from operant.runtime.weights import Weights
from operant.worlds.dreamer_config import PRESETS, DreamerConfig
from operant.worlds.frames import Frames, frames_of
from operant.worlds.imagination import Agent, AgentShape, BoundAgent, Imagined, action_distribution
from operant.worlds.replay_learner import ReplayLearner, require_sequence
from operant.worlds.rssm import RSSMShape, State, sampled
from operant.worlds.world_model import WorldShape, by_row, merged

__all__ = ["PRESETS", "Behavior", "Draws", "Dreamer", "DreamerConfig"]


@dataclass(frozen=True)
class Draws:
    """Random numbers of one gradient step.

    Attributes:
        posterior: `[L, S, M, G, K]` Gumbel noise of the states of replayed sequences.
        prior: `[H, S, I, G, K]` Gumbel noise of imagined states.
        actions: `[H, S, I, A]` noise of imagined actions.
    """

    posterior: Tensor
    prior: Tensor
    actions: Tensor


class Behavior(NamedTuple):
    """Losses and statistics of imagined trajectories, `[S]` each.

    Attributes:
        actor: loss of the actor.
        critic: loss of the critic.
        spread: distance between the percentiles of the returns.
        entropy: entropy of the actions.
        mean_return: mean return of the states.
    """

    actor: Tensor
    critic: Tensor
    spread: Tensor
    entropy: Tensor
    mean_return: Tensor


class Dreamer(ReplayLearner):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps per seed so far.
        updates: gradient steps so far.
        collector: collector of the environments.
        replay: replay buffer of their sequences.
        parameters: `[S, P]` of world model, actor and critic.
        slow: `[S, Q]`, moving average of the critic's parameters.
        scale: `[S]`, moving average of the distance between percentiles of returns.
        hidden_state: `[S, N, D + G * K + A]`, hidden state of the policy: state and last action of every environment.

    Raises:
        ValueError: if the environment's spaces are unsupported, the number of environments is wrong, or the budget
            ends before training starts.
    """

    STATE = (
        "consumed",
        "updates",
        "parameters",
        "slow",
        "scale",
        "optimizer",
        "collector",
        "replay",
        ("memory", "hidden_state"),
        "streams",
    )

    def __init__(
        self, config: DreamerConfig, env: BatchEnv, *, seeds: Sequence[int], budget: int, algorithm: str = "dreamer"
    ) -> None:
        require_suitable(env, algorithm)
        require_budget(budget, learning_starts=config.learning_starts)
        length = config.sequence_length
        require_sequence(budget, length, "sequence_length", rows=config.num_envs, steps=config.num_steps)
        require_rows(env, seeds, config.num_envs)
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.close = env.close
        start(env, seeds)
        self.collector = Collector(env, seeds=len(seeds))
        self.features = self.collector.features
        self.actions = action_distribution(env.action_space, unimix=config.unimix, device=env.device)
        self.networks = Agent(AgentShape(self._world_shape(), self.actions.outputs, config.head_layers))
        self.support = ops.symexp_support(config.bins).to(env.device)
        initial = [self.networks.initial(streams.torch_generator(seed, "networks")) for seed in seeds]
        self.parameters = torch.stack(initial).to(env.device)
        self.agent = self.networks.bind(self.parameters, self.support)
        self.slow = self.networks.critic_of(self.parameters).clone()
        self.scale = torch.zeros(len(seeds), device=env.device)
        self.optimizer = StackedLaProp(self.parameters, sizes=self.networks.sizes, clip=config.gradient_clip)
        self.replay = Replay(seeds=len(seeds), rows=config.num_envs, capacity=config.buffer_size, device=env.device)
        self.hidden_state = self._empty(config.num_envs)
        self.streams = [streams.torch_generator(seed, "dreamer", device=env.device) for seed in seeds]
        self.consumed = self.updates = 0

    def _world_shape(self) -> WorldShape:
        config = self.config
        rssm = RSSMShape(
            actions=self.actions.width,
            deter=config.deter,
            stoch=config.stoch,
            classes=config.classes,
            units=config.units,
            blocks=config.blocks,
            prior_layers=config.prior_layers,
            unimix=config.unimix,
        )
        return WorldShape(self.features.shape, rssm, layers=config.layers, depth=config.depth, bins=config.bins)

    def _empty(self, rows: int) -> Tensor:
        """Return the hidden state at the start of an episode."""
        width = self.networks.shape.world.rssm.features + self.actions.width
        return torch.zeros(len(self.seeds), rows, width, device=self.device)

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers, and the moving averages of the critic and of the scale of returns."""
        averages = {"slow": self.slow, "scale": self.scale}
        return {"parameters": self.parameters, **averages, **learned(self.collector.env)}

    @property
    def gradient_steps(self) -> int:
        """Number of gradient steps of the whole run."""
        return self._due(self.budget)

    def _due(self, steps: int) -> int:
        """Return the number of gradient steps for a number of environment steps."""
        config = self.config
        return int(
            max(steps - config.learning_starts, 0) * config.train_ratio / (config.batch_size * config.sequence_length)
        )

    def iterate(self) -> Metrics:
        """Collect steps, and take the gradient steps that are due."""
        metrics = self.collect()
        self.consumed += self.config.rollout_steps
        if self.replay.filled < self.config.sequence_length:
            return metrics
        return {**metrics, **self.train()}

    @torch.no_grad()
    def collect(self) -> Metrics:
        """Take `num_steps` steps in every environment, and store them."""
        config, rssm = self.config, self.networks.shape.world.rssm
        shape = config.num_steps, config.num_envs
        chance = torch.stack([streams.gumbel((*shape, rssm.stoch, rssm.classes), stream) for stream in self.streams], 1)
        noise = torch.stack([self.actions.noise(shape, stream) for stream in self.streams], 1)

        def act(obs: Tensor, t: int) -> tuple[tuple[Tensor, ...], Tensor]:
            if t:
                self._forget()
            actions, self.hidden_state = self.step(obs, self.hidden_state, chance[t], noise[t])
            return (actions,), self.actions.to_env(actions)

        rollout = self.collector.collect(config.num_steps, act)
        self._forget()
        dropped = self.replay.add(rollout, rollout.kept[0])
        return {**rollout.metrics, DROPPED: dropped}

    def _forget(self) -> None:
        """Reset the hidden states of environments whose episode has just ended."""
        self.hidden_state = self.hidden_state.masked_fill(self.collector.starts().unsqueeze(-1), 0.0)

    def step(
        self, obs: Tensor, hidden_state: Tensor, chance: Tensor | None, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return actions for observations `[S, N, ...]`, and the next hidden state.

        Args:
            obs: inputs of the networks.
            hidden_state: `[S, N, ...]` hidden state.
            chance: `[S, N, G, K]` Gumbel noise of the states; None: the most likely ones.
            noise: `[S, N, A]` noise of the actions; None: the most likely ones.
        """
        agent, shape, rssm = self.agent, self.networks.shape.world.rssm, self.agent.world.rssm
        sizes = [shape.deter, shape.stoch * shape.classes, self.actions.width]
        deter, stoch, action = hidden_state.split_with_sizes(sizes, -1)
        deter = rssm.sequence_model(State(deter, stoch), rssm.embed_action(action))
        state = State(deter, sampled(rssm.posterior_log_probs(deter, agent.world.embed_obs(obs)), chance))
        actions = self.actions.sample(agent.policy(state.features), noise)
        return actions, torch.cat((*state, self.actions.encode(actions)), -1).nan_to_num()

    def train(self) -> Metrics:
        """Take the gradient steps that are due, on sequences sampled from the replay buffer."""
        config, counts = self.config, self.optimizer.counts
        metrics: dict[str, Tensor | float] = {}
        while self.updates < self._due(self.consumed):
            index = self.replay.draw_sequences(config.batch_size, config.sequence_length, self.streams)
            frames = frames_of(self.replay.take_sequences(index, config.sequence_length))
            metrics = self.update(frames, self._draws())
        return metrics | update_metrics(self.optimizer.counts - counts) if metrics else metrics

    def _draws(self) -> Draws:
        config, rssm = self.config, self.networks.shape.world.rssm
        shape = config.imagination_horizon, config.batch_size * self.imagined_frames
        variables = rssm.stoch, rssm.classes
        posterior, prior = (config.sequence_length, config.batch_size, *variables), (*shape, *variables)
        drawn = [
            (streams.gumbel(posterior, s), streams.gumbel(prior, s), self.actions.noise(shape, s)) for s in self.streams
        ]
        return Draws(*(torch.stack(column, 1) for column in zip(*drawn, strict=True)))

    @property
    def imagined_frames(self) -> int:
        """Number of frames at the end of each sequence from which imagination starts."""
        return self.config.imagined_frames or self.config.sequence_length

    def update(self, frames: Frames, draws: Draws) -> dict[str, Tensor | float]:
        """Take one gradient step."""
        config = self.config
        rate = config.learning_rate * min(1.0, (self.updates + 1) / max(config.lr_warmup, 1))
        gradient, spread, metrics = self.gradient(frames, draws, self.scale)
        self.scale.lerp_(torch.where(spread.isfinite(), spread, self.scale), config.return_rate)
        norm = self.optimizer.step(gradient, learning_rate=rate)
        self.slow.lerp_(self.networks.critic_of(self.parameters), config.tau)
        self.updates += 1
        return {**metrics, "losses/gradient_norm": norm, "returns/scale": self.scale.clone()}

    @compilable
    def gradient(self, frames: Frames, draws: Draws, scale: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return the gradient `[S, P]`, the distance between percentiles of returns `[S]`, and losses `[S]` by name."""
        config = self.config
        parameters = self.parameters.detach().requires_grad_()
        agent = self.networks.bind(parameters, self.support)
        states, posterior = agent.world.observe(frames, self._encoded(frames), draws.posterior)
        world = agent.world.losses(frames, states, posterior, free=config.free_nats)
        begin = State(*(merged(part[-self.imagined_frames :].detach()) for part in states))
        imagined = agent.imagine(begin, self.actions, draws.prior, draws.actions)
        alive = merged((frames.weights * ~frames.terminal)[-self.imagined_frames :])
        behavior = self._behavior_losses(agent, imagined, alive, scale)
        names = ("reconstruction", "reward", "continue", "dynamics", "representation")
        losses = {name: _mean(loss, frames.weights) for name, loss in zip(names, world, strict=True)}
        losses |= {
            "actor": behavior[0],
            "critic": behavior[1],
            "replay_critic": self._replay_loss(agent, frames, states),
        }
        weights = {
            "dynamics": config.dynamics_coef,
            "representation": config.representation_coef,
            "replay_critic": config.replay_vf_coef,
        }
        total = torch.stack([weights.get(name, 1.0) * loss for name, loss in losses.items()]).sum()
        (gradient,) = torch.autograd.grad(total, parameters)
        metrics = {f"losses/{name}": loss.detach() for name, loss in losses.items() if name != "representation"}
        metrics |= {"imagination/entropy": behavior.entropy, "imagination/return": behavior.mean_return}
        return gradient, behavior.spread, metrics

    def _encoded(self, frames: Frames) -> Tensor:
        """Return the encoded actions of frames, `[L, S, M, A]`, zero in first frames."""
        return self.actions.encode(frames.actions).masked_fill(frames.first.unsqueeze(-1), 0.0)

    def _behavior_losses(self, agent: BoundAgent, imagined: Imagined, alive: Tensor, scale: Tensor) -> Behavior:
        """Return the losses of actor and critic.

        Args:
            agent: the networks.
            imagined: imagined trajectories.
            alive: `[S, I]`, 0 if a trajectory starts at the end of an episode or in an invalid frame, else 1.
            scale: `[S]`, divisor of returns if above 1.
        """
        config, (steps, _, rows) = self.config, imagined.rewards.shape
        logits = agent.value_logits(merged(imagined.features))
        values = by_row(ops.symmetric_mean(logits.detach(), self.support), imagined.features)
        never = torch.zeros_like(imagined.rewards, dtype=torch.bool)
        discounts = config.gamma * imagined.continues
        returns = ops.lambda_returns(
            imagined.rewards, values[1:], terminated=never, truncated=never, gamma=discounts, lam=config.td_lambda
        )
        weights = merged(torch.cat((alive.unsqueeze(0), alive * discounts[:-1].cumprod(0))))
        features = merged(imagined.features[:-1])
        target = merged(returns)
        critic = self._critic_loss(features, logits[:, : steps * rows], target)
        advantages = (target - merged(values[:-1])) / scale.clamp(min=1.0).unsqueeze(-1)
        log_prob, entropy = self.actions.log_prob_entropy(agent.policy(features), merged(imagined.actions))
        actor = -(log_prob * advantages + config.ent_coef * entropy)
        return Behavior(
            actor=(weights * actor).mean(-1),
            critic=(weights * critic).mean(-1),
            spread=ops.percentile_range(target),
            entropy=entropy.detach().mean(-1),
            mean_return=target.mean(-1),
        )

    def _critic_loss(self, features: Tensor, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the critic's loss `[S, M]` with respect to the targets and to the moving average of the critic."""
        with torch.no_grad():
            slow = self.networks.critic(self.networks.critic.views(self.slow), features)
            average = ops.symmetric_mean(slow, self.support)
        regularized = self.config.slow_vf_coef * ops.two_hot_loss(logits, average, self.support)
        return ops.two_hot_loss(logits, targets, self.support) + regularized

    def _replay_loss(self, agent: BoundAgent, frames: Frames, states: State) -> Tensor:
        """Return the critic's loss `[S]` on replayed λ-returns, with gradients for the world model, too.

        Returns end at a frame before a dropped one, whose own reward is unknown, with its value.
        """
        gap = torch.zeros_like(frames.last)
        gap[:-1] = (frames.first[1:] | (frames.weights[1:] == 0)) & ~frames.last[:-1]
        features = merged(states.features)
        logits = agent.value_logits(features)
        values = by_row(ops.symmetric_mean(logits.detach(), self.support), frames.rewards)
        returns = ops.lambda_returns(
            frames.rewards[1:],
            values[1:],
            terminated=frames.terminal[1:],
            truncated=(frames.last[1:] & ~frames.terminal[1:]) | gap[1:],
            gamma=self.config.gamma,
            lam=self.config.td_lambda,
        )
        targets = merged(torch.cat((returns, values[-1:])))
        loss = by_row(self._critic_loss(features.detach(), logits, targets), frames.rewards)
        return _mean(loss[:-1], (frames.weights * ~(frames.last | gap))[:-1])

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: Tree | None, noise: Tensor | None) -> tuple[Tensor, Tree | None]:
        """Select actions for observations `[S, N, ...]`; `hidden_state` is state and action (see `runtime.Policy`)."""
        inputs, rssm = self.features.by_seed(obs), self.networks.shape.world.rssm
        before = self._empty(inputs.shape[1]) if hidden_state is None else hidden_state
        assert isinstance(before, Tensor)  # noqa: S101 - what was returned before
        chance = None
        if noise is not None:
            chance, noise = noise.split_with_sizes([rssm.stoch * rssm.classes, self.actions.width], -1)
            chance = torch.unflatten(chance, -1, (rssm.stoch, rssm.classes))
        actions, after = self.step(inputs, before, chance, noise)
        return self.actions.to_env(actions), after

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action, and of the state, for each of `rows` environments of one seed."""
        rssm = self.networks.shape.world.rssm
        chance = streams.gumbel((rows, rssm.stoch * rssm.classes), generator)
        return torch.cat((chance, self.actions.noise((rows,), generator)), -1)

    def begin_anew(self) -> None:
        """Forget the episodes in progress."""
        self.hidden_state.zero_()


def _mean(loss: Tensor, weights: Tensor) -> Tensor:
    """Return the mean `[S]` of losses `[L, S, M]`."""
    return ops.weighted_mean(merged(loss), merged(weights))
