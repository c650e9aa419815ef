"""Adam on parameters stacked along the seed axis."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from operant.state import State, copy_into


class StackedAdam:
    """Adam (Kingma & Ba 2015, algorithm 1) with the gradient of each seed clipped and guarded by itself.

    A seed whose gradient norm is not finite, or that is switched off, keeps its parameters, moments and step count
    unchanged, and the others are stepped as if it were not there: what a seed learns does not depend on its neighbours.

    Args:
        parameters: `[S, P]`, stepped in place.
        epsilon: added to the root of the second moment.
        betas: decay rates of the two moments.
        max_grad_norm: largest norm of one seed's gradient; None leaves it alone.
    """

    def __init__(
        self,
        parameters: Tensor,
        *,
        epsilon: float = 1e-8,
        betas: tuple[float, float] = (0.9, 0.999),
        max_grad_norm: float | None = None,
    ) -> None:
        if max_grad_norm is not None and max_grad_norm <= 0:
            raise ValueError(f"max_grad_norm must be positive, or None for no clipping, got {max_grad_norm}")
        self.parameters = parameters
        self.epsilon, self.betas, self.max_grad_norm = epsilon, betas, max_grad_norm
        self.first = torch.zeros_like(parameters)
        self.second = torch.zeros_like(parameters)
        self.steps = torch.zeros(parameters.shape[0], device=parameters.device)
        self.skipped = torch.zeros(parameters.shape[0], dtype=torch.int64, device=parameters.device)
        self._columns = [tensor.unbind(0) for tensor in (parameters, self.first, self.second, self.steps)]

    def step(self, gradient: Tensor, *, learning_rate: float, active: Tensor | None = None) -> Tensor:
        """Clip `gradient [S, P]` in place, step, and return its norm `[S]` from before the clipping.

        Args:
            gradient: gradient of the loss to be minimised.
            learning_rate: step size.
            active: `[S]` bool, the seeds to step. Default: all.
        """
        norm = torch.linalg.vector_norm(gradient, dim=1)
        if self.max_grad_norm is not None:
            gradient.mul_((self.max_grad_norm / (norm + 1e-6)).clamp_(max=1.0).unsqueeze(1))
        if active is None and math.isfinite(norm.sum().item()):
            self.steps += 1
            self._adam(range(len(norm)), gradient, learning_rate)
        else:
            wanted = torch.ones_like(self.skipped, dtype=torch.bool) if active is None else active
            stepped = wanted & norm.isfinite()
            self.skipped += wanted & ~stepped
            self.steps += stepped
            self._adam(stepped.nonzero().flatten().tolist(), gradient, learning_rate)
        return norm

    def _adam(self, seeds: Sequence[int], gradient: Tensor, learning_rate: float) -> None:
        """Step the rows of `seeds`, whose step counts are those of this step already."""
        if not seeds:
            return
        columns = (*self._columns, gradient.unbind(0))
        parameters, first, second, steps, gradients = ([column[seed] for seed in seeds] for column in columns)
        # What torch.optim.Adam(fused=True) calls, without the bookkeeping that takes longer than the step itself.
        torch._fused_adam_(  # pyright: ignore[reportPrivateImportUsage]
            parameters,
            gradients,
            first,
            second,
            [],
            steps,
            lr=learning_rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            weight_decay=0.0,
            eps=self.epsilon,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> State:
        """Return the moments and counters; the parameters belong to their owner."""
        return {"first": self.first, "second": self.second, "steps": self.steps, "skipped": self.skipped}

    def load_state_dict(self, state: State) -> None:
        """Restore moments and counters in place."""
        for name, tensor in self.state_dict().items():
            copy_into(tensor, state[name], f"optimizer.{name}")
