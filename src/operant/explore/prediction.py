"""Exploration bonuses from the prediction errors of networks.

The networks of all seeds are stacked and trained together. Unlearnable errors, such as of a noisy TV, keep paying
`ForwardError` (Burda et al. 2018, "Large-scale study of curiosity-driven learning", arXiv:1808.04355, section 5).
"""

import math
from abc import abstractmethod
from collections.abc import Sequence

import torch
from gymnasium import spaces
from torch import Tensor
from torch.nn.functional import one_hot

from operant import streams
from operant.envs import BatchEnv
from operant.envs.normalize import Moments
from operant.explore.bonuses import Bonus
from operant.nets import StackedAdam, StackedMLP
from operant.runtime.bounds import require

CLIP = 5.0
"""Largest absolute value of a normalized observation (Burda et al. 2018, section 2.4)."""


class _Prediction(Bonus):
    """Pays the mean squared error of a network's prediction of random features of an observation.

    Observations are normalized by the mean and the standard deviation of those up to the last gradient step, as in
    Burda et al. 2018 up to the last rollout; before the first step they are only clipped.

    Args:
        env: the wrapped environment.
        channel: as in `Bonus`.
        width: of the hidden layer, at least 1.
        outputs: random features, at least 1.
        every: steps between two gradient steps, on the observations of all steps since, at least 1.
        learning_rate: step size of Adam.
        mixed: as in `Bonus`.
        gamma: as in `Bonus`; by default bonuses are normalized.
    """

    WINDOW = ("observed", "inputs", "goals", "counted", "waiting")
    STATE = (*Bonus.STATE, "scale", "center", "factor", "target", "predictor", "optimizer", *WINDOW)
    LEARNED = ("target", "predictor")

    def __init__(
        self,
        env: BatchEnv,
        channel: str = "intrinsic",
        *,
        width: int = 64,
        outputs: int = 32,
        every: int = 16,
        learning_rate: float = 1e-3,
        mixed: float = 0.0,
        gamma: float | None = 0.99,
    ) -> None:
        self.width, self.outputs, self.every, self.learning_rate = width, outputs, every, learning_rate
        require(self, width="[1, inf)", outputs="[1, inf)", every="[1, inf)", learning_rate="(0, inf)")
        super().__init__(env, channel, mixed=mixed, gamma=gamma)

    def start(self, seeds: Sequence[int]) -> None:
        """Draw the networks of each seed."""
        super().start(seeds)
        seen = math.prod(self.features.shape)
        self._random = StackedMLP((seen, self.width, self.outputs), activation="relu")
        self._learned = StackedMLP((self._inputs(), self.width, self.outputs), activation="relu")
        self.target, self.predictor = (
            torch.stack([net.initial(streams.torch_generator(seed, name), [(self.outputs, 1.0)]) for seed in seeds]).to(
                self.device
            )
            for net, name in ((self._random, "random features"), (self._learned, "predictor"))
        )
        self.optimizer = StackedAdam(self.predictor, epsilon=1e-8, max_grad_norm=None)
        self.scale = Moments(len(seeds), (seen,), self.device)
        self.center = torch.zeros(len(seeds), 1, seen, device=self.device)
        self.factor = torch.ones_like(self.center)
        rows = self.every * self.shape[1]
        self.observed = torch.zeros(self.shape[0], rows, seen, device=self.device)
        self.inputs = torch.zeros(self.shape[0], rows, self._inputs(), device=self.device)
        self.goals = torch.zeros(self.shape[0], rows, self.outputs, device=self.device)
        self.counted = torch.zeros(self.shape[0], rows, device=self.device)
        self.waiting = 0

    @abstractmethod
    def _inputs(self) -> int:
        """Return the width of the inputs."""

    @abstractmethod
    def _given(self, seen: Tensor, actions: Tensor) -> Tensor:
        """Return the inputs of the prediction, `[S, N, inputs]`."""

    @property
    def _latest(self) -> slice:
        """Slots of the current step's samples until the next gradient step."""
        return slice(self.waiting * self.shape[1], (self.waiting + 1) * self.shape[1])

    def _scaled(self, seen: Tensor) -> Tensor:
        return (seen - self.center).mul_(self.factor).clamp_(-CLIP, CLIP)

    def novelty(self, seen: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        """Pay the error, and train every few steps."""
        self.observed[:, self._latest] = seen
        seen = self._scaled(seen)
        inputs = self._given(seen, actions)
        goals = self._random(self._random.layers(self.target), seen)
        error = self._learned(self._learned.layers(self.predictor), inputs) - goals
        self.counted[:, self._latest] = valid.float()
        self.inputs[:, self._latest], self.goals[:, self._latest] = inputs, goals
        self.waiting += 1
        if self.waiting == self.every:
            self._learn()
            self._scale()
            self.waiting = 0
        return error.square().mean(-1)

    def _scale(self) -> None:
        """Update the normalization with the observations since the last gradient step."""
        self.scale.update(self.observed, self.counted > 0)
        self.center.copy_(self.scale.mean)
        self.factor.copy_((self.scale.variance() + 1e-8).rsqrt_())

    def _learn(self) -> None:
        """Take one gradient step on the mean squared error of the observations since the last one."""
        layers = self._learned.layers(self.predictor)
        trace = self._learned.trace(layers, self.inputs)
        share = self.counted / (self.counted.sum(1, keepdim=True).clamp(min=1) * self.outputs)
        gradient = 2 * (trace[-1] - self.goals) * share.unsqueeze(-1)
        self.optimizer.step(
            torch.cat(self._learned.pullback(layers, trace, gradient), 1), learning_rate=self.learning_rate
        )


class RandomDistillation(_Prediction):
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894): predicts random features of observations."""

    def _inputs(self) -> int:
        return math.prod(self.features.shape)

    def _given(self, seen: Tensor, actions: Tensor) -> Tensor:
        return seen


class ForwardError(_Prediction):
    """Curiosity: predicts random features of the next observation from the last one and the action.

    The forward model of Pathak et al. 2017 (arXiv:1705.05363) on fixed random features instead of an inverse model's
    (Burda et al. 2018, arXiv:1808.04355, section 2.1, "random features").
    """

    STATE = (*_Prediction.STATE, "last")

    def start(self, seeds: Sequence[int]) -> None:
        """Draw the networks of each seed."""
        super().start(seeds)
        self.last = torch.zeros(*self.shape, math.prod(self.features.shape), device=self.device)

    def _inputs(self) -> int:
        return math.prod(self.features.shape) + self._action_width

    @property
    def _action_width(self) -> int:
        space = self.action_space
        return int(space.n) if isinstance(space, spaces.Discrete) else math.prod(space.shape or ())

    def begin(self, seen: Tensor, rows: Tensor) -> None:
        """Store the observations of the next actions."""
        self.last.copy_(seen)

    def _given(self, seen: Tensor, actions: Tensor) -> Tensor:
        return torch.cat([self._scaled(self.last), self._encoded(actions)], -1)

    def _encoded(self, actions: Tensor) -> Tensor:
        """Return actions as `[S, N, A]`, those of a finite set as one-hot vectors."""
        if isinstance(self.action_space, spaces.Discrete):
            actions = one_hot(actions - int(self.action_space.start), int(self.action_space.n))
        return actions.reshape(*self.shape, -1).float()


class InverseCuriosity(ForwardError):  # noqa: N818 - not an exception
    """The intrinsic curiosity module (Pathak et al. 2017, arXiv:1705.05363): features that actions control.

    An inverse model predicts the action from features of the observations before and after it, and trains the features
    (equation 2); a forward model predicts the second features from the first and the action (equation 4), and its error
    is the bonus (equation 6). The features can ignore noise unrelated to actions.

    What differs from the paper: the features are trained only by the inverse model, as the "inverse dynamics features"
    of Burda et al. 2018 (arXiv:1808.04355, section 2.1), so that they do not favor predictable features. Continuous
    actions use the squared error.
    """

    STATE = (*ForwardError.STATE, "inverse", "inverse_optimizer", "features_optimizer", "pairs")
    LEARNED = (*ForwardError.LEARNED, "inverse")

    def start(self, seeds: Sequence[int]) -> None:
        """Draw the networks of each seed."""
        super().start(seeds)
        actions = self._action_width
        self._inverse = StackedMLP((2 * self.outputs, self.width, actions), activation="relu")
        draws = [self._inverse.initial(streams.torch_generator(seed, "inverse"), [(actions, 1.0)]) for seed in seeds]
        self.inverse = torch.stack(draws).to(self.device)
        self.inverse_optimizer, self.features_optimizer = (
            StackedAdam(parameters, epsilon=1e-8, max_grad_norm=None) for parameters in (self.inverse, self.target)
        )
        rows = self.every * self.shape[1]
        self.pairs = torch.zeros(2, self.shape[0], rows, math.prod(self.features.shape), device=self.device)

    def _inputs(self) -> int:
        return self.outputs + self._action_width

    def _given(self, seen: Tensor, actions: Tensor) -> Tensor:
        before = self._scaled(self.last)
        self.pairs[0, :, self._latest], self.pairs[1, :, self._latest] = before, seen
        return torch.cat([self._random(self._random.layers(self.target), before), self._encoded(actions)], -1)

    def _learn(self) -> None:
        """Take a gradient step of the forward model, then one of the inverse model and the features."""
        super()._learn()
        layers, inverse = self._random.layers(self.target), self._inverse.layers(self.inverse)
        features = self._random.trace(layers, torch.cat([*self.pairs], 1))
        guess = self._inverse.trace(inverse, torch.cat(features[-1].chunk(2, dim=1), -1))
        gradient = self._guess_gradient(guess[-1], self.inputs[..., self.outputs :])
        back = torch.cat(self._inverse.input_gradient(inverse, guess, gradient).chunk(2, dim=-1), 1)
        pieces = self._inverse.pullback(inverse, guess, gradient), self._random.pullback(layers, features, back)
        for optimizer, piece in zip((self.inverse_optimizer, self.features_optimizer), pieces, strict=True):
            optimizer.step(torch.cat(piece, 1), learning_rate=self.learning_rate)

    def _guess_gradient(self, guess: Tensor, actions: Tensor) -> Tensor:
        """Return the gradient `[S, M, A]` of the cross-entropy, or of the mean squared error, of predicted actions."""
        share = (self.counted / self.counted.sum(1, keepdim=True).clamp(min=1)).unsqueeze(-1)
        if isinstance(self.action_space, spaces.Discrete):
            return (guess.softmax(-1) - actions) * share
        return 2 / actions.shape[-1] * (guess - actions) * share
