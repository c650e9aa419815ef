"""Exploration bonuses from the prediction errors of networks.

The networks of all seeds are stacked and trained together. `ForwardError` does not decrease for unpredictable
observations, such as a noisy TV (Burda et al. 2018, "Large-scale study of curiosity-driven learning", arXiv:1808.04355,
section 5).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from gymnasium import Space, spaces
from torch import Tensor

from operant import streams
from operant.envs import BatchEnv
from operant.envs.normalize import Moments
from operant.envs.spaces import first_member
from operant.explore.bonus import CHANNEL, Bonus, Taken
from operant.nets import StackedAdam, StackedMLP
from operant.nets.mlp import Layers
from operant.runtime.bounds import require
from operant.tensors import from_numpy

CLIP = 5.0
"""Clip range of normalized observations (Burda et al. 2018, section 2.4)."""

UNKNOWN = torch.finfo(torch.float32).max
"""Number that replaces NaN and Inf of an observation before an action, because states must be finite."""


def _by_seed(steps: Sequence[Tensor] | Tensor) -> Tensor:
    """Return tensors `[S, N, ...]` of T steps as `[S, T N, ...]`."""
    together = steps if isinstance(steps, Tensor) else torch.stack(list(steps))
    return together.transpose(0, 1).flatten(1, 2)


class _Units:
    """Encoding of actions as inputs and targets of networks, which does not depend on their units.

    Choices become one-hot vectors: one for Discrete, one per number of MultiDiscrete and MultiBinary. Numbers of a Box
    become [-1, 1] from their lower to their upper bound; those without two bounds stay as they are.

    Args:
        space: space of one action.
        device: device of the actions.

    Attributes:
        choices: sizes of the one-hot vectors; empty for a Box.
        width: length of an encoded action, A.
    """

    def __init__(self, space: Space[Any], device: torch.device) -> None:
        self.choices: list[int] = []
        self._is_scaled = False
        match space:
            case spaces.Discrete():
                self.choices = [int(space.n)]
            case spaces.MultiDiscrete():
                self.choices = space.nvec.ravel().tolist()
            case spaces.MultiBinary():
                self.choices = [2] * math.prod(space.shape)
            case spaces.Box():
                low, high = (bound.ravel().astype(np.float64) for bound in (space.low, space.high))
                bounded = np.isfinite(low) & np.isfinite(high) & (low < high)
                middle = np.where(bounded, low + high, 0.0) / 2
                half = np.where(bounded, high - low, 2.0) / 2
                self._is_scaled = bool((middle != 0).any() or (half != 1).any())
                self._middle, self._half = (from_numpy(x).float().to(device) for x in (middle, half))
            case _:
                pass
        self.width = sum(self.choices) or math.prod(space.shape or ())
        first = np.zeros(len(self.choices), np.int64) + np.ravel(first_member(space))
        places = np.cumsum([0, *self.choices[:-1]])[: len(self.choices)] - first
        self._one_hot = torch.eye(self.width if len(self.choices) == 1 else 0, device=device)
        self._places = from_numpy(places).to(device)

    def encoded(self, actions: Tensor) -> Tensor:
        """Return actions `[..., numbers]` as `[..., A]` in float32."""
        if len(self.choices) == 1:
            return self._one_hot[(actions + self._places).squeeze(-1).long()]
        if self.choices:
            one_hot = torch.zeros(*actions.shape[:-1], self.width, device=actions.device)
            return one_hot.scatter_(-1, actions.long() + self._places, 1.0)
        return (actions.float() - self._middle) / self._half if self._is_scaled else actions.float()


class _Prediction(Bonus, ABC):
    """Bonus from the mean squared error of a network's prediction of random features of an observation.

    Observations are normalized by the mean and the standard deviation of those up to the last gradient step (in Burda
    et al. 2018 up to the last rollout); before the first step they are only clipped.

    Args:
        env: the wrapped environment.
        channel: as in `Bonus`.
        width: width of the hidden layer, at least 1.
        outputs: random features, at least 1.
        every: steps between two gradient steps, each on all observations since the last one, at least 1.
        learning_rate: learning rate of Adam.
        mixed: as in `Bonus`.
        gamma: as in `Bonus`; by default, bonuses are normalized.
    """

    WINDOW = ("observed", "counted", "waiting")
    STATE = (*Bonus.STATE, "scale", "center", "factor", "target", "predictor", "optimizer", *WINDOW)
    LEARNED = ("target", "predictor", "center", "factor")

    def __init__(
        self,
        env: BatchEnv,
        channel: str = CHANNEL,
        *,
        width: int = 64,
        outputs: int = 32,
        every: int = 16,
        learning_rate: float = 1e-3,
        mixed: float = 0.0,
        gamma: float | None = 0.99,
    ) -> None:
        self.width, self.outputs, self.every, self.learning_rate = width, outputs, every, learning_rate
        positive = "an integer in [1, inf)"
        require(self, width=positive, outputs=positive, every=positive, learning_rate="(0, inf)")
        super().__init__(env, channel, mixed=mixed, gamma=gamma)

    def start(self, seeds: Sequence[int]) -> None:
        """Initialize the networks of each seed."""
        super().start(seeds)
        size = math.prod(self.features.shape)
        self._random = StackedMLP((size, self.width, self.outputs), activation="relu")
        self._learned = StackedMLP((self._inputs(), self.width, self.outputs), activation="relu")
        self.target, self.predictor = (
            torch.stack([net.initial(streams.torch_generator(seed, name), [(self.outputs, 1.0)]) for seed in seeds]).to(
                self.device
            )
            for net, name in ((self._random, "random features"), (self._learned, "predictor"))
        )
        self.optimizer = StackedAdam(self.predictor, epsilon=1e-8, max_grad_norm=None)
        self.scale = Moments(len(seeds), (size,), self.device)
        self.center = torch.zeros(len(seeds), 1, size, device=self.device)
        self.factor = torch.ones_like(self.center)
        rows = self.every * self.shape[1]
        self.observed = torch.zeros(self.shape[0], rows, size, device=self.device)
        self.counted = torch.ones(self.shape[0], rows, device=self.device)
        self.waiting = 0
        self._bound: dict[str, tuple[Tensor, Layers]] = {}

    @property
    def learned(self) -> dict[str, Tensor]:
        """The tensors that belong to the weights, `[S, ...]` by name, with statistics of observations and bonuses."""
        return super().learned | self._named(scale=self.scale)

    def _layers(self, network: StackedMLP, name: str) -> Layers:
        """Return the layers of a network by name, sliced once instead of at every step."""
        parameters = getattr(self, name)
        if name not in self._bound or self._bound[name][0] is not parameters:
            self._bound[name] = parameters, network.layers(parameters)
        return self._bound[name][1]

    @abstractmethod
    def _inputs(self) -> int:
        """Return the width of the inputs."""

    @abstractmethod
    def _errors(self, seen: Tensor, steps: Sequence[Taken], place: slice) -> Tensor:
        """Return the prediction errors `[S, T N, outputs]` of the features of some steps.

        Args:
            seen: observations after the steps, `[S, T N, D]`.
            steps: T steps between two gradient steps.
            place: position of their samples among those since the last gradient step.
        """

    @abstractmethod
    def _examples(self) -> tuple[Tensor, Tensor]:
        """Return inputs and target features of all steps since the last gradient step."""

    def _scaled(self, seen: Tensor) -> Tensor:
        return (seen - self.center).mul_(self.factor).clamp_(-CLIP, CLIP)

    def _goals(self, scaled: Tensor) -> Tensor:
        """Return the features of scaled observations."""
        return self._random(self._layers(self._random, "target"), scaled)

    def _guess(self, inputs: Tensor) -> Tensor:
        """Return the predicted features."""
        return self._learned(self._layers(self._learned, "predictor"), inputs)

    def novelties(self, steps: Sequence[Taken]) -> Tensor:
        """Return the errors, and train every few steps; steps between two gradient steps are computed together."""
        parts: list[Tensor] = []
        while steps:
            count = self.every - self.waiting
            parts.append(self._part(steps[:count]))
            steps = steps[count:]
        return torch.cat(parts)

    def _part(self, steps: Sequence[Taken]) -> Tensor:
        """Return the novelties `[T, S, N]` of steps up to the next gradient step; take that step if it is due."""
        rows = self.shape[1]
        place = slice(self.waiting * rows, (self.waiting + len(steps)) * rows)
        seen = _by_seed([step.seen for step in steps])
        self.observed[:, place] = seen
        if not self._all_valid:
            self.counted[:, place] = _by_seed([step.valid.float() for step in steps])
        errors = self._errors(seen, steps, place).square_().mean(-1)
        self.waiting += len(steps)
        if self.waiting == self.every:
            self._learn()
            self._scale()
            self.waiting = 0
            if self.always_valid:
                self.counted.fill_(1.0)
        return errors.view(-1, len(steps), rows).transpose(0, 1)

    def _scale(self) -> None:
        """Update the normalization with the observations since the last gradient step."""
        all_valid = self.always_valid and bool(self.counted.all())
        self.scale.update(self.observed, None if all_valid else self.counted > 0)
        self.center.copy_(self.scale.mean)
        self.factor.copy_((self.scale.variance() + 1e-8).rsqrt_())

    def _learn(self) -> None:
        """Take one gradient step on the mean squared error of the observations since the last one."""
        self._learn_from(*self._examples())

    def _learn_from(self, inputs: Tensor, goals: Tensor) -> None:
        layers = self._layers(self._learned, "predictor")
        trace = self._learned.trace(layers, inputs)
        share = self.counted / (self.counted.sum(1, keepdim=True).clamp(min=1) * self.outputs)
        gradient = 2 * (trace[-1] - goals) * share.unsqueeze(-1)
        self.optimizer.step(
            torch.cat(self._learned.pullback(layers, trace, gradient), 1), learning_rate=self.learning_rate
        )


class RandomDistillation(_Prediction):
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894): prediction of random features."""

    def _inputs(self) -> int:
        return math.prod(self.features.shape)

    def _errors(self, seen: Tensor, steps: Sequence[Taken], place: slice) -> Tensor:
        scaled = self._scaled(seen)
        return self._guess(scaled) - self._goals(scaled)

    def _examples(self) -> tuple[Tensor, Tensor]:
        scaled = self._scaled(self.observed)
        return scaled, self._goals(scaled)


