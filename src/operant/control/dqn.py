"""Deep Q-networks (Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518).

Collect transitions ε-greedily into a replay buffer; compute the targets of minibatches from the values of successors
under a target network that is updated periodically; move the values of the actions taken towards these targets
(algorithm 1). The variants are single fields that can be combined: `double` (van Hasselt et al. 2016),
`dueling` (Wang et al. 2016), `n_step` rewards before bootstrapping (off-policy without a correction, as in Rainbow,
Hessel et al. 2018), and `per_alpha` (Schaul et al. 2016). A buffer of one batch disables replay, and a copy after every
gradient step disables the target network.

What differs from the paper: Adam replaces RMSProp; for one-hot observations, the first layer has no first moment
(`operant.nets.lookup_adam`); vectors use perceptrons, only images use convolutions; ε is annealed over a fraction of
the budget; rewards are clipped to [-1, 1] in Atari games only; an episode cut by a time limit bootstraps
from the value of its true final observation, so only `terminated` ends a return. Gradients flow only through
the online network.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from gymnasium import spaces
from torch import Tensor

from operant import ops, streams
from operant.control import presets
from operant.control.compatibility import require_suitable
from operant.control.replay_collector import Act, Experience, ReplayConfig
from operant.envs import BatchEnv, Features, Tree
from operant.envs.spaces import discrete, is_box
from operant.nets import Activation, CategoricalHead, EncoderName, compilable, encoders, modules
from operant.nets.action_values import ActionValues, ValuePass
from operant.nets.lookup import RowGradient
from operant.runtime.bounds import Interval, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat, require
from operant.runtime.budget import iterations, remaining, require_budget, scheduled, whole_rollouts
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import update_metrics
from operant.runtime.priorities import Priorities
from operant.runtime.transitions import Transitions
from operant.runtime.weights import Weights
from operant.state import Resumable
from operant.tensors import integers


@dataclass(frozen=True)
class DQNConfig(ReplayConfig):
    """Hyperparameters of DQN. Defaults are the paper's (extended data table 1), except network and optimizer."""

    num_envs: PositiveInt = 1
    """Number of environments per seed, N. More make collection faster and the replay buffer more diverse."""
    train_freq: PositiveInt = 4
    """Steps per environment between two training phases. More save computation but learn less from each step."""
    gradient_steps: PositiveInt = 1
    """Gradient steps per training phase. More use the data better, until values diverge."""
    batch_size: PositiveInt = 32
    """Minibatch size in transitions. Larger ones give less noisy and slower steps."""
    buffer_size: PositiveInt = 1_000_000
    """Capacity of the replay buffer in transitions. A larger buffer has less correlated but older data."""
    learning_starts: NonNegativeInt = 50_000
    """Environment steps with random actions before training starts."""
    target_update_interval: PositiveInt = 10_000
    """Gradient steps between target network updates. More: slower but more stable; 1 with τ = 1: no target network."""
    tau: Annotated[float, Interval("(0, 1]")] = 1.0
    """Interpolation factor of target updates: 1 copies the parameters; a small τ with `target_update_interval` 1
    gives Polyak averaging."""
    learning_rate: PositiveFloat = 2.5e-4
    """Learning rate of Adam."""
    lr_schedule: Literal["constant", "linear"] = "constant"
    """Schedule of the learning rate: constant, or linear to zero over the budget."""
    gamma: UnitFloat = 0.99
    """Discount factor. A higher one means a longer horizon and less stability."""
    n_step: PositiveInt = 1
    """Number of rewards before bootstrapping. More propagate rewards faster, with more variance and off-policy bias."""
    double: bool = False
    """Whether to use double Q-learning: the online network selects the action that the target network evaluates."""
    dueling: bool = False
    """Whether to use a dueling network, with separate streams for the state value and the advantages."""
    per_alpha: UnitFloat = 0.0
    """Exponent α of prioritized replay: 0 samples uniformly, 1 in proportion to the last TD error."""
    per_beta: UnitFloat = 0.4
    """Initial exponent β of the importance weights of prioritized replay; annealed linearly to 1 over the budget."""
    huber_delta: Annotated[float, Interval("(0, inf]")] = 1.0
    """Error above which the Huber loss is linear, in units of return; infinity gives half the squared error."""
    max_grad_norm: PositiveFloat | None = None
    """Maximum gradient norm per seed; None: no clipping."""
    exploration_initial_eps: UnitFloat = 1.0
    """Initial probability of a random action."""
    exploration_final_eps: UnitFloat = 0.1
    """Final probability of a random action."""
    exploration_fraction: UnitFloat = 0.02
    """Fraction of the budget over which the probability of a random action falls linearly."""
    hidden_sizes: tuple[PositiveInt, ...] = (256, 256)
    """Sizes of the hidden layers."""
    activation: Activation = "relu"
    """Activation function of the hidden layers."""
    encoder: EncoderName | str = "auto"
    """Convolutional layers for images; `auto` selects them by the image size. Or the path of a custom
    `torch.nn.Module`, path/to/file.py:Name (see `operant.nets.StackedModule`)."""
    network: str | None = None
    """Path of a custom `torch.nn.Module` that replaces all layers, path/to/file.py:Name, and returns the values of
    the actions (see `operant.nets.StackedNetwork`). None: the layers defined by the other fields."""
    scale_obs: bool = False
    """Whether to scale observations to [-1, 1], in dimensions with finite bounds."""
    adam_eps: PositiveFloat = 1e-8
    """Epsilon of Adam, for numerical stability."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        require(self, encoder=encoders(self.encoder), network=modules(self.network))
        if self.dueling and not self.hidden_sizes:
            raise ValueError(
                "hidden_sizes must have at least one layer with dueling, whose streams it contains, got ()"
            )
        if self.buffer_size < self.num_envs:
            raise ValueError(
                f"buffer_size must hold one step of all {self.num_envs} environments of each seed, "
                f"got {self.buffer_size}"
            )
        if self.hindsight != "none" and self.n_step > 1:
            raise ValueError(
                f"n_step must be 1 with hindsight={self.hindsight!r}, got {self.n_step}: later steps "
                "pursued another goal"
            )

    @property
    def rollout_steps(self) -> int:
        """Environment steps per seed between two training phases."""
        return self.train_freq * self.num_envs

    def planned_steps(self, budget: int) -> int:
        """Return the number of steps per seed that training with a budget uses."""
        return whole_rollouts(budget, self.rollout_steps)


PRESETS = presets.DQN
"""Presets by task or name."""

DRAWN, EVALUATED = 16, 8
"""Maximum number of gradient steps that are sampled together, with one evaluation of the target network for all.
Another number changes the memory layout of minibatches and the compiled program."""


def _bounds(env: BatchEnv) -> tuple[Tensor, Tensor]:
    """Return the flat bounds `[D]` of the observations."""
    space = env.observation_space
    if not is_box(space):
        raise ValueError(f"scale_obs needs observations of a Box, got {space}")
    low, high = (torch.as_tensor(bound, dtype=torch.float32, device=env.device) for bound in (space.low, space.high))
    return low.flatten(), high.flatten()


def _entries(env: BatchEnv, config: DQNConfig) -> int:
    """Return the size of one-hot observations, whose first layer is a table lookup; 0 for other observations."""
    space = env.observation_space
    custom = config.network is not None or config.encoder != "auto"
    if custom or not isinstance(space, spaces.Discrete) or not config.hidden_sizes:
        return 0
    return int(space.n)


class DQN(Resumable):
    """Learner that trains `S` seeds as one program.

    Args:
        config: hyperparameters.
        env: `S * config.num_envs` environments with the same seeds and discrete actions.
        seeds: one non-negative integer per run; each has its own random streams.
        budget: environment steps per seed, over which schedules run.
        algorithm: name in the catalog, for messages.

    Attributes:
        consumed: environment steps per seed so far.
        updates: gradient steps so far.
        parameters: `[S, P]` of the online network.
        target_parameters: `[S, P]` of the target network.
        experience: environments and replay buffer.
    """

    NETWORKS: ClassVar = ("parameters", "target_parameters")
    """Weights for exports and other runs."""
    STATE = ("consumed", "updates", *NETWORKS, "optimizer", "experience", "priorities", "streams")

    def __init__(
        self,
        config: DQNConfig,
        env: BatchEnv,
        *,
        seeds: Sequence[int],
        budget: int,
        algorithm: str = "dqn",
    ) -> None:
        require_suitable(env, algorithm)
        require_budget(budget, learning_starts=config.learning_starts)
        self.config, self.seeds, self.budget, self.device = config, list(seeds), budget, env.device
        self.target_range = config.target_range(config.gamma)
        head = CategoricalHead(discrete(env.action_space))
        self.actions, self.to_env = head.outputs, head.to_env
        entries = _entries(env, config)
        self.experience = Experience(
            env,
            seeds=seeds,
            rows=config.num_envs,
            capacity=config.buffer_size,
            to_env=self.to_env,
            random=self._random,
            config=config,
            extras=self.extras,
            features=Features.numbers(env.observation_space) if entries else None,
        )
        self.close = self.experience.close
        shape = ActionValues(
            entries or self.experience.collector.features.shape,
            self.actions,
            hidden=config.hidden_sizes,
            activation=config.activation,
            dueling=config.dueling,
            encoder=config.encoder,
            bounds=_bounds(env) if config.scale_obs else None,
            network=config.network,
            one_hot=bool(entries),
        )
        self.drawn = 1 if config.per_alpha else DRAWN
        self.make_networks(shape)
        self.optimizer = shape.optimizer(self.parameters, epsilon=config.adam_eps, max_grad_norm=config.max_grad_norm)
        self.priorities: Priorities | None = None
        if config.per_alpha:
            size = self.experience.replay.length * config.num_envs
            self.priorities = Priorities(seeds=len(seeds), capacity=size, alpha=config.per_alpha, device=env.device)
        self.streams = streams.of_seeds(seeds, "exploration", device=env.device)
        self.rollout_steps = config.rollout_steps
        self.consumed = self.updates = 0

    def make_networks(self, shape: ActionValues) -> None:
        """Create the online network and the target network."""
        self.parameters = shape.initial(streams.of_seeds(self.seeds, "networks")).to(self.device)
        self.target_parameters = self.parameters.clone()
        self.online, self.target = shape.bind(self.parameters), shape.bind(self.target_parameters)

    def extras(self, steps: int) -> Mapping[str, Tensor]:
        """Return extra tensors to store for the steps of a rollout (see `Experience`); none by default."""
        return {}

    @property
    def learned(self) -> Weights:
        """The weights of networks and wrappers."""
        return {**{name: getattr(self, name) for name in self.NETWORKS}, **self.experience.learned}

    @property
    def stacks(self) -> list[object]:
        """The shapes of the networks."""
        return [self.online.shape.mlp]

    @property
    def gradient_steps(self) -> int:
        """Gradient steps of the whole run."""
        idle = max(0, iterations(self.config.learning_starts, self.rollout_steps) - 1)  # before the first training
        return (iterations(self.budget, self.rollout_steps) - idle) * self.config.gradient_steps

    def iterate(self) -> Metrics:
        """Collect transitions; after `learning_starts`, also compute targets and update on sampled minibatches."""
        metrics = self.collect()
        self.consumed += self.rollout_steps
        return {**metrics, **self.train()} if self.consumed >= self.config.learning_starts else metrics

    @property
    def epsilon(self) -> float:
        """The probability of a random action."""
        config = self.config
        if self.consumed < config.learning_starts:
            return 1.0
        share = min(1.0, self.consumed / max(1.0, config.exploration_fraction * self.budget))
        return config.exploration_initial_eps + share * (config.exploration_final_eps - config.exploration_initial_eps)

    @torch.no_grad()
    def collect(self) -> Metrics:
        """Act ε-greedily in every environment, and store the transitions."""
        steps, rows = self.config.train_freq, self.config.num_envs
        if self.consumed < self.config.learning_starts:
            metrics = self.experience.explore(steps)
        else:
            shape = steps, rows, 2
            noise = streams.draw(self.streams, lambda s: torch.rand(shape, generator=s, device=self.device), dim=1)
            metrics = self.experience.collect(steps, self._greedy_except(*self._explore(noise)))
        if self.priorities is not None:
            replay = self.experience.replay
            index = replay.newest(steps)
            self.priorities.insert(index, replay.valid(index))
        return {**metrics, "schedule/epsilon": self.epsilon}

    def _greedy_except(self, exploring: Tensor, random_actions: Tensor) -> Act:
        """Return an actor: greedy, except for `random_actions` where `exploring` is true, both `[T, S, N]`."""
        explorers, environments = integers(exploring.flatten(1).sum(1)), exploring[0].numel()

        def act(obs: Tensor, t: int, _: slice) -> Tensor:
            if explorers[t] == environments:
                return random_actions[t]
            greedy = self.behave(obs)
            return torch.where(exploring[t], random_actions[t], greedy) if explorers[t] else greedy

        return act

    def behave(self, obs: Tensor) -> Tensor:
        """Return the greedy actions `[S, N]`."""
        return self.greedy(obs)

    def greedy(self, obs: Tensor) -> Tensor:
        """Return the actions `[S, N]` with the highest values."""
        return self.action_values(obs).argmax(-1)

    def action_values(self, obs: Tensor) -> Tensor:
        """Return the values `[S, N, A]` of the actions."""
        return self.online(obs)

    def train(self) -> Metrics:
        """Take the gradient steps of one training phase."""
        config, left = self.config, remaining(self.consumed, self.budget)
        learning_rate = scheduled(config.learning_rate, config.lr_schedule, left)
        counts, due = self.optimizer.counts, config.gradient_steps
        metrics: dict[str, Tensor | float] = {}
        while due:
            if self.updates % config.target_update_interval == 0:
                self.optimizer.follow(self.target_parameters, config.tau)
            until_copy = config.target_update_interval - self.updates % config.target_update_interval
            count = min(due, until_copy, self.drawn)
            batch, importance = self.sample(count * config.batch_size, left)
            successors = [self.target(obs) for obs in torch.split(batch.next_obs, EVALUATED * config.batch_size, dim=1)]
            for part, next_q in zip(batch.parts(count), torch.cat(successors, 1).chunk(count, dim=1), strict=True):
                metrics = self.update(part, next_q, importance, learning_rate)
            due, self.updates = due - count, self.updates + count
        metrics["schedule/learning_rate"] = learning_rate
        return metrics | update_metrics(self.optimizer.counts - counts)

    def sample(self, samples: int, left: float) -> tuple[Transitions, Tensor | None]:
        """Sample transitions of each seed, and their importance weights `[S, samples]`."""
        config = self.config
        if self.priorities is None:
            return self.experience.sample(samples, gamma=config.gamma, n=config.n_step), None
        index, probabilities = self.priorities.draw(samples, self.experience.sample_streams)
        beta = 1.0 - (1.0 - config.per_beta) * left
        weights = ops.importance_weights(probabilities, beta=beta).to(self.parameters.dtype)
        return self.experience.take(index, gamma=config.gamma, n=config.n_step), weights

    def update(
        self, batch: Transitions, next_q: Tensor, importance: Tensor | None, learning_rate: float
    ) -> dict[str, Tensor | float]:
        """Take one gradient step, and update the priorities of the transitions.

        Args:
            batch: the transitions.
            next_q: the target network's values of their successors, `[S, M, A]`.
            importance: importance weights `[S, M]`; None: all are 1.
            learning_rate: step size.
        """
        gradient, errors, metrics = self.gradient(batch, next_q, importance)
        norm = self.optimizer.step(gradient, learning_rate=learning_rate)
        if self.priorities is not None:
            self.priorities.update(batch.index, errors)
        return {**metrics, "losses/gradient_norm": norm}

    @compilable
    def gradient(
        self, batch: Transitions, next_q: Tensor, importance: Tensor | None
    ) -> tuple[Tensor | RowGradient, Tensor, dict[str, Tensor]]:
        """Return the gradient of the Huber loss (see `ValuePass.gradient`), the TD errors `[S, M]`, and diagnostics."""
        targets = self.compute_targets(batch, next_q)
        networks = ValuePass(self.online, batch.obs)
        values = networks.values.gather(-1, batch.actions.unsqueeze(-1)).squeeze(-1)
        losses = ops.huber_loss(values, targets, delta=self.config.huber_delta)
        loss = ops.weighted_mean(losses if importance is None else losses * importance, batch.weights)
        gradient, values = networks.gradient(loss.sum()), values.detach()
        metrics = {
            "losses/value": loss.detach(),
            "value/q": ops.weighted_mean(values, batch.weights),
            "value/target": ops.weighted_mean(targets, batch.weights),
        }
        return gradient, targets - values, metrics

    @torch.no_grad()
    def compute_targets(self, batch: Transitions, next_q: Tensor) -> Tensor:
        """Return the targets `[S, M]` of the values of the actions taken."""
        next_values = ops.double_q(self.online(batch.next_obs), next_q) if self.config.double else next_q.amax(-1)
        targets = ops.q_target(batch.rewards, next_values, terminated=batch.terminated, gamma=batch.discounts)
        return targets.clamp(*self.target_range)

    def _random(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        return torch.randint(self.actions, shape, generator=generator, device=self.device)

    def _explore(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Map uniform `noise [..., 2]` to whether to explore, and the random action."""
        return noise[..., 0] < self.epsilon, (noise[..., 1] * self.actions).long()

    @torch.no_grad()
    def act(self, obs: Tree, hidden_state: None, noise: Tensor | None) -> tuple[Tensor, None]:
        """Select actions for raw observations `[S, N, ...]`; ε-greedy with noise (see `runtime.learner.Policy`)."""
        actions = self.greedy(self.experience.read(obs))
        if noise is not None:
            exploring, random_actions = self._explore(noise)
            actions = torch.where(exploring, random_actions, actions)
        return self.to_env(actions), None

    @torch.no_grad()
    def describe(self, obs: Tree, hidden_state: None) -> Mapping[str, Tensor]:
        """Return the action values and their maximum (see `operant.runtime.learner.Describing`)."""
        q = self.action_values(self.experience.read(obs))
        return {"q": q, "value": q.amax(-1)}

    def noise(self, rows: int, generator: torch.Generator) -> Tensor:
        """Sample the noise of one action for each of `rows` environments of one seed."""
        return torch.rand((rows, 2), generator=generator, device=generator.device)
