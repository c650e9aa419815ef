"""Bonuses for observations that a network predicts badly, because it has seen few like them.

The networks of all seeds are one stack, and are trained together. Errors that cannot be learned, such as those of a
television that shows noise, keep paying `ForwardError` (Burda et al. 2018, "Large-scale study of curiosity-driven
learning", arXiv:1808.04355, section 5).
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
    """Pays the mean squared error with which a network predicts random features of an observation.

    Args:
        env: what is wrapped.
        channel: as in `Bonus`.
        width: of the hidden layer, at least 1.
        outputs: random features, at least 1.
        every: steps between two gradient steps, on the observations of all steps since, at least 1.
        learning_rate: step size of Adam.
        mixed: as in `Bonus`.
        gamma: as in `Bonus`; by default bonuses are normalized.
    """

    STATE = (*Bonus.STATE, "scale", "target", "predictor", "optimizer", "inputs", "goals", "counted", "waiting")
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
        rows = self.every * self.shape[1]
        self.inputs = torch.zeros(self.shape[0], rows, self._inputs(), device=self.device)
        self.goals = torch.zeros(self.shape[0], rows, self.outputs, device=self.device)
        self.counted = torch.zeros(self.shape[0], rows, device=self.device)
        self.waiting = 0

    @abstractmethod
    def _inputs(self) -> int:
        """Return the width of what is predicted from."""

    @abstractmethod
    def _given(self, seen: Tensor, actions: Tensor) -> Tensor:
        """Return what is predicted from, `[S, N, inputs]`."""

    def _scaled(self, seen: Tensor) -> Tensor:
        scaled = (seen - self.scale.mean) / (self.scale.variance() + 1e-8).sqrt_()
        return scaled.clamp_(-CLIP, CLIP).float()

    def novelty(self, seen: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        """Pay the error, and learn every few steps."""
        self.scale.update(seen, valid)
        seen = self._scaled(seen)
        inputs = self._given(seen, actions)
        goals = self._random(self._random.layers(self.target), seen)
        error = self._learned(self._learned.layers(self.predictor), inputs) - goals
        rows = slice(self.waiting * self.shape[1], (self.waiting + 1) * self.shape[1])
        self.inputs[:, rows], self.goals[:, rows], self.counted[:, rows] = inputs, goals, valid.float()
        self.waiting += 1
        if self.waiting == self.every:
            self._learn()
            self.waiting = 0
        return error.square().mean(-1)

    def _learn(self) -> None:
        """Take one gradient step on the mean squared error of what was seen since the last one."""
        layers = self._learned.layers(self.predictor)
        trace = self._learned.trace(layers, self.inputs)
        share = self.counted / (self.counted.sum(1, keepdim=True).clamp(min=1) * self.outputs)
        gradient = 2 * (trace[-1] - self.goals) * share.unsqueeze(-1)
        self.optimizer.step(
            torch.cat(self._learned.pullback(layers, trace, gradient), 1), learning_rate=self.learning_rate
        )


class RandomDistillation(_Prediction):
    """Random network distillation (Burda et al. 2018, arXiv:1810.12894): predicts random features of what is seen."""

    def _inputs(self) -> int:
        return math.prod(self.features.shape)

    def _given(self, seen: Tensor, actions: Tensor) -> Tensor:
        return seen


class ForwardError(_Prediction):
    """Curiosity: predicts random features of the next observation from the last one and the action.

    The forward model of Pathak et al. 2017 (arXiv:1705.05363) on fixed random features in place of those of an inverse
    model (Burda et al. 2018, arXiv:1808.04355, section 2.1, "random features").
    """

    STATE = (*_Prediction.STATE, "last")

    def start(self, seeds: Sequence[int]) -> None:
        """Draw the networks of each seed."""
        super().start(seeds)
        self.last = torch.zeros(*self.shape, math.prod(self.features.shape), device=self.device)

    def _inputs(self) -> int:
        space = self.action_space
        actions = int(space.n) if isinstance(space, spaces.Discrete) else math.prod(space.shape or ())
        return math.prod(self.features.shape) + actions

    def begin(self, seen: Tensor, rows: Tensor) -> None:
        """Go on from the observations that the next actions are chosen in."""
        self.last.copy_(seen)

    def _given(self, seen: Tensor, actions: Tensor) -> Tensor:
        if isinstance(self.action_space, spaces.Discrete):
            actions = one_hot(actions - int(self.action_space.start), int(self.action_space.n))
        return torch.cat([self._scaled(self.last), actions.reshape(*self.shape, -1).float()], -1)