class ForwardError(_Prediction):
    """Curiosity: prediction of random features of the next observation from the last one and the action.

    Choices are one-hot vectors, and numbers with bounds are scaled to [-1, 1].

    The forward model of Pathak et al. 2017 (arXiv:1705.05363) on fixed random features instead of an inverse model's
    (Burda et al. 2018, arXiv:1808.04355, section 2.1, "random features").
    """

    STATE = (*_Prediction.STATE, "last", "before", "taken")

    def start(self, seeds: Sequence[int]) -> None:
        """Initialize the networks of each seed."""
        super().start(seeds)
        self.last = torch.zeros(*self.shape, math.prod(self.features.shape), device=self.device)
        self.before = torch.zeros_like(self.observed)
        self.taken = torch.zeros(*self.before.shape[:2], self._action_width, device=self.device)

    def _inputs(self) -> int:
        return math.prod(self.features.shape) + self._action_width

    @property
    def _action_width(self) -> int:
        return self._units.width

    @cached_property
    def _units(self) -> "_Units":
        return _Units(self.action_space, self.device)

    def begin(self, seen: Tensor, rows: Tensor) -> None:
        """Store the observations of the next actions."""
        self.last.copy_(seen).nan_to_num_(nan=UNKNOWN)

    def _errors(self, seen: Tensor, steps: Sequence[Taken], place: slice) -> Tensor:
        before = _by_seed([self.last, *(step.following for step in steps[:-1])])
        self.last.copy_(steps[-1].following).nan_to_num_(nan=UNKNOWN)
        encoded = self._encoded(torch.stack([step.actions for step in steps]))
        gaps = None
        if not (bool(before.abs().amax() < UNKNOWN) and math.isfinite(float(encoded.sum()))):
            gaps = ~((before.abs() < UNKNOWN).all(-1) & encoded.isfinite().all(-1))
            self.counted[:, place].masked_fill_(gaps, 0.0)
            before, encoded = (part.masked_fill(gaps.unsqueeze(-1), 0.0) for part in (before, encoded))
        self.before[:, place], self.taken[:, place] = before, encoded
        inputs, goals = self._predicted(self._scaled(torch.cat([before, seen], 1)), encoded)
        errors = self._guess(inputs) - goals
        return errors if gaps is None else errors.masked_fill_(gaps.unsqueeze(-1), 0.0)

    def _examples(self) -> tuple[Tensor, Tensor]:
        return self._predicted(self._scaled(torch.cat([self.before, self.observed], 1)), self.taken)

    def _predicted(self, both: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs of the prediction and its target features.

        Args:
            both: scaled observations, those before the actions followed by those after them, `[S, 2 M, D]`.
            actions: `[S, M, A]`.
        """
        before, after = both.chunk(2, 1)
        return torch.cat([before, actions], -1), self._goals(after)

    def _encoded(self, actions: Tensor) -> Tensor:
        """Return actions `[T, B, ...]` as `[S, T N, A]` (see `_Units`)."""
        return _by_seed(self._units.encoded(actions.reshape(len(actions), *self.shape, -1)))


class InverseCuriosity(ForwardError):  # noqa: N818 - not an exception
    """The intrinsic curiosity module (Pathak et al. 2017, arXiv:1705.05363): features that actions control.

    An inverse model predicts the action from features of the observations before and after it, and trains the features
    (equation 2); a forward model predicts the second features from the first and the action (equation 4), and its error
    is the bonus (equation 6). The features can ignore noise unrelated to actions.

    What differs from the paper: the features are trained only by the inverse model, as the "inverse dynamics features"
    of Burda et al. 2018 (arXiv:1808.04355, section 2.1), so that they do not favor predictable features. Continuous
    actions use the squared error; several choices have one softmax each.
    """

    STATE = (*ForwardError.STATE, "inverse", "inverse_optimizer", "features_optimizer")
    LEARNED = (*ForwardError.LEARNED, "inverse")

    def start(self, seeds: Sequence[int]) -> None:
        """Initialize the networks of each seed."""
        super().start(seeds)
        actions = self._action_width
        self._inverse = StackedMLP((2 * self.outputs, self.width, actions), activation="relu")
        draws = [self._inverse.initial(streams.torch_generator(seed, "inverse"), [(actions, 1.0)]) for seed in seeds]
        self.inverse = torch.stack(draws).to(self.device)
        self.inverse_optimizer, self.features_optimizer = (
            StackedAdam(parameters, epsilon=1e-8, max_grad_norm=None) for parameters in (self.inverse, self.target)
        )

    def _inputs(self) -> int:
        return self.outputs + self._action_width

    def _predicted(self, both: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        before, after = self._goals(both).chunk(2, 1)
        return torch.cat([before, actions], -1), after

    def _learn(self) -> None:
        """Take a gradient step of the forward model, then one of the inverse model and the features."""
        layers, inverse = self._layers(self._random, "target"), self._layers(self._inverse, "inverse")
        features = self._random.trace(layers, self._scaled(torch.cat([self.before, self.observed], 1)))
        before, after = features[-1].chunk(2, 1)
        self._learn_from(torch.cat([before, self.taken], -1), after)
        guess = self._inverse.trace(inverse, torch.cat(features[-1].chunk(2, dim=1), -1))
        gradient = self._guess_gradient(guess[-1], self.taken)
        back = torch.cat(self._inverse.input_gradient(inverse, guess, gradient).chunk(2, dim=-1), 1)
        pieces = self._inverse.pullback(inverse, guess, gradient), self._random.pullback(layers, features, back)
        for optimizer, piece in zip((self.inverse_optimizer, self.features_optimizer), pieces, strict=True):
            optimizer.step(torch.cat(piece, 1), learning_rate=self.learning_rate)

    def _guess_gradient(self, guess: Tensor, actions: Tensor) -> Tensor:
        """Return the gradient `[S, M, A]` of the cross-entropy, or of the mean squared error, of predicted actions."""
        share = (self.counted / self.counted.sum(1, keepdim=True).clamp(min=1)).unsqueeze(-1)
        if self._units.choices:
            chances = [part.softmax(-1) for part in guess.split_with_sizes(self._units.choices, -1)]
            return ((chances[0] if len(chances) == 1 else torch.cat(chances, -1)) - actions) * share
        return 2 / actions.shape[-1] * (guess - actions) * share
