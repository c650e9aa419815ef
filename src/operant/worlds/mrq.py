"""MR.Q: model-free control on a model-based representation (Fujimoto et al. 2025, arXiv:2501.16142).

Learn latent states from which a linear map predicts the next latent state, the reward and the termination. The model
serves only to learn the representation, on which a deterministic policy and two critics are trained as in TD3, with
n-step targets, a Huber loss and prioritized replay. Rewards are divided by their mean absolute value, so one set of
hyperparameters suits all tasks. Every `target_update_interval` updates, all target networks are updated and the
encoders take the same number of gradient steps; in between they are fixed.

What differs from the paper: layer normalization has a scale and a shift, products before it have no bias, and vectors
of observations have an additional constant instead; initial weights are truncated normal; images are not shifted at
random and have another encoder; windows end with their episodes, also at time limits; the maximum priority is never
reset. Default network sizes are for two CPU cores; the preset `paper` has those of the paper.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, relu

from operant import ops, streams
from operant.control.compatibility import require_suitable
from operant.control.exporting import of_box, of_choices
from operant.control.off_policy import alternate, explore, planned_updates
from operant.control.replay_collector import Experience
from operant.envs import BatchEnv, Tree
from operant.nets import StackedAdam, StackedNormedMLP, compilable
from operant.runtime.budget import require_budget
from operant.runtime.learner import Metrics, PolicyModule
from operant.runtime.priorities import Priorities
from operant.runtime.transitions import Transitions
from operant.runtime.weights import Weights
from operant.state import Resumable, State
from operant.worlds.action_vectors import BoxActions, action_vectors
from operant.worlds.mrq_config import PRESETS, MRQConfig
from operant.worlds.replay_learner import insert_windows
from operant.worlds.representation import (
    REWARD_BOUND,
    BoundRepresentation,
    Representation,
    RepresentationShape,
    Windows,
    representation_losses,
)

__all__ = ["MRQ", "PRESETS", "MRQConfig"]

CRITICS = 2
"""Number of critics per seed; the minimum gives the targets."""


class Gradients(NamedTuple):
    """Results of the backward pass of the critics, and intermediate ones for that of the policy."""

    critics: Tensor
    """`[S, 2 P]`, the gradient."""
    errors: Tensor
    """`[S, M]`, the larger error of the two critics."""
    latent: Tensor
    """`[S, M, Z]` of the observations."""
    loss: Tensor
    """`[S]`."""
    q: Tensor
    """`[S]`, mean value in units of reward."""


class MRQ(Resumable):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps per seed so far.
        updates: updates of policy and critics so far.
        experience: the environments and their replay buffer.
        parameters: parameters by name, `[S, P]` each: `encoder`, `policy`, `critics`.
        targets: parameters of the target networks, by the same names.
        scale: `[S]`, scale of the critics' values, the mean absolute reward at the last target update; 0 before the
            first.
        target_scale: `[S]`, scale of the target critics' values.

    Raises:
        ValueError: if the environment's spaces are unsupported, or the number of environments is wrong.
    """

    STATE = (
        "consumed",
        "updates",
        "parameters",
        "targets",
        "optimizers",
        "experience",
        "priorities",
        "scale",
        "target_scale",
        "encoder_losses",
        "action_streams",
        "update_streams",
    )

    def __init__(
        self, config: MRQConfig, env: BatchEnv, *, seeds: Sequence[int], budget: int, algorithm: str = "mrq"
    ) -> None:
        require_suitable(env, algorithm)
        require_budget(budget, learning_starts=config.learning_starts)
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.actions = action_vectors(env.action_space, temperature=config.gumbel_temperature, device=env.device)
        self.experience = Experience(
            env,
            seeds=seeds,
            rows=config.num_envs,
            capacity=config.buffer_size,
            to_env=self.actions.to_env,
            random=self.actions.draw,
        )
        places = self.experience.replay.length * config.num_envs
        self.priorities = Priorities(
            seeds=len(seeds), capacity=places, alpha=config.per_alpha, least=1.0, device=env.device
        )
        self._make_networks()
        self.action_streams = streams.of_seeds(seeds, "policy", device=env.device)
        self.update_streams = streams.of_seeds(seeds, "updates", device=env.device)
        self.support = ops.symexp_support(config.bins, bound=REWARD_BOUND).to(env.device)
        self.scale, self.target_scale = torch.zeros(2, len(seeds), device=env.device)
        self.encoder_losses = torch.zeros(3, len(seeds), device=env.device)
        self.close, self.rollout_steps = self.experience.close, config.rollout_steps
        self.consumed = self.updates = 0

    def _make_networks(self) -> None:
        config, actions = self.config, self.actions.width
        self.encoder = Representation(
            RepresentationShape(
                observation=self.experience.collector.features.shape,
                actions=actions,
                hidden=config.encoder_hidden_sizes,
                latent=config.latent_size,
                embedding=config.action_embedding_size,
                joint=config.joint_size,
                depth=config.depth,
                bins=config.bins,
            )
        )
        self.actor = StackedNormedMLP(config.latent_size, config.hidden_sizes, actions, activation=relu)
        self.critic = StackedNormedMLP(config.joint_size, config.critic_hidden_sizes, 1, activation=elu)
        generators = streams.of_seeds(self.seeds, "networks")
        rows = [
            (
                self.encoder.initial(each),
                self.actor.initial(each),
                torch.cat([self.critic.initial(each) for _ in range(CRITICS)]),
            )
            for each in generators
        ]
        names = ("encoder", "policy", "critics")
        columns = [torch.stack(column).to(self.device) for column in zip(*rows, strict=True)]
        self.parameters = dict(zip(names, columns, strict=True))
        self.targets = {name: part.clone() for name, part in self.parameters.items()}
        limits = {"encoder": None, "policy": None, "critics": config.max_grad_norm}
        self.optimizers = {
            name: StackedAdam(part, max_grad_norm=limits[name], weight_decay=config.weight_decay)
            for name, part in self.parameters.items()
        }

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers, and the scale of the values."""
        return {**self.parameters, "scale": self.scale, **self.experience.learned}

    @property
    def counts(self) -> Tensor:
        """Updates `[2, S]` of all optimizers together: attempted, and skipped."""
        return torch.stack([optimizer.counts for optimizer in self.optimizers.values()]).sum(0)

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of the critics in the whole run."""
        return planned_updates(self.config, self.budget)

    def iterate(self) -> Metrics:
        """Alternate collection and updates; the first calls take random actions."""
        return alternate(self, self.config.rounds_per_iteration, begin=self._explore)

    def _explore(self) -> Metrics:
        added = self.experience.replay.added
        metrics = explore(self)
        self._remember(self.experience.replay.added - added)
        return metrics

    @torch.no_grad()
    def collect(self) -> Metrics:
        """Take `train_freq` noisy actions of the policy, and store the transitions."""
        steps, std = self.config.train_freq, self.config.exploration_noise
        shape = steps, self.config.num_envs
        noise = streams.draw(self.action_streams, lambda stream: self.actions.noise(shape, stream), dim=1)

        def act(obs: Tensor, t: int, _: slice) -> Tensor:
            return self.actions.perturbed(self.policy(obs), noise[t], std=std)

        metrics = self.experience.collect(steps, act)
        self._remember(steps)
        return metrics

    def _remember(self, steps: int) -> None:
        """Assign priorities to the steps that can now start a window, after `steps` new ones."""
        insert_windows(self.priorities, self.experience.replay, steps=steps, window=self.config.window)

    def _draw(self) -> Tensor:
        """Sample the start indices `[S, M]` of windows by their priorities."""
        oldest = self.experience.replay.oldest  # starts a complete window, also of a seed without valid steps
        return self.priorities.draw(self.config.batch_size, self.update_streams, otherwise=oldest)[0]

    def sample(self) -> Transitions:
        """Sample transitions with n-step returns."""
        return self.experience.take(self._draw(), gamma=self.config.gamma, n=self.config.n_step)

    def update(self, batch: Transitions) -> Metrics:
        """Take one gradient step on critics and policy; first update the targets and train the encoders, when due."""
        config, shape = self.config, (self.config.batch_size,)
        if self.updates % config.target_update_interval == 0:
            self.renew()
            self.train_encoder(config.target_update_interval)
        noise = streams.draw(self.update_streams, lambda stream: self.actions.noise(shape, stream))
        chance = streams.draw(self.update_streams, lambda stream: self.actions.noise(shape, stream))
        gradients = self.critic_gradient(batch, noise, self.scale, self.target_scale)
        norm = self.optimizers["critics"].step(gradients.critics, learning_rate=config.learning_rate)
        self.priorities.update(batch.index, gradients.errors)
        gradient, loss = self.policy_gradient(gradients.latent, chance)
        self.optimizers["policy"].step(gradient, learning_rate=config.learning_rate)
        self.updates += 1
        dynamics, reward, terminal = self.encoder_losses
        return {
            "losses/critic": gradients.loss,
            "losses/policy": loss,
            "losses/dynamics": dynamics,
            "losses/reward": reward,
            "losses/terminal": terminal,
            "losses/gradient_norm": norm,
            "value/q": gradients.q,
        }

    def renew(self) -> None:
        """Copy all networks to the targets, and update the scale of values."""
        for name, part in self.parameters.items():
            self.targets[name].copy_(part)
        replay = self.experience.replay
        rewards, valid = (replay.fields[name][: replay.filled] for name in ("rewards", "valid"))
        mean = (rewards.abs() * valid).sum((0, 2)) / valid.sum((0, 2)).clamp(min=1)
        scale = mean.where(mean > 0, 1.0)
        # Before the first update, only critics of another run (`--init`) have a scale.
        self.target_scale = self.scale if self.updates else self.scale.where(self.scale > 0, scale)
        self.scale = scale

    def train_encoder(self, steps: int) -> None:
        """Take gradient steps on encoders and model, on windows of the replay buffer."""
        config = self.config
        for _ in range(steps):
            windows = Windows.of(self.experience.replay.take_sequences(self._draw(), config.encoder_horizon))
            gradient, self.encoder_losses = self.encoder_gradient(windows)
            self.optimizers["encoder"].step(gradient, learning_rate=config.encoder_learning_rate)

    @compilable
    def encoder_gradient(self, windows: Windows) -> tuple[Tensor, Tensor]:
        """Return the gradient `[S, P]` of the representation, and its losses `[3, S]`."""
        config, parameters = self.config, self.parameters["encoder"].detach().requires_grad_()
        online, target = self.encoder.bind(parameters), self.encoder.bind(self.targets["encoder"])
        losses = representation_losses(online, target, windows, self.support)
        coefs = config.dynamics_coef, config.reward_coef, config.terminal_coef
        total = torch.stack([coef * loss for coef, loss in zip(coefs, losses, strict=True)]).sum()
        (gradient,) = torch.autograd.grad(total, parameters)
        return gradient, torch.stack(losses).detach()

    def _q(self, parameters: Tensor, joint: Tensor) -> Tensor:
        """Return the values `[S, 2, M]` of `z_sa [S, M, J]`, by critics with `parameters [S, 2 P]`."""
        views = self.critic.views(parameters.reshape(-1, self.critic.size))
        return torch.unflatten(self.critic(views, joint.repeat_interleave(CRITICS, 0)).squeeze(-1), 0, (-1, CRITICS))

    @compilable
    def critic_gradient(self, batch: Transitions, noise: Tensor, scale: Tensor, target_scale: Tensor) -> Gradients:
        """Differentiate the Huber loss of both critics to the same n-step targets."""
        with torch.no_grad():
            encoder = self.encoder.bind(self.parameters["encoder"])
            latent = encoder.encode(batch.obs)
            joint = encoder.join(latent, batch.actions)
            next_q = ops.clipped_double_q(self._next_q(batch.next_obs, noise).transpose(0, 1))
            targets = ops.scaled_q_target(
                batch.rewards,
                next_q,
                terminated=batch.terminated,
                gamma=batch.discounts,
                scale=scale.unsqueeze(1),
                next_scale=target_scale.unsqueeze(1),
            )
        parameters = self.parameters["critics"].detach().requires_grad_()
        q = self._q(parameters, joint)
        each = targets.unsqueeze(1).expand_as(q)
        loss = ops.weighted_mean(ops.huber_loss(q, each).sum(1), batch.weights)
        (gradient,) = torch.autograd.grad(loss.sum(), parameters)
        errors = (q.detach() - each).abs().amax(1)
        q_mean = scale * ops.weighted_mean(q.detach().mean(1), batch.weights)
        return Gradients(gradient, errors, latent, loss.detach(), q_mean)

    def _next_q(self, obs: Tensor, noise: Tensor) -> Tensor:
        """Return the target critics' values `[S, 2, M]` of the target policy's noisy actions."""
        config, encoder = self.config, self.encoder.bind(self.targets["encoder"])
        latent = encoder.encode(obs)
        outputs = self.actor(self.actor.views(self.targets["policy"]), latent)
        actions = self.actions.perturbed(outputs, noise, std=config.target_policy_noise, clip=config.target_noise_clip)
        return self._q(self.targets["critics"], encoder.join(latent, actions))

    @compilable
    def policy_gradient(self, latent: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient of minus the mean of both critics plus the squared outputs, and the loss."""
        parameters = self.parameters["policy"].detach().requires_grad_()
        outputs = self.actor(self.actor.views(parameters), latent)
        joint = self._bound.join(latent, self.actions.relaxed(outputs, noise))
        q = self._q(self.parameters["critics"], joint).mean(1)
        loss = (self.config.pre_activation_coef * outputs.square().mean(-1) - q).mean(-1)
        (gradient,) = torch.autograd.grad(loss.sum(), parameters)
        return gradient, loss.detach()

    @property
    def _bound(self) -> BoundRepresentation:
        return self.encoder.bind(self.parameters["encoder"])

    def policy(self, obs: Tensor) -> Tensor:
        """Return the policy's outputs `[S, M, A]` for `[S, M, ...]`, before tanh or softmax."""
        return self.actor(self.actor.views(self.parameters["policy"]), self._bound.encode(obs))

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: None, noise: Tensor | None) -> tuple[Tensor, None]:
        """Select actions for raw observations `[S, N, ...]` (see `runtime.Policy`)."""
        outputs = self.policy(self.experience.read(obs))
        actions = self.actions.perturbed(outputs, noise, std=self.config.exploration_noise)
        return self.actions.to_env(actions), None

    def policy_module(self, index: int) -> PolicyModule:
        """Return the greedy policy of the seed at an index (see `operant.runtime.learner.HasPolicyModule`)."""
        module = GreedyMRQ(self.encoder, self.actor, *(self.parameters[name][index] for name in ("encoder", "policy")))
        if isinstance(self.actions, BoxActions):
            return module, *of_box(self.actions, squashed=True)
        return module, of_choices([self.actions.width]), {}

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action for each of `rows` environments of one seed."""
        return self.actions.noise((rows,), generator)

    def load_state_dict(self, state: State) -> None:
        """Restore a state exactly; an invalid state leaves the learner unchanged."""
        self.encoder_losses = self.encoder_losses.clone()  # the original is part of the saved metrics
        super().load_state_dict(state)


class GreedyMRQ(nn.Module):
    """The encoder and the policy of one seed, for programs without operant.

    Args:
        encoder: shape of the encoder.
        actor: shape of the policy.
        state: parameters of the encoder, `[P]`.
        policy: parameters of the policy, `[P]`.
    """

    def __init__(self, encoder: Representation, actor: StackedNormedMLP, state: Tensor, policy: Tensor) -> None:
        super().__init__()
        self.encoder, self.actor = encoder, actor
        self.state, self.policy = (nn.Parameter(part.detach().cpu().clone()[None]) for part in (state, policy))

    def forward(self, obs: Tensor) -> Tensor:
        """Return the outputs `[M, A]` for `[M, ...]`, before tanh or softmax."""
        latent = self.encoder.bind(self.state).encode(obs.unsqueeze(0))
        return self.actor(self.actor.views(self.policy), latent).squeeze(0)
