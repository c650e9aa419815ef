"""Policy heads: the action distribution of an actor's outputs, for each kind of action space."""

from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium
import numpy as np
import torch
from torch import Tensor

from operant import streams
from operant.nets.action_bounds import bounds_within, is_continuous
from operant.ops import categorical_fisher, categorical_kl, gaussian_fisher, gaussian_kl
from operant.ops import distributions as d


class Head(Protocol):
    """The action distribution parameterized by an actor's outputs.

    Attributes:
        outputs: number of network outputs per state.
        free: number of parameters of the distribution that do not depend on the state.
        choices: alternatives of each discrete choice of an action, whose logits are consecutive outputs; empty for
            continuous actions.
    """

    outputs: int
    free: int
    choices: Sequence[int]

    def initial(self) -> Tensor:
        """Return the initial free parameters `[free]`."""
        ...

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample the noise of `sample` for actions of shape `shape`."""
        ...

    def sample(self, outputs: Tensor, free: Tensor, noise: Tensor) -> Tensor:
        """Return actions for `outputs [S, M, outputs]` and `free [S, free]`."""
        ...

    def mode(self, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the most likely actions."""
        ...

    def log_prob(self, outputs: Tensor, free: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probabilities `[S, M]` of `actions`."""
        ...

    def entropy(self, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the entropies `[S, M]`."""
        ...

    def kl(self, old_outputs: Tensor, old_free: Tensor, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the exact KL(old‖new) `[S, M]` of two policies in the same states."""
        ...

    def fisher(
        self, outputs: Tensor, free: Tensor, outputs_change: Tensor, free_change: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the Fisher matrix in every state times a change of outputs `[S, M, outputs]` and free `[S, free]`.

        It is the Hessian of `kl` in the new policy at new = old; `free` changes equally in all states.
        """
        ...

    def to_env(self, actions: Tensor) -> Tensor:
        """Convert sampled actions to members of the action space."""
        ...

    def describe(self, outputs: Tensor, free: Tensor) -> dict[str, Tensor]:
        """Return `probabilities` `[S, M, outputs]`, or `mean` and `std` `[S, M, A]` in units of the action space."""
        ...


class _Logits:
    """Base of heads whose outputs are logits."""

    free = 0

    def __init__(self, choices: Sequence[int]) -> None:
        self.choices, self.outputs = choices, sum(choices)

    def initial(self) -> Tensor:
        """Return no parameters."""
        return torch.zeros(0)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample standard Gumbel noise, one number per logit."""
        return streams.gumbel((*shape, self.outputs), generator)

    def describe(self, outputs: Tensor, free: Tensor) -> dict[str, Tensor]:
        """Return the probabilities `[S, M, outputs]`; those of several choices are concatenated."""
        parts = torch.split(outputs, list(self.choices), dim=-1)
        return {"probabilities": torch.cat([part.softmax(-1) for part in parts], dim=-1)}


class CategoricalHead(_Logits):
    """Logits of a finite set of actions."""

    def __init__(self, space: gymnasium.spaces.Discrete) -> None:
        super().__init__([int(space.n)])
        self.start = int(space.start)

    def sample(self, outputs: Tensor, free: Tensor, noise: Tensor) -> Tensor:
        """Return actions `[S, M]` by the Gumbel-max trick."""
        return d.categorical_sample(outputs, noise)

    def mode(self, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the action with the largest logit."""
        return d.categorical_mode(outputs)

    def log_prob(self, outputs: Tensor, free: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probabilities `[S, M]` of `actions`."""
        return d.categorical_log_prob(outputs, actions)

    def entropy(self, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the entropies `[S, M]`."""
        return d.categorical_entropy(outputs)

    def kl(self, old_outputs: Tensor, old_free: Tensor, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the exact KL(old‖new) `[S, M]`."""
        return categorical_kl(old_outputs, outputs)

    def fisher(
        self, outputs: Tensor, free: Tensor, outputs_change: Tensor, free_change: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the Fisher matrix in every state times a change of the logits."""
        return categorical_fisher(outputs, outputs_change), free_change

    def to_env(self, actions: Tensor) -> Tensor:
        """Shift to the space's first action."""
        return actions + self.start if self.start else actions


class MultiCategoricalHead(_Logits):
    """Logits of the discrete choices of an action `[K]`, which are independent in a given state.

    Args:
        space: space of the choices, with one axis, starting at 0.
        device: device of the networks.
    """

    def __init__(self, space: gymnasium.spaces.MultiDiscrete, *, device: torch.device) -> None:
        super().__init__(space.nvec.tolist())
        sizes = torch.tensor(self.choices, device=device).unsqueeze(1)
        places = torch.arange(int(sizes.max()), device=device).expand(len(sizes), -1)
        self.present = places < sizes
        self.places = (sizes.cumsum(0) - sizes + places).clamp(max=self.outputs - 1)
        self.alike = bool(self.present.all())

    def _by_choice(self, tensor: Tensor, absent: float = -torch.inf) -> Tensor:
        """Reshape `[..., outputs]` to `[..., K, n]`, with n the number of alternatives of the largest choice."""
        if self.alike:
            return torch.unflatten(tensor, -1, self.present.shape)
        return tensor[..., self.places].masked_fill(~self.present, absent)

    def sample(self, outputs: Tensor, free: Tensor, noise: Tensor) -> Tensor:
        """Return actions `[S, M, K]` by the Gumbel-max trick."""
        return d.categorical_sample(self._by_choice(outputs), self._by_choice(noise, 0.0))

    def mode(self, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the alternative with the largest logit for each choice."""
        return d.categorical_mode(self._by_choice(outputs))

    def log_prob(self, outputs: Tensor, free: Tensor, actions: Tensor) -> Tensor:
        """Return the log-probabilities `[S, M]` of `actions`, the sums over their choices."""
        return d.categorical_log_prob(self._by_choice(outputs), actions).sum(-1)

    def entropy(self, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the entropies `[S, M]`, the sums over the choices."""
        return d.categorical_entropy(self._by_choice(outputs)).sum(-1)

    def kl(self, old_outputs: Tensor, old_free: Tensor, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the exact KL(old‖new) `[S, M]`, the sum over the choices."""
        return categorical_kl(self._by_choice(old_outputs), self._by_choice(outputs)).sum(-1)

    def fisher(
        self, outputs: Tensor, free: Tensor, outputs_change: Tensor, free_change: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the Fisher matrix in every state times a change of the logits: one block per choice."""
        products = categorical_fisher(self._by_choice(outputs), self._by_choice(outputs_change, 0.0))
        return products[..., self.present], free_change

    def to_env(self, actions: Tensor) -> Tensor:
        """Return the actions unchanged."""
        return actions


class GaussianHead:
    """Means of independent normal distributions; the log standard deviations are free parameters.

    The unit of the policy's actions is half the range of a bounded space: [-1, 1] is mapped onto the bounds, and
    actions outside are clipped. If a bound is infinite, or the range exceeds float32, the unit is 1, and the origin is
    the number within the bounds closest to 0. NaN becomes 0 in these units, the center.

    Args:
        space: a one-dimensional box of floats.
        log_std: initial log standard deviation.
        device: device of the networks.
    """

    def __init__(self, space: gymnasium.spaces.Box, *, log_std: float, device: torch.device) -> None:
        self.outputs = self.free = int(np.prod(space.shape))
        self.choices: Sequence[int] = ()
        self.log_std = log_std
        self.low, self.high = bounds_within(space, device)
        half = (self.high - self.low) / 2
        bounded = half.isfinite()  # so a range wider than float32 counts as unbounded
        nearest = torch.zeros_like(self.low).clamp(self.low, self.high)
        self.middle = torch.where(bounded, (self.low + self.high) / 2, nearest)
        self.half = torch.where(bounded, half, 1.0)

    def initial(self) -> Tensor:
        """Return the initial log standard deviations."""
        return torch.full((self.free,), self.log_std)

    def noise(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Sample standard normal noise, one number per dimension of the action."""
        return torch.empty((*shape, self.outputs), device=generator.device).normal_(generator=generator)

    def sample(self, outputs: Tensor, free: Tensor, noise: Tensor) -> Tensor:
        """Return actions `[S, M, A]`."""
        return d.gaussian_sample(outputs, self._log_std(free), noise)

    def mode(self, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the means."""
        return d.gaussian_mode(outputs, self._log_std(free))

    def log_prob(self, outputs: Tensor, free: Tensor, actions: Tensor) -> Tensor:
        """Return the log-densities `[S, M]` of `actions` before clipping to the bounds."""
        return d.gaussian_log_prob(outputs, self._log_std(free), actions)

    def entropy(self, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the entropies `[S, M]`, the same for every state."""
        return d.gaussian_entropy(outputs, self._log_std(free))

    def kl(self, old_outputs: Tensor, old_free: Tensor, outputs: Tensor, free: Tensor) -> Tensor:
        """Return the exact KL(old‖new) `[S, M]` before clipping to the bounds."""
        return gaussian_kl(old_outputs, self._log_std(old_free), outputs, self._log_std(free))

    def fisher(
        self, outputs: Tensor, free: Tensor, outputs_change: Tensor, free_change: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the Fisher matrix in every state times a change of means and log standard deviations."""
        means, log_std = gaussian_fisher(self._log_std(free), outputs_change, self._log_std(free_change))
        return means, log_std.squeeze(1)

    def to_env(self, actions: Tensor) -> Tensor:
        """Map [-1, 1] onto the bounds and clip."""
        return torch.addcmul(self.middle, actions.nan_to_num(), self.half).clamp(self.low, self.high)

    def describe(self, outputs: Tensor, free: Tensor) -> dict[str, Tensor]:
        """Return mean and standard deviation `[S, M, A]` in the units of the action space, before clipping."""
        std = (self._log_std(free).exp() * self.half).expand_as(outputs)
        return {"mean": torch.addcmul(self.middle, outputs, self.half), "std": std}

    @staticmethod
    def _log_std(free: Tensor) -> Tensor:
        return free.unsqueeze(1)


def head_for(space: gymnasium.Space[Any], *, log_std: float, device: torch.device) -> Head:
    """Return the head for an action space.

    Args:
        space: Discrete, MultiDiscrete, or a one-dimensional Box of floats.
        log_std: initial log standard deviation of continuous actions.
        device: device of the networks.

    Raises:
        ValueError: if this kind of space has no head.
    """
    match space:
        case gymnasium.spaces.Discrete():
            return CategoricalHead(space)
        case gymnasium.spaces.MultiDiscrete() if len(space.shape) == 1 and not space.start.any():
            return MultiCategoricalHead(space, device=device)
        case gymnasium.spaces.Box() if is_continuous(space):
            return GaussianHead(space, log_std=log_std, device=device)
        case _:
            raise ValueError(
                f"no policy head for action space {space}; Discrete, MultiDiscrete with one axis and start 0, and "
                "one-dimensional Box of float have one"
            )
