"""Optimizers of parameters stacked along the seed axis: `StackedAdam`, `StackedRMSprop` and `StackedLaProp`."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from operant.state import DeclaredState, State
from operant.tensors import floats, integers, linalg

SUBNORMAL = 5e-324
"""The smallest positive number, unless the processor flushes it to zero."""


@contextmanager
def subnormals_are_zero() -> Generator[None]:
    """Make the processor flush numbers below 1.2e-38 to zero, in this thread.

    The moments of dead ReLUs decay to such numbers permanently: 0.9 times the smallest rounds to itself. Processors
    compute with them several times more slowly.
    """
    already = SUBNORMAL * 1.0 == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(already)


class StackedOptimizer(DeclaredState, ABC):
    """Base of the optimizers: clips the gradient of each seed, and skips steps with NaN or Inf.

    A seed whose gradient norm is NaN or Inf, or that is inactive, keeps its parameters, moments and step count, and the
    others step as usual: seeds do not depend on each other.

    Args:
        parameters: `[S, P]`, stepped in place.
        epsilon: constant that keeps the step finite where the second moment is small.
        max_grad_norm: maximum gradient norm per seed; None: no clipping.

    Raises:
        ValueError: if `max_grad_norm` is not positive.
    """

    STATE = ("second", "steps", "skipped")
    """Moments and counters; the parameters belong to their owner."""

    def __init__(self, parameters: Tensor, *, epsilon: float, max_grad_norm: float | None) -> None:
        if max_grad_norm is not None and max_grad_norm <= 0:
            raise ValueError(f"max_grad_norm must be positive, or None for no clipping, got {max_grad_norm}")
        self.parameters = parameters
        self.epsilon, self.max_grad_norm = epsilon, max_grad_norm
        self.second = torch.zeros_like(parameters)
        self.steps = torch.zeros(parameters.shape[0], device=parameters.device)
        self._counts = torch.zeros(2, parameters.shape[0], dtype=torch.int64, device=parameters.device)
        self._due, self.skipped = self._counts.unbind()

    def step(self, gradient: Any, *, learning_rate: float, active: Tensor | None = None) -> Tensor:
        """Clip `gradient [S, P]` in place, step, and return its norm `[S]` before clipping.

        Args:
            gradient: gradient of the loss to be minimized; the parameters of a seed may lie in several rows.
            learning_rate: learning rate.
            active: mask of the seeds to step, `[S]`. Default: all.
        """
        gradient = self._by_seed(gradient)
        norm = self._norm(gradient)
        norms = floats(norm)
        # Most steps clip nothing; the margin is wider than what separates 32 bits from 64. NaN fails this test too.
        limit = self.max_grad_norm
        if limit is not None and not all(length + 1e-6 <= 0.999 * limit for length in norms):
            self._scale(gradient, (limit / (norm + 1e-6)).clamp_(max=1.0))
        due = range(len(norms)) if active is None else integers(active.nonzero().flatten())
        seeds = [seed for seed in due if math.isfinite(norms[seed])]
        if len(seeds) == len(norms):
            self.steps += 1
            self._due += 1
        else:
            self._count(due, seeds)
        if seeds:
            with subnormals_are_zero():
                self._update(seeds, gradient, learning_rate)
        return norm

    def _count(self, due: Sequence[int], seeds: Sequence[int]) -> None:
        """Count an update that is due for some seeds, and steps those of them with finite gradients."""
        self.steps[list(seeds)] += 1
        self._due[list(due)] += 1
        self.skipped[[seed for seed in due if seed not in seeds]] += 1

    def _by_seed(self, gradient: Any) -> Any:
        """Return the gradient as `_norm`, `_scale` and `_update` need it."""
        return gradient.view(len(self.steps), -1)

    def _norm(self, gradient: Any) -> Tensor:
        """Return the norm `[S]` of each seed's gradient."""
        return linalg.vector_norm(gradient, dim=1)

    def _scale(self, gradient: Any, factors: Tensor) -> None:
        """Multiply each seed's gradient in place by a factor `[S]`."""
        gradient.mul_(factors.unsqueeze(1))

    @abstractmethod
    def _update(self, seeds: Sequence[int], gradient: Any, learning_rate: float) -> None:
        """Step the rows of `seeds`, at least one, whose step counts include this step already."""

    def follow(self, target: Tensor, tau: float) -> None:
        """Move a target network's parameters `[S, P]` in place towards the parameters by the fraction tau."""
        target.lerp_(self.parameters, tau)

    @property
    def counts(self) -> Tensor:
        """Due and skipped updates of each seed, `[2, S]`, in this process."""
        return self._counts.clone()

    def adopt(self, moments: State) -> None:
        """Use these tensors, of the shapes that `state_dict` gives, instead of its own, to share them."""
        for name, tensor in moments.items():
            setattr(self, name, tensor)


