"""Bootstrapped DQN with randomized prior functions (Osband et al. 2016, arXiv 1602.04621; 2018, arXiv 1806.03335).

Thompson sampling with networks: K heads, each a separate network with its own data, approximate samples from the
posterior of the values. An episode follows one random head greedily to its end, which gives deep exploration where the
heads disagree. Priors keep the heads diverse without data: head k is `f_k + β p_k`, with f_k trained and p_k a fixed
random network (2018, algorithm 1). A mask of K Bernoulli variables, sampled and stored with each transition, assigns
transitions to heads (2016, algorithm 1). Each head has its own targets, double Q-learning with its own target network.

The rest is DQN (`operant.control.dqn`), with the K heads of S seeds as S K networks.

What differs from the papers: the heads share no layers, as in 2018, so that gradients are not divided by K as in 2016;
the loss of a head is the mean over its own transitions of a minibatch; evaluations follow the vote of the heads, or
their mean.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from operant import streams
from operant.control.dqn import DQN, DQNConfig
from operant.nets.action_values import ActionValues
from operant.runtime.bounds import Interval, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, UnitFloat
from operant.runtime.learner import Metrics
from operant.runtime.replay import EXTRAS
from operant.runtime.transitions import Transitions

MASKS = "masks"
"""Name of the extra tensor of the masks in the replay buffer."""


@dataclass(frozen=True)
class BootstrappedDQNConfig(DQNConfig):
    """Hyperparameters of bootstrapped DQN. Defaults follow bsuite's agents (arXiv 1908.03568), except `double`."""

    num_heads: PositiveInt = 20
    """Number of heads, K. More represent the uncertainty better, at a higher cost."""
    prior_scale: NonNegativeFloat = 5.0
    """Scale β of the priors, in units of return. Higher explores longer; 0: no prior."""
    mask_prob: Annotated[float, Interval("(0, 1]")] = 1.0
    """Probability that a head learns from a transition. Lower makes heads more diverse; 1 shares all data."""
    evaluate_by: Literal["vote", "mean"] = "vote"
    """Greedy action in evaluations: the vote of the heads, or the action with the highest mean value."""
    train_freq: PositiveInt = 1
    """Steps per environment between two training phases. More save computation but learn less from each step."""
    batch_size: PositiveInt = 128
    """Minibatch size in transitions, shared by all heads. Larger ones give less noisy and slower steps."""
    buffer_size: PositiveInt = 10_000
    """Capacity of the replay buffer in transitions. A larger buffer has less correlated but older data."""
    learning_starts: NonNegativeInt = 128
    """Environment steps with random actions before training starts."""
    target_update_interval: PositiveInt = 4
    """Gradient steps between target network updates."""
    learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam."""
    double: bool = True
    """Whether to use double Q-learning: each head selects the action that its target network evaluates."""
    huber_delta: Annotated[float, Interval("(0, inf]")] = torch.inf
    """Error above which the Huber loss is linear, in units of return; infinity gives half the squared error."""
    exploration_initial_eps: UnitFloat = 0.0
    """Initial probability of a random action; 0, because the heads explore."""
    exploration_final_eps: UnitFloat = 0.0
    """Final probability of a random action."""
    hidden_sizes: tuple[PositiveInt, ...] = (50, 50)
    """Sizes of the hidden layers of each head."""

    def __post_init__(self) -> None:
        """Validate."""
        super().__post_init__()
        if self.per_alpha:
            raise ValueError(f"per_alpha must be 0 because the heads have different errors, got {self.per_alpha}")


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "paper": {},
    "operant/DeepSea-v0": {"num_envs": 2, "train_freq": 2, "learning_rate": 3e-3},
}
"""Presets by task or name."""


class BootstrappedDQN(DQN):
    """Learner that trains `K` heads for each of `S` seeds as one program.

    Args and attributes are those of `DQN`; parameters are `[S, K P]`.

    Attributes:
        priors: `[S, K P]`, parameters of the priors.
        heads: `[S, N]`, head that each environment's episode follows.
    """

    NETWORKS = (*DQN.NETWORKS, "priors")
    STATE = (*DQN.STATE, "priors", "heads", "head_streams")

    config: BootstrappedDQNConfig

    def make_networks(self, shape: ActionValues) -> None:
        """Create the heads, their target networks and their priors."""
        config, seeds = self.config, len(self.seeds)
        self.drawn = 1  # a batch is repeated for every head
        self.parameters, self.priors = (
            shape.initial(
                [g for g in (streams.torch_generator(s, purpose) for s in self.seeds) for _ in range(config.num_heads)]
            )
            .view(seeds, -1)
            .to(self.device)
            for purpose in ("networks", "priors")
        )
        self.target_parameters = self.parameters.clone()
        prior = shape.fixed(self._by_head(self.priors))
        self.online, self.target = (
            replace(shape.bind(self._by_head(parameters)), prior=prior, prior_scale=config.prior_scale)
            for parameters in (self.parameters, self.target_parameters)
        )
        self.head_streams = streams.of_seeds(self.seeds, "heads", device=self.device)
        self.heads = self._draw_heads(1)[0]

    def _by_head(self, tensor: Tensor) -> Tensor:
        """View `[S, K n]` as `[S K, n]`."""
        return tensor.view(len(self.seeds) * self.config.num_heads, -1)

    def _draw_heads(self, steps: int) -> Tensor:
        """Sample heads `[T, S, N]`."""
        heads, shape = self.config.num_heads, (steps, self.config.num_envs)
        return streams.draw(
            self.head_streams, lambda s: torch.randint(heads, shape, generator=s, device=self.device), dim=1
        )

    def collect(self) -> Metrics:
        """Act with the current heads, and store the transitions."""
        self._next_heads = self._draw_heads(self.config.train_freq)
        metrics = super().collect()
        self._change_heads(-1)
        return metrics

    def extras(self, steps: int) -> Mapping[str, Tensor]:
        """Return the masks `[T, S, N, K]` of the heads that learn from each step."""
        config = self.config
        shape = steps, config.num_envs, config.num_heads
        tossed = streams.draw(self.head_streams, lambda s: torch.rand(shape, generator=s, device=self.device), dim=1)
        return {MASKS: tossed < config.mask_prob}

    def _greedy_except(self, exploring: Tensor, random_actions: Tensor) -> Any:
        follow = super()._greedy_except(exploring, random_actions)

        def act(obs: Tensor, t: int, envs: slice) -> Tensor:
            if t:
                self._change_heads(t - 1)
            return follow(obs, t, envs)

        return act

    def _change_heads(self, t: int) -> None:
        """Sample new heads for the episodes that begin after step t."""
        if (result := self.experience.collector.result) is not None:
            ended = (result.terminated | result.truncated).view_as(self.heads)
            self.heads = torch.where(ended, self._next_heads[t], self.heads)

    def values(self, obs: Tensor) -> Tensor:
        """Return the values `[S, K, N, A]` of all heads for `obs [S, N, ...]`."""
        values = self.online(obs.repeat_interleave(self.config.num_heads, 0))
        return values.view(len(self.seeds), self.config.num_heads, *values.shape[1:])

    def behave(self, obs: Tensor) -> Tensor:
        """Return the actions `[S, N]` of the current heads."""
        actions = self.values(obs).argmax(-1)
        return actions.gather(1, self.heads.unsqueeze(1)).squeeze(1)

    def greedy(self, obs: Tensor) -> Tensor:
        """Return the actions `[S, N]` with the most votes, or with the highest mean value."""
        values = self.values(obs)
        mean = values.mean(1)
        if self.config.evaluate_by == "vote":
            votes = one_hot(values.argmax(-1), self.actions).sum(1)
            mean = mean.masked_fill(votes < votes.amax(-1, keepdim=True), -torch.inf)  # the mean breaks ties
        return mean.argmax(-1)

    def action_values(self, obs: Tensor) -> Tensor:
        """Return the mean values `[S, N, A]` of the actions over the heads."""
        return self.values(obs).mean(1)

    def sample(self, samples: int, left: float) -> tuple[Transitions, Tensor | None]:
        """Sample transitions of each seed for all of its heads, `[S K, samples]`; weights mask those of other heads."""
        batch, importance = super().sample(samples, left)
        masks = self.experience.replay.read(f"{EXTRAS}{MASKS}", batch.index).mT.flatten(0, 1)
        heads = self.config.num_heads
        parts = {field.name: getattr(batch, field.name) for field in fields(batch)}
        repeated: dict[str, Any] = {k: v if v is None else v.repeat_interleave(heads, 0) for k, v in parts.items()}
        weights = masks.to(batch.rewards.dtype)
        if repeated["weights"] is not None:
            weights = weights * repeated["weights"]
        return Transitions(**{**repeated, "weights": weights}), importance

    def update(
        self, batch: Transitions, next_q: Tensor, importance: Tensor | None, learning_rate: float
    ) -> dict[str, Tensor | float]:
        """Take one gradient step of all heads (see `DQN.update`), and report their means."""
        metrics = super().update(batch, next_q, importance, learning_rate)
        seeds = len(self.seeds)
        return {name: value.view(seeds, -1).mean(1) for name, value in metrics.items() if isinstance(value, Tensor)}
