"""A learned model of an environment: an ensemble of probabilistic networks (Chua et al. 2018, arXiv:1805.12114).

Each network predicts from a state and an action the change of the state, the reward, and the end of the episode. Its
distributions model randomness (aleatoric uncertainty); the networks, each trained on its own samples from one replay
buffer, differ where data are scarce (epistemic uncertainty). Members and seeds share one axis, so all of them take the
same number of operations as one.

What differs from the paper: changes of the state and rewards are normalized separately, because otherwise the model
learns only the larger ones; the end of an episode is learned, whereas the paper assumes it known; the bounds of the
variances are fixed; there is no weight decay. A tenth of the transitions is held out for validation, selected by a
hash of the transition's number, so the selection does not depend on the environment or on the place in the buffer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from operant import ops, streams
from operant.envs.tensor.starts import mix
from operant.nets import Activation, Ensemble, EnsemblePass, StackedAdam, StackedMLP, compilable
from operant.runtime.bounds import NonNegativeInt, PositiveFloat, PositiveInt
from operant.runtime.learner import Metrics
from operant.runtime.metrics_window import update_metrics
from operant.runtime.replay import Replay
from operant.runtime.transitions import Transitions
from operant.state import DeclaredState

LOG_VARIANCE = (-10.0, 1.0)
"""Bounds of the log variances of normalized targets."""

HELD_OUT = 10
"""One in how many transitions is held out."""

JUDGED = 1000
"""Maximum number of held-out transitions in the validation of a fit."""


@dataclass(frozen=True)
class ModelConfig:
    """Hyperparameters of a learned model."""

    ensemble_size: PositiveInt = 5
    """Number of networks per seed. More estimate the uncertainty better, in proportionally more time."""
    model_hidden_sizes: tuple[PositiveInt, ...] = (64, 64)
    """Sizes of the hidden layers."""
    model_activation: Activation = "relu"
    """Activation function of the hidden layers."""
    model_batch_size: PositiveInt = 256
    """Minibatch size in transitions per network."""
    model_gradient_steps: PositiveInt = 500
    """Gradient steps per fit of the model. Too few are worse than too many."""
    model_train_freq: PositiveInt = 25
    """Steps per environment between two fits."""
    model_learning_rate: PositiveFloat = 1e-3
    """Learning rate of Adam for the model."""
    learning_starts: NonNegativeInt = 100
    """Environment steps per seed with random actions before the first fit."""


class Prediction(NamedTuple):
    """Predictions of a model for states and actions, `[..., D]`, `[...]` and `[...]`."""

    next_obs: Tensor
    rewards: Tensor
    continues: Tensor
    """Probability that the episode continues."""


def split(replay: Replay) -> tuple[Tensor, Tensor]:
    """Return the indices of the transitions to train on and of those held out, the oldest first, for all seeds.

    Of so few that one part would be empty, the newest transition is in both.
    """
    numbers = replay.numbers()
    index = numbers.argsort()
    held_out = mix(numbers[index] + 1) % HELD_OUT == 0
    parts = index[~held_out], index[held_out]
    return parts[0] if len(parts[0]) else index[-1:], parts[1] if len(parts[1]) else index[-1:]


class LearnedModel(DeclaredState):
    """Ensembles of `K` networks for each of `S` seeds, with normalization of inputs and targets.

    Args:
        config: hyperparameters.
        seeds: one non-negative integer per run; each has its own random streams.
        width: D, size of an observation.
        dimensions: A, dimension of an action, in [-1, 1].
        device: device of all tensors.

    Attributes:
        parameters: `[S, K * P]`.
        gradient: gradient function, which a learner compiles with its own programs.
        moments: mean and standard deviation `[S, 2, 2 D + 1]` of observations, their changes, and the reward.
    """

    STATE = ("parameters", "moments", "optimizer", "streams")

    def __init__(
        self, config: ModelConfig, *, seeds: Sequence[int], width: int, dimensions: int, device: torch.device
    ) -> None:
        self.config, self.members, self.width = config, config.ensemble_size, width
        sizes = [width + dimensions, *config.model_hidden_sizes, 2 * (width + 1) + 1]
        network = StackedMLP(sizes, activation=config.model_activation)
        self.shape = Ensemble(network, members=1)
        generators = streams.of_seeds(seeds, "model")
        ensemble = Ensemble(network, members=self.members)
        self.parameters = ensemble.initial(generators, [(sizes[-1], 0.1)]).to(device)
        self.moments = torch.stack((torch.zeros(2 * width + 1), torch.ones(2 * width + 1))).to(device)
        self.moments = self.moments.repeat(len(seeds), 1, 1)
        self.optimizer = StackedAdam(self.parameters)
        self.streams = streams.of_seeds(seeds, "model data", device=device)
        self.bound = self.shape.bind(self.parameters.view(len(seeds) * self.members, -1))

    def fit(self, replay: Replay) -> Metrics:
        """Take gradient steps on the replay buffer, and validate the model on held-out transitions."""
        self._normalize(replay)
        counts = self.optimizer.counts
        training, held_out = split(replay)
        losses = [self.update(self._drawn(replay, training)) for _ in range(self.config.model_gradient_steps)]
        batch = self._held_out(replay, held_out)
        with torch.no_grad():
            validation = self.loss(self.bound(self._inputs(batch.obs, batch.actions))[0], batch)
        validation = validation.view(len(self.parameters), self.members)
        return {
            "model/loss": torch.stack(losses[-len(losses) // 10 :]).mean(0),
            "model/holdout_loss": validation.mean(1),
            "model/holdout_spread": validation.amax(1) - validation.amin(1),
            **{f"model_{name}": value for name, value in update_metrics(self.optimizer.counts - counts).items()},
        }

    def update(self, batch: Transitions) -> Tensor:
        """Take one gradient step on transitions `[S * K, M]`, and return the loss `[S]`."""
        gradient, losses = self.gradient(batch)
        self.optimizer.step(gradient, learning_rate=self.config.model_learning_rate)
        return losses

    @compilable
    def gradient(self, batch: Transitions) -> tuple[Tensor, Tensor]:
        """Return the gradient `[S, K * P]` of the loss, and the loss `[S]`, the mean over the networks."""
        networks = EnsemblePass(self.bound, self._inputs(batch.obs, batch.actions))
        losses = self.loss(networks.outputs[0], batch)
        gradient = networks.gradient(losses.sum()).view_as(self.parameters)
        return gradient, losses.detach().view(len(self.parameters), -1).mean(1)

    def loss(self, outputs: Tensor, batch: Transitions) -> Tensor:
        """Return the loss `[S * K]`: the negative log-likelihood of changes, rewards, and terminations."""
        mean, log_std, end = self._distribution(outputs)
        changes = torch.cat((batch.next_obs - batch.obs, batch.rewards.unsqueeze(-1)), -1)
        center, scale = self._moments(slice(self.width, None))
        likelihood = ops.gaussian_log_prob(mean, log_std, (changes - center) / scale)
        ends = binary_cross_entropy_with_logits(end, batch.terminated.to(end.dtype), reduction="none")
        return ops.weighted_mean(ends - likelihood, batch.weights)

    def predict(self, obs: Tensor, actions: Tensor, noise: Tensor | None = None) -> Prediction:
        """Return the predictions of each network for its own states and actions.

        Args:
            obs: `[S * K, M, D]`.
            actions: `[S * K, M, A]`, in [-1, 1].
            noise: `[S * K, M or 1, D + 1]`, standard normal, to sample the outcome; None: the mean.
        """
        mean, log_std, end = self._distribution(self.bound(self._inputs(obs, actions))[0])
        sampled = mean if noise is None else ops.gaussian_sample(mean, log_std, noise)
        center, scale = self._moments(slice(self.width, None))
        changes = sampled * scale + center
        return Prediction(obs + changes[..., :-1], changes[..., -1], (-end).sigmoid())

    def _distribution(self, outputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and log standard deviation `[..., D + 1]` of normalized targets, and the logit of termination."""
        mean, log_variance = outputs[..., :-1].chunk(2, -1)
        return mean, ops.soft_clamp(log_variance, *LOG_VARIANCE) / 2, outputs[..., -1]

    def _moments(self, columns: slice) -> tuple[Tensor, Tensor]:
        """Return means and deviations `[S * K, 1, n]`."""
        every = self.moments[..., columns].repeat_interleave(self.members, 0)
        return every[:, :1], every[:, 1:]

    def _inputs(self, obs: Tensor, actions: Tensor) -> Tensor:
        center, scale = self._moments(slice(self.width))
        return torch.cat(((obs - center) / scale, actions), -1)

    def _normalize(self, replay: Replay) -> None:
        """Compute mean and standard deviation over the replay buffer; standard deviations of 0 are set to 1."""
        every = torch.arange(replay.size, device=self.parameters.device).expand(len(self.parameters), -1)
        batch = replay.take(every, gamma=1.0)
        columns = torch.cat((batch.obs, batch.next_obs - batch.obs, batch.rewards.unsqueeze(-1)), -1).mT
        weights = None if batch.weights is None else batch.weights.unsqueeze(1).expand_as(columns)
        mean = ops.weighted_mean(columns, weights)
        variance = ops.weighted_mean((columns - mean.unsqueeze(-1)).square(), weights)
        scale = variance.sqrt()
        self.moments.copy_(torch.stack((mean, torch.where(scale < 1e-6, 1.0, scale)), 1))

    def _drawn(self, replay: Replay, training: Tensor) -> Transitions:
        """Return transitions `[S * K, M]` at indices among `training [n]`, sampled separately for every network."""
        shape = self.members, self.config.model_batch_size
        drawn = [torch.randint(len(training), shape, generator=s, device=s.device) for s in self.streams]
        return self._by_member(replay, training[torch.stack(drawn)])

    def _held_out(self, replay: Replay, held_out: Tensor) -> Transitions:
        """Return the newest transitions `[S * K, M]` at the indices `held_out [n]`, the same for all networks."""
        return self._by_member(replay, held_out[-JUDGED:].expand(len(self.parameters), self.members, -1))

    def _by_member(self, replay: Replay, index: Tensor) -> Transitions:
        """Return the transitions at indices `[S, K, M]` as `[S * K, M]`."""
        batch = replay.take(index.flatten(1), gamma=1.0)
        columns = {
            name: None if value is None else value.reshape(-1, index.shape[2], *value.shape[2:])
            for name, value in vars(batch).items()
        }
        return Transitions(**columns)  # pyright: ignore[reportArgumentType]