class StackedAdam(StackedOptimizer):
    """Adam (Kingma & Ba 2015, algorithm 1), with the gradient of each seed clipped, and steps with NaN or Inf skipped.

    With weight decay it is AdamW (Loshchilov & Hutter 2019, algorithm 2).

    Args:
        parameters: `[S, P]`, stepped in place.
        epsilon: constant added to the root of the second moment.
        betas: decay rates of the two moments.
        max_grad_norm: maximum gradient norm per seed; None: no clipping.
        weight_decay: fraction of a parameter that is subtracted in each step, times the learning rate.
    """

    STATE = ("first", *StackedOptimizer.STATE)

    def __init__(
        self,
        parameters: Tensor,
        *,
        epsilon: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        max_grad_norm: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(parameters, epsilon=epsilon, max_grad_norm=max_grad_norm)
        self.betas, self.weight_decay = betas, weight_decay
        self.first = torch.zeros_like(parameters)
        self._adam = fused_adam(betas=betas, epsilon=epsilon, weight_decay=weight_decay)
        self._split()

    def _split(self) -> None:
        self._columns = [tensor.unbind(0) for tensor in (self.parameters, self.first, self.second, self.steps)]

    def adopt(self, moments: State) -> None:
        """Use these tensors, of the shapes that `state_dict` gives, instead of its own, to share them."""
        super().adopt(moments)
        self._split()

    def _update(self, seeds: Sequence[int], gradient: Tensor, learning_rate: float) -> None:
        columns = (self._columns[0], gradient.unbind(0), *self._columns[1:])
        parameters, gradients, first, second, steps = ([column[seed] for seed in seeds] for column in columns)
        self._adam(parameters, gradients, first, second, [], steps, lr=learning_rate)


def fused_adam(*, betas: tuple[float, float], epsilon: float, weight_decay: float = 0.0) -> Callable[..., None]:
    """Return a function that steps tensors in place by Adam, which torch.optim.AdamW(fused=True) calls, too.

    It omits the bookkeeping of that class, which takes longer than the step itself. Its arguments are lists with
    an entry for each tensor, `(parameters, gradients, first, second, [], steps, lr=learning_rate)`: the two moments are
    updated in place, and the numbers of steps include this one.

    Args:
        betas: decay rates of the moments.
        epsilon: constant added to the root of the second moment.
        weight_decay: fraction of a parameter that is subtracted, times the learning rate (AdamW).
    """
    return partial(
        torch._fused_adamw_,  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage, reportUnknownArgumentType]
        beta1=betas[0],
        beta2=betas[1],
        weight_decay=weight_decay,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
    )


class StackedRMSprop(StackedOptimizer):
    """RMSProp (Tieleman & Hinton 2012) as in Mnih et al. 2016, equations 8 and 9 of the supplement.

    `v <- decay v + (1 - decay) g²` and `θ <- θ - learning_rate g / sqrt(v + ε)`. The ε stands under the root, as in
    TensorFlow, where PyTorch adds it to the root. The average starts at 1, as in TensorFlow: it makes the first steps
    small.

    Args:
        parameters: `[S, P]`, stepped in place.
        epsilon: constant added to the second moment, under the root.
        decay: decay rate of the second moment.
        max_grad_norm: maximum gradient norm per seed; None: no clipping.
    """

    def __init__(
        self, parameters: Tensor, *, epsilon: float = 1e-5, decay: float = 0.99, max_grad_norm: float | None = None
    ) -> None:
        super().__init__(parameters, epsilon=epsilon, max_grad_norm=max_grad_norm)
        self.decay = decay
        self.second.fill_(1.0)

    def _update(self, seeds: Sequence[int], gradient: Tensor, learning_rate: float) -> None:
        if len(seeds) == len(gradient):
            self._rmsprop(self.parameters, self.second, gradient, learning_rate)
        else:
            for seed in seeds:
                self._rmsprop(self.parameters[seed], self.second[seed], gradient[seed], learning_rate)

    def _rmsprop(self, parameters: Tensor, second: Tensor, gradient: Tensor, learning_rate: float) -> None:
        second.mul_(self.decay).addcmul_(gradient, gradient, value=1.0 - self.decay)
        parameters.addcdiv_(gradient, (second + self.epsilon).sqrt_(), value=-learning_rate)


OptimizerName = Literal["adam", "rmsprop"]
"""An optimizer class."""

OPTIMIZERS: dict[OptimizerName, type[StackedAdam] | type[StackedRMSprop]] = {
    "adam": StackedAdam,
    "rmsprop": StackedRMSprop,
}
"""Optimizers by name; each takes `parameters`, `epsilon` and `max_grad_norm`."""


class StackedLaProp(StackedOptimizer):
    """LaProp (Ziyin et al. 2020, arXiv:2002.04839, algorithm 1) behind adaptive gradient clipping.

    The gradient is divided by the root of its second moment before it enters the first, so that a step stays bounded
    with any pair of decay rates: `v <- β2 v + (1 - β2) g²`, `m <- β1 m + (1 - β1) g / (sqrt(v̂) + ε)`,
    `θ <- θ - learning_rate m̂`, where the hats are corrections of the bias.

    Before that the gradient of each tensor is clipped to `clip` times the norm of the tensor (Brock et al. 2021,
    arXiv:2102.06171, equation 3, of whole tensors), of which at least `LEAST_NORM` is taken.

    Args:
        parameters: `[S, P]`, stepped in place.
        sizes: number of parameters of each tensor, P in total.
        clip: maximum norm of a gradient relative to that of its tensor; None: no clipping.
        epsilon: constant added to the root of the second moment.
        betas: decay rates of the two moments.
    """

    STATE = ("first", *StackedOptimizer.STATE)
    LEAST_NORM = 1e-3

    def __init__(
        self,
        parameters: Tensor,
        *,
        sizes: Sequence[int],
        clip: float | None = 0.3,
        epsilon: float = 1e-20,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        super().__init__(parameters, epsilon=epsilon, max_grad_norm=None)
        if sum(sizes) != parameters.shape[1]:
            raise ValueError(f"sizes must sum to the {parameters.shape[1]} parameters of a seed, got {sum(sizes)}")
        self.sizes, self.clip, self.betas = list(sizes), clip, betas
        self.first = torch.zeros_like(parameters)

    def _update(self, seeds: Sequence[int], gradient: Tensor, learning_rate: float) -> None:
        rows = slice(None) if len(seeds) == len(gradient) else torch.tensor(seeds, device=gradient.device)
        every = self.parameters, self.first, self.second, self.steps, gradient
        parameters, first, second, steps, gradient = (tensor[rows] for tensor in every)
        if self.clip is not None:
            gradient = gradient * self._shares(parameters, gradient, self.clip)
        beta1, beta2 = self.betas
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        root = (second / (1 - beta2 ** steps.unsqueeze(1))).sqrt_().add_(self.epsilon)
        first.mul_(beta1).add_(gradient.div(root), alpha=1 - beta1)
        parameters.sub_(first * (learning_rate / (1 - beta1 ** steps.unsqueeze(1))))
        if not isinstance(rows, slice):  # copies were stepped
            for tensor, stepped in zip(every, (parameters, first, second), strict=False):
                tensor[rows] = stepped

    def _shares(self, parameters: Tensor, gradient: Tensor, clip: float) -> Tensor:
        """Return the factors that clip a gradient, `[n, P]`."""
        lengths, norms = (
            torch.stack([linalg.vector_norm(part, dim=1) for part in tensor.split_with_sizes(self.sizes, dim=1)], 1)
            for tensor in (parameters, gradient)
        )
        shares = (clip * lengths.clamp(min=self.LEAST_NORM) / norms.clamp(min=1e-30)).clamp_(max=1.0)
        repeats = torch.tensor(self.sizes, device=gradient.device)
        return shares.repeat_interleave(repeats, 1, output_size=gradient.shape[1])
